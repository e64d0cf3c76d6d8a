"""Names of objects: both readers of the product agree with a hand-written reading."""

import random
from datetime import UTC, datetime

import pyarrow as pa

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import LEGACY_WINDOW, Layout, Name, WindowSize
from lakefs_gc_assets_tests.fuzzing.mutation import hostile_text
from lakefs_gc_assets_tests.fuzzing.running import Case, Target

_LETTERS = "0123456789abcdefghijklmnopqrstuv"
_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_NANOID = frozenset(_BASE64)
_SIZES: tuple[WindowSize, ...] = ("month", "day", "hour", "slice")
_COLUMN = 7


def _some(rng: random.Random, letters: str, count: int) -> str:
    return "".join(rng.choice(letters) for _ in range(count))


def _xid(rng: random.Random) -> str:
    return _some(rng, _LETTERS, 19) + rng.choice("0g")


def _name(rng: random.Random) -> str:
    """A name in any layout, in most cases changed somewhere."""
    part = f".part_{rng.choice((0, 1, 33, 10_000, 10_001, rng.randrange(100_000))):05}"
    suffixes = "", "," + _some(rng, _BASE64, 43), ".multipart", part, part + rng.choice(("_1", "_2", "_1_2"))
    object_ = _xid(rng) + rng.choice(suffixes)
    name = rng.choice(
        (
            f"data/{_xid(rng)}/{object_}",
            f"data/{_xid(rng)}/{object_}",
            f"data/!{_some(rng, _BASE64, 2)}/{_some(rng, _BASE64, 1)}/{_xid(rng)}/{object_}",
            f"data/repo:{_some(rng, _BASE64 + ':', 36)}/{_some(rng, _BASE64, rng.choice((20, 21)))}",
            rng.randbytes(16).hex(),
            "_lakefs/" + rng.randbytes(32).hex(),
            "dummy",
        )
    )
    match rng.randrange(6):
        case 0 | 1:
            return name
        case 2:
            return rng.choice((name + "\n", "\n" + name, name + "/", "/" + name, name.upper(), name + "\0", name[:-1]))
        case _:
            return hostile_text(rng, name)


def _slowly(name: str) -> Name:
    """Reads a name by hand, without patterns."""
    if name == "dummy" or name.startswith("_lakefs/"):
        return Name(Layout.SPECIAL)
    if len(name) == 32 and all(letter in "0123456789abcdef" for letter in name):
        return Name(Layout.FLAT)
    parts = name.split("/")
    if parts[0] != "data" or len(parts) < 3:
        return Name(Layout.UNRECOGNISED)
    sharded = len(parts) == 5 and parts[1][:1] == "!" and len(parts[1]) == 3 and len(parts[2]) == 1
    sharded = sharded and all(letter in _BASE64 for letter in parts[1][1:] + parts[2])
    if len(parts) == 3 or sharded:
        object_, suffix = parts[-1][:20], parts[-1][20:]
        signed = len(suffix) == 44 and suffix[0] == "," and all(letter in _BASE64 for letter in suffix[1:])
        if _is_xid(parts[-2]) and _is_xid(object_) and (not suffix or signed or _is_leftover(suffix)):
            moment = max(_seconds(object_), (64060588800 - _seconds(parts[-2])) % (1 << 32))
            return Name(Layout.SHARDED if sharded else Layout.SLICE, None if sharded else parts[1], moment)
    repository, colon, token = parts[1].partition(":")
    nano = len(parts) == 3 and len(parts[2]) in (20, 21) and _NANOID.issuperset(parts[2])
    if (
        nano
        and colon
        and repository
        and token
        and _NANOID.issuperset(repository)
        and (_NANOID | {":"}).issuperset(token)
    ):
        return Name(Layout.TOKEN)
    return Name(Layout.UNRECOGNISED)


def _is_leftover(suffix: str) -> bool:
    if suffix == ".multipart":
        return True
    number, rounds = suffix[6:11], suffix[11:]
    is_number = len(number) == 5 and all(letter in "0123456789" for letter in number) and 1 <= int(number) <= 10_000
    return suffix[:6] == ".part_" and is_number and rounds in ("", "_1", "_1_2")


def _is_xid(text: str) -> bool:
    return len(text) == 20 and all(letter in _LETTERS for letter in text) and text[-1] in "0g"


def _seconds(xid: str) -> int:
    bits = "".join(f"{_LETTERS.index(letter):05b}" for letter in xid)
    return int(bits[:32], 2)


def _window(name: Name, size: WindowSize) -> str:
    if name.slice is None:
        return LEGACY_WINDOW
    moment = datetime.fromtimestamp((64060588800 - _seconds(name.slice)) % (1 << 32), UTC).isoformat()
    return {"month": moment[:7], "day": moment[:10], "hour": moment[:13], "slice": name.slice}[size]


def _case(rng: random.Random) -> Case:
    """Some names, one by one and as a column."""
    column, size = [_name(rng) for _ in range(rng.randrange(_COLUMN))], rng.choice(_SIZES)
    if rng.random() < 0.2:
        column = [name for name in column if _slowly(name).layout is Layout.SLICE]

    def run() -> str:
        expected = [_slowly(name) for name in column]
        assert [layout.parse(name) for name in column] == expected
        found = layout.read_names(pa.array(column, pa.string()), size)
        assert found.layouts.to_pylist() == [name.layout.value for name in expected]
        assert found.slices.to_pylist() == [name.slice for name in expected]
        assert found.windows.to_pylist() == [_window(name, size) for name in expected]
        issued = [None if moment is None else int(moment.timestamp()) for moment in found.issued_at.to_pylist()]
        assert issued == [name.issued_at for name in expected]
        for name in column:
            assert layout.is_xid(name) == _is_xid(name)
        return "usual" if all(name.layout is Layout.SLICE for name in expected) else "mixed"

    return Case(sum(map(len, column)), run)


TARGETS = (Target("names", _case, frozenset({"usual", "mixed"})),)

"""The fuzzer: hostile inputs made of good ones, and targets run case by case, each from its own seed.

Memory and lines of code are measured now and then.
"""

import copy
import random
import struct
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import varint

MEASURE_EVERY = 50
LONGEST_MESSAGE = 3000
"""Maximum characters of an error message: a person must be able to read it."""

Found = TypeVar("Found")
_POOLS: list[pa.MemoryPool] = []
"""Keeps pools alive: Arrow returns memory of a case to its pool, which must still exist then."""


@dataclass(frozen=True)
class Case:
    """One input and its check: `run` returns a word for the result, and raises if it is wrong.

    Attributes:
        size: bytes of the input.
    """

    size: int
    run: Callable[[], str]


@dataclass(frozen=True)
class Target:
    """A reader of data that others wrote.

    Attributes:
        make: makes the case of a generator.
        outcomes: words that must occur in a long run, or its cases are useless.
        base_bytes, bytes_each: limit of a case's memory: a base, and an addition for each byte of input.
        base_lines, lines_each: limit of the Python lines that it runs, likewise.
    """

    name: str
    make: Callable[[random.Random], Case]
    outcomes: frozenset[str] = frozenset({"error", "read"})
    base_bytes: int = 4 << 20
    bytes_each: int = 200
    base_lines: int = 20_000
    lines_each: int = 50


@dataclass(frozen=True)
class Figures:
    """Figures of a target's run; `seconds` of processor time."""

    cases: int
    seconds: float
    outcomes: Counter[str]
    most_bytes: int
    most_lines: int

    def __str__(self) -> str:
        words = ", ".join(f"{count:,} {word}" for word, count in sorted(self.outcomes.items()))
        return (
            f"{self.cases:,} cases, {self.cases / max(self.seconds, 1e-9):,.0f}/s: {words}; "
            f"at most {self.most_bytes:,} bytes and {self.most_lines:,} lines"
        )


class Failure(AssertionError):
    """A case with a wrong result, with the command that repeats it."""


def run(target: Target, cases: int, seed: int, first: int = 0) -> Figures:
    """Runs a number of cases from `first` on. Raises Failure."""
    outcomes: Counter[str] = Counter()
    most_bytes = most_lines = 0
    started = process_time()
    for number in range(first, first + cases):
        case = target.make(random.Random(seed << 40 | number))
        try:
            outcomes[case.run()] += 1
            if number % MEASURE_EVERY == 0:
                taken, lines = memory_of(case.run), lines_of(case.run)
                most_bytes, most_lines = max(most_bytes, taken), max(most_lines, lines)
                assert taken <= target.base_bytes + target.bytes_each * case.size, f"{taken:,} bytes of memory"
                assert lines <= target.base_lines + target.lines_each * case.size, f"{lines:,} lines of code"
        except Exception as error:
            command = f"python -m {__package__}.targets 1 {seed} {target.name}:{number}"
            raise Failure(f"{target.name}, input of {case.size} bytes: {error!r}. Again: {command}") from error
    return Figures(cases, process_time() - started, outcomes, most_bytes, most_lines)


def outcome(read: Callable[[], Found], right: Callable[[Found], object]) -> str:
    """Returns `error` if reading raises a readable error of ours; else `read`, unless `right` raises."""
    try:
        found = read()
    except CollectionError as error:
        require_clear(error)
        return "error"
    right(found)
    return "read"


def require_clear(error: CollectionError) -> None:
    """Raises AssertionError unless an error's text is printable, on one line and not too long."""
    text = str(error)
    assert text and len(text) <= LONGEST_MESSAGE, f"a message of {len(text)} characters: {text[:200]!r}"
    assert text.isprintable(), f"a message that cannot be shown: {text[:300]!r}"


def memory_of(run: Callable[[], object]) -> int:
    """Peak bytes that Python, numpy and Arrow held during a call."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1] + int(pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def lines_of(run: Callable[[], object]) -> int:
    """Number of Python lines that a call runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines


_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63)
_WRITTEN = [
    *(struct.pack("<I", number & 0xFFFF_FFFF) for number in _NUMBERS),
    *(struct.pack("<Q", number) for number in _NUMBERS),
    *(varint(number) for number in _NUMBERS),
    varint((1 << 64) - 1),
    b"\x80" * 10 + b"\x01",
    b"\xff" * 12,
]

HOSTILE_TEXTS = (
    "",
    "/",
    "//",
    "..",
    "../..",
    "a/../../b",
    "%",
    "%2F",
    "%2e%2e",
    "%00",
    "%zz",
    "?",
    "#",
    ",",
    "\n",
    "a\nb",
    "\r\n",
    "\x00",
    "\x7f",
    "\u2028",
    "\u202e",
    "\ufeff",
    "é",
    "e\u0301",
    "\U0010ffff",
    "'; --",
    '"',
    "\\",
    "true",
    "null",
    "s3://other/data/x",
    "https://[::1",
    "http://[",
    "://",
    "x" * 5000,
)


def mutated(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Makes one to four changes: bits, bytes, overwritten numbers, spans removed, repeated, cut or from `other`."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        span = min(rng.choice((1, 1, 2, 4, 8, 64)), len(changed) - at)
        match rng.randrange(8):
            case 0 | 1 if span:
                changed[at] ^= 1 << rng.randrange(8)
            case 2 if span:
                changed[at] = rng.randrange(256)
            case 3:
                number = rng.choice(_WRITTEN)
                changed[at : at + rng.choice((0, len(number)))] = number
            case 4:
                del changed[at : at + span]
            case 5:
                changed[at:at] = changed[at : at + span] or bytes((rng.randrange(256),))
            case 6 if rng.random() < 0.3:
                del changed[at:]
            case _:
                start = rng.randrange(len(other) + 1)
                changed[at : at + rng.choice((0, span))] = other[start : start + rng.choice((1, 4, 16))]
    return bytes(changed)


def hostile_text(rng: random.Random, near: str = "") -> str:
    """A text without lone surrogates: a known troublemaker, noise, or `near` with some inserted."""
    match rng.randrange(4):
        case 0:
            return rng.choice(HOSTILE_TEXTS)
        case 1:
            return "".join(chr(_scalar(rng)) for _ in range(rng.randrange(12)))
        case _:
            at = rng.randrange(len(near) + 1)
            inserted = rng.choice(HOSTILE_TEXTS) if rng.random() < 0.5 else chr(_scalar(rng))
            return near[:at] + inserted + near[at + rng.choice((0, 0, 1, 3)) :]


def _scalar(rng: random.Random) -> int:
    return rng.choice((rng.randrange(0x80), rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0xE000, 0x110000)))


def _numbers(rng: random.Random) -> Any:
    return rng.choice((0, -1, 1, 1.5, float("inf"), float("nan"), 1e308, -(10**30), 10**30, (1 << 63), True, False))


def mutated_json(rng: random.Random, content: Any) -> Any:
    """A document with one to three values replaced, removed, doubled or nested; sometimes a key is changed."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, key = _somewhere(rng, content)
        if place is None:
            return _replacement(rng, content)
        match rng.randrange(8):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[hostile_text(rng, str(key))] = place.pop(key)
            case 2 if isinstance(place, list):
                place.insert(key, copy.deepcopy(place[key]))
            case _:
                place[key] = _replacement(rng, place[key])
    return content


def _somewhere(rng: random.Random, content: Any) -> tuple[Any, Any]:
    places = [(container, key) for container in _containers(content) for key in _keys(container)]
    return rng.choice(places) if places else (None, None)


def _containers(content: Any) -> list[Any]:
    if not isinstance(content, dict | list):
        return []
    values = content.values() if isinstance(content, dict) else content
    return [content, *(inner for value in values for inner in _containers(value))]


def _keys(container: Any) -> list[Any]:
    return list(container) if isinstance(container, dict) else list(range(len(container)))


def _replacement(rng: random.Random, value: Any) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda: None,
        lambda: _numbers(rng),
        lambda: hostile_text(rng, value if isinstance(value, str) else ""),
        lambda: chr(rng.randrange(0xD800, 0xE000)),  # A lone surrogate: valid in JSON, but cannot be stored.
        lambda: [value],
        lambda: {"x": value},
        lambda: [],
        lambda: {},
        lambda: str(value),
        lambda: value + rng.choice((-1, 1)) if type(value) is int else hostile_text(rng),
    ]
    return rng.choice(makers)()

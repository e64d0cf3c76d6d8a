"""The contract of `collector.engine.port`, as tests that every engine passes.

Each test gives the same task to an engine and to a plain Python model. Addresses are chosen to break comparisons. The
division into tasks and the stated sizes of frames are random, and must not matter.
"""

import random
import re
import string
import threading
import time
import unicodedata
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.hashing import SEED
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.frame.frames import COPIES, HEAD_ENTRIES, LISTED, LIVE, RANGES, RECEIPTS, SIGHTINGS
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.layout import Layout

_MASK = 2**64 - 1
_PRIME_1, _PRIME_2, _PRIME_4, _PRIME_5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_UNDO_1, _UNDO_2 = pow(_PRIME_1, -1, 2**64), pow(_PRIME_2, -1, 2**64)
_READABLE = frozenset(string.printable.encode())


def colliding(seed: int, number: int = 0) -> tuple[str, str]:
    """Two texts of 16 letters and signs with the same hash; other ones for each number.

    The hash XORs the state after the first eight bytes with an invertible function of the last eight. For any two
    beginnings there are therefore endings that collide. Most are no readable text, so beginnings are tried until one
    is.
    """
    chance = random.Random(number)
    while True:
        beginnings = [f"data/{chance.randrange(1000):03}".encode() for _ in range(2)]
        one, other = (_after(beginning, seed) for beginning in beginnings)
        ending = f"{chance.randrange(10**8):08}".encode()
        met = _undone(one ^ other ^ _done(int.from_bytes(ending, "little"))).to_bytes(8, "little")
        if one != other and _READABLE.issuperset(met):
            return (beginnings[0] + ending).decode(), (beginnings[1] + met).decode()


def _after(beginning: bytes, seed: int) -> int:
    """State of the hash of a 16-byte text after its first eight bytes."""
    start = (seed + _PRIME_5 + 16) & _MASK
    return (_turned(start ^ _done(int.from_bytes(beginning, "little")), 27) * _PRIME_1 + _PRIME_4) & _MASK


def _done(eight: int) -> int:
    return _turned(eight * _PRIME_2 & _MASK, 31) * _PRIME_1 & _MASK


def _undone(value: int) -> int:
    return _turned(value * _UNDO_1 & _MASK, 64 - 31) * _UNDO_2 & _MASK


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


Row = dict[str, Any]
Draw = TypeVar("Draw")

COLLISIONS = tuple(pair for number in range(3) for pair in (colliding(SEED, number), colliding(1, number)))
"""Pairs with the same 64-bit hash, by the first hash seed of addresses and by another seed."""
SAME_HASH = {one: other for pair in COLLISIONS[::2] for one, other in (pair, pair[::-1])}

_ISSUED = "data/ft6p2lhksdu988af3vb0/ft6p2lhksdu988af3vb1"
_COMPOSED = "data/\u00e9\u00c5\ufb01\uac00"
ODD_ADDRESSES = (
    *(address for pair in COLLISIONS for address in pair),
    # Each is a prefix of the next, up to the lengths at which the hash uses other code paths.
    *("a" * length for length in (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65)),
    *("data", "data/", "data//", "data/a", "/data/a", "data//a", "data/./a", "data/../a", "data/a/", "data\\a"),
    *(_ISSUED, _ISSUED[:-1], _ISSUED.upper(), _ISSUED + "/", _ISSUED + ",name", _ISSUED.replace("/", "%2F")),
    *("data%2Fa", "data%2fa", "data%252Fa", "%", "%%", "%25", "data/a+b", "data/a b", "data/a%20b"),
    *("A", "a ", " a", "a\t", "a\n", "a\r\n", "a\u00a0", "a\u200b", "\ufeffa", "a\x00", "a\x00b", "\x00"),
    *("'", '"', "`", "\\", "a,b", "a;b", "null", "None", "NULL", "0", "00", "0.0", "1e0", "true"),
    *(unicodedata.normalize(form, _COMPOSED) for form in ("NFC", "NFD", "NFKC", "NFKD")),
    *("\u0131", "\u0130", "i\u0307", "\u00df", "ss", "\u1e9e", "\u03c3", "\u03c2", "\u212b", "\u00c5"),
    *("\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0001f5d1", "\U0001f5d1\ufe0f", "\U0010ffff", "\u202ea"),
)
_NAMES = st.sampled_from(ODD_ADDRESSES)
ADDRESSES = st.integers(0, 7).flatmap(lambda way: _NAMES if way else st.text(max_size=70))
NULLABLE_ADDRESSES = st.integers(0, 15).flatmap(lambda way: ADDRESSES if way else st.none())

CUTOFF = datetime(2026, 11, 20, 1, 2, 3, 456789, UTC)
MICROSECOND = timedelta(microseconds=1)
_MOMENTS = [CUTOFF + step for step in (-9 * 10**6 * MICROSECOND, -MICROSECOND, 0 * MICROSECOND, MICROSECOND)]
_FAR = [datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), datetime(9999, 1, 1, tzinfo=UTC)]
_MOMENTS_OF_PARTS = [moment - timedelta(days=7) for moment in _MOMENTS[1:]]
MOMENTS = st.sampled_from(_MOMENTS + _FAR)
WINDOWS = ["legacy", "2026-10", "2026-11", "other", ""]
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
_PLAIN_ETAGS = ["a" * 32, "b" * 32, EMPTY_MD5]
_PARTS_ETAGS = ["a" * 32 + "-2", "b" * 32 + "-10000", EMPTY_MD5 + "-1"]
_OTHER_ETAGS = [
    "",
    "-2",
    "a" * 31,
    "a" * 33,
    "A" * 32,
    "A" * 32 + "-2",
    "a" * 32 + "-",
    "a" * 32 + "-2x",
    "0x8D1",
    "W/a",
]
ETAGS = st.sampled_from([None, *_PLAIN_ETAGS, *_PARTS_ETAGS, *_OTHER_ETAGS])
SIZES = st.sampled_from([0, 1, 2, 3, 2**31, 2**62])
LAYOUTS = st.sampled_from([layout.value for layout in Layout])


def _with_class(row: dict[str, Any]) -> dict[str, Any]:
    """Derives the class from the size: drawing it too would make rows too large."""
    return {**row, "storage_class": (None, "STANDARD", "GLACIER")[row["size"] % 3]}


LISTED_ROWS = st.fixed_dictionaries(
    {
        "address": ADDRESSES,
        "slice": st.none() | st.sampled_from(["ft6p2lhksdu988af3vb0", ""]),
        "slice_window": st.sampled_from(WINDOWS),
        "layout": LAYOUTS,
        "issued_at": st.none() | MOMENTS,
        "last_modified": MOMENTS,
        "size": SIZES,
        "etag": ETAGS,
    }
).map(_with_class)
RECEIPT_ROWS = st.fixed_dictionaries(
    {
        "address": ADDRESSES,
        "size": SIZES,
        "slice": st.none(),
        "slice_window": st.sampled_from(WINDOWS),
        "outcome": st.sampled_from(["accepted", "failed", "kept_live", ""]),
        "error": st.none() | st.just("AccessDenied"),
        "decided_at": MOMENTS,
        "attempt": st.none() | st.sampled_from(["a1", "a2", ""]),
        "version_id": st.none(),
        "copy_etag": st.none(),
    }
)
CONTENT_ROWS = st.fixed_dictionaries(
    {
        "range_id": st.sampled_from(["r1", "r2"]),
        "path": st.sampled_from([b"", b"\x00", b"\xff\xfe", b"a", "\u00e9".encode()]),
        "size": SIZES,
        "etag": ETAGS,
        "key": NULLABLE_ADDRESSES,
    }
)
LIVE_ROWS = st.fixed_dictionaries(
    {"address": NULLABLE_ADDRESSES, "slice": st.none(), "slice_window": st.sampled_from(WINDOWS)}
)
COUNTS = st.sampled_from([0, 1, 100, 19_999, 40_000, 10**7])
"""Frame sizes stated to an engine: right or wrong, the result is the same."""
KNOWN_COUNTS = st.none() | st.sampled_from([0, 1, 300_000, 300_001])
CHANCES = st.integers(0, 2**32).map(random.Random)

_DRAWN = 20
"""Drawn rows of a large frame; drawing takes longer than the engine's work."""

_NAMELESS = pa.schema([column.with_nullable(True) for column in LIVE])
_TIMES = pa.schema([pa.field("address", pa.string()), pa.field("times", pa.int64())])
_OUT_OF = pa.schema([pa.field("rows", pa.int64()), pa.field("characters", pa.int64())])


def _table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _many(drawn: list[Any], size: int, chance: random.Random) -> list[Any]:
    """The drawn values, repeated: texts recur, and rows combine columns of different drawn rows."""
    more = [chance.choice(drawn) for _ in range(size - len(drawn))]
    if isinstance(drawn[0], dict):
        more = [{name: chance.choice(drawn)[name] for name in row} for row in more]
    return drawn + more


def _bag(rows: Iterable[Row]) -> Counter[tuple[object, ...]]:
    """Rows as a multiset, with columns sorted by name."""
    return Counter(tuple(row[name] for name in sorted(row)) for row in rows)


def _sized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Number of rows of a task, and total length of their addresses."""
    tables = [batch.column("address").to_pylist() for batch in batches]
    addresses = [address for table in tables for address in table]
    yield pa.RecordBatch.from_pydict({"rows": [len(addresses)], "characters": [sum(map(len, addresses))]}, _OUT_OF)


def _counted(part: pa.Table) -> pa.Table:
    """Number of occurrences per address in a part."""
    times = Counter(part.column("address").to_pylist())
    return pa.table([list(times), list(times.values())], schema=_TIMES)


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _read_and_tell(folder: Path) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """Reads a number as one row, and writes a marker file, in any process."""

    def read(number: int) -> Iterator[pa.RecordBatch]:
        (folder / f"{number}-{uuid.uuid4().hex}").touch()
        yield pa.RecordBatch.from_pylist([{"address": str(number), "slice": None, "slice_window": ""}], schema=LIVE)

    return read


def _times_read(folder: Path) -> Counter[int]:
    return Counter(int(file.name.partition("-")[0]) for file in folder.iterdir())


def _fail(number: int) -> Iterator[pa.RecordBatch]:
    raise CorruptFile("_lakefs/abc", "magic", f"not a table: {number}")


def _fail_with(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise CorruptFile("_lakefs/abc", "magic", "not a table")


class EngineContract(Generic[R]):
    """The tests. A subclass provides the engine as a fixture, and bounds its cost if needed.

    Attributes:
        examples: number of examples per test.
        least: minimum rows of a frame; an engine with slow examples uses few large ones.
        most: maximum rows of a frame.
        shrinks: True if a failing case is shrunk, which takes many runs.
        hashes: True if `without` compares by a hash.
    """

    examples: ClassVar[int] = 40
    least: ClassVar[int] = 0
    most: ClassVar[int] = 30
    shrinks: ClassVar[bool] = True
    hashes: ClassVar[bool] = False

    def frames(self, rows: st.SearchStrategy[Draw]) -> st.SearchStrategy[list[Draw]]:
        """Rows of a frame; a large frame's rows are not all the same."""
        if not self.least:
            return st.lists(rows, max_size=self.most)
        sizes = st.integers(self.least, self.most)
        return st.builds(_many, st.lists(rows, min_size=_DRAWN, max_size=_DRAWN, unique_by=repr), sizes, CHANCES)

    def check(self, test: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
        """Runs a test on drawn values."""
        phases = (Phase.generate, Phase.shrink) if self.shrinks else (Phase.generate,)
        tried = settings(
            max_examples=self.examples, phases=phases, suppress_health_check=list(HealthCheck), deadline=None
        )
        tried(given(*strategies)(test))()

    def rows(self, engine: Engine[R], table: pa.Table, chance: random.Random) -> R:
        """A table as rows of the engine, from a random source and in random tasks."""
        bounds = sorted(chance.randint(0, table.num_rows) for _ in range(chance.randint(1, 4)))
        pieces = [
            table.slice(start, end - start) for start, end in zip([0, *bounds], [*bounds, table.num_rows], strict=True)
        ]
        match chance.randrange(5):
            case 0:
                return engine.table(table)
            case 1:
                return engine.read([pieces], pa.Table.to_batches, table.schema)
            case 2:
                return engine.read([pieces[:1], [], pieces[1:]], pa.Table.to_batches, table.schema)
            case 3:
                return engine.map_batches(engine.table(table), _unchanged, table.schema)
            case _:
                rest = engine.read([[piece] for piece in pieces[1:]], pa.Table.to_batches, table.schema)
                return engine.union(engine.table(pieces[0]), rest)

    def test_rows_come_back_as_they_were(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], copies: list[Row], chance: random.Random) -> None:
            for table in (_table(rows, LISTED), _table(copies, HEAD_ENTRIES)):
                made = self.rows(engine, table, chance)
                found = engine.collect(made)
                assert found.schema.names == table.schema.names
                assert found.schema.types == table.schema.types
                assert _bag(found.to_pylist()) == _bag(table.to_pylist())
                assert engine.count(made) == table.num_rows

        self.check(test, self.frames(LISTED_ROWS), self.frames(CONTENT_ROWS), CHANCES)

    @pytest.mark.parametrize("schema", [LISTED, LIVE, RANGES, HEAD_ENTRIES, RECEIPTS, COPIES, SIGHTINGS])
    def test_no_rows_have_columns_all_the_same(self, engine: Engine[R], schema: pa.Schema) -> None:
        for rows in (engine.read([], _fail, schema), engine.read([[], []], _fail, schema)):
            found = engine.collect(rows)
            assert (found.num_rows, found.schema.names, found.schema.types) == (0, schema.names, schema.types)

    def test_at_most_so_many_rows_are_collected(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], limit: int, chance: random.Random) -> None:
            found = engine.collect(self.rows(engine, _table(rows, LISTED), chance), limit)
            assert found.num_rows == min(limit, len(rows))
            assert _bag(found.to_pylist()) <= _bag(rows)
            assert found.schema.names == LISTED.names

        self.check(test, self.frames(LISTED_ROWS), st.sampled_from([0, 1, 10, 10**6]), CHANCES)

    def test_some_columns_in_another_order(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], columns: list[str], chance: random.Random) -> None:
            found = engine.collect(engine.select(self.rows(engine, _table(rows, LISTED), chance), *columns))
            assert found.column_names == columns
            assert _bag(found.to_pylist()) == _bag({name: row[name] for name in columns} for row in rows)

        names = st.lists(st.sampled_from(LISTED.names), min_size=1, unique=True)
        self.check(test, self.frames(LISTED_ROWS), names, CHANCES)

    def test_all_rows_of_several_frames(self, engine: Engine[R]) -> None:
        def test(one: list[Row], two: list[Row], three: list[Row], chance: random.Random) -> None:
            parts = (one, two, three, one)
            found = engine.union(*(self.rows(engine, _table(rows, LISTED), chance) for rows in parts))
            assert _bag(engine.collect(found).to_pylist()) == _bag([*one, *two, *three, *one])

        rows = self.frames(LISTED_ROWS)
        self.check(test, rows, rows, rows, CHANCES)

    def test_rows_of_which_something_holds(self, engine: Engine[R]) -> None:
        def old(batch: pa.RecordBatch) -> pa.BooleanArray:
            return pc.less(batch.column("issued_at"), pa.scalar(CUTOFF))

        def test(rows: list[Row], chance: random.Random) -> None:
            left = engine.where(self.rows(engine, _table(rows, LISTED), chance), old)
            expected = [row for row in rows if row["issued_at"] is not None and row["issued_at"] < CUTOFF]
            assert _bag(engine.collect(left).to_pylist()) == _bag(expected)

        self.check(test, self.frames(LISTED_ROWS), CHANCES)

    def test_rows_whose_text_is_among_values(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], values: list[str | None], column: str, chance: random.Random) -> None:
            left = engine.where_among(self.rows(engine, _table(rows, LISTED), chance), column, values)
            assert _bag(engine.collect(left).to_pylist()) == _bag(row for row in rows if row[column] in values)

        values = st.lists(st.none() | ETAGS | ADDRESSES, max_size=9)
        self.check(test, self.frames(LISTED_ROWS), values, st.sampled_from(["address", "etag", "slice"]), CHANCES)

    def test_what_becomes_of_the_rows_of_each_task(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], chance: random.Random) -> None:
            made = engine.map_batches(self.rows(engine, _table(rows, LISTED), chance), _sized, _OUT_OF)
            found = engine.collect(made).to_pylist()
            assert sum(row["rows"] for row in found) == len(rows)
            assert sum(row["characters"] for row in found) == sum(len(row["address"]) for row in rows)

        self.check(test, self.frames(LISTED_ROWS), CHANCES)

    def test_each_group_is_read_by_one_task(self, engine: Engine[R], tmp_path: Path) -> None:
        first = engine.read([[1, 2, 3], [4], [], [5, 6]], _read_and_tell(tmp_path), LIVE)
        both = engine.union(first, engine.read([[7, 8, 9, 10]], _read_and_tell(tmp_path), LIVE))

        found = engine.collect(engine.map_batches(engine.select(both, "address"), _sized, _OUT_OF))

        assert sorted(found.column("rows").to_pylist()) == [1, 2, 3, 4]
        assert _times_read(tmp_path) == Counter(range(1, 11))

    def test_one_row_of_each_address(self, engine: Engine[R]) -> None:
        def test(one: list[Row], two: list[Row], count: int, chance: random.Random) -> None:
            frames = [self.rows(engine, _table(rows, LISTED), chance) for rows in (one, two)]
            found = engine.collect(engine.map_distinct(frames, _unchanged, LISTED, count)).to_pylist()
            assert sorted(row["address"] for row in found) == sorted({row["address"] for row in one + two})
            assert _bag(found) <= _bag(one + two)

        rows = self.frames(LISTED_ROWS)
        self.check(test, rows, rows, COUNTS, CHANCES)

    def test_all_rows_of_an_address_are_in_one_part(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], count: int, chance: random.Random) -> None:
            made = engine.map_by_address(self.rows(engine, _table(rows, LISTED), chance), _counted, _TIMES, count)
            found = {row["address"]: row["times"] for row in engine.collect(made).to_pylist()}
            assert found == Counter(row["address"] for row in rows)
            assert engine.count(made) == len(found)

        self.check(test, self.frames(LISTED_ROWS), COUNTS, CHANCES)

    def test_no_row_without_an_address_is_in_a_part(self, engine: Engine[R]) -> None:
        nameless = engine.table(_table([{"address": None, "slice_window": ""}], _NAMELESS))
        with pytest.raises(Exception, match="address is null"):
            engine.collect(engine.map_by_address(nameless, _counted, _TIMES, 1))

    def test_one_row_of_each_address_of_frames_that_promise_different_things(self, engine: Engine[R]) -> None:
        """Rows just read have no nullable columns; rows of a stored frame may have them."""

        def test(one: list[str], two: list[str], count: int, chance: random.Random) -> None:
            tables = [
                _table([{"address": address, "slice_window": ""} for address in addresses], schema)
                for addresses, schema in ((one, LIVE), (two, _NAMELESS))
            ]
            frames = [self.rows(engine, table, chance) for table in tables]
            found = engine.collect(engine.map_distinct(frames, _sized, _OUT_OF, count)).to_pylist()
            assert sum(row["rows"] for row in found) == len({*one, *two})

        self.check(test, self.frames(ADDRESSES), self.frames(ADDRESSES), COUNTS, CHANCES)

    def test_each_row_once(self, engine: Engine[R]) -> None:
        def test(one: list[Row], two: list[Row], chance: random.Random) -> None:
            rows = self.rows(engine, _table([*one, *two, *one], _NAMELESS), chance)
            assert _bag(engine.collect(engine.distinct(rows)).to_pylist()) == Counter(set(_bag(one + two)))

        rows = self.frames(LIVE_ROWS)
        self.check(test, rows, rows, CHANCES)

    def test_what_is_live_is_taken_away(self, engine: Engine[R]) -> None:
        """If addresses are compared by hash, a row with the hash of a live one may be missing; never the reverse."""

        def test(rows: list[Row], one: list[Row], two: list[Row], count: int, chance: random.Random) -> None:
            live = [self.rows(engine, _table(frame, _NAMELESS), chance) for frame in (one, two)]
            left = engine.without(self.rows(engine, _table(rows, LISTED), chance), *live, count=count)

            known = {row["address"] for row in one + two}
            taken = known | {SAME_HASH.get(address) for address in known} if self.hashes else known
            found = engine.collect(left)
            left_out = _bag(row for row in rows if row["address"] not in taken)
            assert left_out <= _bag(found.to_pylist()) <= _bag(row for row in rows if row["address"] not in known)
            assert found.schema.names == LISTED.names
            assert found.schema.types == LISTED.types

        live = self.frames(LIVE_ROWS)
        self.check(test, self.frames(LISTED_ROWS), live, live, COUNTS, CHANCES)

    def test_nothing_live_takes_nothing_away(self, engine: Engine[R]) -> None:
        rows = engine.table(_table([{"address": address, "slice_window": ""} for address in ODD_ADDRESSES], LIVE))
        nothing = engine.read([], _fail, LIVE)
        nameless = engine.table(_table([{"slice_window": ""}], _NAMELESS))

        for live in ([], [nothing, nothing], [nameless]):
            assert engine.count(engine.without(rows, *live, count=3)) == len(ODD_ADDRESSES)
        assert engine.count(engine.without_exactly(rows, nameless)) == len(ODD_ADDRESSES)
        assert engine.count(engine.among_exactly(rows, nameless)) == 0
        assert engine.count(engine.without(nothing, rows, count=3)) == 0

    def test_a_row_without_an_address_is_never_left(self, engine: Engine[R]) -> None:
        """Remaining rows may be deleted, so such a row is an error."""
        nameless = engine.table(_table([{"address": "a", "slice_window": ""}, {"slice_window": ""}], _NAMELESS))
        live = engine.table(_table([{"address": "a", "slice_window": ""}], LIVE))

        with pytest.raises(Exception, match="null"):
            engine.count(engine.without(nameless, live, count=3))
        with pytest.raises(Exception, match="null"):
            engine.count(engine.map_distinct([nameless], _unchanged, _NAMELESS, 3))

    def test_addresses_are_compared_as_strings(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], some: list[Row], count: int | None, chance: random.Random) -> None:
            table = _table(rows, _NAMELESS)
            left, addresses = self.rows(engine, table, chance), self.rows(engine, _table(some, _NAMELESS), chance)
            known = {row["address"] for row in some} - {None}

            there = engine.collect(engine.among_exactly(left, addresses, count))
            gone = engine.collect(engine.without_exactly(left, engine.select(addresses, "address"), count))

            assert _bag(there.to_pylist()) == _bag(row for row in rows if row["address"] in known)
            assert _bag(gone.to_pylist()) == _bag(row for row in rows if row["address"] not in known)
            assert there.column_names == gone.column_names == LIVE.names

        rows = self.frames(LIVE_ROWS)
        self.check(test, rows, rows, KNOWN_COUNTS, CHANCES)

    def test_the_address_need_not_come_first(self, engine: Engine[R]) -> None:
        table = _table([{"address": "a", "size": 1}, {"address": "b", "size": 2}], LISTED_ENDING_WITH_ADDRESS)
        rows, some = engine.table(table), engine.table(table.slice(1))

        assert engine.collect(engine.among_exactly(rows, some)).to_pylist() == [{"size": 2, "address": "b"}]
        assert engine.collect(engine.without_exactly(rows, some)).to_pylist() == [{"size": 1, "address": "a"}]
        assert engine.collect(engine.without(rows, some, count=3)).to_pylist() == [{"size": 1, "address": "a"}]
        assert engine.collect(engine.map_distinct([some], _unchanged, table.schema, 3)).column_names == [
            "size",
            "address",
        ]
        assert engine.count_by_sets(rows, some, count=3) == {1: 1, 3: 1}

    def test_rows_without_an_equal_in_some_columns(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], others: list[Row], columns: list[str], chance: random.Random) -> None:
            made, found = (self.rows(engine, _table(frame, RECEIPTS), chance) for frame in (rows, others))
            left = engine.collect(engine.without_matching(made, found, columns))

            keys = {tuple(row[name] for name in columns) for row in others}
            known = {key for key in keys if None not in key}
            expected = [row for row in rows if tuple(row[name] for name in columns) not in known]
            assert _bag(left.to_pylist()) == _bag(expected)
            assert left.column_names == RECEIPTS.names

        columns = st.sampled_from([["address", "attempt"], ["attempt", "address", "decided_at"], ["error", "outcome"]])
        rows = self.frames(RECEIPT_ROWS)
        self.check(test, rows, rows, columns, CHANCES)

    def test_binary_columns_are_compared_as_bytes(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], others: list[Row], chance: random.Random) -> None:
            made, found = (self.rows(engine, _table(frame, HEAD_ENTRIES), chance) for frame in (rows, others))
            left = engine.collect(engine.without_matching(made, found, ["range_id", "path"]))
            known = {(row["range_id"], row["path"]) for row in others}
            assert _bag(left.to_pylist()) == _bag(row for row in rows if (row["range_id"], row["path"]) not in known)

        self.check(test, self.frames(CONTENT_ROWS), st.lists(CONTENT_ROWS, max_size=5), CHANCES)

    def test_each_reason_to_keep_is_reported(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], windows: set[str], sighted: list[Row], chance: random.Random) -> None:
            seen = self.rows(engine, _table(sighted, _NAMELESS), chance)
            reported = engine.kept_because(self.rows(engine, _table(rows, LISTED), chance), CUTOFF, windows, seen)

            known = {row["address"] for row in sighted}
            expected = [{**row, "kept": expected_reason(row, windows, known)} for row in rows]
            found = engine.collect(reported)
            assert _bag(found.to_pylist()) == _bag(expected)
            assert found.column_names == [*LISTED.names, "kept"]

        windows = st.sets(st.sampled_from(WINDOWS), max_size=4)
        self.check(test, self.frames(LISTED_ROWS), windows, self.frames(LIVE_ROWS), CHANCES)

    def test_all_that_decides_is_tried_with_all_else(self, engine: Engine[R]) -> None:
        """Every combination of the inputs of reasons to keep, in one frame."""
        rows = [
            {
                "address": f"data/{layout}/{number}{suffix}",
                "slice_window": window,
                "layout": layout,
                "issued_at": issued,
                "last_modified": modified,
                "size": 1,
                "etag": etag,
                "storage_class": None,
            }
            for layout in Layout
            for window in ("2026-11", "other")
            for issued in (None, *_MOMENTS)
            for modified in (*_MOMENTS, *_MOMENTS_OF_PARTS)
            for suffix in ("", ".multipart", ".part_00001", ".part_1", ".multipart.gz")
            for number, etag in enumerate((None, "a" * 32, "a" * 32 + "-2", "b" * 32 + "-3"))
        ]
        sighted = {f"data/{layout}/3" for layout in Layout}
        seen = _table([{"address": address, "slice_window": ""} for address in sighted] * 2, LIVE)

        reported = engine.kept_because(engine.table(_table(rows, LISTED)), CUTOFF, ["2026-11"], engine.table(seen))

        found = engine.collect(reported).to_pylist()
        assert len(found) == len(rows)
        for row in found:
            assert row["kept"] == expected_reason(row, {"2026-11"}, sighted), row
        assert {row["kept"] for row in found} == {
            None,
            Kept.UNRECOGNISED,
            Kept.YOUNG,
            Kept.OTHER_WINDOW,
            Kept.MULTIPART,
        }

    def test_what_may_have_the_same_content_is_found(self, engine: Engine[R]) -> None:
        def test(rows: list[Row], others: list[Row], chance: random.Random) -> None:
            made = self.rows(engine, _table(rows + rows[:5], HEAD_ENTRIES), chance)
            found = engine.collect(engine.same_content(made, self.rows(engine, _table(others, LISTED), chance)))

            expected = [row for row in rows if any(same_content(row, other) for other in others)]
            assert _bag(found.to_pylist()) == Counter(set(_bag(expected)))
            assert found.column_names == HEAD_ENTRIES.names

        self.check(test, self.frames(CONTENT_ROWS), st.lists(LISTED_ROWS, max_size=6), CHANCES)

    @pytest.mark.parametrize("etag", [None, "a" * 32, "a" * 32 + "-2"])
    def test_all_contents_are_compared_with_one(self, engine: Engine[R], etag: str | None) -> None:
        """Every size and ETag, with an object of one byte and an empty one that have the same ETag."""
        etags = [None, *_PLAIN_ETAGS, *_PARTS_ETAGS, *_OTHER_ETAGS]
        rows = [
            {"range_id": "r", "path": b"", "size": size, "etag": each, "key": None}
            for size in (0, 1, 2)
            for each in etags
        ]
        for size in (0, 1):
            other = {"range_id": "r", "path": b"", "size": size, "etag": etag, "key": None}
            made, others = (engine.table(_table(each, HEAD_ENTRIES)) for each in (rows, [other]))

            found = engine.collect(engine.same_content(made, others))

            assert _bag(found.to_pylist()) == _bag(row for row in rows if same_content(row, other))

    def test_addresses_are_counted_by_the_frames_that_have_them(self, engine: Engine[R]) -> None:
        def test(frames: list[list[Row]], count: int, chance: random.Random) -> None:
            found = engine.count_by_sets(
                *(self.rows(engine, _table(rows, _NAMELESS), chance) for rows in frames), count=count
            )

            addresses = [{row["address"] for row in rows} - {None} for rows in frames]
            everything = set[str]().union(*addresses)
            assert found == Counter(
                sum(1 << number for number, some in enumerate(addresses) if address in some) for address in everything
            )

        self.check(test, st.lists(st.lists(LIVE_ROWS, max_size=self.most), min_size=1, max_size=8), COUNTS, CHANCES)

    def test_nothing_is_read_before_somebody_asks_and_everything_anew_for_each_who_does(
        self, engine: Engine[R], tmp_path: Path
    ) -> None:
        read = engine.read([[1, 2], [3]], _read_and_tell(tmp_path), LIVE)
        live = engine.read([[2]], _read_and_tell(tmp_path), LIVE)
        rows = engine.without(engine.union(read, read), live, count=6)
        made = engine.map_batches(engine.where(engine.select(rows, "address"), _always), _sized, _OUT_OF)
        assert _times_read(tmp_path) == Counter()

        assert engine.count(rows) == 4
        once = _times_read(tmp_path)
        assert sum(row["rows"] for row in engine.collect(made).to_pylist()) == 4

        assert once == Counter({1: 2, 2: 3, 3: 2})
        assert _times_read(tmp_path) == once + once

    @pytest.mark.parametrize("at_most", [3, 10**6])
    def test_what_is_cached_is_made_once(self, engine: Engine[R], tmp_path: Path, at_most: int) -> None:
        rows = engine.read([[1, 2], [3]], _read_and_tell(tmp_path), LIVE)

        with engine.cached(rows, at_most) as several:
            counts = [engine.count(several), engine.count(engine.where(several, _always))]
            left = engine.collect(engine.without_exactly(several, engine.select(several, "address")))
            found = engine.collect(several)

        assert counts == [3, 3]
        assert left.num_rows == 0
        assert sorted(found.column("address").to_pylist()) == ["1", "2", "3"]
        assert found.schema.types == LIVE.types
        assert _times_read(tmp_path) == Counter([1, 2, 3])

    def test_an_error_of_a_task_says_what_happened(self, engine: Engine[R]) -> None:
        rows = engine.table(_table([{"address": "a", "slice_window": ""}], LIVE))
        broken = engine.read([[1], [2]], _fail, LIVE)
        for failing in (broken, engine.map_batches(rows, _fail_with, LIVE)):
            for use in (engine.count, engine.collect):
                with pytest.raises(Exception, match="_lakefs/abc: magic: not a table"):
                    use(failing)
        with (
            pytest.raises(Exception, match="_lakefs/abc: magic: not a table"),
            engine.cached(broken, 3) as several,
        ):
            engine.count(several)

    def test_work_in_the_background_gives_its_result(self, engine: Engine[R]) -> None:
        rows = engine.table(_table([{"address": "a", "slice_window": ""}], LIVE))
        with engine.in_background(lambda: engine.count(rows)) as counted:
            own = engine.count(engine.union(rows, rows))
            assert (counted(), counted(), own) == (1, 1, 2)

    def test_an_error_in_the_background_is_raised_where_the_result_is_asked_for(self, engine: Engine[R]) -> None:
        def fail() -> None:
            raise CorruptFile("lakefs://files/a", "digest", "not the one that was written")

        with engine.in_background(fail) as result:
            for _ in range(2):
                with pytest.raises(CorruptFile, match="not the one"):
                    result()
        with engine.in_background(fail):
            pass

    def test_work_in_the_background_has_ended_when_something_else_fails(self, engine: Engine[R]) -> None:
        ended = threading.Event()

        def work() -> None:
            time.sleep(0.1)
            ended.set()

        with pytest.raises(CorruptFile), engine.in_background(work):
            raise CorruptFile("lakefs://files/a", "digest", "not the one that was written")
        assert ended.is_set()

    def test_it_says_how_many_tasks_it_has(self, engine: Engine[R]) -> None:
        assert engine.tasks >= engine.tasks_at_once >= 1

    @pytest.mark.parametrize("at_most", [None, 1, 2])
    def test_what_is_spread_is_the_same(self, engine: Engine[R], at_most: int | None) -> None:
        rows = [{"address": f"{number}", "slice_window": ""} for number in range(5)]
        read = engine.read([[row] for row in rows], _read_row, LIVE)
        for spread in (engine.spread(read, at_most), engine.spread(engine.table(_table(rows, LIVE)), at_most)):
            assert sorted(engine.collect(spread).column("address").to_pylist()) == [row["address"] for row in rows]


def _read_row(row: Row) -> Iterator[pa.RecordBatch]:
    yield from _table([row], LIVE).to_batches()


LISTED_ENDING_WITH_ADDRESS = pa.schema([LISTED.field("size"), LISTED.field("address")])


def _always(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([True] * batch.num_rows, pa.bool_())


def is_multipart(etag: str | None) -> bool:
    """True if an ETag belongs to a multipart upload."""
    return re.fullmatch(r"[0-9a-f]{32}-[0-9]+", etag or "") is not None


def is_leftover(address: str) -> bool:
    """True if an address belongs to a marker or a first part of an upload."""
    return address.endswith((".multipart", ".part_00001"))


def expected_reason(row: Row, windows: Collection[str], sighted: Collection[str]) -> str | None:
    """The reason to keep an object, by applying the rules in order."""
    if row["layout"] == "unrecognised":
        return Kept.UNRECOGNISED.value
    if row["last_modified"] >= CUTOFF:
        return Kept.YOUNG.value
    if row["issued_at"] is not None and row["issued_at"] >= CUTOFF:
        return Kept.YOUNG.value
    if row["issued_at"] is None and row["layout"] in ("slice", "sharded"):
        return Kept.YOUNG.value
    if is_leftover(row["address"]) and row["last_modified"] >= CUTOFF - timedelta(days=7):
        return Kept.YOUNG.value
    if row["slice_window"] not in windows:
        return Kept.OTHER_WINDOW.value
    return Kept.MULTIPART.value if is_multipart(row["etag"]) and row["address"] not in sighted else None


def same_content(one: Row, other: Row) -> bool:
    """True if two objects may have the same content, judged by sizes and plain MD5s."""

    def digest(row: Row) -> str | None:
        if row["size"] == 0:
            return EMPTY_MD5
        return row["etag"] if re.fullmatch("[0-9a-f]{32}", row["etag"] or "") else None

    mine, theirs = digest(one), digest(other)
    return one["size"] == other["size"] and (mine is None or theirs is None or mine == theirs)

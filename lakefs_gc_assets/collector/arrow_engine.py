"""An engine on plain Arrow tables in one process, and on Python's own sets and dictionaries.

It is the plain one: what others make is compared with what it makes. The one that works with what the driver holds is
built on it (`held_engine.py`).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import pyarrow as pa

from lakefs_gc_assets.collector.engine import (
    KEPT_COUNTS,
    OUTCOME_COUNTS,
    ChangeBatches,
    ChangePart,
    Holds,
    Item,
    ReadItem,
    Result,
)
from lakefs_gc_assets.collector.frame.columns import TIME, microseconds
from lakefs_gc_assets.collector.frame.files import nullable
from lakefs_gc_assets.collector.frame.schemas import LISTED, SIGHTINGS
from lakefs_gc_assets.collector.records.outcomes import EMPTY_MD5, MULTIPART_ETAG, PLAIN_ETAG, Kept
from lakefs_gc_assets.lakefs.layout import Layout

Batches = Iterator[pa.RecordBatch]
Mask = list[bool]
Value = TypeVar("Value")

_MULTIPART, _PLAIN = re.compile(MULTIPART_ETAG), re.compile(PLAIN_ETAG)
# Attributes of an enumeration, looked up once: there are hundreds of thousands of rows in a simulation.
_UNRECOGNISED, _TIMED = Layout.UNRECOGNISED.value, frozenset({Layout.SLICE.value, Layout.SHARDED.value})
_KEPT_UNRECOGNISED, _KEPT_YOUNG = Kept.UNRECOGNISED.value, Kept.YOUNG.value
_KEPT_OTHER_WINDOW, _KEPT_MULTIPART = Kept.OTHER_WINDOW.value, Kept.MULTIPART.value


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """A promise of rows.

    Attributes:
        schema: the columns; each may be null, as for Spark's workers.
        tasks: makes the rows, anew whenever it is called: for each task the batches that it has.
    """

    schema: pa.Schema
    tasks: Callable[[], Iterator[Batches]]


class ArrowEngine:
    """Makes and compares tables of addresses in this process, one task after the other, in order.

    Each group of a `read` is a task. What looks at each row alone, and a `union`, keeps tasks apart; what compares rows
    with each other leaves one task. Addresses are compared as strings, by `without` as well.
    """

    def __init__(self, tasks: int = 2) -> None:
        self._tasks = tasks

    @property
    def tasks(self) -> int:
        """How many tasks read or write files where no setting says otherwise."""
        return self._tasks

    def table(self, table: pa.Table) -> ArrowRows:
        """Rows of one task."""
        schema, batches = nullable(table.schema), table.to_batches()
        return ArrowRows(schema, lambda: iter([as_declared(batches, schema)]))

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> ArrowRows:
        """Rows that are read item by item, each when the batches of the one before are used up."""
        work, declared = [tuple(group) for group in groups if group], nullable(schema)

        def task(items: Iterable[Item]) -> Batches:
            for item in items:
                yield from as_declared(read(item), declared)

        return ArrowRows(declared, lambda: map(task, work))

    def union(self, first: ArrowRows, *more: ArrowRows) -> ArrowRows:
        """All rows of frames that have the same columns. Raises ValueError where they have not."""
        frames = (first, *more)
        if any(frame.schema != first.schema for frame in more):
            raise ValueError(f"frames with other columns have no union: {[frame.schema.names for frame in frames]}")
        return ArrowRows(first.schema, lambda: (task for frame in frames for task in frame.tasks()))

    def select(self, rows: ArrowRows, *columns: str) -> ArrowRows:
        """Some columns, in this order."""
        names = list(columns)
        return each_batch(
            rows, lambda batch: batch.select(names), pa.schema([rows.schema.field(name) for name in names])
        )

    def where(self, rows: ArrowRows, holds: Holds) -> ArrowRows:
        """The rows of which something holds."""
        return each_batch(rows, lambda batch: _left(batch, holds(batch).to_pylist()))

    def where_among(self, rows: ArrowRows, column: str, values: Sequence[str | None]) -> ArrowRows:
        """The rows whose text in a column is among the values; None stands for null."""
        wanted = frozenset(values)
        return _masked(rows, lambda: wanted, lambda batch, known: [value in known for value in _column(batch, column)])

    def map_batches(self, rows: ArrowRows, change: ChangeBatches, schema: pa.Schema) -> ArrowRows:
        """What a function makes of the rows of each task; the function begins when the task before has ended."""
        declared = nullable(schema)

        def changed(batches: Batches) -> Batches:
            yield from as_declared(change(batches), declared)

        return ArrowRows(declared, lambda: map(changed, rows.tasks()))

    def map_distinct(
        self, frames: Sequence[ArrowRows], change: ChangeBatches, schema: pa.Schema, count: int
    ) -> ArrowRows:
        """What a function makes of one row for each address, the first. Raises ValueError where an address is null."""

        def first_of_each() -> Batches:
            known: set[str] = set()
            for batch in batches_of(frames):
                yield _left(batch, [_is_new(address, known) for address in _named(batch)])

        return self.map_batches(ArrowRows(frames[0].schema, lambda: iter([first_of_each()])), change, schema)

    def map_by_address(self, rows: ArrowRows, change: ChangePart, schema: pa.Schema, count: int) -> ArrowRows:
        """What a function makes of the rows, in two parts. Raises ValueError where one has no address."""
        declared = nullable(schema)

        def changed(part: int, whole: pa.RecordBatch, parts: Sequence[int]) -> Batches:
            mine = whole.take(pa.array([place for place, other in enumerate(parts) if other == part], pa.int64()))
            if mine.num_rows:
                yield from as_declared(change(pa.Table.from_batches([mine])).to_batches(), declared)

        def tasks() -> Iterator[Batches]:
            whole = _whole(rows)
            parts = [len(address) % 2 for address in _named(whole)]
            return iter([changed(part, whole, parts) for part in range(2)])

        return ArrowRows(declared, tasks)

    def distinct(self, rows: ArrowRows) -> ArrowRows:
        """Each row once."""

        def first_of_each() -> Batches:
            known: set[tuple[object, ...]] = set()
            for batch in batches_of([rows]):
                yield _left(batch, [_is_new(row, known) for row in _tuples(batch)])

        return ArrowRows(rows.schema, lambda: iter([first_of_each()]))

    def without(self, rows: ArrowRows, *live: ArrowRows, count: int, least: int = 0) -> ArrowRows:
        """The rows whose address is in none of the live frames. Raises ValueError where one has no address."""

        def left() -> Batches:
            known = _addresses(live)
            for batch in batches_of([rows]):
                yield _left(batch, [address not in known for address in _named(batch)])

        return ArrowRows(rows.schema, lambda: iter([left()]))

    def without_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        """The rows whose address is not among the addresses."""
        return _masked(
            rows,
            lambda: _addresses([addresses]),
            lambda batch, known: [address not in known for address in batch.column("address").to_pylist()],
        )

    def among_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        """The rows whose address is among the addresses."""
        return _masked(
            rows,
            lambda: _addresses([addresses]),
            lambda batch, known: [address in known for address in batch.column("address").to_pylist()],
        )

    def without_matching(self, rows: ArrowRows, others: ArrowRows, columns: Sequence[str]) -> ArrowRows:
        """The rows that have no equal in all of these columns; null equals nothing."""
        names = list(columns)

        def keys() -> set[tuple[object, ...]]:
            return {key for batch in batches_of([others]) for key in _tuples(batch.select(names)) if None not in key}

        return _masked(rows, keys, lambda batch, known: [key not in known for key in _tuples(batch.select(names))])

    def kept_because(
        self, unreferenced: ArrowRows, cutoff: datetime, windows: Collection[str], sighted: ArrowRows
    ) -> ArrowRows:
        """Adds the column `kept`: why an unreferenced object stays, null where it may go."""
        schema, collected = unreferenced.schema.append(pa.field("kept", pa.string())), frozenset(windows)

        def reasons() -> _Reasons:
            return _Reasons(microseconds(cutoff), collected, _addresses([sighted]))

        def told(batch: pa.RecordBatch, why: _Reasons) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([*batch.columns, why.of(batch)], schema=schema)

        return each_with(unreferenced, reasons, told, schema)

    def same_content(self, rows: ArrowRows, others: ArrowRows) -> ArrowRows:
        """Rows, each once, that have the size of some row of `others`, and its ETag where both are plain MD5."""

        def contents() -> _Contents:
            return _Contents.of(content for batch in batches_of([others]) for content in _contents(batch))

        alike = _masked(rows, contents, lambda batch, known: [known.may_have(*each) for each in _contents(batch)])
        return self.distinct(alike)

    def youngest_of_each(self, rows: ArrowRows) -> ArrowRows:
        """One row (LISTED) for each address: the one that was modified last, of several such the first."""
        listed = self.select(rows, *LISTED.names)

        def youngest() -> Batches:
            whole = _whole(listed)
            modified = _times(whole, "last_modified")
            best: dict[str | None, int] = {}
            for place, address in enumerate(whole.column("address").to_pylist()):
                if address not in best or _later(modified[place], modified[best[address]]):
                    best[address] = place
            yield whole.take(pa.array(best.values(), pa.int64()))

        return ArrowRows(listed.schema, lambda: iter([youngest()]))

    def earliest_sightings(self, rows: ArrowRows) -> ArrowRows:
        """For each address its earliest `first_listed_at`."""
        schema = nullable(pa.schema([SIGHTINGS.field("address"), SIGHTINGS.field("first_listed_at")]))

        def earliest() -> Batches:
            first = _earliest(rows)
            columns = [pa.array(list(first), pa.string()), pa.array(list(first.values()), pa.int64()).view(TIME)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

        return ArrowRows(schema, lambda: iter([earliest()]))

    def sightings_of(self, rows: ArrowRows, earlier: ArrowRows, listed_at: datetime) -> ArrowRows:
        """The rows as sightings (SIGHTINGS): listed first when an earlier sighting says, else at a moment."""
        schema, now = nullable(SIGHTINGS), microseconds(listed_at)

        def sightings(batch: pa.RecordBatch, first: dict[str | None, int | None]) -> pa.RecordBatch:
            seen = (None if address is None else first.get(address) for address in _column(batch, "address"))
            times = pa.array([now if time is None else time for time in seen], pa.int64()).view(TIME)
            return pa.RecordBatch.from_arrays(
                [batch.column("address"), batch.column("slice_window"), times], schema=schema
            )

        return each_with(rows, lambda: _earliest(earlier), sightings, schema)

    def count(self, rows: ArrowRows) -> int:
        """How many rows there are."""
        return sum(batch.num_rows for batch in batches_of([rows]))

    def collect(self, rows: ArrowRows, limit: int | None = None) -> pa.Table:
        """The rows, at most so many: of no task more is made than that."""
        found: list[pa.RecordBatch] = []
        left = limit
        for task in rows.tasks() if limit != 0 else ():
            for batch in task:
                found.append(batch if left is None else batch.slice(0, left))
                if left is not None and (left := left - found[-1].num_rows) == 0:
                    return pa.Table.from_batches(found, rows.schema)
        return pa.Table.from_batches(found, rows.schema)

    def count_by_sets(self, *frames: ArrowRows, count: int) -> dict[int, int]:
        """How many distinct addresses are in the same frames, of at most eight: bit k of a key is frame k's."""
        if len(frames) > 8:
            raise ValueError(f"{len(frames)} frames, at most eight can be told apart")
        sets: dict[str, int] = {}
        for number, frame in enumerate(frames):
            for address in _addresses([frame]):
                sets[address] = sets.get(address, 0) | 1 << number
        return dict(Counter(sets.values()))

    def count_kept(self, rows: ArrowRows) -> pa.Table:
        """Rows with the column `kept` counted by it: `kept` (null: may go), `objects` and `multipart`."""
        objects: Counter[str | None] = Counter()
        multipart: Counter[str | None] = Counter()
        for batch in batches_of([rows]):
            for kept, etag in zip(_column(batch, "kept"), _column(batch, "etag"), strict=True):
                objects[kept] += 1
                multipart[kept] += _is_multipart(etag)
        columns = [list(objects), list(objects.values()), [multipart[kept] for kept in objects]]
        return pa.table(dict(zip(KEPT_COUNTS.names, columns, strict=True)), schema=KEPT_COUNTS)

    def count_outcomes(self, receipts: ArrowRows) -> pa.Table:
        """Receipts counted by outcome: columns `outcome`, `objects` and `bytes`."""
        objects: Counter[str | None] = Counter()
        sizes: Counter[str | None] = Counter()
        for batch in batches_of([receipts]):
            for outcome, size in zip(_column(batch, "outcome"), batch.column("size").to_pylist(), strict=True):
                objects[outcome] += 1
                sizes[outcome] += size
        columns = [list(objects), list(objects.values()), [sizes[outcome] for outcome in objects]]
        return pa.table(dict(zip(OUTCOME_COUNTS.names, columns, strict=True)), schema=OUTCOME_COUNTS)

    def hold(self, rows: ArrowRows, count: int) -> ArrowRows:
        """The same rows."""
        return rows

    def spread(self, rows: ArrowRows) -> ArrowRows:
        """The same rows."""
        return rows

    @contextmanager
    def cached(self, rows: ArrowRows, at_most: int) -> Iterator[ArrowRows]:
        """Rows for several uses, made by the first of them. A use after the exit raises RuntimeError."""
        made: list[list[pa.RecordBatch]] | None = None
        ended = False

        def tasks() -> Iterator[Batches]:
            nonlocal made
            if ended:
                raise RuntimeError("rows are used after they were let go")
            if made is None:
                made = [list(task) for task in rows.tasks()]
            return map(iter, made)

        try:
            yield ArrowRows(rows.schema, tasks)
        finally:
            ended, made = True, None

    @contextmanager
    def in_background(self, work: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
        """Does a piece of work at once, before anything else happens: of all orders, always the same.

        An error of it is raised when its result is asked for; what is no Exception, such as a killed process, ends
        everything at once.
        """
        try:
            result = work()
        except Exception as error:
            failure = error

            def raised() -> Result:
                raise failure

            yield raised
        else:
            yield lambda: result


@dataclass(frozen=True, slots=True)
class _Reasons:
    """Why objects are kept.

    Attributes:
        cutoff: in microseconds, as all times here.
    """

    cutoff: int
    windows: frozenset[str]
    sighted: set[str]

    def of(self, batch: pa.RecordBatch) -> pa.StringArray:
        columns = (_column(batch, name) for name in ("layout", "slice_window", "etag", "address"))
        times = _times(batch, "last_modified"), _times(batch, "issued_at")
        return pa.array([self._reason(*row) for row in zip(*columns, *times, strict=True)], pa.string())

    def _reason(
        self,
        layout: str | None,
        window: str | None,
        etag: str | None,
        address: str | None,
        modified: int | None,
        issued: int | None,
    ) -> str | None:
        if layout == _UNRECOGNISED:
            return _KEPT_UNRECOGNISED
        if modified is not None and modified >= self.cutoff:
            return _KEPT_YOUNG
        if layout in _TIMED if issued is None else issued >= self.cutoff:
            return _KEPT_YOUNG
        if window not in self.windows:
            return _KEPT_OTHER_WINDOW
        return _KEPT_MULTIPART if _is_multipart(etag) and address not in self.sighted else None


@dataclass(frozen=True, slots=True)
class _Contents:
    """What is known of the contents of objects: of each size the MD5s, and whether some object has no known one."""

    digests: dict[int, set[str | None]]

    @staticmethod
    def of(contents: Iterable[tuple[int, str | None]]) -> "_Contents":
        digests: dict[int, set[str | None]] = {}
        for size, digest in contents:
            digests.setdefault(size, set()).add(digest)
        return _Contents(digests)

    def may_have(self, size: int, digest: str | None) -> bool:
        known = self.digests.get(size, set())
        return bool(known) if digest is None else digest in known or None in known


def _contents(batch: pa.RecordBatch) -> Iterator[tuple[int, str | None]]:
    """Size and MD5 of each object; None where neither size nor ETag tells."""
    for size, etag in zip(batch.column("size").to_pylist(), _column(batch, "etag"), strict=True):
        plain = etag is not None and _PLAIN.match(etag)
        yield size, EMPTY_MD5 if size == 0 else etag if plain else None


def as_declared(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Batches:
    """Batches that have rows, in the columns that were promised. Raises ValueError where they have others."""
    for batch in batches:
        if batch.schema == schema:
            declared = batch
        elif batch.schema.names == schema.names and batch.schema.types == schema.types:
            declared = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        else:
            raise ValueError(f"columns were made other than promised: {batch.schema}, not {schema}")
        if batch.num_rows:
            yield declared


def each_batch(
    rows: ArrowRows, change: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | None = None
) -> ArrowRows:
    """What a function makes of each batch."""
    return ArrowRows(rows.schema if schema is None else schema, lambda: (map(change, task) for task in rows.tasks()))


def each_with(
    rows: ArrowRows,
    prepare: Callable[[], Value],
    change: Callable[[pa.RecordBatch, Value], pa.RecordBatch],
    schema: pa.Schema | None = None,
) -> ArrowRows:
    """What a function makes of each batch with something that is prepared once for each use of the rows."""

    def tasks() -> Iterator[Batches]:
        known = prepare()
        for task in rows.tasks():
            yield (change(batch, known) for batch in task)

    return ArrowRows(rows.schema if schema is None else schema, tasks)


def _masked(rows: ArrowRows, prepare: Callable[[], Value], mask: Callable[[pa.RecordBatch, Value], Mask]) -> ArrowRows:
    """The rows that a mask leaves."""
    return each_with(rows, prepare, lambda batch, known: _left(batch, mask(batch, known)))


def _left(batch: pa.RecordBatch, mask: Sequence[bool | None]) -> pa.RecordBatch:
    """The rows that a mask leaves; where they are neighbours, Arrow has nothing to copy."""
    count = len([True for holds in mask if holds])
    if count == len(mask):
        return batch
    first = mask.index(True) if count else 0
    if all(mask[first : first + count]):
        return batch.slice(first, count)
    return batch.take(pa.array([place for place, holds in enumerate(mask) if holds], pa.int64()))


def batches_of(frames: Iterable[ArrowRows]) -> Batches:
    """All batches of several frames."""
    return (batch for frame in frames for task in frame.tasks() for batch in task)


def _whole(rows: ArrowRows) -> pa.RecordBatch:
    found = list(batches_of([rows]))
    return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], schema=rows.schema)


def _column(batch: pa.RecordBatch, name: str) -> list[str | None]:
    values: list[str | None] = batch.column(name).to_pylist()
    return values


def _named(batch: pa.RecordBatch) -> list[str]:
    """The addresses of a batch, none of which may be null."""
    column = batch.column("address")
    if column.null_count:
        raise ValueError("an address is null")
    addresses: list[str] = column.to_pylist()
    return addresses


def _addresses(frames: Iterable[ArrowRows]) -> set[str]:
    """Distinct addresses; null is none."""
    return {address for batch in batches_of(frames) for address in _column(batch, "address") if address is not None}


def _earliest(rows: ArrowRows) -> dict[str | None, int | None]:
    first: dict[str | None, int | None] = {}
    for batch in batches_of([rows]):
        for address, time in zip(_column(batch, "address"), _times(batch, "first_listed_at"), strict=True):
            if _later(first.setdefault(address, time), time):
                first[address] = time
    return first


def _later(one: int | None, other: int | None) -> bool:
    """Whether a time is later than another one; of what is unknown, nobody can say so."""
    return one is not None and other is not None and one > other


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    columns = [column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _times(batch: pa.RecordBatch, name: str) -> list[int | None]:
    """Microseconds: Arrow makes them a hundred times as fast as moments."""
    times: list[int | None] = batch.column(name).cast(TIME).view(pa.int64()).to_pylist()
    return times


def _is_new(value: Value, known: set[Value]) -> bool:
    """Whether a value is met for the first time."""
    if value in known:
        return False
    known.add(value)
    return True


def _is_multipart(etag: str | None) -> bool:
    return etag is not None and _MULTIPART.match(etag) is not None

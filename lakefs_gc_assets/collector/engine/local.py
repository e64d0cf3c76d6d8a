"""The engine on plain Arrow tables in one process, for up to some hundred thousand rows.

Spark's engine uses it for rows that the driver holds, and simulations run on it alone. Arrow and compiled
code compare the addresses: a Python object for each would take several times the memory of the tables.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import hashing, port
from lakefs_gc_assets.collector.engine.port import (
    ChangeBatches,
    ChangePart,
    Holds,
    Item,
    ReadItem,
    Result,
    nullable,
)
from lakefs_gc_assets.collector.records.outcomes import EMPTY_MD5, PLAIN_ETAG

_KEPT = pa.field("kept", pa.string())

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows that are computed when they are used.

    Attributes:
        schema: the columns, all nullable, as for Spark's workers.
        tasks: computes the rows, anew at each call: for each task, its batches.
    """

    schema: pa.Schema
    tasks: Callable[[], Iterator[Batches]]


class LocalEngine:
    """Makes and compares tables of addresses in this process, one task after the other, in order.

    Each group of a `read` is a task. Operations on single rows, and a `union`, keep tasks apart; operations that
    compare rows with each other result in one task. Addresses are compared as strings, by `without` as well.

    Attributes:
        tasks: number of tasks that read or write files, unless a setting says otherwise.
    """

    tasks_at_once = 1
    ran_on = "this process"

    def __init__(self, tasks: int = 2) -> None:
        self.tasks = tasks

    def table(self, table: pa.Table) -> ArrowRows:
        """Rows of the table, as a single task."""
        schema, batches = nullable(table.schema), table.to_batches()
        return ArrowRows(schema, lambda: iter([as_declared(batches, schema)]))

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> ArrowRows:
        """Rows that are read item by item, each after the batches of the one before are used up."""
        work, declared = [tuple(group) for group in groups if group], nullable(schema)

        def task(items: Iterable[Item]) -> Batches:
            for item in items:
                yield from as_declared(read(item), declared)

        return ArrowRows(declared, lambda: map(task, work))

    def union(self, first: ArrowRows, *more: ArrowRows) -> ArrowRows:
        """All rows of frames that have the same columns. Raises ValueError if their columns differ."""
        frames = (first, *more)
        if any(frame.schema != first.schema for frame in more):
            raise ValueError(f"frames with other columns have no union: {[frame.schema.names for frame in frames]}")
        return ArrowRows(first.schema, lambda: (task for frame in frames for task in frame.tasks()))

    def select(self, rows: ArrowRows, *columns: str) -> ArrowRows:
        """Some columns, in this order."""
        names = list(columns)
        schema = pa.schema([rows.schema.field(name) for name in names])
        return _each_batch(rows, lambda batch: batch.select(names), schema)

    def where(self, rows: ArrowRows, holds: Holds) -> ArrowRows:
        """The rows for which a condition holds."""
        return _filtered(rows, lambda: holds)

    def where_among(self, rows: ArrowRows, column: str, values: Sequence[str | None]) -> ArrowRows:
        """The rows whose text in a column is among the values; None stands for null."""
        return self.where(rows, partial(port.is_one_of, column, values))

    def map_batches(self, rows: ArrowRows, change: ChangeBatches, schema: pa.Schema) -> ArrowRows:
        """The result of a function for each task's rows; the tasks run one after the other."""
        declared = nullable(schema)

        def changed(batches: Batches) -> Batches:
            yield from as_declared(change(batches), declared)

        return ArrowRows(declared, lambda: map(changed, rows.tasks()))

    def map_distinct(
        self, frames: Sequence[ArrowRows], change: ChangeBatches, schema: pa.Schema, count: int
    ) -> ArrowRows:
        """The result of a function for the first row with each address. Raises ValueError if an address is null."""
        firsts = _of_whole(frames, frames[0].schema, lambda whole: whole.filter(_is_first(whole.column("address"))))
        return self.map_batches(firsts, change, schema)

    def map_by_address(self, rows: ArrowRows, change: ChangePart, schema: pa.Schema, count: int) -> ArrowRows:
        """The result of a function for the rows, in two parts. Raises ValueError if a row has no address."""
        declared = nullable(schema)

        def changed(whole: pa.RecordBatch, part: pa.BooleanArray) -> Batches:
            mine = whole.filter(part)
            if mine.num_rows:
                yield from as_declared(change(pa.Table.from_batches([mine])).to_batches(), declared)

        def tasks() -> Iterator[Batches]:
            whole = _require_addresses(_whole([rows]))
            # Two parts, by length, so that no function gets used to seeing all rows at once.
            odd = pc.equal(pc.bit_wise_and(pc.binary_length(whole.column("address")), 1), 1)
            return iter([changed(whole, part) for part in (pc.invert(odd), odd)])

        return ArrowRows(declared, tasks)

    def distinct(self, rows: ArrowRows) -> ArrowRows:
        """Distinct rows."""

        names = rows.schema.names

        def each_once(whole: pa.RecordBatch) -> pa.RecordBatch:
            # Groups come in the order of their first rows; null is a value like others.
            grouped = pa.Table.from_batches([whole]).group_by(names, use_threads=False).aggregate([])
            return pa.RecordBatch.from_arrays([grouped.column(name).combine_chunks() for name in names], names=names)

        return _of_whole([rows], rows.schema, each_once)

    def without(self, rows: ArrowRows, *live: ArrowRows, count: int, least: int = 0) -> ArrowRows:
        """The rows whose address is in none of the live frames. Raises ValueError if a row has no address."""
        return self._by_address(_each_batch(rows, _require_addresses), live, among=False)

    def without_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        """The rows whose address is not among the addresses."""
        return self._by_address(rows, [addresses], among=False)

    def among_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        """The rows whose address is among the addresses."""
        return self._by_address(rows, [addresses], among=True)

    def _by_address(self, rows: ArrowRows, others: Sequence[ArrowRows], *, among: bool) -> ArrowRows:
        def choose(whole: pa.Table, addresses: pa.StringArray) -> pa.Table:
            named = port.is_among(addresses, whole)
            return whole.filter(named if among else pc.invert(named))

        return self._with_addresses(rows, others, choose)

    def _with_addresses(
        self,
        rows: ArrowRows,
        others: Sequence[ArrowRows],
        change: Callable[[pa.Table, pa.StringArray], pa.Table],
        schema: pa.Schema | None = None,
    ) -> ArrowRows:
        """The result of a function for all rows of a task and the addresses of others.

        Arrow builds its table of the addresses anew at each call, so the function is called once for each task.
        """

        def changed(task: Batches, addresses: pa.StringArray) -> Batches:
            yield from change(pa.Table.from_batches(task, rows.schema), addresses).to_batches()

        def tasks() -> Iterator[Batches]:
            addresses = self.named(*others)
            return (changed(task, addresses) for task in rows.tasks())

        return ArrowRows(rows.schema if schema is None else schema, tasks)

    def without_matching(self, rows: ArrowRows, others: ArrowRows, columns: Sequence[str]) -> ArrowRows:
        """The rows that have no equal in the given columns; null equals nothing."""
        names = list(columns)

        def keys(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
            return zip(*(batch.column(name).to_pylist() for name in names), strict=True)

        def has_no_equal() -> Holds:
            their_keys = {key for batch in batches_of([others]) for key in keys(batch) if None not in key}
            return lambda batch: pa.array([key not in their_keys for key in keys(batch)], pa.bool_())

        return _filtered(rows, has_no_equal)

    def named(self, *frames: ArrowRows) -> pa.StringArray:
        """The addresses of all rows, without nulls, perhaps with duplicates."""
        columns = [batch.column("address").drop_null() for batch in batches_of(frames)]
        return pa.concat_arrays([pa.array([], pa.string()), *columns])

    def kept_because(
        self, unreferenced: ArrowRows, cutoff: datetime, windows: Collection[str], sighted: ArrowRows
    ) -> ArrowRows:
        """Adds the column `kept`: the reason to keep an unreferenced object, null if it may go."""
        add_reason = partial(port.kept_because, cutoff, frozenset(windows), port.is_sighted)
        schema = unreferenced.schema.append(_KEPT)

        def add_reasons(whole: pa.Table, addresses: pa.StringArray) -> pa.Table:
            known = whole.append_column("sighted", port.is_among(addresses, whole))
            with_reasons = [add_reason(batch).select(schema.names) for batch in known.to_batches()]
            return pa.Table.from_batches(with_reasons, schema)

        return self._with_addresses(unreferenced, [sighted], add_reasons, schema)

    def same_content(self, rows: ArrowRows, others: ArrowRows) -> ArrowRows:
        """Distinct rows that have the size of some row in `others`, and its ETag if both are plain MD5."""

        def alike() -> Holds:
            theirs = _whole([self.select(others, "size", "etag")])
            sizes, digests = theirs.column("size"), _digests(theirs)
            unknown = sizes.filter(pc.is_null(digests))
            contents = _contents(sizes, digests).drop_null()

            def holds(batch: pa.RecordBatch) -> pa.BooleanArray:
                size, digest = batch.column("size"), _digests(batch)
                same = pc.is_in(_contents(size, digest), value_set=contents, skip_nulls=True)
                may_be = pc.if_else(
                    pc.is_null(digest), pc.is_in(size, value_set=sizes), pc.is_in(size, value_set=unknown)
                )
                return pc.or_(same, may_be)

            return holds

        return self.distinct(_filtered(rows, alike))

    def count(self, rows: ArrowRows) -> int:
        """Number of rows."""
        return sum(batch.num_rows for batch in batches_of([rows]))

    def collect(self, rows: ArrowRows, limit: int | None = None) -> pa.Table:
        """The rows, at most `limit`; tasks compute no further batches after that."""
        collected: list[pa.RecordBatch] = []
        remaining = limit
        for task in rows.tasks() if limit != 0 else ():
            for batch in task:
                collected.append(batch if remaining is None else batch.slice(0, remaining))
                if remaining is not None and (remaining := remaining - collected[-1].num_rows) == 0:
                    return pa.Table.from_batches(collected, rows.schema)
        return pa.Table.from_batches(collected, rows.schema)

    def count_by_sets(self, *frames: ArrowRows, count: int) -> dict[int, int]:
        """Distinct addresses by the frames that hold them, at most eight frames: bit k of a key is frame k's."""
        if len(frames) > 8:
            raise ValueError(f"{len(frames)} frames; at most eight can be counted")
        columns = [self.named(frame) for frame in frames]
        one, other = (
            np.concatenate([hashing.hashes(addresses, seed) for addresses in columns])
            for seed in (hashing.SEED, hashing.OTHER_SEED)
        )
        bits = np.repeat(1 << np.arange(len(columns)), [len(addresses) for addresses in columns]).astype(np.uint8)
        counts = hashing.count_by_sets(one, other, bits)
        return {int(sets): int(counts[sets]) for sets in np.flatnonzero(counts)}

    def hold(self, rows: ArrowRows, count: int) -> ArrowRows:
        """The same rows."""
        return rows

    def spread(self, rows: ArrowRows, at_most: int | None = None) -> ArrowRows:
        """The same rows: one task runs at a time, however many there are."""
        return rows

    @contextmanager
    def cached(self, rows: ArrowRows, at_most: int) -> Iterator[ArrowRows]:
        """Rows for several uses, computed by the first use. A use after the exit raises RuntimeError."""
        ended = False

        @cache
        def made() -> list[list[pa.RecordBatch]]:
            return [list(task) for task in rows.tasks()]

        def tasks() -> Iterator[Batches]:
            if ended:
                raise RuntimeError("rows are used after they were let go")
            return map(iter, made())

        try:
            yield ArrowRows(rows.schema, tasks)
        finally:
            ended = True
            made.cache_clear()

    @contextmanager
    def in_background(self, work: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
        """Does the work at once, before anything else happens, so that the order is always the same.

        An Exception is raised when its result is asked for. Any other BaseException, such as of a killed process, ends
        everything at once.
        """
        done: Future[Result] = Future()
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)
        yield done.result

    def name_work(self, work: str, run: str = "") -> AbstractContextManager[None]:
        """Does nothing: this engine shows no work."""
        return nullcontext()


def as_declared(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Batches:
    """Batches that have rows, in the promised columns. Raises ValueError if the columns differ."""
    for batch in batches:
        if batch.schema == schema:
            declared = batch
        elif batch.schema.names == schema.names and batch.schema.types == schema.types:
            declared = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        else:
            raise ValueError(f"columns were made other than promised: {batch.schema}, not {schema}")
        if batch.num_rows:
            yield declared


def batches_of(frames: Iterable[ArrowRows]) -> Batches:
    """All batches of several frames."""
    return (batch for frame in frames for task in frame.tasks() for batch in task)


def _whole(frames: Sequence[ArrowRows]) -> pa.RecordBatch:
    """All rows of several frames that have the same columns, in one batch."""
    batches_of_all = list(batches_of(frames))
    return (
        pa.concat_batches(batches_of_all) if batches_of_all else pa.RecordBatch.from_pylist([], schema=frames[0].schema)
    )


def _of_whole(
    frames: Sequence[ArrowRows], schema: pa.Schema, change: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> ArrowRows:
    """One task: the result of a function for all rows of some frames together."""

    def changed() -> Batches:
        yield from as_declared([change(_whole(frames))], schema)

    return ArrowRows(schema, lambda: iter([changed()]))


def _each_batch(
    rows: ArrowRows, change: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | None = None
) -> ArrowRows:
    """The result of a function for each batch."""
    return ArrowRows(rows.schema if schema is None else schema, lambda: (map(change, task) for task in rows.tasks()))


def _filtered(rows: ArrowRows, prepare: Callable[[], Holds]) -> ArrowRows:
    """The rows that meet a condition, which is prepared once for each use of the rows."""

    def tasks() -> Iterator[Batches]:
        holds = prepare()
        for task in rows.tasks():
            yield (batch.filter(holds(batch)) for batch in task)

    return ArrowRows(rows.schema, tasks)


def _require_addresses(rows: pa.RecordBatch) -> pa.RecordBatch:
    if rows.column("address").null_count:
        raise ValueError("an address is null")
    return rows


def _is_first(addresses: pa.StringArray) -> pa.BooleanArray:
    """True for the first among equal addresses. Raises ValueError if one is null."""
    return pa.array(hashing.first_of_each(addresses, hashing.hashes(addresses)))


def _digests(rows: pa.RecordBatch) -> pa.StringArray:
    """The MD5s of the objects' contents; null if neither size nor ETag states it."""
    size, etag = (rows.column(name) for name in ("size", "etag"))
    plain = pc.fill_null(pc.match_substring_regex(etag, PLAIN_ETAG), False)
    return pc.if_else(pc.equal(size, 0), EMPTY_MD5, pc.if_else(plain, etag, pa.scalar(None, pa.string())))


def _contents(sizes: pa.Int64Array, digests: pa.StringArray) -> pa.StringArray:
    """Sizes and MD5s of objects, joined to one text each; null if the MD5 is unknown."""
    return pc.binary_join_element_wise(sizes.cast(pa.string()), digests, " ")

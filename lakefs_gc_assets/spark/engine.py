"""The engine on Spark: tables of addresses as Spark's frames, small tables in the driver."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from lakefs_gc_assets.collector.engine import hashing, port
from lakefs_gc_assets.collector.engine.hashing import Hashes, HashSet
from lakefs_gc_assets.collector.engine.local import ArrowRows, Batches
from lakefs_gc_assets.collector.engine.port import LOCAL_ROWS, ChangeBatches, ChangePart, Holds, Item, ReadItem, Result
from lakefs_gc_assets.collector.records.outcomes import EMPTY_MD5, PLAIN_ETAG
from lakefs_gc_assets.spark import blocks, session, tasks, work_names
from lakefs_gc_assets.spark.tasks import HERE, DriverRows, Mapped, Reading, Rows, United, dataframe_of

# Join keys of a row besides its content: any row has _ANY, and a row with unknown content may match _UNKNOWN.
_ANY, _UNKNOWN = "any", "unknown"


def _content() -> Column:
    """The MD5 of an object's content; null if neither its size nor its ETag gives it.

    An encrypted object's ETag may look like an MD5. The MD5 of empty content needs no ETag.
    """
    return F.when(F.col("size") == 0, F.lit(EMPTY_MD5)).when(F.col("etag").rlike(PLAIN_ETAG), F.col("etag"))


MANY_ADDRESSES = 1_000_000
"""Minimum rows for which reading them twice pays off: once to find remaining hashes, and once to find their rows."""
FEW_HASHES = 2_000_000
"""Maximum hashes of remaining rows that are sent to every executor: 16 MB."""
_TYPES_OF_ROWS = {"spark.sql.execution.arrow.useLargeVarTypes": "false", "spark.sql.session.timeZone": "UTC"}
"""Session properties that make strings and times in Spark's batches have the types that tasks read."""
_FEW_REQUESTS = 1000
"""Rows for one bulk request, or for a thousand parallel requests, which take about as long as the start of tasks."""
_ADDRESS = pa.schema([pa.field("address", pa.string())])
_NUMBER = pa.schema([pa.field("number", pa.int64())])
_IN_DRIVER = threading.RLock()
"""Held while the driver works on rows that it holds. Two such works at once would share the GIL, and double its tables.
"""
P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound="SparkEngine")


def in_driver_if_held(operation: Callable[Concatenate[E, P], T]) -> Callable[Concatenate[E, P], T]:
    """Decorator: the driver's engine runs the operation if the driver holds the rows of all operands."""

    @wraps(operation)
    def chosen(engine: E, /, *arguments: P.args, **named: P.kwargs) -> T:
        operands = [rows for each in (*arguments, *named.values()) for rows in _operands(each)]
        if not operands or not all(isinstance(rows, DriverRows) for rows in operands):
            return operation(engine, *arguments, **named)
        here = getattr(HERE, operation.__name__)
        with _IN_DRIVER:
            result = here(*map(_as_held, arguments), **{name: _as_held(each) for name, each in named.items()})
        return cast(T, DriverRows(engine.spark, result) if isinstance(result, ArrowRows) else result)

    return chosen


def _operands(argument: object) -> list[Rows]:
    values = argument if isinstance(argument, list | tuple) else [argument]
    return [each for each in values if isinstance(each, DataFrame | Reading | Mapped | DriverRows | United)]


def _as_held(argument: Any) -> Any:
    """An argument for the driver's engine."""
    if isinstance(argument, list | tuple):
        return [_as_held(each) for each in argument]
    return argument.rows if isinstance(argument, DriverRows) else argument


class SparkEngine:
    """Creates and compares tables of addresses on Spark; `collector.engine.port.Engine` defines the operations.

    Functions of single rows run in the task that reads the rows, before Spark gets them. Rows that the driver holds
    stay there: no task starts for a few rows, and the rows compared with them are not shuffled.

    Attributes:
        tasks: default number of tasks that read or write files.
    """

    def __init__(self, spark: SparkSession | Callable[[], SparkSession], tasks: int) -> None:
        """Takes a session, or a function that creates one when the first task is needed."""
        self.spark = _prepared(spark) if not callable(spark) else session.on_demand(lambda: _prepared(spark()))
        self.tasks = tasks
        # There are several times as many tasks as cores.
        self.tasks_at_once = max(1, tasks // session.TASKS_PER_CORE)

    @property
    def ran_on(self) -> str:
        """Spark, or this process if no session was needed so far."""
        return "Spark" if session.is_used(self.spark) else HERE.ran_on

    def table(self, table: pa.Table) -> Rows:
        """Rows from the driver: few rows stay there; more, up to a file's worth, are sent with the plan."""
        few = table.num_rows <= LOCAL_ROWS
        return DriverRows.of_table(self.spark, table) if few else tasks.of_table(self.spark, table)

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> Rows:
        """Rows that tasks read; each worker gets the items of its own tasks."""
        return Reading(self.spark, groups, read, schema) if any(groups) else self.table(schema.empty_table())

    @in_driver_if_held
    def union(self, first: Rows, *more: Rows) -> Rows:
        """All rows of frames with the same columns, in the frames' own tasks."""
        return tasks.union([first, *more])

    def select(self, rows: Rows, *columns: str) -> Rows:
        """Some columns, in this order."""
        return tasks.select(rows, *columns)

    def where(self, rows: Rows, holds: Holds) -> Rows:
        """The rows for which a condition holds."""
        return tasks.where(rows, holds)

    def where_among(self, rows: Rows, column: str, values: Sequence[str | None]) -> Rows:
        """The rows whose text in a column is among the values; None stands for null."""
        return tasks.where_among(rows, column, values)

    def map_batches(self, rows: Rows, change: ChangeBatches, schema: pa.Schema) -> Rows:
        """Applies a function to the rows of each task, in the task that reads them."""
        return tasks.map_batches(rows, change, schema)

    @in_driver_if_held
    def map_distinct(self, frames: Sequence[Rows], change: ChangeBatches, schema: pa.Schema, count: int) -> Rows:
        """Applies a function to one row per address; it runs once in each task, on many parts."""
        parts = blocks.parts_of(frames[0], count)
        return blocks.merged([blocks.cut_once(rows, parts) for rows in tasks.not_empty(frames)], parts, change, schema)

    @in_driver_if_held
    def map_by_address(self, rows: Rows, change: ChangePart, schema: pa.Schema, count: int) -> Rows:
        """Applies a function to the rows in parts; all rows of one address are in one part."""
        parts = blocks.parts_of(rows, count)
        return blocks.compared([blocks.cut(rows, parts)], parts, blocks.changed(change), schema)

    @in_driver_if_held
    def distinct(self, rows: Rows) -> Rows:
        """Each row once."""
        return dataframe_of(rows).distinct()

    @in_driver_if_held
    def without(self, rows: Rows, *live: Rows, count: int, least: int = 0) -> Rows:
        """The rows whose address is in none of the live frames (anti-join).

        For rows that the driver holds, tasks report the addresses that they find in the live frames. Other rows are
        compared by a 64-bit hash; a collision keeps an object. If few of many rows remain, only these are shuffled. A
        row that appears only in the second read is not among them.
        """
        if isinstance(rows, DriverRows):
            return self._compared_here(HERE.without, rows, live)
        parts = blocks.parts_of(rows, count)
        held = [blocks.cut_hashes(frame, parts, frame=1) for frame in (tasks.not_empty(live) if live else ())]
        worthwhile = count >= MANY_ADDRESSES and least <= FEW_HASHES
        if worthwhile and (left := self._hashes_left(rows, held, parts)) is not None:
            # Shuffle these rows: otherwise the remaining rows of a single large file would stay in one task.
            rows, held = tasks.where(rows, partial(hashing.has_hash_among, HashSet.from_hashes(left))), []
        return blocks.compared([blocks.cut(rows, parts), *held], parts, blocks.unmatched, tasks.schema_of(rows))

    def _hashes_left(self, rows: Rows, held: Sequence[Rows], parts: int) -> Hashes | None:
        """Hashes of the rows' addresses that are in no `held` frame; None if a part has too many."""
        cut = [blocks.cut_hashes(tasks.select(rows, "address"), parts, frame=0), *held]
        unmatched = self.collect(blocks.compared(cut, parts, blocks.unmatched_hashes(FEW_HASHES // parts), blocks.LEFT))
        hashes = unmatched.column("hashes")
        return None if hashes.null_count else np.frombuffer(b"".join(hashes.to_pylist()), np.uint64)

    @in_driver_if_held
    def without_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        """The rows whose address is not among the addresses. Addresses in the driver are sent to every task."""
        return self._compared_exactly(rows, addresses, count, among=False)

    @in_driver_if_held
    def among_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        """The rows whose address is among the addresses. Addresses in the driver are sent to every task."""
        return self._compared_exactly(rows, addresses, count, among=True)

    def _compared_exactly(self, rows: Rows, addresses: Rows, count: int | None, *, among: bool) -> Rows:
        """The rows whose address is among some addresses, or is not, compared as strings.

        If the number of rows is unknown, Spark joins both frames by sorting, which works for any number.
        """
        if isinstance(addresses, DriverRows):
            return tasks.where(rows, partial(port.is_among if among else port.is_not_among, HERE.named(addresses.rows)))
        if isinstance(rows, DriverRows):
            return self._compared_here(HERE.among_exactly if among else HERE.without_exactly, rows, [addresses])
        named = tasks.select(addresses, "address")
        if count is None:
            return _joined(rows, named, ["address"], "left_semi" if among else "left_anti")
        parts = blocks.parts_of(rows, count)
        cut = [blocks.cut(each, parts, frame, with_nulls=True) for frame, each in enumerate((rows, named))]
        return blocks.compared(cut, parts, blocks.compared_exactly(among), tasks.schema_of(rows))

    @in_driver_if_held
    def without_matching(self, rows: Rows, others: Rows, columns: Sequence[str]) -> Rows:
        """The rows that equal no row of `others` in all these columns; null equals nothing."""
        return _joined(rows, tasks.select(others, *columns), columns, "left_anti")

    @in_driver_if_held
    def kept_because(self, unreferenced: Rows, cutoff: datetime, windows: Collection[str], sighted: Rows) -> Rows:
        """Adds the column `kept`: the reason to keep an unreferenced object, null if it may be deleted."""
        columns = tasks.schema_of(unreferenced)
        rows: Rows = unreferenced
        known: Holds = port.is_sighted
        if isinstance(sighted, DriverRows):
            known = partial(port.is_among, HERE.named(sighted.rows))
        else:
            seen = dataframe_of(tasks.select(sighted, "address")).distinct().withColumn("sighted", F.lit(True))
            rows = dataframe_of(unreferenced).join(seen, "address", "left").select(*columns.names, "sighted")
        why = partial(port.kept_because, cutoff, frozenset(windows), known)
        with_kept = StructType([*tasks.schema_of(rows), StructField("kept", StringType())])
        return tasks.select(tasks.map_each(rows, why, with_kept), *columns.names, "kept")

    @in_driver_if_held
    def same_content(self, rows: Rows, others: Rows) -> Rows:
        """Distinct rows with the same size as a row of `others`, and the same ETag if both are plain MD5s."""
        frame, other = dataframe_of(rows), dataframe_of(others)
        content, present, unknown = _content(), F.lit(_ANY), F.lit(_UNKNOWN)
        mine = F.when(content.isNull(), F.array(present)).otherwise(F.array(content, unknown))
        theirs = F.when(content.isNull(), F.array(present, unknown)).otherwise(F.array(content, present))
        wanted = other.select("size", F.explode(theirs).alias("alike")).distinct()
        matching = frame.withColumn("alike", F.explode(mine)).join(wanted, ["size", "alike"], "left_semi")
        return matching.select(*frame.columns).distinct()

    @in_driver_if_held
    def count(self, rows: Rows) -> int:
        """The number of rows."""
        counted = self.collect(tasks.map_batches(rows, _count_rows, _NUMBER))
        return sum(counted.column("number").to_pylist())

    @in_driver_if_held
    def collect(self, rows: Rows, limit: int | None = None) -> pa.Table:
        """The rows in the driver, at most `limit`; no task sends more."""
        dataframe = dataframe_of(rows)
        return tasks.collect(dataframe if limit is None else dataframe.limit(limit), tasks.functions_of(rows))

    @in_driver_if_held
    def count_by_sets(self, *frames: Rows, count: int) -> dict[int, int]:
        """Number of distinct addresses for each combination of frames, by one action; bit k of a key is frame k."""
        parts = blocks.parts_of(frames[0], count)
        cut = [blocks.cut_hashes(frame, parts, number, twice=True) for number, frame in enumerate(frames)]
        counts: Counter[int] = Counter()
        for row in self.collect(blocks.compared(cut, parts, blocks.counted, blocks.SETS)).to_pylist():
            counts[row["sets"]] += row["addresses"]
        return dict(counts)

    def hold(self, rows: Rows, count: int) -> Rows:
        """The same rows; the driver collects them if they are few."""
        return rows if isinstance(rows, DriverRows) or count > LOCAL_ROWS else self.table(self.collect(rows))

    def spread(self, rows: Rows, at_most: int | None = None) -> Rows:
        """The same rows; those in the driver are distributed to tasks, each with several requests' worth."""
        if not isinstance(rows, DriverRows):
            return rows if at_most is None else dataframe_of(rows).coalesce(at_most)
        table = HERE.collect(rows.rows)
        if table.num_rows <= _FEW_REQUESTS:
            return DriverRows.of_table(self.spark, table)
        count = min(self.tasks, -(-table.num_rows // _FEW_REQUESTS))
        return tasks.deal(self.spark, table, count if at_most is None else min(count, at_most))

    @contextmanager
    def cached(self, rows: Rows, at_most: int) -> Iterator[Rows]:
        """Rows for several uses: the driver collects them if they are few; else Spark caches them until the exit.

        If nothing bounds their number, Spark computes and counts them first. Otherwise each later join of a few rows
        would take `spark.sql.shuffle.partitions` tasks, because Spark never merges the last partitions of cached rows.
        """
        if isinstance(rows, DriverRows):
            with HERE.cached(rows.rows, at_most) as made:
                yield DriverRows(rows.spark, made, rows.empty)
        elif at_most <= LOCAL_ROWS:
            yield self.table(self.collect(rows))
        else:
            with tasks.persisted(dataframe_of(rows)) as kept:
                few = tasks.count(kept, tasks.functions_of(rows)) <= LOCAL_ROWS
                if few:
                    held = self.table(self.collect(kept))
                else:
                    yield kept
            if few:
                yield held

    def in_background(self, work: Callable[[], Result]) -> AbstractContextManager[Callable[[], Result]]:
        """Runs a piece of the driver's work in another thread."""
        return tasks.in_background(work)

    def name_work(self, work: str, run: str = "") -> AbstractContextManager[None]:
        """Names the work until the exit, at the jobs in Spark's UI, event log and history server."""
        return work_names.named(work, run)

    def _compared_here(
        self, operation: Callable[..., ArrowRows], rows: DriverRows, others: Sequence[Rows]
    ) -> DriverRows:
        """Applies an operation in the driver to its rows, and to their addresses that tasks find in other frames.

        Args:
            operation: operation of the driver's engine on rows and addresses.
        """

        def made() -> Iterator[Batches]:
            wanted = HERE.named(rows.rows)
            named = self.union(*(self.select(each, "address") for each in others))
            matching = self.collect(self.map_batches(named, partial(_find_addresses, wanted), _ADDRESS))
            return operation(rows.rows, HERE.table(matching), count=matching.num_rows).tasks()

        return DriverRows(self.spark, ArrowRows(rows.rows.schema, made))


def _prepared(spark: SparkSession) -> SparkSession:
    """The session, which the caller may have created, with the properties that fix the types of rows."""
    for name, value in _TYPES_OF_ROWS.items():
        spark.conf.set(name, value)
    return spark


def _find_addresses(addresses: pa.StringArray, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The addresses that occur in the rows of a task, each once.

    Args:
        addresses: addresses to look for.
    """
    matches = pa.array([], pa.string())
    for batch in batches:
        column = pc.unique(batch.column("address"))
        matching = column.filter(pc.is_in(column, value_set=addresses))
        new = matching.filter(pc.invert(pc.is_in(matching, value_set=matches)))
        if len(new):
            matches = pa.concat_arrays([matches, new])
            yield pa.RecordBatch.from_arrays([new], schema=_ADDRESS)


def _count_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"number": [sum(batch.num_rows for batch in batches)]}, _NUMBER)


def _joined(rows: Rows, others: Rows, columns: Sequence[str], how: str) -> DataFrame:
    """Spark's join of two frames, with the columns of the first. `how` is as for `DataFrame.join`."""
    frame = dataframe_of(rows)
    return frame.join(dataframe_of(others), list(columns), how).select(*frame.columns)

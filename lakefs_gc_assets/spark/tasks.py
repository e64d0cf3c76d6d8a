"""Rows whose partitions are work items: each task processes its items in Python and yields Arrow batches.

Only rows and `mapInArrow` are used, so it works on local, standalone and remote sessions. Small work is pickled with
the tasks' function, which each worker gets. Larger work is sent as rows; each worker unpickles only the work of its own
tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine, as_declared
from lakefs_gc_assets.collector.engine.port import ChangeBatches, Holds, ReadItem, Result, is_one_of, nullable
from lakefs_gc_assets.errors import EngineFault
from lakefs_gc_assets.spark import stage_metrics, work_names
from lakefs_gc_assets.spark.work_names import name_of, renamed

WITH_FUNCTION = 1024 * 1024
"""Maximum bytes of work that is pickled with the tasks' function; Spark would broadcast more."""
WORK = pa.schema([pa.field("task", pa.int32()), pa.field("piece", pa.int32()), pa.field("data", pa.binary())])
"""Work by task, in pieces."""
_PIECE = 4 * 1024 * 1024
"""Maximum bytes of a piece. Spark sends at most 128 MB to a task."""
_PICKLED = CPickleSerializer()
_HAS_ARROW = hasattr(DataFrame, "toArrow")
"""True if sessions accept and return Arrow tables: since Spark 4.0."""


def pack(groups: Iterable[Sequence[Any]]) -> list[bytes]:
    """Pickled work, one result per task; tasks without work are skipped."""
    return [_PICKLED.dumps(tuple(group)) for group in groups if group]  # type: ignore[no-untyped-call]


def as_rows(work: Sequence[bytes]) -> pa.Table:
    """The results of `pack` as rows (WORK), each in its own batch, because Spark makes a task of each large batch."""
    pieces = [
        pa.record_batch([[task], [piece], [data[start : start + _PIECE]]], schema=WORK)
        for task, data in zip(numbers_of_partitions(len(work)), work, strict=True)
        for piece, start in enumerate(range(0, len(data), _PIECE))
    ]
    return pa.Table.from_batches(pieces, WORK)


def numbers_of_partitions(count: int) -> list[int]:
    """Ascending numbers that `DataFrame.repartition` sends to `count` different partitions.

    `repartitionById` would not need them, but is new in Spark 4.1. Spark uses the 32-bit Murmur3 hash of the number. If
    it used another hash, some tasks would have no work and raise EngineFault.
    """
    partitions, numbers = np.empty(0, np.uint32), np.empty(0, np.int64)
    candidates = count
    while len(partitions) < count:
        candidates *= 2
        partitions, numbers = np.unique(_murmur3(candidates).view(np.int32) % count, return_index=True)
    return sorted(numbers.tolist())


def _murmur3(count: int) -> npt.NDArray[np.uint32]:
    """Spark's hashes of the 32-bit numbers below `count`, with its seed 42."""

    def rotated(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
        return values << np.uint32(bits) | values >> np.uint32(32 - bits)

    mixed = rotated(np.arange(count, dtype=np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    hashed = rotated(mixed ^ np.uint32(42), 13) * np.uint32(5) + np.uint32(0xE6546B64) ^ np.uint32(4)
    hashed = (hashed ^ hashed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ hashed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashed ^ hashed >> np.uint32(16)


def of_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """The items of a task, from its rows (WORK) in any order. If Spark merges several tasks, the items of all."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    for _, pieces in groupby(sorted(rows, key=itemgetter("task", "piece")), itemgetter("task")):
        yield from _unpack(b"".join(row["data"] for row in pieces))


def of_numbers(work: Sequence[bytes], batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """The items of a task, from rows with an index into the results of `pack`."""
    for batch in batches:
        for place in batch.column(0).to_pylist():
            yield from _unpack(work[place])


def _unpack(data: bytes) -> Sequence[Any]:
    items: Sequence[Any] = _PICKLED.loads(data)  # type: ignore[no-untyped-call]
    return items


P = ParamSpec("P")
ChangeBatch = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Function that changes a batch. It runs in a worker, so it must capture only picklable values."""

HERE = LocalEngine(tasks=1)
"""Engine for the rows that the driver holds."""


@dataclass(frozen=True)
class Reading:
    """Rows that tasks read, before they reach Spark, so that further functions of rows cost Spark nothing.

    Attributes:
        groups: work items, one group per task.
        read: function that runs in a Python worker; must not capture a session or objects of Dagster.
        schema: schema of the batches that it yields.
    """

    spark: SparkSession
    groups: Sequence[Sequence[Any]]
    read: ReadItem[Any]
    schema: pa.Schema


@dataclass(frozen=True)
class Mapped:
    """Rows that a function makes in tasks from the rows of a DataFrame, before they reach Spark.

    Consecutive functions of rows run in one task, without a second worker and without handing rows back to Spark.

    Attributes:
        change: function of all batches of a task.
        schema: schema of the batches that it yields.
    """

    source: DataFrame
    change: ChangeBatches
    schema: StructType


@dataclass(frozen=True)
class DriverRows:
    """Few rows that the driver itself computes from its tables.

    Attributes:
        empty: True if the rows are known to be empty.
    """

    spark: SparkSession
    rows: ArrowRows
    empty: bool = False

    @classmethod
    def of_table(cls, spark: SparkSession, table: pa.Table) -> "DriverRows":
        """The rows of a table."""
        return cls(spark, HERE.table(table), empty=not table.num_rows)


@dataclass(frozen=True)
class United:
    """The rows of several frames with the same columns; operations apply to each frame in its own place.

    Attributes:
        frames: at least one frame, none a `United` itself.
    """

    frames: tuple["DataFrame | Reading | Mapped | DriverRows", ...]


Rows = DataFrame | Reading | Mapped | DriverRows | United


def on_each_frame(operation: Callable[Concatenate[Rows, P], Rows]) -> Callable[Concatenate[Rows, P], Rows]:
    """Decorator: applies an operation to each frame of united rows."""

    @wraps(operation)
    def made(rows: Rows, /, *arguments: P.args, **named: P.kwargs) -> Rows:
        if isinstance(rows, United):
            return union([operation(each, *arguments, **named) for each in rows.frames])
        return operation(rows, *arguments, **named)

    return made


@on_each_frame
def map_batches(rows: Rows, change: ChangeBatches, schema: pa.Schema) -> Rows:
    """Applies `change` to the rows of each task, in the task that reads them.

    The driver applies it to rows that it holds, which may be some of united rows.
    """
    if isinstance(rows, DriverRows):
        return DriverRows(rows.spark, HERE.map_batches(rows.rows, change, schema))
    declared = nullable(schema)

    def declared_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return as_declared(change(batches), declared)

    return _then(_mapped(rows), renamed(declared_batches, change), from_arrow_schema(declared))


@on_each_frame
def map_each(rows: Rows, change: ChangeBatch, schema: StructType) -> Rows:
    """Applies `change` to each batch of rows, in the task that reads them."""

    def change_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(change, batches)

    return _then(_mapped(rows), renamed(change_each, change), schema)


def _then(rows: Mapped, change: ChangeBatches, schema: StructType) -> Mapped:
    before = rows.change

    def both(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return change(before(batches))

    return replace(rows, change=renamed(both, before, change), schema=schema)


@on_each_frame
def where(rows: Rows, holds: Holds) -> Rows:
    """The rows for which a condition holds; null counts as false."""

    def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(holds(batch))

    if isinstance(rows, DriverRows):
        return DriverRows(rows.spark, HERE.where(rows.rows, holds))
    if isinstance(rows, Reading):
        read = rows.read
        return replace(rows, read=renamed(lambda item: map(kept, read(item)), read, holds))
    return map_each(rows, renamed(kept, holds), schema_of(rows))


def _mapped(rows: Rows) -> Mapped:
    """The rows as `Mapped`; with the identity function for a DataFrame."""
    if isinstance(rows, Mapped):
        return rows
    if isinstance(rows, Reading):
        return _distributed(rows)
    frame = dataframe_of(rows)
    return Mapped(frame, iter, frame.schema)


@on_each_frame
def where_among(rows: Rows, column: str, values: Sequence[str | None]) -> Rows:
    """The rows whose text in a column is among the values; None stands for null."""
    if isinstance(rows, DataFrame):
        among = F.col(column).isin(*(value for value in values if value is not None))
        return rows.where(among | F.col(column).isNull() if None in values else among)
    return where(rows, partial(is_one_of, column, values))


@on_each_frame
def select(rows: Rows, *columns: str) -> Rows:
    """Some columns, in this order."""
    if isinstance(rows, DriverRows):
        return replace(rows, rows=HERE.select(rows.rows, *columns))
    if isinstance(rows, Reading):
        read, schema = rows.read, pa.schema([rows.schema.field(column) for column in columns])
        selected = renamed(lambda item: (batch.select(columns) for batch in read(item)), read)
        return replace(rows, read=selected, schema=schema)
    if isinstance(rows, Mapped):
        schema = StructType([rows.schema[column] for column in columns])
        return map_each(rows, lambda batch: batch.select(columns), schema)
    return dataframe_of(rows).select(*columns)


def dataframe_of(rows: Rows) -> DataFrame:
    """The rows as a DataFrame."""
    if isinstance(rows, United):
        return union_all(map(dataframe_of, rows.frames))
    if isinstance(rows, DriverRows):
        return of_table(rows.spark, HERE.collect(rows.rows))
    if isinstance(rows, DataFrame):
        return rows
    mapped = _mapped(rows)
    change = stage_metrics.counted(mapped.source.sparkSession, mapped.change)
    return mapped.source.mapInArrow(change, mapped.schema)


class _Columns(DataFrame):
    """A DataFrame with only a schema. It belongs to no session, and only gives names and types."""

    def __new__(cls, schema: StructType) -> "_Columns":
        return object.__new__(cls)

    def __init__(self, schema: StructType) -> None:
        self._columns = schema

    @property
    def schema(self) -> StructType:
        return self._columns

    @property
    def columns(self) -> list[str]:
        return self._columns.names

    def head(self, n: int | None = None) -> None:  # type: ignore[override]
        """No row."""


def columns_of(rows: Rows) -> DataFrame:
    """A DataFrame with the columns of the rows, to get names and types without starting a session."""
    return _Columns(schema_of(rows))


def union(frames: Sequence[Rows]) -> Rows:
    """The rows of frames with the same columns."""
    each = [single for rows in not_empty(frames) for single in (rows.frames if isinstance(rows, United) else [rows])]
    reading = [rows for rows in each if isinstance(rows, Reading)]
    if len(reading) > 1:
        each = [_read_together(reading), *(rows for rows in each if not isinstance(rows, Reading))]
    return each[0] if len(each) == 1 else United(tuple(each))


def union_all(frames: Iterable[DataFrame]) -> DataFrame:
    """The rows of DataFrames with the same columns."""
    return reduce(DataFrame.unionAll, frames)


def not_empty(frames: Sequence[Rows]) -> Sequence[Rows]:
    """The frames, except frames known to be empty; at least one."""
    return [rows for rows in frames if not (isinstance(rows, DriverRows) and rows.empty)] or frames[:1]


def _read_together(frames: Sequence[Reading]) -> Reading:
    """The rows of several frames that tasks read, as one frame."""
    schema = nullable(frames[0].schema)
    if any(nullable(each.schema) != schema for each in frames):
        raise ValueError(f"frames with other columns have no union: {[each.schema.names for each in frames]}")
    groups = [[(number, item) for item in group] for number, each in enumerate(frames) for group in each.groups]
    reads = [each.read for each in frames]
    read = renamed(lambda numbered: reads[numbered[0]](numbered[1]), work_names.together(map(name_of, reads)))
    return Reading(frames[0].spark, groups, read, schema)


def session_of(rows: Rows) -> SparkSession:
    """The session that the rows belong to."""
    if isinstance(rows, United):
        return session_of(rows.frames[0])
    if isinstance(rows, Mapped):
        return rows.source.sparkSession
    return rows.spark if isinstance(rows, Reading | DriverRows) else rows.sparkSession


def schema_of(rows: Rows) -> StructType:
    """The columns, with Spark's types."""
    if isinstance(rows, United):
        return schema_of(rows.frames[0])
    if isinstance(rows, Reading):
        return from_arrow_schema(rows.schema)
    return from_arrow_schema(rows.rows.schema) if isinstance(rows, DriverRows) else rows.schema


def _distributed(rows: Reading) -> Mapped:
    """Distributes the work to one task per group; each task unpickles its own items and reads them."""
    spark, read = rows.spark, rows.read
    work = pack(rows.groups)
    unpack: Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]
    if sum(map(len, work)) > WITH_FUNCTION:
        # Spark sends each task's number to a different partition.
        dealt = of_table(spark, as_rows(work)).repartition(len(work), "task")
        unpack = of_rows
    else:
        dealt, unpack = spark.range(0, len(work), 1, max(1, len(work))), partial(of_numbers, work)

    # The function captures this flag instead of the work, which may be too large to pickle with it.
    has_work = bool(work)

    def items(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lacks = has_work
        for item in unpack(batches):
            lacks = False
            yield from read(item)
        # A task that Spark kills early looks like a task without work to Python, so a task without work is an error.
        if lacks:
            raise EngineFault(
                "a task was ended before it had its work, or Spark gave it none. Nothing was made; run again"
            )

    return Mapped(dealt, renamed(items, read), from_arrow_schema(rows.schema))


def deal(spark: SparkSession, table: pa.Table, count: int) -> Reading:
    """The rows of a table, distributed to `count` tasks in adjacent slices; sent as bytes, not as Spark's rows."""
    bounds = [table.num_rows * number // count for number in range(count + 1)]
    groups = [[as_stream(table.slice(start, end - start))] for start, end in pairwise(bounds)]
    return Reading(spark, groups, _rows_of_stream, nullable(table.schema))


def as_stream(table: pa.Table) -> bytes:
    """Rows in Arrow's IPC format, with all columns declared nullable, because frames differ in that."""
    schema = nullable(table.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in table.to_batches():
            stream.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    written: bytes = sink.getvalue().to_pybytes()
    return written


def of_stream(stream: bytes | pa.Buffer) -> pa.Table:
    """The rows of a stream from `as_stream`."""
    return pa.ipc.open_stream(stream).read_all()


def _rows_of_stream(stream: bytes) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = of_stream(stream).to_batches()
    return batches


def of_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows of a table in the driver, as a DataFrame.

    A list of tuples would need Python workers of another kind, for which Spark starts a second daemon.
    """
    # Spark takes an empty batch for the last one, and drops all later batches.
    filled = [batch for batch in table.to_batches() if batch.num_rows]
    schema = from_arrow_schema(table.schema)
    if _HAS_ARROW:
        return spark.createDataFrame(pa.Table.from_batches(filled, table.schema), schema)
    streams = [(as_stream(pa.Table.from_batches([piece])),) for batch in filled for piece in _pieces(batch)]
    # Spark sends at most 128 MB to a task, so each task gets one piece.
    dealt = spark.createDataFrame(spark.sparkContext.parallelize(streams, max(1, len(streams))), "rows binary")
    return dealt.mapInArrow(_of_streams, schema)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in slices of about _PIECE bytes; a slice has at least one row."""
    rows = max(1, batch.num_rows * _PIECE // max(1, batch.nbytes))
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _of_streams(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for stream in batch.column(0):
            yield from of_stream(stream.as_buffer()).to_batches()


def functions_of(rows: Rows) -> str:
    """Names of the functions that the last tasks of the rows run."""
    if isinstance(rows, United):
        return work_names.together(map(functions_of, rows.frames))
    if isinstance(rows, Mapped | Reading):
        return name_of(rows.change if isinstance(rows, Mapped) else rows.read)
    return "rows"


def collect(dataframe: DataFrame, functions: str = "rows") -> pa.Table:
    """Collects the rows of a DataFrame in the driver.

    Args:
        functions: names of the functions that its tasks run, for jobs that have no better name.
    """
    with work_names.shown(dataframe.sparkSession, functions):
        if _HAS_ARROW:
            return dataframe.toArrow()
        frame: Any = dataframe
        batches, schema = frame._collect_as_arrow(), to_arrow_schema(dataframe.schema)
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def count(dataframe: DataFrame, functions: str) -> int:
    """Number of rows, counted by Spark without Python workers."""
    with work_names.shown(dataframe.sparkSession, functions):
        return dataframe.count()


@contextmanager
def persisted(dataframe: DataFrame) -> Iterator[DataFrame]:
    """A DataFrame for several uses, which Spark caches until the exit."""
    dataframe.persist()
    try:
        yield dataframe
    finally:
        dataframe.unpersist()


@contextmanager
def in_background(work: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
    """Runs a piece of the driver's work in another thread, so that Spark plans one job while tasks of another run.

    Yields a function that waits for the result and raises the work's exception. Call it, or a failure goes unnoticed.
    The exit waits for the work too.
    """
    with ThreadPoolExecutor(1, "background") as threads:
        yield threads.submit(copy_context().run, work).result

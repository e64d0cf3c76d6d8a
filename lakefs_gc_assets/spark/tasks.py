"""DataFrames whose partitions are pieces of work: each task does its share in Python and yields Arrow batches.

Rows and `mapInArrow` are all it needs, so it works on local, standalone and remote sessions alike.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakefs_gc_assets.collector.arrow_engine import ArrowEngine, ArrowRows
from lakefs_gc_assets.collector.engine import ChangeBatches, Holds, Item, ReadItem, Result
from lakefs_gc_assets.spark import packed_work

HERE = ArrowEngine(tasks=1)
"""Works with what the driver holds."""


@dataclass(frozen=True)
class Reading:
    """Rows that tasks read, before Spark has them: what is done to them there costs Spark nothing.

    The attributes are what `dataframe` takes.
    """

    spark: SparkSession
    groups: Sequence[Sequence[Any]]
    read: ReadItem[Any]
    schema: pa.Schema


@dataclass(frozen=True)
class Held:
    """Few rows that the driver makes itself, of tables that it holds.

    Attributes:
        empty: whether it is known that there are none.
    """

    spark: SparkSession
    rows: ArrowRows
    empty: bool = False

    @classmethod
    def of_table(cls, spark: SparkSession, table: pa.Table) -> "Held":
        """The rows of a table."""
        return cls(spark, HERE.table(table), empty=not table.num_rows)


Rows = DataFrame | Reading | Held


def map_batches(rows: Rows, change: ChangeBatches, schema: pa.Schema) -> DataFrame:
    """What `change` yields of the rows that one task has, which runs in the task that reads them."""
    if isinstance(rows, Reading):
        return dataframe(rows.spark, rows.groups, rows.read, schema, change)
    return dataframe_of(rows).mapInArrow(change, from_arrow_schema(schema))


def where(rows: Rows, holds: Holds) -> Rows:
    """The rows of which something holds; null counts as not."""

    def kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(holds(batch))

    if isinstance(rows, Reading):
        read = rows.read
        return replace(rows, read=lambda item: kept(read(item)))
    frame = dataframe_of(rows)
    return frame.mapInArrow(kept, frame.schema)


def where_among(rows: Rows, column: str, values: Sequence[str | None]) -> Rows:
    """The rows whose text in a column is among the values; None stands for null."""
    if isinstance(rows, Reading):
        wanted = pa.array(values, pa.string())
        return where(rows, lambda batch: pc.is_in(batch.column(column), value_set=wanted))
    among = F.col(column).isin(*(value for value in values if value is not None))
    return dataframe_of(rows).where(among | F.col(column).isNull() if None in values else among)


def select(rows: Rows, *columns: str) -> Rows:
    """Some columns, in this order."""
    if isinstance(rows, Reading):
        read, schema = rows.read, pa.schema([rows.schema.field(column) for column in columns])
        return replace(rows, read=lambda item: (batch.select(columns) for batch in read(item)), schema=schema)
    return dataframe_of(rows).select(*columns)


def dataframe_of(rows: Rows) -> DataFrame:
    """The rows as Spark's own."""
    if isinstance(rows, Reading):
        return dataframe(rows.spark, rows.groups, rows.read, rows.schema)
    if isinstance(rows, Held):
        return of_table(rows.spark, HERE.collect(rows.rows))
    return rows


def union(frames: Sequence[Rows]) -> Rows:
    """The rows of frames that have the same columns."""
    some = not_empty(frames)
    reading = [rows for rows in some if isinstance(rows, Reading)]
    if len(some) == 1:
        return some[0]
    if len(reading) == len(some):
        return _read_together(reading)
    return union_all(map(dataframe_of, some))


def union_all(frames: Iterable[DataFrame]) -> DataFrame:
    """The rows of DataFrames that have the same columns."""
    return reduce(DataFrame.unionAll, frames)


def not_empty(frames: Sequence[Rows]) -> Sequence[Rows]:
    """The frames without those that are known to have no rows; one at least."""
    return [rows for rows in frames if not (isinstance(rows, Held) and rows.empty)] or frames[:1]


def _read_together(frames: Sequence[Reading]) -> Reading:
    """The rows that tasks of several frames read."""
    schema = pa.schema([column.with_nullable(True) for column in frames[0].schema])
    if any(pa.schema([column.with_nullable(True) for column in each.schema]) != schema for each in frames):
        raise ValueError(f"frames with other columns have no union: {[each.schema.names for each in frames]}")
    groups = [[(number, item) for item in group] for number, each in enumerate(frames) for group in each.groups]
    reads = [each.read for each in frames]
    return Reading(frames[0].spark, groups, lambda numbered: reads[numbered[0]](numbered[1]), schema)


def session_of(rows: Rows) -> SparkSession:
    """The session that the rows belong to."""
    return rows.spark if isinstance(rows, Reading | Held) else rows.sparkSession


def schema_of(rows: Rows) -> StructType:
    """The columns, as Spark names their types."""
    if isinstance(rows, Reading):
        return from_arrow_schema(rows.schema)
    return from_arrow_schema(rows.rows.schema) if isinstance(rows, Held) else rows.schema


def dataframe(
    spark: SparkSession,
    groups: Sequence[Sequence[Item]],
    read: ReadItem[Item],
    schema: pa.Schema,
    change: ChangeBatches | None = None,
) -> DataFrame:
    """A DataFrame with one partition for each group, whose rows are what `read` yields for the group's items.

    Args:
        groups: the work; a worker unpacks that of its own tasks.
        read: runs in a Python worker; must not capture a session or anything of Dagster.
        schema: of the batches that `read` yields, or `change`.
        change: what becomes of all batches of a task.
    """
    spark_schema = from_arrow_schema(schema)
    work = packed_work.pack(groups)
    if not work:
        return of_table(spark, schema.empty_table())
    unpack: Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]
    if sum(map(len, work)) > packed_work.WITH_FUNCTION:
        dealt = of_table(spark, packed_work.as_rows(work)).repartitionById(len(work), "task")
        unpack = packed_work.of_rows
    else:
        dealt, unpack = spark.range(0, len(work), 1, len(work)), partial(packed_work.of_numbers, work)

    def items(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for item in unpack(batches):
            yield from read(item)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from change(items(batches)) if change else items(batches)

    return dealt.mapInArrow(run, spark_schema)


def of_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows of a table that the driver holds.

    Of a list of tuples Spark makes rows in Python workers of another kind, for which it starts a second daemon.
    """
    # Spark takes a batch without rows for the last one, and leaves out all that come after it.
    filled = pa.Table.from_batches((batch for batch in table.to_batches() if batch.num_rows), table.schema)
    return spark.createDataFrame(filled, from_arrow_schema(table.schema))


@contextmanager
def persisted(dataframe: DataFrame) -> Iterator[DataFrame]:
    """A DataFrame for several uses, which Spark keeps until the exit."""
    dataframe.persist()
    try:
        yield dataframe
    finally:
        dataframe.unpersist()


@contextmanager
def in_background(work: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
    """Does a piece of the driver's work meanwhile: while Spark plans the one, tasks of the other run.

    What it yields waits for the result, and raises what the work raised; call it, or a failure is not noticed. The exit
    waits as well.
    """
    with ThreadPoolExecutor(1, "background") as threads:
        yield threads.submit(work).result

"""DataFrames whose partitions are pieces of work: each task does its share in Python and yields Arrow batches.

A range of numbers with `mapInArrow` is all it needs, so it works on local, standalone and remote sessions alike.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakefs_gc_assets.collector.engine import ChangeBatches, Holds, Item, ReadItem, Result

LOCAL_ROWS = 20_000
"""So few rows are kept by the driver: that takes less time than for tasks to begin."""


@dataclass(frozen=True)
class Reading:
    """Rows that tasks read, before Spark has them: what is done to them there costs Spark nothing.

    The attributes are what `dataframe` takes.
    """

    spark: SparkSession
    groups: Sequence[Sequence[Any]]
    read: ReadItem[Any]
    schema: pa.Schema


Rows = DataFrame | Reading


def map_batches(rows: Rows, change: ChangeBatches, schema: pa.Schema) -> DataFrame:
    """What `change` yields of the rows that one task has, which runs in the task that reads them."""
    if isinstance(rows, DataFrame):
        return rows.mapInArrow(change, from_arrow_schema(schema))
    return dataframe(rows.spark, rows.groups, rows.read, schema, change)


def where(rows: Rows, holds: Holds) -> Rows:
    """The rows of which something holds; null counts as not."""

    def kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(holds(batch))

    if isinstance(rows, DataFrame):
        return rows.mapInArrow(kept, rows.schema)
    read = rows.read
    return replace(rows, read=lambda item: kept(read(item)))


def where_among(rows: Rows, column: str, values: Sequence[str | None]) -> Rows:
    """The rows whose text in a column is among the values; None stands for null."""
    if isinstance(rows, DataFrame):
        among = F.col(column).isin(*(value for value in values if value is not None))
        return rows.where(among | F.col(column).isNull() if None in values else among)
    wanted = pa.array(values, pa.string())
    return where(rows, lambda batch: pc.is_in(batch.column(column), value_set=wanted))


def select(rows: Rows, *columns: str) -> Rows:
    """Some columns, in this order."""
    if isinstance(rows, DataFrame):
        return rows.select(*columns)
    read, schema = rows.read, pa.schema([rows.schema.field(column) for column in columns])
    return replace(rows, read=lambda item: (batch.select(columns) for batch in read(item)), schema=schema)


def dataframe_of(rows: Rows) -> DataFrame:
    """The rows as Spark's own."""
    return rows if isinstance(rows, DataFrame) else dataframe(rows.spark, rows.groups, rows.read, rows.schema)


def union(frames: Iterable[Rows]) -> DataFrame:
    """The rows of frames that have the same columns."""
    return reduce(DataFrame.unionAll, map(dataframe_of, frames))


def session_of(rows: Rows) -> SparkSession:
    """The session that the rows belong to."""
    return rows.sparkSession if isinstance(rows, DataFrame) else rows.spark


def schema_of(rows: Rows) -> StructType:
    """The columns, as Spark names their types."""
    return rows.schema if isinstance(rows, DataFrame) else from_arrow_schema(rows.schema)


def dataframe(
    spark: SparkSession,
    groups: Sequence[Sequence[Item]],
    read: ReadItem[Item],
    schema: pa.Schema,
    change: ChangeBatches | None = None,
) -> DataFrame:
    """A DataFrame with one partition for each group, whose rows are what `read` yields for the group's items.

    Args:
        groups: the work, at most a few hundred megabytes of it: it travels with the function.
        read: runs in a Python worker; must not capture a session or anything of Dagster.
        schema: of the batches that `read` yields, or `change`.
        change: what becomes of all batches of a task.
    """
    spark_schema = from_arrow_schema(schema)
    work = [tuple(group) for group in groups if group]
    if not work:
        return of_table(spark, schema.empty_table())

    def items(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for item in work[index]:
                    yield from read(item)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from change(items(batches)) if change else items(batches)

    return spark.range(0, len(work), 1, len(work)).mapInArrow(run, spark_schema)


def of_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows of a table that the driver holds.

    Of a list of tuples Spark makes rows in Python workers of another kind, for which it starts a second daemon.
    """
    return spark.createDataFrame(table, from_arrow_schema(table.schema))


@contextmanager
def cached(dataframe: DataFrame, at_most: int) -> Iterator[DataFrame]:
    """A DataFrame for several uses: the driver collects it where it is small; else Spark keeps it until the exit."""
    if at_most <= LOCAL_ROWS:
        yield dataframe.sparkSession.createDataFrame(dataframe.toArrow(), dataframe.schema)
        return
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

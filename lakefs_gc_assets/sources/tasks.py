"""DataFrames whose partitions are pieces of work: each task does its share in Python and yields Arrow batches.

A range of numbers with `mapInArrow` is all it needs, so it works on local, standalone and remote sessions alike.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

LOCAL_ROWS = 20_000
"""So few rows are kept by the driver: that takes less time than for tasks to begin."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Reading:
    """Rows that tasks read, before Spark has them: what is done to them there costs Spark nothing.

    The attributes are what `dataframe` takes.
    """

    spark: SparkSession
    groups: Sequence[Sequence[Any]]
    read: Callable[[Any], Iterable[pa.RecordBatch]]
    schema: pa.Schema


Rows = DataFrame | Reading
Change = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def changed(rows: Rows, change: Change, schema: pa.Schema) -> DataFrame:
    """What `change` yields of the rows that one task has, which runs in the task that reads them."""
    if isinstance(rows, DataFrame):
        return rows.mapInArrow(change, from_arrow_schema(schema))
    return dataframe(rows.spark, rows.groups, rows.read, schema, change)


def where(rows: Rows, holds: Callable[[pa.RecordBatch], pa.BooleanArray]) -> Rows:
    """The rows of which something holds; null counts as not."""

    def kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(holds(batch))

    if isinstance(rows, DataFrame):
        return rows.mapInArrow(kept, rows.schema)
    read = rows.read
    return replace(rows, read=lambda item: kept(read(item)))


def gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least so many, but for the last."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting += [batch] if batch.num_rows else []
        if sum(each.num_rows for each in waiting) >= rows:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def dataframe_of(rows: Rows) -> DataFrame:
    """The rows as Spark's own."""
    return rows if isinstance(rows, DataFrame) else dataframe(rows.spark, rows.groups, rows.read, rows.schema)


def together(frames: Iterable[Rows]) -> DataFrame:
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
    read: Callable[[Item], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    change: Change | None = None,
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


def of_addresses(spark: SparkSession, addresses: Iterable[str]) -> DataFrame:
    """A column `address` of addresses that the driver holds, in order."""
    return of_table(spark, pa.table({"address": pa.array(sorted(addresses), pa.string())}))


@contextmanager
def made_once(dataframe: DataFrame, rows_at_most: int) -> Iterator[DataFrame]:
    """A DataFrame for several uses: the driver collects it where it is small; else Spark keeps it until the exit."""
    if rows_at_most <= LOCAL_ROWS:
        yield dataframe.sparkSession.createDataFrame(dataframe.toArrow(), dataframe.schema)
        return
    dataframe.persist()
    try:
        yield dataframe
    finally:
        dataframe.unpersist()


@contextmanager
def beside(work: Callable[[], Result]) -> Iterator[Callable[[], Result]]:
    """Does a piece of the driver's work meanwhile: while Spark plans the one, tasks of the other run.

    What it yields waits for the result, and raises what the work raised; call it, or a failure is not noticed. The exit
    waits as well.
    """
    with ThreadPoolExecutor(1, "beside") as threads:
        yield threads.submit(work).result


def spread(items: Sequence[Item], partitions: int) -> list[list[Item]]:
    """Deals items out to at most so many groups, neighbours to different groups."""
    return [list(items[start::partitions]) for start in range(min(partitions, len(items)))]


def runs_by_weight(items: Sequence[Item], partitions: int, weight: Callable[[Item], int]) -> list[list[Item]]:
    """Cuts a sequence into at most so many runs of neighbours of about equal weight; items stay in order."""
    total = max(1, sum(map(weight, items)))
    groups: list[list[Item]] = [[] for _ in range(partitions)]
    before = 0
    for item in items:
        middle = before + weight(item) / 2
        groups[min(partitions - 1, int(middle * partitions / total))].append(item)
        before += weight(item)
    return [group for group in groups if group]


def spread_by_weight(items: Sequence[Item], partitions: int, weight: Callable[[Item], int]) -> list[list[Item]]:
    """Deals items out to at most so many groups of about equal weight: the heaviest first, to the lightest group."""
    groups: list[list[Item]] = [[] for _ in range(min(partitions, len(items)))]
    loads = [(0, index) for index in range(len(groups))]
    for item in sorted(items, key=weight, reverse=True):
        load, index = heapq.heappop(loads)
        groups[index].append(item)
        heapq.heappush(loads, (load + weight(item), index))
    return groups

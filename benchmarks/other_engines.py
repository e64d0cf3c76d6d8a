"""Spark's own DataFrames, joins and readers in place of the product's engine, for whole runs; and other libraries.

Rows in the driver are compared as in the product. All other rows are DataFrames: row functions run one after the other,
hand rows back to Spark in between, and Spark compares addresses. polars and duckdb are measured if they are installed;
they compare partitions that Spark cogroups.
"""

import importlib.util
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from benchmarks.subtracting import Compare, anti_join_of_duckdb, anti_join_of_polars, by_address, by_hash, in_parts
from lakefs_gc_assets.collector.engine.local import ArrowRows, as_declared
from lakefs_gc_assets.collector.engine.port import (
    LOCAL_ROWS,
    UPLOAD_DURATION,
    ChangeBatches,
    ChangePart,
    Engine,
    Holds,
    Item,
    ReadItem,
    nullable,
)
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, Kept
from lakefs_gc_assets.defs import resources
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.layout import LEFTOVER, Layout
from lakefs_gc_assets.spark import tasks
from lakefs_gc_assets.spark.engine import FEW_HASHES, MANY_ADDRESSES, SparkEngine, in_driver_if_held
from lakefs_gc_assets.spark.tasks import HERE, DriverRows, Reading, Rows, dataframe_of
from lakefs_gc_assets.storage.opening import StoreOpener, readable_path

ReadByTasks = Callable[[SparkSession, Sequence[Sequence[Any]], ReadItem[Any], pa.Schema], DataFrame]
"""Makes a DataFrame of rows read by tasks: one task for each group of items."""


@dataclass(frozen=True)
class Way:
    """A run's way of processing rows outside the driver.

    Attributes:
        compare: takes live addresses away.
        read: lets tasks read listings, ranges, staged objects and files of frames.
        parquet: True if Spark's own reader reads large frames. It sees only local files, and checks no digests.
    """

    compare: Compare
    read: ReadByTasks
    parquet: bool = False


def by_function(
    spark: SparkSession, groups: Sequence[Sequence[Any]], read: ReadItem[Any], schema: pa.Schema
) -> DataFrame:
    """Reads by a function on a DataFrame that has a row for each task."""
    return dataframe_of(Reading(spark, groups, read, schema))


_READS_TWICE = "org.apache.spark.sql.catalyst.optimizer.PushDownLeftSemiAntiJoin"
"""Spark's rule that joins each frame of a union separately, and so reads the other side once per frame."""
_numbers = itertools.count()


@dataclass
class _Group(InputPartition):
    """The work of a task."""

    items: tuple[Any, ...]


class _GroupReader(DataSourceReader):
    def __init__(self, groups: Sequence[tuple[Any, ...]], read: ReadItem[Any], schema: pa.Schema) -> None:
        self._groups, self._read, self._schema = groups, read, schema

    def partitions(self) -> list[InputPartition]:
        return [_Group(group) for group in self._groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Group)
        for item in partition.items:
            yield from as_declared(self._read(item), self._schema)


def by_data_source(
    spark: SparkSession, groups: Sequence[Sequence[Any]], read: ReadItem[Any], schema: pa.Schema
) -> DataFrame:
    """Reads by a Python Data Source: each task gets its partition from Spark."""
    columns, name = from_arrow_schema(schema), f"tasks{next(_numbers)}"
    reader = _GroupReader([tuple(group) for group in groups if group], read, schema)

    class TaskSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            return reader

    spark.dataSource.register(TaskSource)
    return spark.read.format(name).load()


def by_hashes_first(rows: DataFrame, live: DataFrame, count: int) -> DataFrame:
    """By joins of hashes; it reads large frames twice, so that only the remaining rows travel if they are few.

    A collision keeps a row.
    """
    if count < MANY_ADDRESSES:
        return by_hash(rows, live, count)
    digest = F.xxhash64("address").alias("digest")
    left = rows.select(digest).join(live.select(digest), "digest", "left_anti").distinct()
    with tasks.persisted(left) as kept:
        if kept.count() > FEW_HASHES:
            return by_hash(rows, live, count)
        hashes = tasks.of_table(rows.sparkSession, kept.toArrow())
    return rows.withColumn("digest", digest).join(F.broadcast(hashes), "digest", "left_semi").select(*rows.columns)


def ways() -> dict[str, Way]:
    """Replacements for the product's engine, by their names in figures."""
    found = {
        "Spark's joins of hashes": Way(by_hash, by_function),
        "Spark's joins of hashes first": Way(by_hashes_first, by_function),
        "Spark's joins of addresses": Way(by_address, by_function),
        "Spark's joins of hashes first, a data source": Way(by_hashes_first, by_data_source),
        "Spark's joins of hashes first, its parquet reader": Way(by_hashes_first, by_function, parquet=True),
    }
    if importlib.util.find_spec("polars"):
        found["polars"] = Way(partial(in_parts, anti_join_of_polars), by_function)
    if importlib.util.find_spec("duckdb"):
        found["duckdb"] = Way(partial(in_parts, anti_join_of_duckdb), by_function)
    return found


def install(name: str) -> None:
    """Makes runs of this process use a way from `ways`."""
    way = ways()[name]
    setattr(resources, SparkEngine.__name__, partial(PlainSparkEngine, way=way))
    if way.parquet:
        read_rows: Callable[..., Rows] = StoredFrame.rows

        def rows(
            stored: StoredFrame[Any],
            engine: Engine[Rows],
            *columns: str,
            damaged_files: Callable[[CorruptFile], None] | None = None,
        ) -> Rows:
            if stored.count <= LOCAL_ROWS or damaged_files or not isinstance(engine, PlainSparkEngine):
                return read_rows(stored, engine, *columns, damaged_files=damaged_files)
            return _read_parquet(engine.spark, stored).select(*(columns or stored.frame.schema.names))

        setattr(StoredFrame, read_rows.__name__, rows)


def _read_parquet(spark: SparkSession, stored: StoredFrame[Any]) -> DataFrame:
    opener = stored.opener
    assert isinstance(opener, StoreOpener)
    columns = from_arrow_schema(nullable(stored.frame.schema))
    return spark.read.schema(columns).parquet(*(readable_path(opener, file.key) for file in stored.manifest.files))


class PlainSparkEngine(SparkEngine):
    """Makes and compares tables of addresses by Spark's own DataFrames, and few rows in the driver."""

    def __init__(self, spark: SparkSession, tasks: int, way: Way) -> None:
        super().__init__(spark, tasks)
        self._way = way
        self.spark.conf.set("spark.sql.optimizer.excludedRules", _READS_TWICE)

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> Rows:
        """Rows that tasks read, in the configured way."""
        if not any(groups):
            return self.table(schema.empty_table())
        return self._way.read(self.spark, groups, read, nullable(schema))

    @in_driver_if_held
    def union(self, first: Rows, *more: Rows) -> Rows:
        """All rows of frames that have the same columns."""
        return tasks.union_all(map(dataframe_of, (first, *more)))

    @in_driver_if_held
    def where(self, rows: Rows, holds: Holds) -> Rows:
        """The rows for which a condition holds, by a function of batches."""
        return dataframe_of(tasks.where(rows, holds))

    @in_driver_if_held
    def map_batches(self, rows: Rows, change: ChangeBatches, schema: pa.Schema) -> Rows:
        """The result of a function for the rows by task."""
        return dataframe_of(tasks.map_batches(rows, change, schema))

    @in_driver_if_held
    def map_distinct(self, frames: Sequence[Rows], change: ChangeBatches, schema: pa.Schema, count: int) -> Rows:
        """The result of a function for one row per address, by `dropDuplicates`."""
        first = _named(dataframe_of(self.union(*tasks.not_empty(frames)))).dropDuplicates(["address"])
        return self.map_batches(first, change, schema)

    @in_driver_if_held
    def map_by_address(self, rows: Rows, change: ChangePart, schema: pa.Schema, count: int) -> Rows:
        """The result of a function for each task's rows, of a `repartition` by address."""
        parts = _named(dataframe_of(rows)).repartition("address")
        return self.map_batches(parts, partial(_change_part, change), schema)

    @in_driver_if_held
    def without(self, rows: Rows, *live: Rows, count: int, least: int = 0) -> Rows:
        """The rows whose address is in none of the live frames, compared in the configured way."""
        if isinstance(rows, DriverRows):
            return self._compared_here(HERE.without, rows, live)
        named = _named(dataframe_of(rows))
        return self._way.compare(named, _addresses(tasks.not_empty(live)), count) if live else named

    @in_driver_if_held
    def without_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        """The rows whose address is not among the addresses, by a join."""
        if isinstance(rows, DriverRows):
            return self._compared_here(HERE.without_exactly, rows, [addresses])
        return _joined(dataframe_of(rows), addresses, "left_anti")

    @in_driver_if_held
    def among_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        """The rows whose address is among the addresses, by a join."""
        if isinstance(rows, DriverRows):
            return self._compared_here(HERE.among_exactly, rows, [addresses])
        return _joined(dataframe_of(rows), addresses, "left_semi")

    @in_driver_if_held
    def kept_because(self, unreferenced: Rows, cutoff: datetime, windows: Collection[str], sighted: Rows) -> Rows:
        """Adds the column `kept`, by a join with sightings and an expression."""
        rows, limit = dataframe_of(unreferenced), F.lit(cutoff.isoformat()).cast("timestamp")
        limit_of_leftovers = F.lit((cutoff - UPLOAD_DURATION).isoformat()).cast("timestamp")
        seen = dataframe_of(self.select(sighted, "address")).distinct().withColumn("sighted", F.lit(True))
        timed = F.col("layout").isin(Layout.SLICE.value, Layout.SHARDED.value)
        issued_at = F.col("issued_at")
        young = (F.col("last_modified") >= limit) | (issued_at >= limit) | (timed & issued_at.isNull())
        young |= F.col("address").rlike(f"{LEFTOVER}$") & (F.col("last_modified") >= limit_of_leftovers)
        # If a condition is null, the next one counts.
        kept = (
            F.when(F.col("layout") == Layout.UNRECOGNISED.value, Kept.UNRECOGNISED.value)
            .when(young, Kept.YOUNG.value)
            .when(~F.coalesce(F.col("slice_window").isin(*windows), F.lit(False)), Kept.OTHER_WINDOW.value)
            .when(_is_multipart() & F.col("sighted").isNull(), Kept.MULTIPART.value)
        )
        return rows.join(_light(sighted, seen), "address", "left").select(*rows.columns, kept.alias("kept"))

    @in_driver_if_held
    def count(self, rows: Rows) -> int:
        """The number of rows."""
        return dataframe_of(rows).count()

    @in_driver_if_held
    def count_by_sets(self, *frames: Rows, count: int) -> dict[int, int]:
        """The numbers of distinct addresses in the same frames, by aggregation."""
        digests = F.xxhash64("address").alias("one"), F.xxhash64(F.lit(""), "address").alias("other")
        each = (
            _addresses([rows]).select(*digests, F.lit(1 << number).alias("sets")) for number, rows in enumerate(frames)
        )
        sets = tasks.union_all(each).groupBy("one", "other").agg(F.bit_or("sets").alias("sets"))
        return {row["sets"]: row["count"] for row in sets.groupBy("sets").count().collect()}

    def spread(self, rows: Rows, at_most: int | None = None) -> Rows:
        """The same rows; rows in the driver are divided among tasks."""
        dealt = super().spread(rows, at_most)
        return self.read(dealt.groups, dealt.read, dealt.schema) if isinstance(dealt, Reading) else dealt

    def _compared_here(
        self, operation: Callable[..., ArrowRows], rows: DriverRows, others: Sequence[Rows]
    ) -> DriverRows:
        def made() -> Iterator[Iterator[pa.RecordBatch]]:
            named = self.select(rows, "address")
            matching = self.collect(_joined(_addresses(others), named, "left_semi").distinct())
            return operation(rows.rows, HERE.table(matching), count=matching.num_rows).tasks()

        return DriverRows(self.spark, ArrowRows(rows.rows.schema, made))


def _joined(rows: DataFrame, addresses: Rows, how: str) -> DataFrame:
    """A DataFrame joined with addresses; addresses in the driver are sent to every task."""
    named = dataframe_of(addresses).select("address")
    return rows.join(_light(addresses, named), "address", how).select(*rows.columns)


def _light(rows: Rows, frame: DataFrame) -> DataFrame:
    return F.broadcast(frame) if isinstance(rows, DriverRows) else frame


def _named(rows: DataFrame) -> DataFrame:
    """The rows, all of which must have an address."""
    return rows.where(F.col("address").isNotNull() | F.raise_error(F.lit("an address is null")).cast("boolean"))


def _addresses(frames: Sequence[Rows]) -> DataFrame:
    each = (dataframe_of(rows).select("address") for rows in frames)
    return tasks.union_all(each).where(F.col("address").isNotNull())


def _is_multipart() -> Column:
    return F.col("etag").rlike(MULTIPART_ETAG)


def _change_part(change: ChangePart, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if rows := [batch for batch in batches if batch.num_rows]:
        yield from change(pa.Table.from_batches(rows)).to_batches()

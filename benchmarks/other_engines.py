"""What libraries have in place of our own comparing of addresses, put into the engine for whole runs.

Only what tasks compare differs: what the driver holds it compares as in the product. polars and duckdb are measured
where they are installed. They compare in parts that Spark cogroups; all else is as with Spark's own joins.
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from benchmarks.subtracting import Compare, anti_join_of_duckdb, anti_join_of_polars, by_address, by_hash, in_parts
from lakefs_gc_assets.collector.engine.port import ChangeBatches, ChangePart
from lakefs_gc_assets.spark import blocks, tasks
from lakefs_gc_assets.spark.engine import SparkEngine, in_driver_where_held
from lakefs_gc_assets.spark.tasks import HERE, DriverRows, Rows, dataframe_of


def names() -> dict[str, Compare]:
    """What can be put in place of ours here."""
    found: dict[str, Compare] = {"spark's joins": by_address, "spark's joins of hashes": by_hash}
    if importlib.util.find_spec("polars"):
        found["polars"] = partial(in_parts, anti_join_of_polars)
    if importlib.util.find_spec("duckdb"):
        found["duckdb"] = partial(in_parts, anti_join_of_duckdb)
    return found


def install(name: str) -> None:
    """Puts one of these into the engine of this process."""
    compare = names()[name]

    def without(engine: SparkEngine, rows: Rows, *live: Rows, count: int, least: int = 0) -> Rows:
        if isinstance(rows, DriverRows):
            return engine._compared_here(HERE.without, rows, live)
        if not live:
            return rows
        return compare(dataframe_of(rows), _addresses(tasks.not_empty(live)), count)

    def map_distinct(
        engine: SparkEngine, frames: Sequence[Rows], change: ChangeBatches, schema: pa.Schema, count: int
    ) -> Rows:
        united = tasks.union_all(map(dataframe_of, tasks.not_empty(frames)))
        return tasks.map_batches(united.dropDuplicates(["address"]), change, schema)

    def map_by_address(engine: SparkEngine, rows: Rows, change: ChangePart, schema: pa.Schema, count: int) -> Rows:
        parts = dataframe_of(rows).repartition(blocks.parts_of(rows, count), "address")
        return tasks.map_batches(parts, partial(_change_part, change), schema)

    def count_by_sets(engine: SparkEngine, *frames: Rows, count: int) -> dict[int, int]:
        each = (_addresses([rows]).withColumn("sets", F.lit(1 << number)) for number, rows in enumerate(frames))
        sets = tasks.union_all(each).groupBy("address").agg(F.bit_or("sets").alias("sets"))
        return {row["sets"]: row["count"] for row in sets.groupBy("sets").count().collect()}

    replaced: tuple[Callable[..., Any], ...] = (without, map_distinct, map_by_address, count_by_sets)
    for operation in replaced:
        setattr(SparkEngine, operation.__name__, in_driver_where_held(operation))


def _addresses(frames: Sequence[Rows]) -> DataFrame:
    return tasks.union_all(dataframe_of(tasks.select(rows, "address")) for rows in frames)


def _change_part(change: ChangePart, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if rows := [batch for batch in batches if batch.num_rows]:
        yield from change(pa.Table.from_batches(rows)).to_batches()

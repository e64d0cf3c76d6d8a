"""Old names of `spark.tasks` and `collector.work`, for the assets that still use them."""

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collector.engine import ChangeBatches as Change
from lakefs_gc_assets.collector.engine import Item
from lakefs_gc_assets.collector.work import gather as gathered
from lakefs_gc_assets.collector.work import runs_by_weight, spread, spread_by_weight
from lakefs_gc_assets.spark.tasks import (
    LOCAL_ROWS,
    Reading,
    Rows,
    dataframe,
    dataframe_of,
    of_table,
    schema_of,
    session_of,
    where,
)
from lakefs_gc_assets.spark.tasks import cached as made_once
from lakefs_gc_assets.spark.tasks import in_background as beside
from lakefs_gc_assets.spark.tasks import map_batches as changed
from lakefs_gc_assets.spark.tasks import union as together

__all__ = [
    "LOCAL_ROWS",
    "Change",
    "Item",
    "Reading",
    "Rows",
    "beside",
    "changed",
    "dataframe",
    "dataframe_of",
    "gathered",
    "made_once",
    "of_addresses",
    "of_table",
    "runs_by_weight",
    "schema_of",
    "session_of",
    "spread",
    "spread_by_weight",
    "together",
    "where",
]


def of_addresses(spark: SparkSession, addresses: Iterable[str]) -> DataFrame:
    """A column `address` of addresses that the driver holds, in order."""
    return of_table(spark, pa.table({"address": pa.array(sorted(addresses), pa.string())}))

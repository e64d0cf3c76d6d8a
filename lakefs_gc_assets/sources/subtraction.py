"""Old names of `spark.engine`'s operations, for the assets that still use them."""

from pyspark.sql import DataFrame

from lakefs_gc_assets.spark import tasks
from lakefs_gc_assets.spark.comparing import EMPTY_MD5, kept_because, same_content
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.tasks import Rows

__all__ = ["EMPTY_MD5", "among_exactly", "count_by_sets", "kept_because", "same_content", "without", "without_exactly"]


def _engine(rows: Rows) -> SparkEngine:
    return SparkEngine(tasks.session_of(rows), 1)


def without(universe: Rows, *live: Rows, rows: int) -> DataFrame:
    """`SparkEngine.without`."""
    return tasks.dataframe_of(_engine(universe).without(universe, *live, count=rows))


def without_exactly(frame: DataFrame, addresses: DataFrame, rows: int | None = None) -> DataFrame:
    """`SparkEngine.without_exactly`."""
    return tasks.dataframe_of(_engine(frame).without_exactly(frame, addresses, rows))


def among_exactly(frame: DataFrame, addresses: DataFrame, rows: int | None = None) -> DataFrame:
    """`SparkEngine.among_exactly`."""
    return tasks.dataframe_of(_engine(frame).among_exactly(frame, addresses, rows))


def count_by_sets(*frames: Rows, rows: int) -> dict[int, int]:
    """`SparkEngine.count_by_sets`."""
    return _engine(frames[0]).count_by_sets(*frames, count=rows)

"""One slice has half of all rows of the frames, yet no task of a later step gets many of its rows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakefs_gc_assets.collector.frame.frames import LISTED, LIVE
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.tasks import Reading, Rows, dataframe_of
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

BORN = datetime(2026, 10, 1, tzinfo=UTC)
ISSUE = layout.XidGenerator(b"12345", 0)
LARGE = ISSUE.descending(BORN)
ADDRESSES = [f"data/{LARGE}/{ISSUE.ascending(BORN)}" for _ in range(1000)] + [
    f"data/{ISSUE.descending(moment)}/{ISSUE.ascending(moment)}"
    for moment in (BORN + timedelta(hours=number) for number in range(1000))
]
TASKS = 16
"""As many tasks as four workers have."""


@pytest.fixture
def four_workers(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with settings for large frames.

    By default it would not shuffle small ones, or would coalesce their shuffles.
    """
    changed = {
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    }
    before = {name: spark.conf.get(name, None) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    yield spark
    for name, earlier in before.items():
        if earlier is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, earlier)


def largest_share(rows_of_tasks: Rows) -> float:
    """Largest share of all rows in one task."""
    frame = dataframe_of(rows_of_tasks)
    rows: list[int] = [row["count"] for row in frame.groupBy(F.spark_partition_id()).count().collect()]
    return max(rows) / sum(rows)


def made_by_tasks(spark: SparkSession, kind: str, addresses: list[str]) -> DataFrame:
    """A frame whose first task has half of the rows, and the whole large slice."""
    row, schema = (listed, LISTED) if kind == "listed" else (live, LIVE)
    table = pa.Table.from_pylist([row(address, slice=address.split("/")[1]) for address in addresses], schema=schema)
    halves = [table.slice(0, len(addresses) // 2), table.slice(len(addresses) // 2)]
    return dataframe_of(Reading(spark, [[half] for half in halves], pa.Table.to_batches, schema))


def test_what_is_left_after_a_subtraction_is_spread(four_workers: SparkSession) -> None:
    universe = made_by_tasks(four_workers, "listed", ADDRESSES)
    held = made_by_tasks(four_workers, "live", ADDRESSES[::2])
    nothing = four_workers.createDataFrame([], held.schema)

    engine = SparkEngine(four_workers, TASKS)
    left = engine.without(universe, held, nothing, count=10**7)
    reported = engine.kept_because(left, BORN + timedelta(days=900), ["2026-11"], nothing)

    assert largest_share(universe) == 0.5
    assert largest_share(left) <= 1 / 5
    assert largest_share(reported) <= 1 / 5
    assert engine.count(left) == len(ADDRESSES) / 2


@pytest.mark.slow
def test_distinct_addresses_are_spread(four_workers: SparkSession) -> None:
    held = made_by_tasks(four_workers, "live", ADDRESSES)

    assert largest_share(SparkEngine(four_workers, TASKS).distinct(held)) <= 1 / 5

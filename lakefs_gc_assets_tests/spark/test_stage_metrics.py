"""Numbers of requests at the stages of Spark's UI and event log."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.spark import stage_metrics
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.tasks import dataframe_of
from lakefs_gc_assets.storage import traffic

_NUMBERS = pa.schema([pa.field("number", pa.int64())])


def send_requests(number: int) -> Iterator[pa.RecordBatch]:
    traffic.count(number, retries=number - 1, bytes_read=10 * number)
    yield pa.record_batch([[number]], schema=_NUMBERS)


def _accumulators(spark: SparkSession, group: str) -> list[dict[str, str]]:
    """Names and values at the stages of a group of jobs, as Spark's UI shows them."""
    context: Any = spark.sparkContext
    tracker = context.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
    store = context._jsc.sc().statusStore()
    context._jsc.sc().listenerBus().waitUntilEmpty()
    updates = [store.lastStageAttempt(stage).accumulatorUpdates() for stage in stages]
    return [{each.apply(place).name(): each.apply(place).value() for place in range(each.size())} for each in updates]


@pytest.fixture
def classic(spark: SparkSession) -> SparkSession:
    if not hasattr(spark, "_jsc"):
        pytest.skip("Spark Connect has no accumulators")
    return spark


def test_a_stage_shows_the_requests_of_its_tasks(classic: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_metrics, "_is_shown", lambda spark: True)
    engine = SparkEngine(classic, 2)
    rows = engine.read([[1], [2], [4]], send_requests, _NUMBERS)
    for run in ("run-1", "run-2"):
        with engine.name_work("store_df", run):
            assert sorted(engine.collect(rows).column("number").to_pylist()) == [1, 2, 4]

        assert _accumulators(classic, run) == [
            {traffic.REQUESTS: "7", traffic.RETRIES: "4", traffic.BYTES_READ: "70"}
        ], "each stage has its own numbers"


@pytest.mark.parametrize("part", ["_scheduler", "_ids", "_classes"])
def test_a_spark_that_does_not_take_the_numbers_gives_the_rows(
    classic: SparkSession, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(stage_metrics, "_is_shown", lambda spark: True)
    monkeypatch.setattr(stage_metrics._Stages, part, property(lambda stages: 1 / 0))
    monkeypatch.setattr(stage_metrics, "_totals", {})
    engine = SparkEngine(classic, 2)
    with engine.name_work("store_df", f"run {part}"):
        rows = engine.collect(engine.read([[1], [2]], send_requests, _NUMBERS))

    assert sorted(rows.column("number").to_pylist()) == [1, 2]
    assert _accumulators(classic, f"run {part}") == [{}]


def test_nothing_is_counted_if_nothing_shows_it(classic: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    engine = SparkEngine(classic, 2)
    read = engine.read([[1]], send_requests, _NUMBERS)
    with engine.name_work("store_df", "run-4"):
        engine.collect(read)
    dataframe_of(read).explain()

    assert _accumulators(classic, "run-4") == [{}]
    assert "send_requests" in capsys.readouterr().out

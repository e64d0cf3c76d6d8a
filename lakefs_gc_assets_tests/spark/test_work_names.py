"""Names of work at jobs, in plans and in the background."""

from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.tasks import DriverRows, dataframe_of

_NUMBERS = pa.schema([pa.field("number", pa.int64())])


def read_numbers(number: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([[number]], schema=_NUMBERS)]


def is_odd(divisor: int, rows: pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([number % divisor == 1 for number in rows.column("number").to_pylist()])


def test_the_plan_names_the_functions_of_a_task(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    engine = SparkEngine(spark, 2)
    rows = engine.where(engine.read([[1], [2], [3]], read_numbers, _NUMBERS), partial(is_odd, 2))
    dataframe_of(engine.map_batches(rows, lambda batches: iter(batches), _NUMBERS)).explain()

    plan = capsys.readouterr().out
    assert "read_numbers > is_odd > test_the_plan_names_the_functions_of_a_task" in plan


def test_work_in_the_background_keeps_its_name_and_others_lose_none(spark: SparkSession) -> None:
    if not hasattr(spark, "_jsc"):
        pytest.skip("Spark Connect has no job groups")
    context, engine = spark.sparkContext, SparkEngine(spark, 2)
    rows = engine.read([[1], [2]], read_numbers, _NUMBERS)
    context.setJobGroup("theirs", "their work")
    try:
        with engine.name_work("store_df", "repository run-1"), engine.name_work("list 2 parts"):
            with engine.in_background(lambda: engine.count(rows)) as counted:
                assert counted() == 2
            assert engine.count(rows) == 2

        assert len(context.statusTracker().getJobIdsForGroup("repository run-1")) == 2
        assert not context.statusTracker().getJobIdsForGroup("theirs")
        assert context.getLocalProperty("spark.jobGroup.id") == "theirs"
        assert context.getLocalProperty("spark.job.description") == "their work"
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_few_cached_rows_of_unknown_number_stay_in_the_driver(spark: SparkSession) -> None:
    engine = SparkEngine(spark, 2)
    rows = engine.read([[1], [2]], read_numbers, _NUMBERS)

    with engine.cached(rows, at_most=10**9) as few:
        assert isinstance(few, DriverRows)
        assert sorted(engine.collect(few).column("number").to_pylist()) == [1, 2]

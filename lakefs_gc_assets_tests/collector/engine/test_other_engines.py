"""The benchmarks' engines give the same results as the product's engine."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from benchmarks.other_engines import PlainSparkEngine, ways
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.spark import engine as spark_engine
from lakefs_gc_assets.spark.tasks import Rows
from lakefs_gc_assets_tests.collector.engine.engine_contract import EngineContract


class LargeFrames(EngineContract[Rows]):
    """The contract with few, large frames."""

    examples = 1
    least = 70
    most = 120
    shrinks = False
    hashes = True


CONTRACT = LargeFrames()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Spark's joins of addresses", "Spark's joins of hashes first, a data source"])
@pytest.mark.parametrize(
    "rule",
    [
        CONTRACT.test_one_row_of_each_address,
        CONTRACT.test_what_is_live_is_taken_away,
        CONTRACT.test_addresses_are_compared_as_strings,
        CONTRACT.test_each_reason_to_keep_is_reported,
        CONTRACT.test_addresses_are_counted_by_the_frames_that_have_them,
    ],
    ids=lambda rule: rule.__name__,
)
def test_spark_itself_compares_as_the_products_engine_does(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, rule: Callable[[Engine[Rows]], None]
) -> None:
    """Tables never stay in the driver, however small they are."""
    monkeypatch.setattr(spark_engine, "LOCAL_ROWS", -1)
    rule(PlainSparkEngine(spark, 2, ways()[way]))

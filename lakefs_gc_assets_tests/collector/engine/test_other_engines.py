"""The benchmarks' engines give the same results as the product's engine."""

import pytest
from pyspark.sql import SparkSession

from benchmarks.other_engines import PlainSparkEngine, ways
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.spark import engine as spark_engine
from lakefs_gc_assets.spark.tasks import Rows
from lakefs_gc_assets_tests.collector.engine.engine_contract import EngineContract


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Spark's joins of addresses", "Spark's joins of hashes first, a data source"])
class TestPlainSparkEngine(EngineContract[Rows]):
    """Spark's own DataFrames in place of the product's engine.

    Tables never stay in the driver, however small they are.
    """

    examples = 1
    least = 70
    most = 120
    shrinks = False
    hashes = True

    @pytest.fixture
    def engine(self, spark: SparkSession, way: str, monkeypatch: pytest.MonkeyPatch) -> Engine[Rows]:
        monkeypatch.setattr(spark_engine, "LOCAL_ROWS", -1)
        return PlainSparkEngine(spark, 2, ways()[way])

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.clock import SystemClock
from lakefs_gc_assets.defs.resources import SparkResource, collector
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import Configuration, SparkSettings
from lakefs_gc_assets.spark.session import parallelism


def test_runs_of_the_graph_use_the_session_of_the_tests(spark: SparkSession) -> None:
    session = SparkResource(master="local[7]", driver_memory="1g").session()

    assert session.sparkContext.applicationId == spark.sparkContext.applicationId
    assert session.sparkContext.master == "local[2]"
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_times_are_utc_whatever_the_zone_of_the_machine(spark: SparkSession) -> None:
    (row,) = spark.sql("select unix_micros(timestamp '2026-11-21 12:00:00') as micros").collect()

    assert row.micros == datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp() * 1_000_000


def test_workers_run_in_this_python(spark: SparkSession) -> None:
    (executable,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()

    assert Path(executable).resolve() == Path(sys.executable).resolve()


def test_tasks_follow_the_cores(spark: SparkSession) -> None:
    assert parallelism(spark) == 2
    assert collector(Configuration(repository="a"), SystemClock()).engine().tasks == 8


def test_settings_of_the_file_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SparkSettings(master="local[3]", config={"spark.sql.session.timeZone": "CET", "spark.x": "y"})

    properties = SparkResource(**settings.model_dump()).properties()

    assert properties["spark.master"] == "local[3]"
    assert (properties["spark.sql.session.timeZone"], properties["spark.x"]) == ("CET", "y")
    assert properties["spark.speculation"] == "false"


def test_only_for_many_objects_a_local_jvm_compiles_twice() -> None:
    few, many = (
        SparkResource(many_objects=many).properties()["spark.driver.extraJavaOptions"] for many in (False, True)
    )

    assert "-XX:TieredStopAtLevel=1" in few
    assert "TieredStopAtLevel" not in many


def test_what_the_jvm_may_say_is_in_a_file_that_is_there() -> None:
    option = SparkResource().properties()["spark.driver.extraJavaOptions"].split()[0]

    file = Path(unquote(urlparse(option.removeprefix("-Dlog4j2.configurationFile=")).path))
    assert "rootLogger.level = error" in file.read_text()


def test_a_remote_session_needs_no_java() -> None:
    assert SparkResource(remote="sc://spark:15002").properties() == {
        "spark.remote": "sc://spark:15002",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "12m",
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "12m",
    }


def test_a_repository_without_a_name_is_not_opened() -> None:
    with pytest.raises(ConfigurationError, match="no repository is named"):
        collector(Configuration(), SystemClock()).open()

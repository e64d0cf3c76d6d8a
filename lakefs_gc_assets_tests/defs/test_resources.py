import os
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlparse

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import loaded_from
from lakefs_gc_assets.defs import resources
from lakefs_gc_assets.defs.resources import Collector, launch_of, session
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import Configuration, LakeFSSettings, SparkSettings, StoreSettings
from lakefs_gc_assets.spark import session as spark_session
from lakefs_gc_assets.spark.session import parallelism, properties


def test_runs_of_the_graph_use_the_session_of_the_tests(spark: SparkSession) -> None:
    ours = session(SparkSettings(master="local[7]", driver_memory="1g"))

    assert ours.sparkContext.applicationId == spark.sparkContext.applicationId
    assert ours.sparkContext.master == "local[2]"
    assert ours.conf.get("spark.sql.session.timeZone") == "UTC"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_times_are_utc_whatever_the_zone_of_the_machine(spark: SparkSession) -> None:
    (row,) = spark.sql("select unix_micros(timestamp '2026-11-21 12:00:00') as micros").collect()

    assert row.micros == datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp() * 1_000_000


def test_workers_run_in_this_python(spark: SparkSession) -> None:
    (executable,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()

    assert Path(executable).resolve() == Path(sys.executable).resolve()


def test_tasks_follow_the_cores(spark: SparkSession) -> None:
    assert parallelism(spark) == 2
    settings = SparkSettings(master="local[2]")
    assert Collector(Configuration(repository="a", spark=settings), SystemClock()).engine().tasks == 8


def test_settings_of_the_file_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SparkSettings(master="local[3]", config={"spark.sql.session.timeZone": "CET", "spark.x": "y"})

    found = properties(settings)

    assert found["spark.master"] == "local[3]"
    assert (found["spark.sql.session.timeZone"], found["spark.x"]) == ("CET", "y")
    assert found["spark.speculation"] == "false"


def test_only_for_many_objects_a_local_jvm_compiles_twice() -> None:
    few, many = (
        properties(SparkSettings(many_objects=many))["spark.driver.extraJavaOptions"] for many in (False, True)
    )

    assert "-XX:TieredStopAtLevel=1" in few
    assert "TieredStopAtLevel" not in many
    assert all("-XX:+ExitOnOutOfMemoryError" in options.split() for options in (few, many))


def test_what_the_jvm_may_say_is_in_a_file_that_is_there() -> None:
    option = properties(SparkSettings())["spark.driver.extraJavaOptions"].split()[0]

    file = Path(unquote(urlparse(option.removeprefix("-Dlog4j2.configurationFile=")).path))
    assert "rootLogger.level = error" in file.read_text()


def test_only_a_clusters_driver_warns_about_executors() -> None:
    """Otherwise a run on a cluster that provides none waits without a word."""
    local, cluster = (
        properties(SparkSettings(master=master))["spark.driver.extraJavaOptions"]
        for master in ("local[2]", "spark://host:7077")
    )

    assert "-Dlakefs.gc.executors=off" in local.split()
    assert "lakefs.gc.executors" not in cluster


def test_a_remote_session_needs_no_java() -> None:
    assert properties(SparkSettings(remote="sc://spark:15002")) == {
        "spark.remote": "sc://spark:15002",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "12m",
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "12m",
    }


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (SparkSettings(master="yarn"), "lakefs-gc of team"),
        (SparkSettings(master="yarn", config={"spark.app.name": "theirs"}), "theirs"),
        (SparkSettings(master=""), None),
        (SparkSettings(remote="sc://spark"), None),
    ],
)
def test_an_application_has_the_name_of_its_repository(settings: SparkSettings, name: str | None) -> None:
    """One that spark-submit or a server has named keeps its name."""
    configuration = Configuration(repository="images", name="of team", spark=settings)
    assert Collector(configuration, SystemClock()).spark.config.get("spark.app.name") == name


@pytest.mark.parametrize(
    ("application", "ui", "line"),
    [
        ("application_7_1", "http://driver:4040", "Spark application application_7_1: http://driver:4040/jobs/"),
        ("application_7_2", None, "Spark application application_7_2: its UI is off"),
        ("local-7", None, None),
    ],
)
def test_a_run_logs_its_application_once_before_it_works(
    application: str, ui: str | None, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(applicationId=application, uiWebUrl=ui, getConf=dict)
    started = SimpleNamespace(spark_session=SimpleNamespace(_jsc=None, sparkContext=context))
    monkeypatch.setattr(spark_session, "launching", lambda _: nullcontext({}))
    monkeypatch.setattr(resources, "LazyPySparkResource", lambda spark_config: started)

    @dg.op
    def work() -> None:
        session(SparkSettings(master="yarn"))
        session(SparkSettings(master="yarn"))

    with dg.instance_for_test() as instance:
        ended = dg.GraphDefinition("run", node_defs=[work]).execute_in_process(instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(ended.run_id)]
    assert [each for each in logged if "Spark application" in each] == ([line] if line else [])


def test_a_repository_without_a_name_is_not_opened() -> None:
    with pytest.raises(ConfigurationError, match="no repository is configured"):
        Collector(Configuration(), SystemClock()).open()


@pytest.mark.parametrize("name", ["collector", "frames", "lakefs", "store", "pyspark", "collection", "spark"])
def test_a_launch_can_configure_no_resource(name: str) -> None:
    job = build(loaded_from({"repository": "repo"}, "gc.yaml"), SystemClock()).resolve_job_def("open_run")
    values = {"endpoint": "http://evil", "sweep": True, "remote": "sc://evil"}

    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(job, {"resources": {name: {"config": values}}})


def test_a_run_needs_no_secrets_of_sensors() -> None:
    content = {"repository": "repo", "notifications": {"failure_webhook": {"env": "SET_FOR_SENSORS_ALONE"}}}
    resources = build(loaded_from(content, "gc.yaml"), SystemClock()).resources or {}

    with dg.build_resources(resources) as opened:
        assert opened.collector.configuration.repository == "repo"


def test_the_page_of_resources_shows_what_the_collector_uses() -> None:
    repository = build(loaded_from({"repository": "repo"}, "gc.yaml"), SystemClock()).get_repository_def()

    shown = repository.get_top_level_resources()
    assert shown["collector"].required_resource_keys == {"lakefs", "store", "pyspark"}
    assert shown.keys() == {"collector", "frames", "lakefs", "store", "pyspark"}
    asset = repository.asset_graph.get(dg.AssetKey("store_df")).assets_def
    assert asset.required_resource_keys == shown.keys()


def test_assets_of_ones_own_use_the_resources_of_runs(spark: SparkSession) -> None:
    content = {"repository": "repo", "lakefs": {"endpoint": "http://lakefs:8000"}, "store": {"region": "eu-north-1"}}
    given: list[object] = []

    @dg.asset
    def own(
        lakefs: dg.ResourceParam[LakeFSSettings], store: dg.ResourceParam[StoreSettings], pyspark: LazyPySparkResource
    ) -> None:
        given.extend((lakefs.endpoint, store.region, pyspark.spark_session.sparkContext.applicationId))

    merged = dg.Definitions.merge(
        build(loaded_from(content, "gc.yaml"), SystemClock()),
        dg.Definitions(assets=[own], jobs=[dg.define_asset_job("make_own", [own])]),
    )
    assert merged.resolve_job_def("make_own").execute_in_process().success
    assert given == ["http://lakefs:8000", "eu-north-1", spark.sparkContext.applicationId]


def test_the_instance_tells_when_dagster_runs_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    @dg.job
    def work() -> None:
        pass

    with dg.instance_for_test() as instance:
        ended = work.execute_in_process(instance=instance).run_id
        goes_on = dg.DagsterRun("collect", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(goes_on)

        launch = launch_of(dg.build_init_resource_context(instance=instance))

        at = launch.ended_at(ended)
        assert at is not None and abs(datetime.now(UTC) - at) < timedelta(minutes=1)
        assert [launch.ended_at(run_id) for run_id in (goes_on.run_id, "of another instance")] == [None, None]
        monkeypatch.setattr(type(instance), "get_run_record_by_id", lambda *_: 1 / 0)
        assert launch.ended_at(ended) is None

"""A deployment's existing resources replace duplicate settings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource, s3_resource
from dagster_pyspark import LazyPySparkResource, PySparkResource

from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, load_all, loaded_from
from lakefs_gc_assets.definitions import defs
from lakefs_gc_assets.defs import resources
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import AskedRun, execute
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import SparkSettings, StoreSettings
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]

LOADED = loaded_from({"repository": "repo", "store": {"resource": "s3"}, "spark": {"resource": "spark_there"}}, "test")


def looked_at(look: Callable[[Collector], None], resources: dict[str, Any]) -> dg.ExecuteInProcessResult:
    """The result of a job that gets our collector beside resources of the deployment."""

    @dg.op(required_resource_keys={"collector"})
    def looking(context: dg.OpExecutionContext) -> None:
        look(context.resources.collector)

    @dg.job
    def looking_job() -> None:
        looking()

    ours = build(LOADED, SystemClock())
    merged = dg.Definitions.merge(ours, dg.Definitions(jobs=[looking_job], resources=resources))
    with dg.DagsterInstance.ephemeral() as instance:
        return merged.resolve_job_def("looking_job").execute_in_process(instance=instance)


def test_a_store_is_reached_as_the_deployments_resource_reaches_it(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_SECRET", SECRET_KEY)
    found: list[tuple[str, ...]] = []

    def look(collector: Collector) -> None:
        settings = collector.store
        store = open_store(settings, Namespace.parse(f"s3://{bucket}/repo"))
        store.put("a", b"some bytes")
        found.append((settings.region, settings.endpoint_url, store.get("a").decode(), repr(collector)))

    resource = S3Resource(
        region_name="us-east-1",
        endpoint_url=s3_server.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=dg.EnvVar("THEIR_SECRET"),
    )
    result = looked_at(look, {"s3": resource, "spark_there": LazyPySparkResource(spark_config={})})

    ((region, endpoint, content, shown),) = found
    assert (region, endpoint, content) == ("us-east-1", s3_server.url, "some bytes")
    reported = shown + str(result.dagster_run.tags) + str(result.dagster_run.run_config)
    assert SECRET_KEY not in reported + "".join(str(event) for event in result.all_events)


def test_the_session_has_the_properties_of_the_deployments_resource() -> None:
    found: list[SparkSettings] = []
    theirs = LazyPySparkResource(spark_config={"spark": {"master": "local[3]", "ui.enabled": True}, "spark.x": 7})

    looked_at(lambda collector: found.append(collector.spark), {"s3": S3Resource(), "spark_there": theirs})

    (settings,) = found
    assert settings.master == "local[3]"
    assert settings.config == {"spark.ui.enabled": "true", "spark.x": "7"}
    assert theirs._spark_session is None, "ours is the one session of the process"


def test_a_resource_that_the_deployment_does_not_have_is_named() -> None:
    with pytest.raises(dg.DagsterInvariantViolationError, match="Resource with key 's3' required by"):
        looked_at(lambda _: None, {"spark_there": LazyPySparkResource(spark_config={})})


OWN = StoreSettings(resource="s3")
THEIRS = S3Resource(
    region_name="eu-central-1",
    endpoint_url="https://s3.example.com",
    profile_name="theirs",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
    aws_session_token="token",
)


def test_everything_that_it_says_is_taken() -> None:
    assert resources.with_s3(OWN, THEIRS) == StoreSettings(
        resource="s3",
        region="eu-central-1",
        endpoint_url="https://s3.example.com",
        path_style=True,
        profile="theirs",
        access_key_id="key",
        secret_access_key="secret",
        session_token="token",
    )
    assert resources.with_s3(OWN, S3Resource()) == OWN


def test_what_is_set_beside_it_goes_before_and_credentials_are_never_mixed() -> None:
    own = StoreSettings(resource="s3", region="us-east-1", endpoint_url="https://other.example.com", profile="ours")

    assert resources.with_s3(own, THEIRS) == own


def test_a_signing_key_of_ones_own_leaves_the_credentials_to_the_resource() -> None:
    own = OWN.model_copy(update={"signing_key": "k" * 32, "from_environment": {"signing_key": "SIGNING"}})
    settings = resources.with_s3(own, THEIRS)
    assert (settings.access_key_id, settings.signing_key) == ("key", "k" * 32)


@pytest.mark.parametrize(
    ("theirs", "own", "said"),
    [
        (S3Resource(use_unsigned_session=True), OWN, "use_unsigned_session"),
        (S3Resource(verify=False), OWN, "store.ca_bundle"),
        (S3Resource(use_ssl=False), OWN, "begins with http://"),
        (LazyPySparkResource(spark_config={}), OWN, "a LazyPySparkResource, but must be an S3Resource"),
        (None, OWN, "there is none here"),
    ],
)
def test_what_a_collector_does_not_do_is_refused(theirs: object, own: StoreSettings, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        resources.with_s3(own, theirs)


def test_http_and_a_private_authority_are_said_in_their_own_words() -> None:
    plain = resources.with_s3(OWN, S3Resource(use_ssl=False, endpoint_url="http://minio:9000"))
    trusted = resources.with_s3(StoreSettings(resource="s3", ca_bundle="ours.pem"), S3Resource(verify=False))

    assert plain.endpoint_url == "http://minio:9000"
    assert trusted.ca_bundle == "ours.pem"


@pytest.mark.parametrize("kind", [LazyPySparkResource, PySparkResource])
def test_spark_settings_beside_it_go_before(kind: type[LazyPySparkResource | PySparkResource]) -> None:
    theirs = kind(spark_config={"spark.master": "spark://a:7077", "spark.driver.memory": "8g", "spark.x": "theirs"})
    own = SparkSettings(resource="spark_there", master="spark://b:7077", config={"spark.x": "ours"})

    settings = resources.with_spark(own, theirs)

    assert (settings.master, settings.driver_memory, settings.config) == ("spark://b:7077", "8g", {"spark.x": "ours"})


def test_another_kind_of_resource_is_no_spark() -> None:
    with pytest.raises(ConfigurationError, match=r"a S3Resource, but must be a LazyPySparkResource or PySparkResource"):
        resources.with_spark(SparkSettings(resource="s3"), S3Resource())


def test_a_configuration_file_may_name_resources_of_the_code_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lakefs-gc.yaml"
    file.write_text("repositories: [{repository: one}, {repository: two}]\nstore: {resource: s3}\n")
    monkeypatch.setenv(CONFIGURATION_VARIABLE, str(file))
    collected: list[tuple[str, str]] = []

    @dg.asset
    def own(collector_one: dg.ResourceParam[Collector], collector_two: dg.ResourceParam[Collector]) -> None:
        collected.extend((each.repository, each.store.region) for each in (collector_one, collector_two))

    theirs = dg.Definitions(
        assets=[own], jobs=[dg.define_asset_job("job", [own])], resources={"s3": S3Resource(region_name="eu-central-1")}
    )
    merged = dg.Definitions.merge(defs(), theirs)
    dg.Definitions.validate_loadable(merged)
    assert merged.resolve_job_def("job").execute_in_process().success
    assert collected == [("one", "eu-central-1"), ("two", "eu-central-1")]
    assert "store_one" not in merged.get_repository_def().get_top_level_resources()


@pytest.mark.parametrize("section", ["store", "spark"])
def test_where_there_is_no_deployment_it_is_refused(section: str, tmp_path: Path) -> None:
    file = tmp_path / "lakefs-gc.yaml"
    file.write_text(f"repository: repo\n{section}: {{resource: there}}\n")
    (loaded,) = load_all(file)
    alone = Collector(loaded.configuration, SystemClock())

    message = rf"{section}\.resource is there, .* there is none here: write its settings under `{section}`"
    with pytest.raises(ConfigurationError, match=message):
        getattr(alone, section)
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(ConfigurationError, match=message):
        execute(loaded, AskedRun(), print, SystemClock(), instance)


def test_a_client_of_boto3_is_no_resource() -> None:
    """The older `s3_resource` is a client that does not expose its credentials."""
    theirs = {"s3": s3_resource, "spark_there": LazyPySparkResource(spark_config={})}

    with pytest.raises(ConfigurationError, match="a S3, but must be an S3Resource of dagster-aws"):
        looked_at(lambda collector: print(collector.store), theirs)

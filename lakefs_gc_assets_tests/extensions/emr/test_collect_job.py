"""The EMR Serverless job: the request, tested with moto, and the spark-submit that it starts on this machine."""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
import pyspark
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.emrserverless import models

import lakefs_gc_assets.defs.emr_job
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded, loaded_from
from lakefs_gc_assets.defs.history import HISTORY
from lakefs_gc_assets.defs.partitions import key_of, newest_metadata
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.emr.collect_job import start_parameters
from lakefs_gc_assets.extensions.emr.definitions import define
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import Configuration, EMRServerlessSettings, LaunchSettings
from lakefs_gc_assets.spark.start.java import ensure_java
from lakefs_gc_assets_tests.clusters.spark_clusters import QUICKLY
from lakefs_gc_assets_tests.defs.automated import failure_in
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]
pytestmark = pytest.mark.timeout(900)
REGION = "us-east-1"
VARIABLE = "LAKEFS_GC_TEST_SECRET"
JOB = "collect_on_emr_serverless"


class EMR(threading.Thread):
    """Imitates EMR Serverless for the first job run of an application: submits it to Spark and reports its end.

    Attributes:
        with_spark: False for a program that fails before it needs Spark.
    """

    def __init__(self, application_id: str, secrets: Mapping[str, str], with_spark: bool) -> None:
        super().__init__(daemon=True)
        self.with_spark = with_spark
        backend = models.emrserverless_backends[DEFAULT_ACCOUNT_ID][REGION]
        self._runs = backend.job_runs.setdefault(application_id, [])
        self._secrets = secrets
        self.stopped = threading.Event()
        self.request: dict[str, Any] = {}
        self.output = ""

    def run(self) -> None:
        while not self._runs:
            if self.stopped.wait(0.2):
                return
        job_run = self._runs[0]
        self.request = {"driver": job_run.job_driver, "overrides": job_run.configuration_overrides}
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        properties = ["--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"]
        launcher = [submit, "--master", "local[1]", *properties] if self.with_spark else [sys.executable]
        python = {"JAVA_HOME": str(ensure_java()), "PYSPARK_PYTHON": sys.executable}
        ended = subprocess.run(
            [*launcher, lakefs_gc_assets.defs.emr_job.__file__],
            env={**os.environ, **QUICKLY, **self._environment(), **python},
            capture_output=True,
            text=True,
        )
        self.output = ended.stdout + ended.stderr
        job_run.state = "SUCCESS" if ended.returncode == 0 else "FAILED"

    def _environment(self) -> dict[str, str]:
        """Environment variables of the driver in the request."""
        prefix = "spark.emr-serverless.driverEnv."
        submit = self.request["driver"]["sparkSubmit"]["sparkSubmitParameters"]
        given = dict(re.findall(rf"--conf {re.escape(prefix)}(\w+)=(\S+)", submit))
        [defaults] = self.request["overrides"]["applicationConfiguration"]
        secrets = {
            name.removeprefix(prefix): self._secrets[value.removeprefix("EMR.secret@")]
            for name, value in defaults["properties"].items()
            if name.startswith(prefix)
        }
        return given | secrets


@pytest.fixture
def aws(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials and endpoint as on an AWS machine, without the user's Dagster home."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    # Moto's job runs would otherwise succeed immediately.
    monkeypatch.setattr(models, "JOB_STATUS", "SUBMITTED")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@contextmanager
def emr(application_id: str, secrets: Mapping[str, str], with_spark: bool = True) -> Iterator[EMR]:
    """Executes the first job run of an application."""
    thread = EMR(application_id, secrets, with_spark)
    thread.start()
    yield thread
    thread.stopped.set()
    thread.join()


def loaded_for(server: EmbeddedServer, repository: str, bucket: str) -> Loaded:
    """A configuration as a file gives it: its one secret comes from the environment."""
    client = boto3.client("emr-serverless")
    application = client.create_application(name="gc", releaseLabel="emr-7.9.0", type="SPARK")["applicationId"]
    settings = EMRServerlessSettings(
        application_id=application,
        execution_role_arn="arn:aws:iam::123456789012:role/lakefs-gc",
        message_bucket=bucket,
        environment={VARIABLE: "lakefs/gc"},
        poll_seconds=0.2,
    )
    content = demo.configuration(server, repository)
    hidden = content.lakefs.model_copy(update={"secret_access_key": ""})
    launch = LaunchSettings(sweep="any")
    collection = content.collection.model_copy(update={"slice_window": "day"})
    changed = content.model_copy(
        update={"emr_serverless": settings, "lakefs": hidden, "launch": launch, "collection": collection}
    )
    return Loaded(changed, {("lakefs", "secret_access_key"): VARIABLE})


def launched_with(**config: object) -> dict[str, Any]:
    return {"ops": {"run_on_emr_serverless": {"config": config}}}


def window_of(address: str) -> str:
    return layout.window(layout.parse(address).slice, "day")


@pytest.mark.slow
def test_a_run_on_emr_serverless_over_some_windows(
    aws: None, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with demo.open_server(tmp_path, "oss", "", None) as server, dg.DagsterInstance.ephemeral() as instance:
        sample = make_sample_repository(server, objects=60)
        loaded = loaded_for(server, sample.repository, bucket)
        secret = server.secret_access_key
        monkeypatch.setenv(VARIABLE, secret)
        job = build(loaded, SystemClock(), [define]).resolve_job_def(JOB)
        collector = Collector.from_loaded(loaded, SystemClock())
        chosen = min(window_of(garbage.address) for garbage in sample.garbage)
        config = launched_with(sweep=True, windows=chosen)

        with emr(loaded.configuration.emr_serverless.application_id, {"lakefs/gc": secret}) as started:
            result = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)

        assert result.success, started.output
        assert unreadable(server, sample) == []
        kept = [garbage for garbage in sample.garbage if window_of(garbage.address) != chosen]
        assert demo.still_stored(server, sample) == kept != []
        assert secret not in str(started.request)
        materialized = [event.materialization for event in result.all_events if event.is_step_materialization]
        run_id = materialized[0].metadata["run_id"].value
        assert isinstance(run_id, str)
        plan = plans.read(collector.open().store, run_id)
        assert (plan.sweep, plan.windows) == (True, (chosen,))
        assert [(each.asset_key.path[-1], each.partition) for each in materialized] == [
            (name, f"{key_of(run_id)}|{window}") for name in STEPS for window in plan.windows
        ]
        shown = [each.metadata for each in materialized if each.asset_key.path[-1] == STEPS[-1]]
        (in_words,) = [str(each["window_in_words"].value) for each in shown]
        assert in_words.startswith(f"{chosen}: {len(sample.garbage) - len(kept)} rows, ")
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert (run.tags["lakefs/mode"], run.tags["lakefs/ending"]) == ("sweep", "deleted")


@pytest.mark.slow
def test_a_run_that_fails_there_fails_here(
    aws: None, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with demo.open_server(tmp_path, "oss", "", None) as server, dg.DagsterInstance.ephemeral() as instance:
        loaded = loaded_for(server, make_sample_repository(server, objects=60).repository, bucket)
        monkeypatch.setenv(VARIABLE, server.secret_access_key)
        job = build(loaded, SystemClock(), [define]).resolve_job_def(JOB)

        application = loaded.configuration.emr_serverless.application_id
        with emr(application, {"lakefs/gc": "wrong"}, with_spark=False) as started:
            result = job.execute_in_process(instance=instance, raise_on_error=False)

        assert not result.success
        assert "401" in started.output


def test_windows_that_cannot_be_run_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with demo.open_server(tmp_path, "oss", "", None) as server, dg.instance_for_test() as instance:
        content = demo.configuration(server, make_sample_repository(server, objects=60).repository)
        application = EMRServerlessSettings(application_id="none")
        loaded = Loaded(content.model_copy(update={"emr_serverless": application}), {})
        definitions = build(loaded, SystemClock(), [define])
        job, sensor = definitions.resolve_job_def(JOB), definitions.get_sensor_def("note_failures")
        config = launched_with(windows="1999-01")
        result = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
        with dg.build_sensor_context(instance, "-1", definitions=definitions) as context:
            sensor.evaluate_tick(context)
        recorded = newest_metadata(instance, dg.AssetKey(HISTORY))
    assert "1999-01 has no slice" in failure_in(result)
    assert (recorded["ending"], recorded["dagster_run"]) == ("failed", result.run_id)


def test_there_is_no_such_job_without_an_application() -> None:
    jobs = build(Loaded(Configuration(), {}), SystemClock(), [define]).resolve_all_job_defs()
    assert JOB not in {job.name for job in jobs}


@pytest.mark.parametrize("section", ["store", "spark"])
def test_a_resource_of_this_deployment_is_refused(section: str) -> None:
    loaded = loaded_from({"repository": "repo", section: {"resource": "there"}}, "gc.yaml")
    with pytest.raises(ConfigurationError, match=rf"{section}\.resource is there, .*EMR Serverless cannot use"):
        start_parameters(loaded.configuration.emr_serverless, loaded)


def test_executors_get_the_credentials_of_the_store_and_no_others() -> None:
    content = {
        "lakefs": {"secret_access_key": {"env": "LAKEFS_KEY"}},
        "store": {"secret_access_key": {"env": "STORE_KEY"}},
        "emr_serverless": {"environment": {"LAKEFS_KEY": "lakefs/gc", "STORE_KEY": "store/gc"}},
    }
    loaded = loaded_from(content, "test")
    request = start_parameters(loaded.configuration.emr_serverless, loaded)
    [defaults] = request["configurationOverrides"]["applicationConfiguration"]
    assert defaults["properties"] == {
        "spark.emr-serverless.driverEnv.LAKEFS_KEY": "EMR.secret@lakefs/gc",
        "spark.emr-serverless.driverEnv.STORE_KEY": "EMR.secret@store/gc",
        "spark.executorEnv.STORE_KEY": "EMR.secret@store/gc",
    }


def test_a_property_with_spaces_is_one_argument_of_spark_submit() -> None:
    config = {"spark.driver.extraJavaOptions": "-Xss4m -Dname='a b'", "spark.plain": "1"}
    loaded = loaded_from({"spark": {"config": config}}, "test")

    driver = start_parameters(loaded.configuration.emr_serverless, loaded)["jobDriver"]["sparkSubmit"]

    given = shlex.split(driver["sparkSubmitParameters"])
    assert given == ["--conf", "spark.driver.extraJavaOptions=-Xss4m -Dname='a b'", "--conf", "spark.plain=1"]
    assert driver["sparkSubmitParameters"].endswith("--conf spark.plain=1")

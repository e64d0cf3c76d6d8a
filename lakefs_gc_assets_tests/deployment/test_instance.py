import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import PoolGranularity
from dagster._core.storage.compute_log_manager import ComputeIOType

from lakefs_gc_assets_tests.harness.dagster_dev import commented
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    shutil.copy(PROJECT / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def test_one_run_for_each_repository_at_a_time(instance: dg.DagsterInstance) -> None:
    found = instance.get_concurrency_config()

    assert found.run_queue_config is not None
    assert found.run_queue_config.max_concurrent_runs > 1
    assert found.pool_config.pool_granularity is PoolGranularity.RUN
    assert found.pool_config.default_pool_limit == 1


def test_no_run_is_started_again_by_itself(instance: dg.DagsterInstance) -> None:
    assert instance.run_retries_max_retries == 0
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_max_resume_run_attempts == 0


def test_a_run_that_nobody_can_mark_as_failed_gives_way_after_a_day(instance: dg.DagsterInstance) -> None:
    """The code server marks runs whose process died, unless it is gone too, or could not write."""
    assert instance.run_monitoring_max_runtime_seconds == 24 * 3600


def test_nothing_is_sent_home(instance: dg.DagsterInstance) -> None:
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled


def test_sensors_of_many_repositories_can_be_evaluated_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(commented("sensors"))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.get_sensor_settings() == {"use_threads": True, "num_workers": 8}


def test_what_steps_print_can_be_kept_on_s3(
    tmp_path: Path, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncomments the lines that dagster.yaml shows."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    shown = yaml.safe_load(commented("compute_logs"))
    shown["compute_logs"]["config"] |= {
        "bucket": bucket,
        "endpoint_url": s3_server.url,
        "local_dir": str(tmp_path / "logs"),
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(shown))
    key = ["run", "compute_logs", "step"]
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        manager = instance.compute_log_manager
        stream: Any
        with manager.open_log_stream(key, ComputeIOType.STDOUT) as stream:
            stream.write("printed by a step")
    listed = s3_server.client().list_objects_v2(Bucket=bucket, Prefix="lakefs-gc/")["Contents"]
    [found] = [each["Key"] for each in listed if each["Key"].endswith(".out")]
    body = s3_server.client().get_object(Bucket=bucket, Key=found)["Body"].read()
    assert body == b"printed by a step"

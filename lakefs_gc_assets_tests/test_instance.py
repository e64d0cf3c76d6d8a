import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    shutil.copy(PROJECT / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def test_one_run_for_each_repository_at_a_time(instance: dg.DagsterInstance) -> None:
    queue = instance.get_concurrency_config().run_queue_config

    assert queue is not None
    assert queue.max_concurrent_runs > 1
    assert queue.tag_concurrency_limits == [
        {"key": "lakefs/repository", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
    ]


def test_no_run_is_started_again_by_itself(instance: dg.DagsterInstance) -> None:
    assert instance.run_retries_max_retries == 0
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_max_resume_run_attempts == 0


def test_nothing_is_sent_home(instance: dg.DagsterInstance) -> None:
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled

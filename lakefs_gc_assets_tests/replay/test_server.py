import shutil
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
import urllib3

from lakefs_gc_assets_tests.replay.clients import NOW, rows, small
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of

__all__ = ["small"]


class TestClock:
    def test_is_the_same_for_api_and_store(self, small: ReplayServer) -> None:
        pool = urllib3.PoolManager()
        for url in (small.url + "/api/v1/config", small.s3_url + "/lakefs?list-type=2", small.s3_url + "/x"):
            assert parsedate_to_datetime(pool.request("GET", url).headers["Date"]) == NOW.replace(microsecond=0)

    def test_of_the_recording_is_reported(self, small: ReplayServer) -> None:
        assert small.recorded_at == datetime.fromtimestamp(rows("small")[-1]["at"], UTC)


def test_a_folder_without_answers_or_objects_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no api\.jsonl"):
        ReplayServer(tmp_path)
    shutil.copy(folder_of("empty") / "api.jsonl", tmp_path)
    with pytest.raises(ValueError, match="no objects to serve"):
        ReplayServer(tmp_path)


def test_the_configuration_waits_for_nothing(small: ReplayServer) -> None:
    configuration = small.configuration()
    assert configuration.repository == small.repository
    assert (
        configuration.collection.wait_before_dump_seconds,
        configuration.collection.wait_before_recheck_seconds,
    ) == (
        0,
        0,
    )
    assert configuration.collection.sweep is False

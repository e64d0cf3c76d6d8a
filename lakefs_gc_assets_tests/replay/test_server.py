import shutil
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
import urllib3

from lakefs_gc_assets_tests.replay.clients import NOW, Api, boto3_client, listing, rows
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, folder_of, needs_recordings


class TestClock:
    def test_is_the_same_for_api_and_store(self, small: ReplayServer) -> None:
        pool = urllib3.PoolManager()
        for url in (small.url + "/api/v1/config", small.s3_url + "/lakefs?list-type=2", small.s3_url + "/x"):
            assert parsedate_to_datetime(pool.request("GET", url).headers["Date"]) == NOW.replace(microsecond=0)

    def test_may_tick_or_be_the_machines(self) -> None:
        ticks = iter(range(1000))
        pool = urllib3.PoolManager()
        with ReplayServer(folder_of("empty"), now=lambda: NOW + timedelta(minutes=next(ticks))) as server:
            dates = [parsedate_to_datetime(pool.request("GET", server.url).headers["Date"]) for _ in range(2)]
            assert dates[1] - dates[0] == timedelta(minutes=1)
        with ReplayServer(folder_of("empty")) as server:
            date = parsedate_to_datetime(pool.request("GET", server.url).headers["Date"])
            assert abs(date - datetime.now(UTC)) < timedelta(seconds=5)

    def test_of_the_recording_is_reported(self, small: ReplayServer) -> None:
        assert small.recorded_at == datetime.fromtimestamp(rows("small")[-1]["at"], UTC)


def test_nothing_but_rule_variants_is_read_of_the_truth(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(
        folder_of("small"), folder, ignore=shutil.ignore_patterns("truth.json", "sstables.jsonl", "README*")
    )
    with ReplayServer(folder) as server:
        assert Api(server)("GET", "./refs/main/objects/stat", path="live/00.bin")[0] == 200
        pages = boto3_client(server).get_paginator("list_objects_v2").paginate(Bucket="lakefs")
        assert sum(len(page["Contents"]) for page in pages) == len(listing("small"))


def test_a_folder_without_answers_or_objects_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no api\.jsonl"):
        ReplayServer(tmp_path)
    shutil.copy(folder_of("empty") / "api.jsonl", tmp_path)
    with pytest.raises(ValueError, match="no objects to serve"):
        ReplayServer(tmp_path)


@needs_recordings
def test_nor_can_recordings_of_tables_alone() -> None:
    with pytest.raises(ValueError, match=r"has no api\.jsonl"):
        ReplayServer(FIXTURES / "large")
    with pytest.raises(ValueError, match="no objects to serve"):
        ReplayServer(FIXTURES / "bench-wide")


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

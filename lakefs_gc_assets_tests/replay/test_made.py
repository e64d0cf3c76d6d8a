"""Recordings that the tests make are true: each check uses another source than the books."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets_tests.replay import made
from lakefs_gc_assets_tests.replay.clients import Api
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.recordings import MADE_BY_NAME, MADE_PREFIX, folder_of

CHAIN = [f"{MADE_PREFIX}chain/{number}" for number in (1, 2, 3, 4)]


def truth_of(name: str) -> dict[str, Any]:
    return dict(json.loads((folder_of(name) / "truth.json").read_text()))


def addresses(name: str, *classes: str) -> set[str]:
    return {each["address"] for each in truth_of(name)["objects"] if each["class"] in classes}


@pytest.mark.parametrize("name", [MADE_PREFIX + name for name in MADE_BY_NAME])
def test_every_object_is_listed_and_has_a_class(name: str) -> None:
    folder = folder_of(name)
    listed = {row["key"]: row for row in json.loads((folder / "listing.json").read_text())}
    objects = [each for each in truth_of(name)["objects"] if each["inside_namespace"]]
    assert {each["address"] for each in objects} == {key for key in listed if not key.startswith("_lakefs/")}
    assert {path.relative_to(folder / "namespace").as_posix() for path in _files(folder)} == set(listed)
    by_hand = {each["address"] for each in objects if layout.parse(each["address"]).layout is Layout.UNRECOGNISED}
    assert by_hand == ({"data/stray-1/s0", "stray-root-1"} if name.endswith("small") else set())


def _files(folder: Path) -> list[Path]:
    return [path for path in (folder / "namespace").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", [MADE_PREFIX + name for name in MADE_BY_NAME])
def test_the_replayed_server_says_of_each_staged_path_what_the_books_do(name: str) -> None:
    with ReplayServer(folder_of(name)) as server:
        api = Api(server)
        for each in truth_of(name)["objects"]:
            for branch in each["staged_in"]:
                stats = [api("GET", f"./refs/{branch}/objects/stat", path=path)[1] for path in each["paths"]]
                assert f"{server.storage_namespace}/{each['address']}" in {
                    stat.get("physical_address") for stat in stats
                }


def test_each_moment_of_the_chain_has_new_garbage_in_old_and_in_new_slices() -> None:
    garbage = [addresses(name, "unreferenced") for name in CHAIN]
    slices = [{address.split("/")[1] for address in addresses(name, *_DATA)} for name in CHAIN]
    assert [len(found) for found in slices] == [1, 2, 3, 4]
    for earlier, later, known, after in zip(garbage, garbage[1:], slices, slices[1:], strict=False):
        assert earlier < later
        (new,) = after - known
        assert {address.split("/")[1] == new for address in later - earlier} == {False, True}
    listed = len(addresses(CHAIN[0], *_DATA))
    assert listed / 2 < len(garbage[0]) > 10


_DATA = ("committed", "committed_expired_only", "staged", "staged_and_committed", "unreferenced")


def test_rules_let_go_what_only_expired_commits_of_a_made_recording_hold() -> None:
    name = f"{MADE_PREFIX}merge-dangling"
    clock = MovingClock(datetime.now(UTC))
    with ReplayServer(folder_of(name), now=clock.now) as server:
        clock.moment = server.recorded_at + timedelta(hours=30)
        found = ArrowRuns(Loaded(server.configuration(), {}), clock).collect(Flow.COMMITTED)
    tagged = {tag["commit_id"] for tag in truth_of(name)["tags"]}
    expired = [each for each in truth_of(name)["objects"] if each["class"] == "committed_expired_only"]
    assert found.counts["candidates"] == sum(tagged.isdisjoint(each["commits"]) for each in expired) > 0
    assert len(expired) > found.counts["candidates"]


def test_recordings_are_made_once(tmp_path: Path) -> None:
    first = made.make_once("empty", tmp_path)
    written = (first / "empty" / "truth.json").stat().st_mtime_ns
    assert made.make_once("empty", tmp_path) == first
    assert (first / "empty" / "truth.json").stat().st_mtime_ns == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "empty.lock"]

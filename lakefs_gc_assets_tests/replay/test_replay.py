from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.replay import collecting
from lakefs_gc_assets_tests.replay.__main__ import main
from lakefs_gc_assets_tests.replay.collecting import plain_tables
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, MADE_PREFIX, folder_of, recorded, recorded_and_made
from lakefs_gc_assets_tests.runs.replayed_runs import AGED, truth_classes

DAGS = sorted(folder.name for folder in (FIXTURES / "random-dag").glob("*"))
RECORDINGS = [
    *recorded_and_made("small"),
    *recorded("empty", "merge-dangling", *(f"random-dag/{name}" for name in DAGS), "chain/1"),
]
FOREIGN = {"data/stray-1/s0", "stray-root-1"}
"""Objects of the recording `small` that another program put there."""


class KeptServer(ReplayServer):
    """A replay that remembers its servers."""

    made: list[ReplayServer] = []  # noqa: RUF012

    def __enter__(self) -> "KeptServer":
        self.made.append(self)
        super().__enter__()
        return self


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ReplayServer]]:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setattr(collecting, "ReplayServer", KeptServer)
    KeptServer.made.clear()
    yield KeptServer.made


def replayed(folder: str, now: datetime) -> dict[str, Any]:
    return collecting.replay(folder_of(folder), Flow.CLEAN, now, None, lambda line: None, engine=plain_tables)


def recorded_at(folder: str) -> datetime:
    return ReplayServer(folder_of(folder)).recorded_at


@pytest.mark.parametrize("folder", RECORDINGS)
def test_two_days_later_exactly_what_the_recording_calls_unreferenced_goes(
    servers: list[ReplayServer], folder: str
) -> None:
    found = replayed(folder, recorded_at(folder) + AGED)

    classes = truth_classes(folder)
    unreferenced = classes.get("unreferenced", set())
    assert set(found["candidates"]) == unreferenced - FOREIGN
    assert len(found["candidates"]) == len(set(found["candidates"])) == found["counts"]["candidates"]
    assert set(found["unrecognised"]) == (FOREIGN if folder.removeprefix(MADE_PREFIX) == "small" else set())
    assert found["counts"]["committed"] == len(
        classes.get("committed", set())
        | classes.get("committed_expired_only", set())
        | classes.get("staged_and_committed", set())
    )
    assert (found["counts"]["deleted"], found["counts"]["failed"]) == (0, 0)
    assert [(server.deleted, server.refused_deletes) for server in servers] == [(set(), set())]


@pytest.mark.parametrize("folder", ["small", "chain/1"])
def test_while_everything_is_young_nothing_goes(servers: list[ReplayServer], folder: str) -> None:
    found = replayed(folder, recorded_at(folder))

    assert found["candidates"] == []
    assert found["counts"]["slices_skipped"] == 1
    assert [(server.deleted, server.refused_deletes) for server in servers] == [(set(), set())]


def test_what_is_listed_but_too_young_is_kept(servers: list[ReplayServer]) -> None:
    """The slice is older than the cutoff, but its objects are not."""
    objects = {address for address in truth_classes("small")["unreferenced"] if address not in FOREIGN}
    first = min(entry for entry in objects)
    slice_at = datetime_of_slice(first)

    found = replayed("small", slice_at + timedelta(hours=25, seconds=1))

    assert found["counts"]["slices_listed"] == 1
    assert found["candidates"] == []
    assert sum(found["counts"]["kept"].values()) == len(objects) + len(FOREIGN)


def datetime_of_slice(address: str) -> datetime:
    return layout.as_datetime(layout.created_at(address.split("/")[1]))


def test_a_recording_without_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises((ValueError, CollectionError), match=r"no api\.jsonl"):
        collecting.replay(tmp_path, Flow.CLEAN, None, None, lambda line: None)


def test_the_command_refuses_what_it_cannot_replay(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, [str(tmp_path)])

    assert ended.exit_code == 1
    assert len(ended.output.splitlines()) == 1 and ended.output.startswith("replay: ")


def test_the_command_refuses_a_time_that_is_none(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, [str(tmp_path), "--now", "yesterday"])

    assert ended.exit_code == 2
    assert "'yesterday' is no ISO 8601 time" in ended.stderr

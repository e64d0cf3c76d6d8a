from datetime import timedelta

import pytest

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.defs.partitions import RANGE_END_TAG, RANGE_START_TAG, RunPartitions, key_of
from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import refused

__all__ = ["replaying"]


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1")


def old_slice(runs: GraphRuns, days: int) -> str:
    """A slice opened `days` days ago, with one object."""
    then = runs.clock.now() - timedelta(days=days)
    generator = layout.XidGenerator()
    name = generator.descending(then)
    runs.server.place(f"data/{name}/{generator.ascending(then)}", written_at=then)
    return name


def test_opening_a_run_adds_its_partitions(runs: GraphRuns) -> None:
    old_slice(runs, days=40)

    opened = runs.open()

    assert opened.windows == ("legacy", "2026-10", "2026-11")
    assert layout.as_datetime(layout.created_at(opened.run_id)) == runs.clock.now().replace(microsecond=0)
    partitions = RunPartitions(runs.server.repository)
    assert runs.instance.get_dynamic_partitions(partitions.windows.name or "") == list(opened.windows)
    assert runs.instance.get_dynamic_partitions(partitions.run_ids.name or "") == [key_of(opened.run_id)]
    assert opened.tags == {
        RANGE_START_TAG: f"{key_of(opened.run_id)}|legacy",
        RANGE_END_TAG: f"{key_of(opened.run_id)}|2026-11",
        "lakefs/repository": runs.server.repository,
        "lakefs/flow": "clean",
    }


def test_a_window_that_turns_up_later_is_covered_too(runs: GraphRuns) -> None:
    assert runs.open().windows == ("legacy", "2026-11")
    old_slice(runs, days=40)

    opened = runs.open()

    assert opened.windows == ("legacy", "2026-11", "2026-10")
    assert opened.tags[RANGE_END_TAG] == f"{key_of(opened.run_id)}|2026-10"


def test_run_ids_of_one_moment_differ(runs: GraphRuns) -> None:
    assert runs.open().run_id != runs.open().run_id


def test_a_repository_that_cannot_be_looked_at_opens_nothing(runs: GraphRuns) -> None:
    runs.server.fault = lambda method, target: refused(401, "error authenticating request")

    with pytest.raises(AccessDenied):
        runs.open()

    runs.server.fault = lambda method, target: None
    assert runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "") == []


def test_a_run_that_was_asked_to_be_optimized_says_why_it_is_not(runs: GraphRuns) -> None:
    opened = runs.open(Flow.OPTIMIZED)

    assert opened.why_clean == "there is no earlier run"
    assert opened.tags["lakefs/flow"] == "optimized"
    assert opened.tags["lakefs/why_clean"] == opened.why_clean

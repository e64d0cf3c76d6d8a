"""Optimized runs through the real graph, on a recorded repository."""

import re
from datetime import timedelta

import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Checkpoint, Report
from lakefs_gc_assets.defs import resources
from lakefs_gc_assets.spark import engine
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, failures, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["replaying"]
DAY = timedelta(days=1)


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1, sweep=True)


def collected(runs: GraphRuns, flow: Flow = Flow.OPTIMIZED) -> Report:
    """The report of another run, a day after the last."""
    runs.clock.moment += DAY
    opened = runs.open(flow)
    result = runs.make(opened)
    assert result.success, failures(result)
    return runs.report(opened.run_id)


def checkpoint_of(found: Report) -> Checkpoint:
    """The checkpoint of a run, which must exist."""
    assert found.checkpoint is not None, found.no_checkpoint
    return found.checkpoint


@pytest.mark.slow
def test_frames_that_only_tasks_read_are_compared_alike(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares frames like large ones. Otherwise the driver would keep the few rows of these recordings."""
    monkeypatch.setattr(files, "LOCAL_ROWS", -1)
    monkeypatch.setattr(engine, "LOCAL_ROWS", -1)
    stubborn, *others = sorted(truth_classes("chain/1")["unreferenced"])
    runs.server.undeletable = {stubborn}
    clean = collected(runs, Flow.CLEAN)
    assert runs.server.deleted == set(others)
    runs.server.undeletable = set()
    again = collected(runs)
    assert (again.flow, again.counts["ranges_read"]) == ("optimized", 0)
    assert runs.addresses(again.run_id, "candidates") == [stubborn]
    assert checkpoint_of(again).sealed_objects == checkpoint_of(clean).sealed_objects
    assert checkpoint_of(again).pending == checkpoint_of(clean).pending - 1
    assert runs.server.deleted == {stubborn, *others}


@pytest.mark.slow
def test_a_run_with_nothing_to_list_or_read_asks_for_no_session(
    runs: GraphRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected(runs)
    assert any(line.startswith("  store_df: ") and line.endswith(", by Spark") for line in runs.lines)
    runs.lines.clear()
    monkeypatch.setattr(resources, "session", lambda settings: 1 / 0)

    again = collected(runs)

    assert (again.flow, again.counts["ranges_read"]) == ("optimized", 0)
    assert [line.rpartition(", by ")[2] for line in runs.lines if re.search(" rows? in ", line)] == ["this process"] * 5


@pytest.mark.slow
def test_a_changed_policy_makes_a_clean_run_that_says_why_everywhere(runs: GraphRuns) -> None:
    collected(runs, Flow.CLEAN)
    runs.settings["min_age_hours"] = 30
    runs.clock.moment += DAY
    opened = runs.open(Flow.OPTIMIZED)
    assert "minimum age" in opened.tags["lakefs/why_clean"]
    result = runs.make(opened)
    found = runs.report(opened.run_id)
    assert found.flow == "clean" and "minimum age" in (found.why_clean or "")
    assert any("a clean run instead of an optimized one" in line for line in runs.lines)
    (materialization,) = [
        event.step_materialization_data.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None and event.asset_key.path == ["store_df"]
    ][:1]
    (shown,) = [line for line in str(materialization.metadata["frame"].value).splitlines() if "why_clean" in line]
    assert "minimum age" in shown

"""Runs in this process: Dagster's events about them, which take minutes for thousands of windows."""

import os
from pathlib import Path

import dagster as dg
import pytest

from lakefs_gc_assets.cli.progress import StepLines
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.running import FEW_WRITES
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import refused

__all__ = ["replaying"]

_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_STORED = dg.DagsterEventType.ASSET_MATERIALIZATION


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    """Runs whose second step fails."""
    runs = replaying("chain/1", max_candidate_share=1)
    runs.server.fault = lambda method, target: refused(500, "no") if "prepare_uncommited" in target else None
    return runs


def test_no_events_of_assets_are_stored_on_an_instance_that_ends_with_its_process(runs: GraphRuns) -> None:
    """No page could show them later."""
    _, error = running.execute(runs.loaded, running.AskedRun(), runs.lines.append, runs.clock, runs.instance)

    assert "failed in uncommitted_df" in str(error)
    (ended,) = runs.instance.get_runs()
    assert runs.instance.all_logs(ended.run_id, of_type={_PLANNED, _STORED}) == []
    assert runs.instance.all_logs(ended.run_id, of_type=dg.DagsterEventType.STEP_SUCCESS)


def test_a_bar_is_no_reason_to_hide_a_wait() -> None:
    """A sweep waits for up to ten minutes with no other output; other messages of steps are internals."""
    lines: list[str] = []
    definition = running.line_logger(lines.append, running.Detail(watch=StepLines(lines.append)))
    logger = definition.logger_fn(dg.build_init_logger_context())
    for message in ("waiting 564 s before checking live data again", "4 ranges to read"):
        logger.info(message, extra={"dagster_meta": {"step_key": "deleted_report", "orig_message": message}})

    assert lines == ["  waiting 564 s before checking live data again"]


def test_one_event_plans_all_windows_of_an_asset_on_an_instance_of_ones_own(
    runs: GraphRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    for name in FEW_WRITES:
        monkeypatch.delenv(name, raising=False)

    with running.instance() as home:
        running.execute(runs.loaded, running.AskedRun(), runs.lines.append, runs.clock, home)
        (ended,) = home.get_runs()
        planned = home.all_logs(ended.run_id, of_type=_PLANNED)
        stored = home.all_logs(ended.run_id, of_type=_STORED)

    windows = [event.dagster_event.partition for event in planned if event.dagster_event]
    assert windows.count(None) == len(STEPS)
    assert len(windows) == len(STEPS), "one for each asset"
    assert len(stored) == 2, "one for each window"
    assert FEW_WRITES.keys().isdisjoint(os.environ)
    whole, batch = FEW_WRITES
    monkeypatch.setenv(whole, "0")
    with running.instance():
        assert (os.environ[whole], os.environ[batch]) == ("0", "200"), "the environment's own goes before"

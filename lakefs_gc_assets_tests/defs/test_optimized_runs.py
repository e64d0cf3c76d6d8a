"""Optimized runs of a recorded repository, through the real graph and after old runs expire."""

import re
from datetime import timedelta

import pytest

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import resources
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.settings import AutomationSettings
from lakefs_gc_assets_tests.runs import plain_runs
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
def test_the_next_optimized_run_builds_on_what_was_kept_when_old_runs_expired() -> None:
    """Enough remains also for a user who asks which objects were deleted."""
    unreferenced = truth_classes("chain/1")["unreferenced"]
    with plain_runs.replays() as replaying:
        runs = replaying("chain/1", deletes="overlay", max_candidate_share=1)

        def made(*, sweep: bool, flow: Flow = Flow.CLEAN) -> str:
            """The id of a run that succeeded, an hour after the previous one."""
            runs.clock.moment += timedelta(hours=1)
            opened = runs.open(flow)
            result = runs.make(opened, sweep=sweep)
            assert result.success, result.failures
            return opened.run_id

        old_dry, swept, dry = made(sweep=False), made(sweep=True), made(sweep=False)
        configuration = runs.loaded.configuration.model_copy(update={"automation": AutomationSettings(keep_runs=1)})
        job = build(Loaded(configuration, {}), runs.clock).resolve_job_def("expire_runs")

        assert job.execute_in_process(run_config={"ops": {"remove_old_frames": {"config": {"dry": False}}}}).success

        store = runs.repository.store
        assert [run.run_id for run in expiring.past_runs(expiring.folders(store)) if run.frames] == [dry, swept]
        assert runs.report(old_dry).counts["candidates"] == len(runs.addresses(old_dry, "deleted_report"))
        assert set(receipts.read(store, swept).column("address").to_pylist()) == unreferenced
        following = runs.report(made(sweep=True, flow=Flow.OPTIMIZED))
        assert (following.flow, following.base_run, following.why_clean) == ("optimized", swept, None)
        assert (following.counts["deleted"], following.counts["ranges_read"]) == (0, 0)

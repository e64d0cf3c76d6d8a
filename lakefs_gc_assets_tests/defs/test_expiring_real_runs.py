"""After old runs expire, enough remains for the next run, and for a user who asks which objects were deleted."""

from datetime import timedelta

import pytest

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.maintenance import removing_config
from lakefs_gc_assets.defs.partitions import Names, key_of
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.settings import AutomationSettings
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, failures, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["replaying"]


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1)


def collected(runs: GraphRuns, *, sweep: bool, flow: Flow = Flow.CLEAN) -> str:
    """The id of a run that succeeded, an hour after the previous one."""
    runs.clock.moment += timedelta(hours=1)
    opened = runs.open(flow)
    assert failures(runs.make(opened, sweep=sweep)) == {}
    return opened.run_id


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_next_optimized_run_builds_on_what_was_kept(runs: GraphRuns) -> None:
    unreferenced = truth_classes("chain/1")["unreferenced"]
    old_dry = collected(runs, sweep=False)
    swept = collected(runs, sweep=True)
    dry = collected(runs, sweep=False)
    configuration = runs.loaded.configuration.model_copy(update={"automation": AutomationSettings(keep_runs=1)})
    job = build(Loaded(configuration, {}), runs.clock).resolve_job_def("expire_runs")

    ended = job.execute_in_process(instance=runs.instance, run_config=removing_config(Names(runs.server.repository)))

    assert ended.success
    store = runs.repository.store
    assert [run.run_id for run in expiring.past_runs(expiring.folders(store)) if run.frames] == [dry, swept]
    assert list(runs.instance.get_dynamic_partitions(f"gc_runs_{runs.server.repository}")) == [
        *map(key_of, (swept, dry))
    ]
    assert runs.report(old_dry).counts["candidates"] == len(runs.addresses(old_dry, "deleted_report"))
    assert set(receipts.read(store, swept).column("address").to_pylist()) == unreferenced
    following = runs.report(collected(runs, sweep=True, flow=Flow.OPTIMIZED))
    assert (following.flow, following.base_run, following.why_clean) == ("optimized", swept, None)
    assert (following.counts["deleted"], following.counts["ranges_read"]) == (0, 0)

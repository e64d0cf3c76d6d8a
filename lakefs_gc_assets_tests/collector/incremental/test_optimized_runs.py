"""Optimized runs, on a recorded repository."""

from datetime import timedelta

import pytest

from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Checkpoint, Ending, Report
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying

__all__ = ["replaying"]
DAY = timedelta(days=1)


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1, sweep=True)


def collected(runs: PlainRuns, flow: Flow = Flow.OPTIMIZED) -> Report:
    """The report of another run, a day after the last."""
    runs.clock.moment += DAY
    opened = runs.open(flow)
    result = runs.make(opened)
    assert result.success, result.failures
    return runs.report(opened.run_id)


def checkpoint_of(found: Report) -> Checkpoint:
    """The checkpoint of a run, which must exist."""
    assert found.checkpoint is not None, found.no_checkpoint
    return found.checkpoint


def test_with_nothing_new_nothing_is_read_and_nothing_listed(runs: PlainRuns) -> None:
    clean = collected(runs, Flow.CLEAN)
    assert (clean.flow, clean.ending) == ("clean", Ending.DELETED)
    assert checkpoint_of(clean).sealed == clean.counts["slices_listed"] == 1
    clean_ids = checkpoint.read_ids(runs.repository.store, clean.run_id, checkpoint_of(clean))
    assert len(clean_ids) > clean.counts["ranges_read"] > 0
    before = len(runs.server.requests)
    again = collected(runs)
    assert (again.flow, again.base_run, again.why_clean) == ("optimized", clean.run_id, None)
    assert (again.counts["slices_listed"], again.counts["ranges_read"], again.counts["listed"]) == (
        0,
        0,
        checkpoint_of(clean).pending,
    )
    assert again.ending is Ending.NOTHING_TO_DELETE
    asked = {request.path.rsplit("/", 1)[-1] for request in runs.server.requests[before:]}
    # A recording returns the same refs dump again, whose tables hold no objects.
    repository = runs.repository
    files = LiveFiles(repository.store, repository.namespace, repository.settings.slice_window)
    assert [name for name in asked & clean_ids if files.unnamed((name, 0)).num_rows] == []
    assert checkpoint_of(again).sealed == checkpoint_of(clean).sealed
    assert checkpoint_of(again).sealed_objects == checkpoint_of(clean).sealed_objects


def test_a_new_slice_is_listed_and_an_old_one_is_not(runs: PlainRuns) -> None:
    collected(runs, Flow.CLEAN)
    generator, moment = layout.XidGenerator(), runs.clock.moment
    new = f"data/{generator.descending(moment)}/{generator.ascending(moment)}"
    (old_slice,) = {key.split("/")[1] for key in runs.server.stored() if key.startswith("data/")}
    late = f"data/{old_slice}/{generator.ascending(moment)}"
    runs.server.place(new, written_at=moment)
    runs.server.place(late, written_at=moment)
    runs.clock.moment += 2 * DAY
    again = collected(runs)
    assert again.counts["slices_listed"] == 1
    assert runs.addresses(again.run_id, "candidates") == [new]
    # An object that arrived late in a sealed slice waits for a clean run.
    clean = collected(runs, Flow.CLEAN)
    assert runs.addresses(clean.run_id, "candidates") == [late]
    assert (again.counts["late_arrivals"], clean.counts["late_arrivals"]) == (0, 1)

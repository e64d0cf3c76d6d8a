"""Why candidates are garbage; sweeps that a guard stops, a person approved, or that outlast a recheck."""

from datetime import timedelta

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector.frame.kinds import DeletedFigures
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.quarantine import restore_record
from lakefs_gc_assets.collector.recheck import find_live_again
from lakefs_gc_assets.collector.report import Ending
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.run import say_why
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import approval, passes
from lakefs_gc_assets.collector.sweep.approval import Approval
from lakefs_gc_assets.collector.why import Why
from lakefs_gc_assets.spark.tasks import Rows, dataframe_of
from lakefs_gc_assets_tests.arrow_engine import ArrowEngine
from lakefs_gc_assets_tests.collector.made_steps import made_step
from lakefs_gc_assets_tests.collector.past_runs import opened
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, failures, made, replaying, truth_classes

__all__ = ["opened", "replaying"]
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
GARBAGE = "unreferenced"


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1)


def test_a_record_of_restorations_that_is_damaged_ends_no_mark(opened: OpenRepository) -> None:
    lines: list[str] = []
    step = made_step(ArrowEngine(), opened, note=lines.append)
    candidates = pa.RecordBatch.from_pydict({"address": ["data/a"]})
    assert say_why(step)(candidates).column("why").to_pylist() == [Why.NO_COMMIT] and lines == []

    opened.store.put(restore_record.KEY, b"nothing")
    assert say_why(step)(candidates).column("why").to_pylist() == [Why.NO_COMMIT]
    (line,) = lines
    assert "are not told from others" in line


@pytest.mark.slow
def test_an_approved_mark_is_swept_after_a_recheck_and_can_be_built_on(runs: GraphRuns) -> None:
    garbage = truth_classes("chain/1")[GARBAGE]
    opened = runs.open()
    assert runs.make(opened).success
    assert runs.report(opened.run_id).ending is Ending.MARKED
    runs.clock.moment += 3 * HOUR
    assert runs.make(opened, assets=("deleted_report",)).success
    assert runs.server.deleted == set()

    runs.settings["approve_run"] = opened.run_id
    swept = runs.make(opened, assets=("deleted_report",))

    assert swept.success, failures(swept)
    assert made(swept) == ["deleted_report"]
    found = runs.report(opened.run_id)
    assert (found.dry_run, found.success, found.ending) == (False, True, Ending.DELETED)
    assert runs.server.deleted == garbage
    assert any("recheck" in line for line in runs.lines)
    given = approval.read(runs.repository.store, opened.run_id)
    assert given is not None and given.attempt == found.attempt
    runs.clock.moment += DAY
    following = runs.open(Flow.OPTIMIZED)
    assert "lakefs/why_clean" not in following.tags


@pytest.mark.slow
def test_an_approval_of_another_run_counts_for_nothing(runs: GraphRuns) -> None:
    opened = runs.open()
    runs.settings["approve_run"] = "g4uk6erfnfus73frbnqg"
    assert runs.make(opened).success
    assert runs.server.deleted == set()
    assert runs.report(opened.run_id).dry_run


@pytest.mark.slow
def test_candidates_that_were_made_again_need_a_new_approval(runs: GraphRuns) -> None:
    opened = runs.open()
    assert runs.make(opened).success
    plan = plans.read(runs.repository.store, opened.run_id)
    given = Approval(plan.run_id, plan.attempt, "0" * 64, runs.clock.now())
    approval.write(runs.repository.store, given)
    assert runs.make(opened, assets=("deleted_report",)).success
    assert runs.server.deleted == set()
    assert runs.report(opened.run_id).dry_run


@pytest.mark.slow
def test_a_mark_that_is_too_old_is_not_swept(runs: GraphRuns) -> None:
    opened = runs.open()
    assert runs.make(opened).success
    runs.clock.moment += 8 * DAY
    runs.settings["approve_run"] = opened.run_id
    swept = runs.make(opened, assets=("deleted_report",))
    assert "guard age of the mark" in failures(swept)["deleted_report"]
    assert runs.server.deleted == set()


@pytest.mark.slow
def test_a_listing_that_lacks_what_branches_hold_is_not_swept(runs: GraphRuns) -> None:
    (lost, *_) = sorted(truth_classes("chain/1")["committed"])
    runs.server._overlay.delete(lost)
    opened = runs.open()
    assert runs.make(opened).success
    (warning,) = runs.report(opened.run_id).warnings
    assert f"such as {lost}" in warning and "guard gap in the listing" in warning
    swept = runs.make(runs.open(), sweep=True)
    assert "guard gap in the listing" in failures(swept)["deleted_report"]
    assert runs.server.deleted == {lost}
    runs.settings["max_missing_share"] = 1
    assert runs.make(runs.open(), sweep=True).success


@pytest.mark.slow
def test_a_long_sweep_rechecks_until_nothing_is_left(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = sorted(truth_classes("chain/1")[GARBAGE])
    left: list[int] = []
    sweep_once = passes.sweep_once

    def counted(step: Step[Rows]) -> Rows:
        left.append(len(garbage) - len(runs.server.deleted))
        return find_live_again(step)

    def four_at_a_time(step: Step[Rows], remaining: Rows, count: int) -> StoredFrame[DeletedFigures]:
        return sweep_once(step, dataframe_of(remaining).orderBy("address").limit(4).persist(), count)

    monkeypatch.setattr(passes, "find_live_again", counted)
    monkeypatch.setattr(passes, "sweep_once", four_at_a_time)
    opened = runs.open()
    assert runs.make(opened, sweep=True).success
    assert left == list(range(len(garbage), 0, -4))
    assert runs.server.deleted == set(garbage)
    assert runs.report(opened.run_id).counts["deleted"] == len(garbage)


@pytest.mark.slow
def test_a_recheck_that_is_never_valid_ends_the_run(runs: GraphRuns) -> None:
    runs.settings["recheck_valid_minutes"] = 1e-9
    swept = runs.make(runs.open(), sweep=True)
    assert "raise collection.recheck_valid_minutes" in failures(swept)["deleted_report"]
    assert runs.server.deleted == set()


@pytest.mark.slow
def test_a_recheck_is_valid_from_its_beginning(runs: GraphRuns) -> None:
    """What became live while it asked was not asked for: a recheck that takes too long lets nothing be deleted."""
    runs.settings["recheck_valid_minutes"] = 10
    dumps: list[str] = []

    def fault(method: str, target: str) -> None:
        # The second dump is that of the recheck.
        if method == "POST" and target.endswith("/dump"):
            dumps.append(target)
            if len(dumps) == 2:
                runs.clock.sleep(601)

    runs.server.fault = fault
    swept = runs.make(runs.open(), sweep=True)
    assert len(dumps) == 2
    assert "raise collection.recheck_valid_minutes" in failures(swept)["deleted_report"]
    assert runs.server.deleted == set()

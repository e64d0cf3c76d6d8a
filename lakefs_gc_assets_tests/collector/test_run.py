"""Sweeps that a guard stops, that a person approved, and that take longer than a recheck is valid."""

from datetime import timedelta

import pytest

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector.frame.kinds import DeletedFigures
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.recheck import find_live_again
from lakefs_gc_assets.collector.report import Ending
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import approval, passes
from lakefs_gc_assets.collector.sweep.approval import Approval
from lakefs_gc_assets_tests.arrow_engine import ArrowRows
from lakefs_gc_assets_tests.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.replayed_runs import truth_classes

__all__ = ["replaying"]
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
GARBAGE = "unreferenced"


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1)


def test_an_approved_mark_is_swept_after_a_recheck_and_can_be_built_on(runs: PlainRuns) -> None:
    garbage = truth_classes("chain/1")[GARBAGE]
    opened = runs.open()
    assert runs.make(opened).success
    assert runs.report(opened.run_id).ending is Ending.MARKED
    runs.clock.moment += 3 * HOUR
    assert runs.make(opened, assets=("deleted_report",)).success
    assert runs.server.deleted == set()

    runs.settings["approve_run"] = opened.run_id
    swept = runs.make(opened, assets=("deleted_report",))

    assert swept.success, swept.failures
    assert swept.done == ["deleted_report"]
    found = runs.report(opened.run_id)
    assert (found.dry_run, found.success, found.ending) == (False, True, Ending.DELETED)
    assert runs.server.deleted == garbage
    assert any("recheck" in line for line in runs.lines)
    given = approval.read(runs.repository.store, opened.run_id)
    assert given is not None and given.attempt == found.attempt
    runs.clock.moment += DAY
    following = runs.open(Flow.OPTIMIZED)
    assert following.why_clean is None


def test_an_approval_of_another_run_counts_for_nothing(runs: PlainRuns) -> None:
    opened = runs.open()
    runs.settings["approve_run"] = "g4uk6erfnfus73frbnqg"
    assert runs.make(opened).success
    assert runs.server.deleted == set()
    assert runs.report(opened.run_id).dry_run


def test_candidates_that_were_made_again_need_a_new_approval(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened).success
    plan = plans.read(runs.repository.store, opened.run_id)
    given = Approval(plan.run_id, plan.attempt, "0" * 64, runs.clock.now())
    approval.write(runs.repository.store, given)
    assert runs.make(opened, assets=("deleted_report",)).success
    assert runs.server.deleted == set()
    assert runs.report(opened.run_id).dry_run


def test_a_mark_that_is_too_old_is_not_swept(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened).success
    runs.clock.moment += 8 * DAY
    runs.settings["approve_run"] = opened.run_id
    swept = runs.make(opened, assets=("deleted_report",))
    assert "guard age of the mark" in swept.failures["deleted_report"]
    assert runs.server.deleted == set()


def test_a_listing_that_lacks_what_branches_hold_is_not_swept(runs: PlainRuns) -> None:
    (lost, *_) = sorted(truth_classes("chain/1")["committed"])
    runs.server._overlay.delete(lost)
    opened = runs.open()
    assert runs.make(opened).success
    (warning,) = runs.report(opened.run_id).warnings
    assert f"such as {lost}" in warning and "guard gap in the listing" in warning
    swept = runs.make(runs.open(), sweep=True)
    assert "guard gap in the listing" in swept.failures["deleted_report"]
    assert runs.server.deleted == {lost}
    runs.settings["max_missing_share"] = 1
    assert runs.make(runs.open(), sweep=True).success


def test_a_long_sweep_rechecks_until_nothing_is_left(runs: PlainRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = sorted(truth_classes("chain/1")[GARBAGE])
    left: list[int] = []
    sweep_once = passes.sweep_once

    def counted(step: Step[ArrowRows]) -> ArrowRows:
        left.append(len(garbage) - len(runs.server.deleted))
        return find_live_again(step)

    def four_at_a_time(step: Step[ArrowRows], remaining: ArrowRows, count: int) -> StoredFrame[DeletedFigures]:
        four = step.engine.collect(remaining).sort_by("address").slice(0, 4)
        return sweep_once(step, step.engine.table(four), count)

    monkeypatch.setattr(passes, "find_live_again", counted)
    monkeypatch.setattr(passes, "sweep_once", four_at_a_time)
    opened = runs.open()
    assert runs.make(opened, sweep=True).success
    assert left == list(range(len(garbage), 0, -4))
    assert runs.server.deleted == set(garbage)
    assert runs.report(opened.run_id).counts["deleted"] == len(garbage)


def test_a_recheck_that_is_never_valid_ends_the_run(runs: PlainRuns) -> None:
    runs.settings["recheck_valid_minutes"] = 1e-9
    swept = runs.make(runs.open(), sweep=True)
    assert "raise collection.recheck_valid_minutes" in swept.failures["deleted_report"]
    assert runs.server.deleted == set()


def test_a_recheck_is_valid_from_its_beginning(runs: PlainRuns) -> None:
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
    assert "raise collection.recheck_valid_minutes" in swept.failures["deleted_report"]
    assert runs.server.deleted == set()

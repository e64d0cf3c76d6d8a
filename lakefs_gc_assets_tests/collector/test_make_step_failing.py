from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import make_step
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.files import Span
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Approval, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.lock import Lock, holder
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets_tests.collector import made_frames
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW, began, ended, opened

__all__ = ["opened"]


def fail(opened: OpenRepository, plan: Plan) -> Report:
    """The report of a run after one of its steps failed."""
    make_step.store_report(opened.store, plan, NOW, "no disk")
    found = reports.read(opened.store, plan.run_id)
    assert found is not None
    return found


def leave_receipt(opened: OpenRepository, plan: Plan, decided_at: datetime = NOW) -> None:
    """Writes a receipt as if the run had deleted one object."""
    deleted = pa.table({"address": ["data/x"], "size": [1], "slice": ["s"], "slice_window": ["legacy"]})
    receipts.write(opened.store, plan.run_id, "batch", receipts.table(deleted, [Outcome.ACCEPTED], [None], decided_at))


@pytest.mark.parametrize("sweep", [True, False])
def test_a_run_that_failed_says_so(opened: OpenRepository, sweep: bool) -> None:
    found = fail(opened, began(opened, DAY, sweep=sweep))
    assert (found.success, found.ending, found.error, found.dry_run) == (False, Ending.FAILED, "no disk", not sweep)


def test_the_report_of_a_failed_run_says_how_long_the_steps_before_worked(opened: OpenRepository) -> None:
    plan = began(opened, DAY)
    for frame in (made_frames.listed(10), made_frames.uncommitted(2)):
        ended_at = plan.started_at + timedelta(seconds=90)
        span = Span(frame.name, plan.run_id, plan.attempt, plan.started_at, ended_at, 30)
        files.write_manifest(opened.store, replace(frame.manifest, span=span))
    report = fail(opened, plan)
    assert report.worked_seconds == {"store_df": 60, "uncommitted_df": 60}
    assert report.statistics.seconds == 180
    assert fail(opened, replace(plan, attempt="another")).worked_seconds == {}


def test_a_run_that_ended_well_stays_so(opened: OpenRepository) -> None:
    plan = began(opened, DAY)
    report = ended(opened, plan)
    leave_receipt(opened, plan)
    assert fail(opened, plan) == report


def test_a_dry_run_that_ended_well_stays_so(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    report = ended(opened, plan, dry_run=True, checkpoint=None, ending=Ending.MARKED)
    assert fail(opened, plan) == report


def test_an_approved_run_whose_sweep_failed_does_not_claim_that_nothing_was_deleted(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    ended(opened, plan, dry_run=True, checkpoint=None, ending=Ending.MARKED)
    leave_receipt(opened, plan)
    found = fail(opened, plan)
    assert (found.success, found.ending, found.dry_run) == (False, Ending.FAILED, False)


@pytest.mark.parametrize(
    "attempt, approver", [("", "Ada, as the launch says"), ("another", ""), (None, "")], ids=["own", "other", "none"]
)
def test_an_approved_run_whose_sweep_failed_names_the_approver(
    opened: OpenRepository, attempt: str | None, approver: str
) -> None:
    plan = began(opened, DAY, sweep=False)
    ended(opened, plan, dry_run=True, checkpoint=None, ending=Ending.MARKED)
    if attempt is not None:
        approval = Approval(plan.run_id, attempt or plan.attempt, "digest", NOW, "Ada, as the launch says")
        plans.write_approval(opened.store, approval)
    leave_receipt(opened, plan)
    found = fail(opened, plan)
    assert found.approved_by == approver
    assert (f"  approved by {approver}" in reports.describe(found)) == bool(approver)


def test_a_damaged_approval_does_not_keep_a_failed_run_from_its_report(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    opened.store.put(run_folder.approval(plan.run_id), b"{")
    found = fail(opened, plan)
    assert (found.error, found.approved_by) == ("no disk", "")


def test_a_run_that_nobody_ended_is_ended_and_its_lock_released(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    expiry = timedelta(hours=1)
    Lock.acquire(opened.store, run_id=plan.run_id, owner=plan.owner, now=NOW, expiry=expiry)
    make_step.end_if_left(plan.run_id, opened.store, plan.owner, NOW, "interrupted")
    found = reports.read(opened.store, plan.run_id)
    assert found is not None and (found.ending, found.error) == (Ending.FAILED, "interrupted")
    assert holder(opened.store) is None

    make_step.end_if_left(plan.run_id, opened.store, plan.owner, NOW, "something else")
    assert reports.read(opened.store, plan.run_id) == found
    Lock.acquire(opened.store, run_id="other", owner="somebody else", now=NOW, expiry=expiry)
    make_step.end_if_left(plan.run_id, opened.store, plan.owner, NOW, "something else")
    assert reports.read(opened.store, plan.run_id) == found
    assert holder(opened.store) is not None


def test_a_lock_that_was_taken_before_there_was_a_plan_is_released(opened: OpenRepository) -> None:
    Lock.acquire(opened.store, run_id="c" * 20, owner="me", now=NOW, expiry=timedelta(hours=1))
    make_step.end_if_left("c" * 20, opened.store, "me", NOW, "interrupted")
    assert holder(opened.store) is None


class TestBetweenSteps:
    def test_a_run_is_ended_and_its_lock_given_back(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY)
        Lock.acquire(opened.store, run_id=plan.run_id, owner=plan.owner, now=NOW, expiry=DAY)
        make_step.end_in_store(opened.store, plan.run_id, NOW, "no disk")
        report = reports.read(opened.store, plan.run_id)
        assert report is not None
        assert (report.run_id, report.error, report.ended_at, report.success) == (plan.run_id, "no disk", NOW, False)
        assert holder(opened.store) is None

    def test_the_lock_of_another_run_stays(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY)
        Lock.acquire(opened.store, run_id="another", owner="somebody", now=NOW, expiry=DAY)
        make_step.end_in_store(opened.store, plan.run_id, NOW, "no disk")
        assert "somebody" in str(holder(opened.store))

    def test_a_run_without_a_plan_is_none(self, opened: OpenRepository) -> None:
        with pytest.raises(CollectionError, match="there is no run"):
            make_step.end_in_store(opened.store, "g4uk6erfnfus73frbnqg", NOW, "no disk")


def test_a_run_that_failed_twice_says_what_failed_last(opened: OpenRepository) -> None:
    plan = began(opened, DAY)
    make_step.store_report(opened.store, plan, NOW - DAY, "no network")
    assert fail(opened, plan).error == "no disk"

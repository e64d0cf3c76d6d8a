from datetime import timedelta
from typing import Any

import pytest

from lakefs_gc_assets.collector.incremental.planning import report_to_follow
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Approval, Flow
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began, ended, opened

__all__ = ["opened"]


def due(opened: OpenRepository, cadence: timedelta = HOUR, followed: str | None = None) -> Report | str:
    return report_to_follow(opened.store, cadence, NOW, followed)


def test_the_report_of_a_run_that_deleted_is_followed_once(opened: OpenRepository) -> None:
    report = ended(opened, began(opened, DAY))

    assert due(opened) == report
    assert due(opened, followed=report.run_id) == f"run {report.run_id} was already followed"


def test_not_before_its_time_counted_from_the_start_of_that_run(opened: OpenRepository) -> None:
    report = ended(opened, began(opened, DAY))

    assert due(opened, cadence=DAY) == report
    later = due(opened, cadence=DAY + timedelta(seconds=1))
    at = report.started_at + DAY + timedelta(seconds=1)
    assert later == f"run {report.run_id} will be followed from {at:%F %T}Z"


@pytest.mark.parametrize("flow", [Flow.CLEAN, Flow.OPTIMIZED, Flow.UNIFIED])
def test_a_run_that_had_nothing_to_delete_is_followed_too(opened: OpenRepository, flow: Flow) -> None:
    report = ended(opened, began(opened, DAY, flow=flow), ending=Ending.NOTHING_TO_DELETE)

    assert due(opened) == report


def test_there_must_be_a_run_that_was_to_delete(opened: OpenRepository) -> None:
    assert str(due(opened)).startswith("there was no sweep yet")
    ended(opened, began(opened, DAY, sweep=False), dry_run=True, checkpoint=None)
    ended(opened, began(opened, DAY, flow=Flow.COMMITTED))
    assert str(due(opened)).startswith("there was no sweep yet")


def test_dry_runs_and_runs_without_a_listing_do_not_hide_it(opened: OpenRepository) -> None:
    report = ended(opened, began(opened, DAY))
    ended(opened, began(opened, 3 * HOUR, sweep=False), dry_run=True, checkpoint=None)
    ended(opened, began(opened, 2 * HOUR, flow=Flow.COMMITTED))
    began(opened, HOUR, sweep=False)

    assert due(opened) == report


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"success": False, "ending": Ending.FAILED, "error": "no disk"}, "did not succeed (no disk)"),
        ({"success": False, "ending": Ending.PARTLY_DELETED}, "did not succeed (some deletions failed)"),
    ],
)
def test_a_run_that_failed_is_not_followed_nor_the_one_before_it(
    opened: OpenRepository, changes: dict[str, Any], reason: str
) -> None:
    ended(opened, began(opened, 2 * DAY))
    ended(opened, began(opened, DAY), **changes)

    assert reason in str(due(opened))


def test_a_run_under_way_is_waited_for(opened: OpenRepository) -> None:
    ended(opened, began(opened, DAY))
    plan = began(opened, 2 * HOUR)

    assert due(opened) == f"run {plan.run_id} is a sweep that has not ended"


def test_an_old_run_that_was_made_again_is_not_the_latest(opened: OpenRepository) -> None:
    old = began(opened, 3 * DAY)
    newest = ended(opened, began(opened, DAY))
    ended(opened, old, started_at=NOW - 2 * HOUR, ended_at=NOW - HOUR)

    assert due(opened) == newest
    assert due(opened, followed=newest.run_id) == f"run {newest.run_id} was already followed"


def test_a_dry_run_that_was_approved_is_followed_when_it_has_deleted(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    ended(opened, plan, dry_run=True, checkpoint=None)
    plans.write_approval(opened.store, Approval(plan.run_id, plan.attempt, "digest", NOW))
    assert due(opened) == f"run {plan.run_id} was approved, but has not deleted yet"

    report = ended(opened, plan, dry_run=False)
    assert due(opened) == report


def test_a_run_over_some_windows_is_not_followed(opened: OpenRepository) -> None:
    ended(opened, began(opened, 2 * DAY))
    limited = ended(opened, began(opened, DAY), limited_to="the window 2026-10", checkpoint=None)
    why = due(opened)
    assert isinstance(why, str)
    assert f"run {limited.run_id} was limited to the window 2026-10, so no run can build on it" in why


def test_a_report_that_cannot_be_read_is_not_passed_over(opened: OpenRepository) -> None:
    ended(opened, began(opened, 2 * DAY))
    broken = ended(opened, began(opened, DAY))
    opened.store.put(run_folder.report(broken.run_id), b"{")

    why = due(opened)
    assert isinstance(why, str)
    assert broken.run_id in why
    assert why.endswith("open a clean run that sweeps")

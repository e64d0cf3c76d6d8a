import json
from datetime import timedelta

import pytest

from lakefs_gc_assets.collector import earlier_runs, guards
from lakefs_gc_assets.collector.branch_baseline import branch_baseline
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.report import Ending
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.stored import records, run_folder
from lakefs_gc_assets.errors import CorruptFile, GuardTripped
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.collector.past_runs import HOUR, IDS, NOW, began, ended, opened

__all__ = ["opened"]

RUN = IDS.descending(NOW)


def swept(opened: OpenRepository, ago: timedelta, branches: int, flow: Flow = Flow.CLEAN) -> None:
    ended(opened, began(opened, ago, flow=flow), counts={"branches": branches})


def marked(opened: OpenRepository, ago: timedelta, branches: int) -> None:
    plan = began(opened, ago, sweep=False)
    ended(opened, plan, dry_run=True, ending=Ending.MARKED, checkpoint=None, counts={"branches": branches})


def refused(opened: OpenRepository, ago: timedelta) -> None:
    """A run that a guard stopped: its report has no counts."""
    ended(opened, began(opened, ago), success=False, ending=Ending.FAILED, error="guard", checkpoint=None)


def test_without_an_earlier_run_there_is_none(opened: OpenRepository) -> None:
    assert branch_baseline(opened.store, RUN) is None
    began(opened, HOUR)
    refused(opened, 2 * HOUR)
    assert branch_baseline(opened.store, RUN) is None


@pytest.mark.parametrize("flow", [Flow.CLEAN, Flow.OPTIMIZED, Flow.COMMITTED, Flow.UNIFIED])
def test_it_is_what_the_newest_successful_sweep_found(opened: OpenRepository, flow: Flow) -> None:
    swept(opened, 3 * HOUR, 200)
    swept(opened, 2 * HOUR, 96, flow)
    assert branch_baseline(opened.store, RUN) == 96


def test_a_run_that_was_refused_does_not_take_it_away(opened: OpenRepository) -> None:
    swept(opened, 200 * HOUR, 96)
    for hours in range(1, 150):
        refused(opened, hours * HOUR)
    baseline = branch_baseline(opened.store, RUN)
    assert baseline == 96
    with pytest.raises(GuardTripped, match="12 branches are left of the 96"):
        guards.require_branches(12, baseline, CollectionSettings())


def test_dry_runs_raise_it_and_never_lower_it(opened: OpenRepository) -> None:
    swept(opened, 9 * HOUR, 96)
    marked(opened, 8 * HOUR, 12)
    assert branch_baseline(opened.store, RUN) == 96
    marked(opened, 7 * HOUR, 110)
    marked(opened, 6 * HOUR, 5)
    assert branch_baseline(opened.store, RUN) == 110


def test_where_only_dry_runs_were_it_is_the_largest_of_them(opened: OpenRepository) -> None:
    marked(opened, 3 * HOUR, 40)
    marked(opened, 2 * HOUR, 4)
    assert branch_baseline(opened.store, RUN) == 40


def test_a_sweep_whose_deletions_failed_does_not_lower_it(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, 2 * HOUR)
    ended(opened, plan, success=False, ending=Ending.PARTLY_DELETED, counts={"branches": 12})
    assert branch_baseline(opened.store, RUN) == 96


def test_a_sweep_that_was_allowed_to_lower_it_does(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    refused(opened, 2 * HOUR)
    swept(opened, HOUR, 12)
    assert branch_baseline(opened.store, RUN) == 12


def test_it_goes_by_the_index_of_runs_where_that_names_a_run(opened: OpenRepository) -> None:
    for hours, sweep, branches in ((4, True, 500), (3, True, 96), (2, False, 110), (1, False, 5)):
        plan = began(opened, hours * HOUR, sweep=sweep)
        report = ended(opened, plan, dry_run=not sweep, counts={"branches": branches})
        earlier_runs.note(opened.store, plan, report, pytest.fail)
        opened.store.delete([run_folder.report(plan.run_id)])
    assert branch_baseline(opened.store, RUN) == 110


def test_only_older_runs_count(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, 2 * HOUR)
    ended(opened, plan, counts={"branches": 50})
    swept(opened, HOUR, 7)
    assert branch_baseline(opened.store, plan.run_id) == 96


def test_a_report_that_cannot_be_read_is_not_passed_over(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    broken = began(opened, 2 * HOUR)
    opened.store.put(run_folder.report(broken.run_id), b"{")
    with pytest.raises(CorruptFile, match=broken.run_id):
        branch_baseline(opened.store, RUN)


def test_a_report_of_another_version_of_the_program_tells_nothing(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    other = began(opened, 2 * HOUR)
    content = json.loads(ended(opened, other, counts={"branches": 7}).to_json())
    opened.store.put(run_folder.report(other.run_id), records.with_digest(content | {"format_version": 9}))
    assert branch_baseline(opened.store, RUN) == 96

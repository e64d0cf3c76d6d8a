import json
from datetime import timedelta
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.sweep.recheck import require_not_overtaken
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began, ended, opened

__all__ = ["opened"]

OVERTAKEN = "a run that a newer one has overtaken must not sweep"


@pytest.fixture
def mine(opened: OpenRepository) -> Plan:
    """The run that is about to sweep."""
    return began(opened, DAY)


def decided(opened: OpenRepository, plan: Plan, outcome: Outcome = Outcome.ACCEPTED) -> None:
    rows = receipts.table(candidates("data/x/y"), [outcome], [None], NOW)
    receipts.write(opened.store, plan.run_id, "batch", rows)


def failed(opened: OpenRepository, plan: Plan) -> None:
    ended(opened, plan, success=False, ending=Ending.FAILED, error="guard", checkpoint=None)


def test_alone_it_sweeps_and_goes_on_sweeping(opened: OpenRepository, mine: Plan) -> None:
    require_not_overtaken(opened.store, mine.run_id)
    decided(opened, mine)
    failed(opened, mine)
    require_not_overtaken(opened.store, mine.run_id)


def test_older_runs_that_swept_do_not_overtake(opened: OpenRepository, mine: Plan) -> None:
    older = began(opened, 2 * DAY)
    decided(opened, older)
    ended(opened, older)
    require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize("flow", list(Flow))
def test_a_newer_one_that_deleted_does(opened: OpenRepository, mine: Plan, flow: Flow) -> None:
    newer = began(opened, HOUR, flow=flow)
    decided(opened, newer)
    ended(opened, newer)
    with pytest.raises(OrderViolation, match=f"run {newer.run_id} .*{OVERTAKEN}"):
        require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"ending": Ending.NOTHING_TO_DELETE},
        {"ending": Ending.KEPT_LIVE},
        {"success": False, "ending": Ending.PARTLY_DELETED},
        {"success": False, "ending": Ending.NONE_DELETED},
    ],
)
def test_so_does_one_whose_sweep_came_to_its_end(opened: OpenRepository, mine: Plan, changes: dict[str, Any]) -> None:
    ended(opened, began(opened, HOUR), **changes)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.COPIED, Outcome.FAILED])
@pytest.mark.parametrize("sweep", [False, True])
def test_so_does_one_that_was_killed_while_it_swept(
    opened: OpenRepository, mine: Plan, outcome: Outcome, sweep: bool
) -> None:
    """An approved dry run counts as a sweep as well."""
    decided(opened, began(opened, HOUR, sweep=sweep), outcome)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


def test_so_does_one_whose_sweep_failed_half_way(opened: OpenRepository, mine: Plan) -> None:
    newer = began(opened, HOUR)
    decided(opened, newer)
    failed(opened, newer)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


def test_newer_ones_that_marked_or_failed_before_they_swept_do_not(opened: OpenRepository, mine: Plan) -> None:
    began(opened, 5 * HOUR)
    failed(opened, began(opened, 4 * HOUR))
    began(opened, 3 * HOUR, sweep=False)
    ended(opened, began(opened, 2 * HOUR, sweep=False), dry_run=True, ending=Ending.MARKED, checkpoint=None)
    require_not_overtaken(opened.store, mine.run_id)


def test_not_only_the_newest_is_looked_at(opened: OpenRepository, mine: Plan) -> None:
    ended(opened, began(opened, 3 * HOUR))
    for minutes in (1, 2, 3):
        began(opened, timedelta(minutes=minutes), sweep=False)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_report_that_cannot_be_read_ends_the_sweep(opened: OpenRepository, mine: Plan, damaged: bool) -> None:
    newer = began(opened, HOUR)
    content = json.loads(ended(opened, newer).to_json()) | {"format_version": 9}
    opened.store.put(run_folder.report(newer.run_id), b"{" if damaged else records_json.with_digest(content))
    with pytest.raises(OrderViolation, match=f"unknown whether run {newer.run_id}, .* Open a new run"):
        require_not_overtaken(opened.store, mine.run_id)

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, IDS, NOW, began, ended, opened

__all__ = ["opened"]


def plan(opened: OpenRepository, moment: datetime = NOW) -> Plan:
    """The plan of an optimized run opened at a moment."""
    run_id = IDS.descending(moment)
    lock = Lock.acquire(opened.store, run_id=run_id, owner=run_id, now=opened.clock.now(), expiry=HOUR)
    try:
        return planning.begin(opened, run_id, ("legacy",), lock, Flow.OPTIMIZED)
    finally:
        lock.release()


def test_none_is_recorded_before_the_first(opened: OpenRepository) -> None:
    assert across_runs.read_restoration(opened.store) is None
    across_runs.require_not_restored_since(opened.store, IDS.descending(NOW))


def test_the_next_run_is_clean_and_says_why_and_the_one_after_builds_on_it(opened: OpenRepository) -> None:
    older, newest = began(opened, 3 * DAY), began(opened, 2 * DAY)
    ended(opened, older)
    ended(opened, newest)
    assert plan(opened).flow is Flow.OPTIMIZED
    across_runs.write_restoration(opened.store, older.run_id, NOW)
    found = across_runs.read_restoration(opened.store)
    assert found is not None and found.run_id == older.run_id
    made = plan(opened)
    assert made.flow is Flow.CLEAN
    assert made.why_clean is not None
    assert f"run {older.run_id} had deleted were restored" in made.why_clean
    next_one = began(opened, -HOUR / 4, cutoff=NOW - 2 * DAY)
    ended(opened, next_one)
    assert plan(opened, NOW + HOUR / 2).base_run == next_one.run_id


def test_it_concerns_its_own_run_where_no_plan_is_left(opened: OpenRepository) -> None:
    run_id = IDS.descending(NOW)
    across_runs.write_restoration(opened.store, run_id, NOW)
    found = across_runs.read_restoration(opened.store)
    assert found is not None and (found.run_id, found.newest_run) == (run_id, run_id)


def test_every_run_that_there_was_deletes_nothing_more(opened: OpenRepository) -> None:
    swept, dry = began(opened, 3 * DAY), began(opened, DAY, sweep=False)
    across_runs.write_restoration(opened.store, swept.run_id, NOW)
    for run in (swept, dry):
        with pytest.raises(OrderViolation, match="deletes nothing more; open a new run"):
            across_runs.require_not_restored_since(opened.store, run.run_id)
    across_runs.require_not_restored_since(opened.store, began(opened, HOUR).run_id)


def test_a_sweep_under_way_that_no_report_tells_of_is_not_built_on(opened: OpenRepository) -> None:
    ended(opened, began(opened, 3 * DAY))
    under_way = began(opened, DAY)
    across_runs.write_restoration(opened.store, under_way.run_id, NOW)
    ended(opened, under_way)
    assert "were restored" in (plan(opened).why_clean or "")


def test_a_record_that_was_changed_stops_sweeps_and_makes_runs_clean(opened: OpenRepository, tmp_path: Path) -> None:
    newest = began(opened, DAY)
    ended(opened, newest)
    across_runs.write_restoration(opened.store, newest.run_id, NOW)
    changed = opened.store.get(across_runs.RESTORATION_KEY).replace(
        newest.run_id.encode(), IDS.descending(NOW).encode()
    )
    opened.store.put(across_runs.RESTORATION_KEY, changed)
    with pytest.raises(OrderViolation, match=r"restored\.json.* Open a new run"):
        across_runs.require_not_restored_since(opened.store, newest.run_id)
    assert "restored.json" in (plan(opened).why_clean or "")


class TestARecordThatCannotBeRead:
    @pytest.mark.parametrize("damage", [b"", b"damaged", b'{"format_version": 9}'])
    def test_it_is_replaced_by_one_that_concerns_all_runs_so_far(self, opened: OpenRepository, damage: bytes) -> None:
        older, newest = began(opened, 3 * DAY), began(opened, DAY)
        ended(opened, newest)
        opened.store.put(across_runs.RESTORATION_KEY, damage)
        warning = across_runs.replace_unreadable_restoration(opened.store, NOW)
        assert warning is not None and "was replaced" in warning
        for run in (older, newest):
            with pytest.raises(OrderViolation, match=r"objects may have been restored before .* open a new run"):
                across_runs.require_not_restored_since(opened.store, run.run_id)
        assert "may have been restored" in (plan(opened).why_clean or "")
        across_runs.require_not_restored_since(opened.store, began(opened, HOUR).run_id)

    def test_where_there_is_no_run_it_concerns_none(self, opened: OpenRepository) -> None:
        opened.store.put(across_runs.RESTORATION_KEY, b"damaged")
        across_runs.replace_unreadable_restoration(opened.store, NOW)
        across_runs.require_not_restored_since(opened.store, began(opened, 3 * DAY).run_id)

    def test_one_that_can_be_read_stays(self, opened: OpenRepository) -> None:
        assert across_runs.replace_unreadable_restoration(opened.store, NOW) is None
        assert across_runs.read_restoration(opened.store) is None
        across_runs.write_restoration(opened.store, began(opened, DAY).run_id, NOW)
        before = opened.store.get(across_runs.RESTORATION_KEY)
        assert across_runs.replace_unreadable_restoration(opened.store, NOW) is None
        assert opened.store.get(across_runs.RESTORATION_KEY) == before


def test_a_later_one_concerns_more_runs(opened: OpenRepository) -> None:
    first = began(opened, 3 * DAY)
    across_runs.write_restoration(opened.store, first.run_id, NOW)
    second = began(opened, DAY)
    across_runs.require_not_restored_since(opened.store, second.run_id)
    across_runs.write_restoration(opened.store, first.run_id, NOW)
    found = across_runs.read_restoration(opened.store)
    assert found is not None
    assert found == replace(found, run_id=first.run_id, newest_run=second.run_id)
    assert found.concerns(first.run_id) and found.concerns(second.run_id)

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.records import plan, report, run_folder
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, CorruptFile, GuardTripped, OrderViolation, ServerUnavailable
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import ServerClocks
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.past_runs import empty_repository
from lakefs_gc_assets_tests.collector.scripted import HandClock, ScriptedApi

RUN = "g4uk6erfnfus73frbnqg"
WINDOWS = ("legacy", "2026-11")
DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)


@pytest.fixture
def opened(tmp_path: Path) -> OpenRepository:
    """A repository whose store and clock have the real time."""
    return replace(empty_repository(tmp_path), store=LocalStore(tmp_path), clock=HandClock(datetime.now(UTC)))


def locked(opened: OpenRepository, owner: str = "dagster-run") -> Lock:
    return Lock.acquire(opened.store, run_id=RUN, owner=owner, now=opened.clock.now(), expiry=HOUR)


def begin(opened: OpenRepository, owner: str = "dagster-run") -> Plan:
    return planning.begin(opened, RUN, WINDOWS, locked(opened, owner))


def test_a_plan_is_made_and_stored(opened: OpenRepository) -> None:
    made = begin(opened)
    assert plan.read(opened.store, RUN) == made
    assert (made.flow, made.repository, made.storage_namespace) == (Flow.CLEAN, "repo", "local://repo/")
    assert (made.run_id, made.owner, made.windows, made.slice_window) == (RUN, "dagster-run", WINDOWS, "month")
    assert made.started_at == opened.clock.now()
    assert (made.min_age_seconds, made.grace_period_seconds, made.clock_skew_seconds) == (86400, 86400, 3600)
    assert layout.issued_at(made.attempt) == int(opened.clock.now().timestamp())


def test_it_is_a_dry_run_until_somebody_turns_that_off(opened: OpenRepository) -> None:
    assert begin(opened).sweep is False
    assert begin(replace(opened, settings=CollectionSettings(sweep=True))).sweep is True


class TestTheCutoff:
    def test_is_the_minimum_age_and_the_skew_before_the_earliest_clock(self, opened: OpenRepository) -> None:
        earliest = min(opened.clock.now(), locked(opened).store_clock)
        made = begin(opened)
        assert earliest - DAY - HOUR - SECOND < made.cutoff <= earliest + SECOND - DAY - HOUR

    def test_keeps_to_the_servers_grace_period(self, opened: OpenRepository) -> None:
        lax = replace(opened, settings=CollectionSettings(min_age_hours=0), api=ScriptedApi(grace=3 * DAY))
        assert begin(lax).cutoff <= opened.clock.now() - 3 * DAY - HOUR

    def test_keeps_to_a_server_whose_clock_is_behind(self, opened: OpenRepository) -> None:
        behind = ServerClocks(timedelta(minutes=-20), timedelta())
        found = begin(replace(opened, api=ScriptedApi(server_clocks=behind))).cutoff
        assert found <= opened.clock.now() - timedelta(minutes=20) - DAY - HOUR

    def test_keeps_to_a_store_whose_clock_is_behind(self, opened: OpenRepository) -> None:
        ahead = replace(opened, clock=HandClock(opened.clock.now() + timedelta(minutes=20)))
        assert begin(ahead).cutoff <= opened.clock.now() + 10 * SECOND - DAY - HOUR


@pytest.mark.parametrize("apart", [-HOUR, HOUR])
def test_clocks_apart_stop_it_before_anything_is_stored(opened: OpenRepository, apart: timedelta) -> None:
    off = HandClock(opened.clock.now() + apart)
    server = ScriptedApi(server_clocks=ServerClocks(min(apart, timedelta()), max(apart, timedelta())))
    for wrong in (replace(opened, clock=off), replace(opened, api=server)):
        with pytest.raises(GuardTripped, match="clocks"):
            begin(wrong)
        with pytest.raises(CollectionError, match="there is no run"):
            plan.read(opened.store, RUN)


def test_a_server_that_does_not_say_its_grace_period_stops_it(opened: OpenRepository) -> None:
    class Failing(ScriptedApi):
        def grace_period(self) -> timedelta:
            raise ServerUnavailable("GET /config/garbage-collection: 503")

    with pytest.raises(ServerUnavailable):
        begin(replace(opened, api=Failing()))


class TestIdsThatSomebodyMadeUp:
    def test_none_is_of_a_time_to_come(self, opened: OpenRepository) -> None:
        """A future run would overtake every run until then."""
        for ahead in (HOUR + 2 * SECOND, 3650 * DAY):
            run_id = layout.issue_run_id(opened.clock.now() + ahead)
            with pytest.raises(OrderViolation, match=rf"run {run_id} is of .*Z, is in the future"):
                planning.begin(opened, run_id, WINDOWS, locked(opened))
            assert not run_folder.has_plan(opened.store, run_id)

    def test_clocks_of_machines_may_differ(self, opened: OpenRepository) -> None:
        run_id = layout.issue_run_id(opened.clock.now() + HOUR - 2 * SECOND)
        assert planning.begin(opened, run_id, WINDOWS, locked(opened)).run_id == run_id

    def test_the_plan_says_that_nobody_opened_the_run(self, opened: OpenRepository) -> None:
        assert begin(opened).opened is True
        assert begin(replace(opened, opened=False)).opened is False
        assert plan.read(opened.store, RUN).opened is False


class TestASecondTime:
    def test_by_the_same_dagster_run_is_a_new_attempt(self, opened: OpenRepository) -> None:
        first = begin(opened)
        opened.clock.sleep(60)
        second = begin(opened)
        assert second.attempt != first.attempt
        assert plan.read(opened.store, RUN) == second

    def test_by_another_dagster_run_is_refused(self, opened: OpenRepository) -> None:
        first = begin(opened)
        locked(opened).release()
        with pytest.raises(OrderViolation, match="already collected by Dagster run dagster-run"):
            begin(opened, "another")
        assert plan.read(opened.store, RUN) == first

    def test_after_it_ended_well_is_refused(self, opened: OpenRepository) -> None:
        first = begin(opened)
        ended = replace(report.failed(first, opened.clock.now(), ""), success=True, ending=Ending.DELETED, error=None)
        report.write(opened.store, ended)
        with pytest.raises(OrderViolation, match="there is nothing to do"):
            begin(opened)
        assert plan.read(opened.store, RUN) == first

    def test_after_it_failed_is_a_new_attempt(self, opened: OpenRepository) -> None:
        report.write(opened.store, report.failed(begin(opened), opened.clock.now(), "it broke"))
        opened.clock.sleep(60)
        begin(opened)

    def test_with_a_report_that_cannot_be_read_is_refused(self, opened: OpenRepository) -> None:
        begin(opened)
        opened.store.put(run_folder.report(RUN), b"{}")
        with pytest.raises(CorruptFile):
            begin(opened)


def test_the_run_before_is_the_newest_older_one(opened: OpenRepository) -> None:
    created = layout.as_datetime(layout.created_at(RUN))
    older, oldest, newer = (layout.XidGenerator().descending(created + timedelta(hours=hours)) for hours in (-1, -2, 1))
    for run_id in (older, oldest, newer):
        opened.store.put(run_folder.plan(run_id), b"{}")
    assert begin(opened).previous_run == older


def test_an_id_made_by_hand_is_refused(opened: OpenRepository) -> None:
    with pytest.raises(OrderViolation, match="open_run"):
        planning.begin(opened, "my-run", WINDOWS, locked(opened))

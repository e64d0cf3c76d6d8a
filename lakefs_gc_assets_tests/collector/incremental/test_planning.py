from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame.frames import CHECKPOINT_COMMITTED_DF, PENDING_DF
from lakefs_gc_assets.collector.incremental import checkpoint, planning
from lakefs_gc_assets.collector.incremental.planning import NoBaseRun, report_to_follow
from lakefs_gc_assets.collector.records import across_runs, plan, report, run_folder, tables
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import ALL_COMMITS, Approval, Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe.listing import Part
from lakefs_gc_assets.errors import (
    CollectionError,
    ConfigurationError,
    CorruptFile,
    GuardTripped,
    OrderViolation,
    ServerUnavailable,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import ServerClocks
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.past_runs import IDS, NOW, SEALED, began, empty_repository, ended, opened
from lakefs_gc_assets_tests.collector.scripted import HandClock, ScriptedApi
from lakefs_gc_assets_tests.runs.made_ranges import range_records

__all__ = ["opened"]

RUN = "g4uk6erfnfus73frbnqg"
WINDOWS = ("legacy", "2026-11")
DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)


@pytest.fixture
def real_time_repository(tmp_path: Path) -> OpenRepository:
    """A repository whose store and clock have the real time."""
    return replace(empty_repository(tmp_path), store=LocalStore(tmp_path), clock=HandClock(datetime.now(UTC)))


def locked(real_time_repository: OpenRepository, owner: str = "dagster-run") -> Lock:
    return Lock.acquire(
        real_time_repository.store, run_id=RUN, owner=owner, now=real_time_repository.clock.now(), expiry=HOUR
    )


def begin(real_time_repository: OpenRepository, owner: str = "dagster-run") -> Plan:
    return planning.begin(real_time_repository, RUN, WINDOWS, locked(real_time_repository, owner))


def test_a_plan_is_made_and_stored(real_time_repository: OpenRepository) -> None:
    made = begin(real_time_repository)
    assert plan.read(real_time_repository.store, RUN) == made
    assert (made.flow, made.repository, made.storage_namespace) == (Flow.CLEAN, "repo", "local://repo/")
    assert (made.run_id, made.owner, made.windows, made.slice_window) == (RUN, "dagster-run", WINDOWS, "month")
    assert made.started_at == real_time_repository.clock.now()
    assert (made.min_age_seconds, made.grace_period_seconds, made.clock_skew_seconds) == (86400, 86400, 3600)
    assert layout.issued_at(made.attempt) == int(real_time_repository.clock.now().timestamp())


def test_it_is_a_dry_run_until_somebody_turns_that_off(real_time_repository: OpenRepository) -> None:
    assert begin(real_time_repository).sweep is False
    assert begin(replace(real_time_repository, settings=CollectionSettings(sweep=True))).sweep is True


def test_it_is_limited_if_it_leaves_out_a_window_that_is_old_enough(real_time_repository: OpenRepository) -> None:
    store, now = real_time_repository.store, real_time_repository.clock.now()
    old, young = (layout.XidGenerator().descending(now - age) for age in (400 * DAY, HOUR))
    for name in (old, young):
        store.put(f"data/{name}/object", b"")
    window = layout.window(old, "month")
    for windows, limited in ((("legacy", window), False), (("legacy", "2020-01"), True), ((window,), True)):
        made = planning.begin(real_time_repository, RUN, windows, locked(real_time_repository))
        assert (made.limited, made.uses_facts_of_all_runs) == (limited, limited)


def test_work_that_is_no_run_is_not_limited_although_it_names_no_windows(real_time_repository: OpenRepository) -> None:
    """Otherwise a check of the whole repository would believe facts instead of reading it."""
    now = real_time_repository.clock.now()
    real_time_repository.store.put(f"data/{layout.XidGenerator().descending(now - 400 * DAY)}/object", b"")
    made = planning.make_plan(real_time_repository, RUN, (), "a check", now, Flow.CLEAN)
    assert (made.limited, made.uses_facts_of_all_runs) == (False, False)


class TestTheCutoff:
    def test_is_the_minimum_age_and_the_skew_before_the_earliest_clock(
        self, real_time_repository: OpenRepository
    ) -> None:
        earliest = min(real_time_repository.clock.now(), locked(real_time_repository).store_clock)
        made = begin(real_time_repository)
        assert earliest - DAY - HOUR - SECOND < made.cutoff <= earliest + SECOND - DAY - HOUR

    def test_keeps_to_the_servers_grace_period(self, real_time_repository: OpenRepository) -> None:
        lax = replace(
            real_time_repository, settings=CollectionSettings(min_age_hours=0), api=ScriptedApi(grace=3 * DAY)
        )
        assert begin(lax).cutoff <= real_time_repository.clock.now() - 3 * DAY - HOUR

    def test_keeps_to_a_server_whose_clock_is_behind(self, real_time_repository: OpenRepository) -> None:
        behind = ServerClocks(timedelta(minutes=-20), timedelta())
        found = begin(replace(real_time_repository, api=ScriptedApi(server_clocks=behind))).cutoff
        assert found <= real_time_repository.clock.now() - timedelta(minutes=20) - DAY - HOUR

    def test_keeps_to_a_store_whose_clock_is_behind(self, real_time_repository: OpenRepository) -> None:
        ahead = replace(real_time_repository, clock=HandClock(real_time_repository.clock.now() + timedelta(minutes=20)))
        assert begin(ahead).cutoff <= real_time_repository.clock.now() + 10 * SECOND - DAY - HOUR


@pytest.mark.parametrize("apart", [-HOUR, HOUR])
def test_clocks_apart_stop_it_before_anything_is_stored(real_time_repository: OpenRepository, apart: timedelta) -> None:
    off = HandClock(real_time_repository.clock.now() + apart)
    server = ScriptedApi(server_clocks=ServerClocks(min(apart, timedelta()), max(apart, timedelta())))
    for wrong in (replace(real_time_repository, clock=off), replace(real_time_repository, api=server)):
        with pytest.raises(GuardTripped, match="clocks"):
            begin(wrong)
        with pytest.raises(CollectionError, match="this repository has no run"):
            plan.read(real_time_repository.store, RUN)


def test_a_server_that_does_not_say_its_grace_period_stops_it(real_time_repository: OpenRepository) -> None:
    class Failing(ScriptedApi):
        def grace_period(self) -> timedelta:
            raise ServerUnavailable("GET /config/garbage-collection: 503")

    with pytest.raises(ServerUnavailable):
        begin(replace(real_time_repository, api=Failing()))


class TestIdsThatSomebodyMadeUp:
    def test_none_is_of_a_time_to_come(self, real_time_repository: OpenRepository) -> None:
        """A future run would overtake every run until then."""
        for ahead in (HOUR + 2 * SECOND, 3650 * DAY):
            run_id = layout.issue_run_id(real_time_repository.clock.now() + ahead)
            with pytest.raises(OrderViolation, match=rf"the time in run id {run_id}, .*Z, is in the future"):
                planning.begin(real_time_repository, run_id, WINDOWS, locked(real_time_repository))
            assert not run_folder.has_plan(real_time_repository.store, run_id)

    def test_clocks_of_machines_may_differ(self, real_time_repository: OpenRepository) -> None:
        run_id = layout.issue_run_id(real_time_repository.clock.now() + HOUR - 2 * SECOND)
        assert planning.begin(real_time_repository, run_id, WINDOWS, locked(real_time_repository)).run_id == run_id

    def test_the_plan_says_that_nobody_opened_the_run(self, real_time_repository: OpenRepository) -> None:
        assert begin(real_time_repository).opened is True
        assert begin(replace(real_time_repository, opened=False)).opened is False
        assert plan.read(real_time_repository.store, RUN).opened is False


class TestASecondTime:
    def test_by_the_same_dagster_run_is_a_new_attempt(self, real_time_repository: OpenRepository) -> None:
        first = begin(real_time_repository)
        real_time_repository.clock.sleep(60)
        second = begin(real_time_repository)
        assert second.attempt != first.attempt
        assert plan.read(real_time_repository.store, RUN) == second

    def test_by_another_dagster_run_is_refused(self, real_time_repository: OpenRepository) -> None:
        first = begin(real_time_repository)
        locked(real_time_repository).release()
        with pytest.raises(OrderViolation, match="already collected by Dagster run dagster-run"):
            begin(real_time_repository, "another")
        assert plan.read(real_time_repository.store, RUN) == first

    def test_after_it_failed_is_a_new_attempt(self, real_time_repository: OpenRepository) -> None:
        report.write(
            real_time_repository.store,
            report.failed(begin(real_time_repository), real_time_repository.clock.now(), "it broke"),
        )
        real_time_repository.clock.sleep(60)
        begin(real_time_repository)

    def test_with_a_report_that_cannot_be_read_is_refused(self, real_time_repository: OpenRepository) -> None:
        begin(real_time_repository)
        real_time_repository.store.put(run_folder.report(RUN), b"{}")
        with pytest.raises(CorruptFile):
            begin(real_time_repository)


def test_the_run_before_is_the_newest_older_one(real_time_repository: OpenRepository) -> None:
    created = layout.as_datetime(layout.created_at(RUN))
    older, oldest, newer = (layout.XidGenerator().descending(created + timedelta(hours=hours)) for hours in (-1, -2, 1))
    for run_id in (older, oldest, newer):
        real_time_repository.store.put(run_folder.plan(run_id), b"{}")
    assert begin(real_time_repository).previous_run == older


def test_an_id_made_by_hand_is_refused(real_time_repository: OpenRepository) -> None:
    with pytest.raises(OrderViolation, match="open_run"):
        planning.begin(real_time_repository, "my-run", WINDOWS, locked(real_time_repository))


# The choice of a base run.


def why_not(opened: OpenRepository, definition: str = ALL_COMMITS, before: str | None = None) -> str:
    """The reason why there is no base run."""
    with pytest.raises(NoBaseRun) as refused:
        planning.find_newest(opened, definition, before)
    return str(refused.value)


def test_the_newest_sweep_is_built_on(opened: OpenRepository) -> None:
    ended(opened, began(opened, 3 * DAY))
    newest = began(opened, DAY)
    ended(opened, newest)
    found = planning.find_newest(opened, ALL_COMMITS)
    assert (found.run_id, found.sealed) == (newest.run_id, frozenset([SEALED]))


def test_a_dry_run_neither_helps_nor_hides(opened: OpenRepository) -> None:
    dry = began(opened, 3 * DAY, sweep=False)
    ended(opened, dry, dry_run=True, checkpoint=None)
    assert why_not(opened) == "no earlier run listed and deleted: all were dry runs, or of the flow committed"
    real = began(opened, 2 * DAY)
    ended(opened, real)
    ended(opened, began(opened, DAY, sweep=False), dry_run=True, checkpoint=None)
    began(opened, HOUR, sweep=False)
    assert planning.find_newest(opened, ALL_COMMITS).run_id == real.run_id


def test_none_is_needed_for_there_to_be_none(opened: OpenRepository) -> None:
    assert why_not(opened) == "there is no earlier run"


def test_a_run_is_no_base_run_of_itself_nor_of_earlier_ones(opened: OpenRepository) -> None:
    first = began(opened, 3 * DAY)
    ended(opened, first)
    second = began(opened, DAY)
    ended(opened, second)
    assert planning.find_newest(opened, ALL_COMMITS, before=second.run_id).run_id == first.run_id
    assert why_not(opened, before=first.run_id) == "there is no earlier run"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"checkpoint": None, "success": False, "error": "no disk"}, "stored nothing to build on: it failed (no disk)"),
        ({"checkpoint": None, "no_checkpoint": "it was limited"}, "stored nothing to build on: it was limited"),
    ],
)
def test_a_newest_sweep_without_a_checkpoint_hides_older_ones(
    opened: OpenRepository, changes: dict[str, Any], reason: str
) -> None:
    ended(opened, began(opened, 3 * DAY))
    newest = began(opened, DAY)
    ended(opened, newest, **changes)
    assert why_not(opened) == f"run {newest.run_id} {reason}"


def test_deletions_that_failed_wait_among_the_open_objects(opened: OpenRepository) -> None:
    newest = began(opened, DAY)
    ended(opened, newest, success=False, ending=Ending.PARTLY_DELETED)
    assert planning.find_newest(opened, ALL_COMMITS).run_id == newest.run_id


def test_a_sweep_that_has_not_ended_hides_older_ones(opened: OpenRepository) -> None:
    ended(opened, began(opened, 3 * DAY))
    newest = began(opened, DAY)
    assert why_not(opened) == f"run {newest.run_id} is a sweep that has not ended"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"repository": "other"}, "repository: other, now repo"),
        ({"storage_namespace": "local://other/"}, "storage namespace: local://other/, now local://repo/"),
        ({"slice_window": "day"}, "slice window: day, now month"),
        ({"min_age_seconds": 3600.0}, "minimum age: 1:00:00, now 1 day, 0:00:00"),
        ({"grace_period_seconds": 3600.0}, "grace period: 1:00:00, now 1 day, 0:00:00"),
        ({"live_definition": "rules"}, "definition of what is live: rules, now all commits"),
    ],
)
def test_another_premise_is_named(opened: OpenRepository, changes: dict[str, Any], what: str) -> None:
    newest = began(opened, DAY, **changes)
    ended(opened, newest)
    assert why_not(opened) == f"run {newest.run_id} had another {what}"


def test_files_that_are_gone_or_changed_are_named(opened: OpenRepository) -> None:
    newest = began(opened, DAY)
    ended(opened, newest)
    checkpoint.write_sealed(opened.store, newest.run_id, newest.attempt, frozenset())
    assert "sealed-attempt.parquet: checksum" in why_not(opened)
    ended(opened, newest)
    tables.write_run_ids(opened.store, newest.run_id, newest.attempt, [])
    assert "read-attempt.parquet: checksum" in why_not(opened)


def test_an_earlier_file_of_ids_that_is_gone_or_changed_is_named(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_SMALL", 0)
    newest = began(opened, DAY)
    report = ended(opened, newest)
    assert planning.find_newest(opened, "all commits").report == report
    key = tables.StoredIds(newest.run_id, newest.attempt).earlier_key
    opened.store.put(key, b"another one")
    assert "read-earlier-attempt.parquet: checksum" in why_not(opened)
    opened.store.delete([key])
    assert "read-earlier-attempt.parquet: existence" in why_not(opened)


@pytest.mark.parametrize("frame", [PENDING_DF.name, CHECKPOINT_COMMITTED_DF.name])
def test_a_frame_that_is_gone_or_was_made_again_is_named(opened: OpenRepository, frame: str) -> None:
    newest = began(opened, DAY)
    ended(opened, newest)
    key = run_folder.manifest(newest.run_id, frame)
    opened.store.put(key, b"another one")
    assert f"{frame}/manifest.json: digest" in why_not(opened)
    opened.store.delete([key])
    assert f"{frame}/manifest.json: existence" in why_not(opened)


def test_what_an_attempt_left_is_not_built_on_once_another_began(opened: OpenRepository) -> None:
    newest = began(opened, DAY)
    ended(opened, newest, success=False, ending=Ending.PARTLY_DELETED)
    opened.store.put(run_folder.plan(newest.run_id), replace(newest, attempt="another").to_json())
    assert why_not(opened) == f"run {newest.run_id} is a sweep that was restarted and has not ended"


def test_an_unreadable_report_or_plan_is_named(opened: OpenRepository) -> None:
    newest = began(opened, DAY)
    opened.store.put(run_folder.report(newest.run_id), b"{")
    assert "report.json" in why_not(opened)
    opened.store.put(run_folder.plan(newest.run_id), b"{")
    assert "plan.json" in why_not(opened)


def test_objects_that_were_brought_back_since_are_named(opened: OpenRepository) -> None:
    older, newest = began(opened, 3 * DAY), began(opened, DAY)
    ended(opened, older)
    ended(opened, newest)
    across_runs.write_restoration(opened.store, older.run_id, NOW)
    assert why_not(opened) == (
        f"objects that run {older.run_id} had deleted were restored at {NOW:%F %T}Z, after run {newest.run_id} "
        "was opened"
    )
    later = began(opened, HOUR)
    ended(opened, later)
    assert planning.find_newest(opened, ALL_COMMITS).run_id == later.run_id


def test_the_same_cutoff_is_no_earlier_one(opened: OpenRepository) -> None:
    newest = began(opened, DAY)
    ended(opened, newest)
    found = planning.find_newest(opened, ALL_COMMITS)
    planning.require_earlier_cutoff(found, newest)
    earlier = newest.cutoff - timedelta(microseconds=1)
    with pytest.raises(NoBaseRun) as refused:
        planning.require_earlier_cutoff(found, replace(newest, cutoff=earlier))
    assert str(refused.value) == (
        f"run {newest.run_id} had a later cutoff, {newest.cutoff:%F %T}Z, than this one, {earlier:%F %T}Z"
    )


class TestByRules:
    """Additional requirements on the base run of a run by retention rules."""

    @pytest.mark.parametrize(("ago", "days", "recent"), [(7, 8, True), (7, 7, False), (7, 6, False), (-1, 7, False)])
    def test_everything_was_listed_not_long_ago(
        self, opened: OpenRepository, ago: int, days: float, recent: bool
    ) -> None:
        newest = began(opened, DAY)
        report = ended(opened, newest)
        assert report.checkpoint is not None
        full_run = IDS.descending(NOW - ago * DAY)
        ended(opened, newest, checkpoint=replace(report.checkpoint, full_run=full_run))
        found, settings = planning.find_newest(opened, ALL_COMMITS), CollectionSettings(full_listing_days=days)
        planned = replace(newest, started_at=NOW)
        if recent:
            planning.require_recent_full_listing(found, planned, settings)
            return
        with pytest.raises(NoBaseRun, match=f"run {full_run} was the last to examine everything, at .*days is {days}"):
            planning.require_recent_full_listing(found, planned, settings)

    def test_nor_by_a_run_that_does_not_say_when(self, opened: OpenRepository) -> None:
        newest = began(opened, DAY)
        ended(opened, newest)
        found = planning.find_newest(opened, ALL_COMMITS)
        with pytest.raises(NoBaseRun, match="lacks the last run that examined everything"):
            planning.require_recent_full_listing(found, newest, CollectionSettings())

    def test_no_run_that_built_on_it_failed(self, opened: OpenRepository) -> None:
        newest = began(opened, 2 * DAY)
        ended(opened, newest)
        found = planning.find_newest(opened, ALL_COMMITS)
        dry = began(opened, DAY, sweep=False, base_run=newest.run_id)
        planned = began(opened, HOUR, previous_run=dry.run_id)
        planning.require_none_failed_on(opened.store, found, planned)
        reports.write(opened.store, reports.failed(dry, NOW, "a range is gone"))
        with pytest.raises(NoBaseRun) as refused:
            planning.require_none_failed_on(opened.store, found, planned)
        assert str(refused.value) == f"run {dry.run_id}, which built on run {newest.run_id}, failed (a range is gone)"
        reports.write(opened.store, reports.failed(replace(dry, base_run=None), NOW, "something else"))
        planning.require_none_failed_on(opened.store, found, planned)
        again = replace(planned, base_run=newest.run_id)
        reports.write(opened.store, reports.failed(again, NOW, "a range is gone"))
        with pytest.raises(NoBaseRun, match=f"run {planned.run_id}, which built on run"):
            planning.require_none_failed_on(opened.store, found, planned)

    def test_the_file_of_tracked_ranges_is_the_one_that_the_report_names(self, opened: OpenRepository) -> None:
        newest = began(opened, DAY)
        report = ended(opened, newest)
        assert report.checkpoint is not None
        sha256 = checkpoint.write_ranges(opened.store, newest.run_id, newest.attempt, range_records([]))
        left = replace(report.checkpoint, tracked_sha256=sha256, read_sha256="", committed_digest="")
        ended(opened, newest, checkpoint=left)
        assert planning.find_newest(opened, ALL_COMMITS).run_id == newest.run_id
        assert not checkpoint.read_ids(opened.store, newest.run_id, left)
        other = range_records([RangeRecord("a" * 64, b"a", b"b", 1, 2)])
        checkpoint.write_ranges(opened.store, newest.run_id, newest.attempt, other)
        assert "tracked-attempt.parquet: checksum" in why_not(opened)


def test_so_many_of_the_newest_runs_are_looked_at(opened: OpenRepository) -> None:
    real = began(opened, 3 * DAY)
    for days in (1, 2):
        began(opened, days * DAY, sweep=False)
    assert planning.newest_sweep(opened.store, limit=3) == real
    assert planning.newest_sweep(opened.store, limit=2) is None


def test_a_dry_run_that_was_approved_was_to_delete(opened: OpenRepository) -> None:
    dry, other = began(opened, 2 * DAY, sweep=False), began(opened, DAY, sweep=False)
    plan.write_approval(opened.store, Approval(dry.run_id, dry.attempt, "0" * 64, NOW))
    assert planning.newest_sweep(opened.store) == dry
    plan.write_approval(opened.store, Approval(other.run_id, other.attempt, "0" * 64, NOW))
    assert planning.newest_sweep(opened.store) == other


class TestPlanning:
    RUN = IDS.descending(NOW)

    def plan(self, opened: OpenRepository, flow: Flow = Flow.OPTIMIZED) -> Plan:
        lock = Lock.acquire(opened.store, run_id=self.RUN, owner="owner", now=opened.clock.now(), expiry=HOUR)
        return planning.begin(opened, self.RUN, ("legacy",), lock, flow)

    def test_an_optimized_run_names_the_run_it_builds_on(self, opened: OpenRepository) -> None:
        newest = began(opened, DAY)
        ended(opened, newest)
        made = self.plan(opened)
        assert (made.flow, made.base_run, made.why_clean) == (Flow.OPTIMIZED, newest.run_id, None)
        assert made.base_run_attempt == newest.attempt
        assert plan.read(opened.store, self.RUN) == made

    def test_without_one_it_is_a_clean_run_that_says_why(self, opened: OpenRepository) -> None:
        made = self.plan(opened)
        assert (made.flow, made.base_run, made.why_clean) == (Flow.CLEAN, None, "there is no earlier run")

    def test_a_clean_run_that_was_asked_for_gives_no_reason(self, opened: OpenRepository) -> None:
        ended(opened, began(opened, DAY))
        made = self.plan(opened, Flow.CLEAN)
        assert (made.flow, made.base_run, made.why_clean) == (Flow.CLEAN, None, None)

    def test_a_new_folder_that_is_no_slice_makes_it_clean(self, opened: OpenRepository) -> None:
        ended(opened, began(opened, DAY))
        opened.store.put("data/old/object", b"")
        assert self.plan(opened).flow is Flow.OPTIMIZED
        opened.store.put("data/!ab/c/object", b"")
        made = self.plan(opened)
        assert made.flow is Flow.CLEAN and made.why_clean is not None and made.why_clean.endswith(": !ab")

    def test_a_new_shard_makes_it_clean_only_where_there_was_none(self, opened: OpenRepository) -> None:
        report = ended(opened, began(opened, DAY))
        assert report.checkpoint is not None
        reports.write(opened.store, replace(report, checkpoint=replace(report.checkpoint, other_folders=("!ab",))))
        opened.store.put("data/!cd/e/object", b"")
        assert self.plan(opened).flow is Flow.OPTIMIZED
        opened.store.put("data/!cde/object", b"")
        assert (self.plan(opened).why_clean or "").endswith(": !cde")

    def test_windows_are_those_with_something_to_look_at(self, opened: OpenRepository) -> None:
        def put(moment: datetime) -> None:
            opened.store.put(f"data/{IDS.descending(moment)}/{IDS.ascending(moment)}", b"")

        opened.store.put(f"data/{SEALED}/{IDS.ascending(NOW)}", b"")
        put(datetime(2026, 9, 1, tzinfo=UTC))
        put(datetime(2026, 10, 1, tzinfo=UTC))
        windows, why_clean = planning.windows_to_collect(opened, Flow.OPTIMIZED)
        assert windows[:3] == ("legacy", "2026-09", "2026-10") and why_clean == "there is no earlier run"
        report = ended(opened, began(opened, DAY))
        assert planning.windows_to_collect(opened, Flow.OPTIMIZED) == (("legacy", "2026-09", "2026-10"), None)
        assert report.checkpoint is not None
        waiting = replace(report, checkpoint=replace(report.checkpoint, pending_windows=("legacy", "2025-01")))
        reports.write(opened.store, waiting)
        windows, _ = planning.windows_to_collect(opened, Flow.OPTIMIZED)
        assert windows == ("legacy", "2026-09", "2026-10", "2025-01")
        assert planning.windows_to_collect(opened, Flow.CLEAN)[0][0] == "legacy"

    def test_only_runs_that_list_everything_can_be_limited_to_windows(self, opened: OpenRepository) -> None:
        opened.store.put(f"data/{IDS.descending(datetime(2026, 9, 1, tzinfo=UTC))}/{IDS.ascending(NOW)}", b"")
        needed, chosen, why_clean = planning.choose_windows(opened, Flow.CLEAN, "2026-09")
        assert ("legacy" in needed, chosen, why_clean) == (True, ("2026-09",), None)
        assert planning.choose_windows(opened, Flow.UNIFIED, "")[1] == needed
        for flow in (Flow.OPTIMIZED, Flow.COMMITTED):
            with pytest.raises(ConfigurationError, match=f"flow {flow} cannot be limited to the windows 2026-09"):
                planning.choose_windows(opened, flow, "2026-09")

    def test_a_name_of_no_slice_inside_of_a_new_one_lies_in_the_windows(self, opened: OpenRepository) -> None:
        ended(opened, began(opened, DAY))
        folder = f"data/{IDS.descending(NOW - 5 * DAY)}/"
        opened.store.put(f"{folder}a name that lakeFS never makes", b"")
        (batch,), _ = listing.list_part(opened.store, Part(folder), "month")
        windows, _ = planning.windows_to_collect(opened, Flow.OPTIMIZED)
        assert set(batch.column("slice_window").to_pylist()) <= set(windows)

    def test_corrupt_files_do_not_stop_a_clean_run(self, opened: OpenRepository) -> None:
        newest = began(opened, DAY)
        ended(opened, newest)
        checkpoint.write_sealed(opened.store, newest.run_id, newest.attempt, frozenset())
        assert "checksum" in (self.plan(opened).why_clean or "")


# Base runs of runs by retention rules.


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


def test_a_run_that_had_nothing_to_delete_is_followed_too(opened: OpenRepository) -> None:
    report = ended(opened, began(opened, DAY, flow=Flow.UNIFIED), ending=Ending.NOTHING_TO_DELETE)

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

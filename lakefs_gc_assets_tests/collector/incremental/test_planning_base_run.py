from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame.frames import CHECKPOINT_COMMITTED_DF, PENDING_DF
from lakefs_gc_assets.collector.incremental import checkpoint, planning
from lakefs_gc_assets.collector.incremental.planning import NoBaseRun
from lakefs_gc_assets.collector.records import across_runs, plan, run_folder, tables
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import ALL_COMMITS, Approval, Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe.listing import Part
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, IDS, NOW, SEALED, began, ended, opened
from lakefs_gc_assets_tests.runs.made_ranges import range_records

__all__ = ["opened"]


def why_not(opened: OpenRepository, definition: str = ALL_COMMITS, before: str | None = None) -> str:
    """The reason why there is no base run."""
    with pytest.raises(NoBaseRun) as refused:
        planning.find(opened, definition, before)
    return str(refused.value)


def test_the_newest_sweep_is_built_on(opened: OpenRepository) -> None:
    ended(opened, began(opened, 3 * DAY))
    newest = began(opened, DAY)
    ended(opened, newest)
    found = planning.find(opened, ALL_COMMITS)
    assert (found.run_id, found.sealed) == (newest.run_id, frozenset([SEALED]))


def test_a_dry_run_neither_helps_nor_hides(opened: OpenRepository) -> None:
    dry = began(opened, 3 * DAY, sweep=False)
    ended(opened, dry, dry_run=True, checkpoint=None)
    assert why_not(opened) == "no earlier run listed and deleted: all were dry runs, or of the flow committed"
    real = began(opened, 2 * DAY)
    ended(opened, real)
    ended(opened, began(opened, DAY, sweep=False), dry_run=True, checkpoint=None)
    began(opened, HOUR, sweep=False)
    assert planning.find(opened, ALL_COMMITS).run_id == real.run_id


def test_none_is_needed_for_there_to_be_none(opened: OpenRepository) -> None:
    assert why_not(opened) == "there is no earlier run"


def test_a_run_is_no_base_run_of_itself_nor_of_earlier_ones(opened: OpenRepository) -> None:
    first = began(opened, 3 * DAY)
    ended(opened, first)
    second = began(opened, DAY)
    ended(opened, second)
    assert planning.find(opened, ALL_COMMITS, before=second.run_id).run_id == first.run_id
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
    assert planning.find(opened, ALL_COMMITS).run_id == newest.run_id


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
    assert planning.find(opened, "all commits").report == report
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
    assert planning.find(opened, ALL_COMMITS).run_id == later.run_id


def test_the_same_cutoff_is_no_earlier_one(opened: OpenRepository) -> None:
    newest = began(opened, DAY)
    ended(opened, newest)
    found = planning.find(opened, ALL_COMMITS)
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
        found, settings = planning.find(opened, ALL_COMMITS), CollectionSettings(full_listing_days=days)
        planned = replace(newest, started_at=NOW)
        if recent:
            planning.require_recent_full_listing(found, planned, settings)
            return
        with pytest.raises(NoBaseRun, match=f"run {full_run} to examine everything, at .*days is {days}"):
            planning.require_recent_full_listing(found, planned, settings)

    def test_nor_by_a_run_that_does_not_say_when(self, opened: OpenRepository) -> None:
        newest = began(opened, DAY)
        ended(opened, newest)
        found = planning.find(opened, ALL_COMMITS)
        with pytest.raises(NoBaseRun, match="lacks the last run that examined everything"):
            planning.require_recent_full_listing(found, newest, CollectionSettings())

    def test_no_run_that_built_on_it_failed(self, opened: OpenRepository) -> None:
        newest = began(opened, 2 * DAY)
        ended(opened, newest)
        found = planning.find(opened, ALL_COMMITS)
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
        assert planning.find(opened, ALL_COMMITS).run_id == newest.run_id
        assert not checkpoint.read_ids(opened.store, newest.run_id, left)
        other = range_records([RangeRecord("a" * 64, b"a", b"b", 1, 2)])
        checkpoint.write_ranges(opened.store, newest.run_id, newest.attempt, other)
        assert "tracked-attempt.parquet: checksum" in why_not(opened)


def test_so_many_of_the_newest_runs_are_looked_at(opened: OpenRepository) -> None:
    real = began(opened, 3 * DAY)
    for days in (1, 2):
        began(opened, days * DAY, sweep=False)
    assert planning.newest_sweep(opened.store, among=3) == real
    assert planning.newest_sweep(opened.store, among=2) is None


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

    def test_a_cutoff_that_went_back_makes_it_clean(self, opened: OpenRepository) -> None:
        newest = began(opened, DAY, cutoff=NOW)
        ended(opened, newest)
        made = self.plan(opened)
        assert made.flow is Flow.CLEAN and f"run {newest.run_id} had a later cutoff" in (made.why_clean or "")

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

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Approval
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.page.stored_runs import BYTES, COUNTS
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["store"]

REPORT = Report(
    run_id=PLAN.run_id,
    attempt=PLAN.attempt,
    repository="repo",
    storage_namespace="s3://bucket/repo/",
    flow="clean",
    previous_run=None,
    dry_run=False,
    success=True,
    ending=Ending.DELETED,
    started_at=NOW,
    ended_at=NOW + timedelta(hours=1),
    cutoff=NOW - timedelta(hours=25),
    windows=("legacy", "2026-11"),
    last_read_slice="g4uk6erfnfus73frbnqg",
    counts={"listed": 3, "deleted": 1},
    object_bytes={"deleted": 10},
    storage_classes={"listed": {"GLACIER": {"objects": 3, "bytes": 40}}, "candidates": {}},
    kept={"too young": 1},
    commit_source="refs dump",
    server_run_ids=("a", "b"),
    warnings=("guard",),
)
AMOUNTS = st.integers(0, 1 << 62)
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2106, 1, 1), timezones=st.just(UTC))


def changed(**changes: Any) -> bytes:
    return records_json.with_digest(json.loads(REPORT.to_json()) | changes)


@given(
    st.builds(
        Report,
        started_at=MOMENTS,
        ended_at=MOMENTS,
        cutoff=MOMENTS,
        windows=st.lists(st.text()).map(tuple),
        warnings=st.lists(st.text()).map(tuple),
        counts=st.dictionaries(st.text(), st.integers(0, 1 << 62)),
        storage_classes=st.dictionaries(
            st.sampled_from(["listed", "candidates"]),
            st.dictionaries(st.text(), st.fixed_dictionaries({"objects": AMOUNTS, "bytes": AMOUNTS})),
        ),
        format_version=st.just(reports.FORMAT_VERSION),
    )
)
def test_is_read_as_it_was_written(report: Report) -> None:
    assert records_json.decode(Report, report.to_json(), "report.json") == report


@pytest.mark.parametrize(
    ("ending", "counts", "said"),
    [
        (Ending.DELETED, {"deleted": 2}, "2 deleted"),
        (Ending.DELETED, {"deleted": 0, "quarantined": 0}, "0 deleted"),
        (Ending.QUARANTINED, {"deleted": 0, "quarantined": 2}, "2 moved to quarantine"),
        (Ending.PARTLY_QUARANTINED, {"deleted": 0, "quarantined": 0}, "0 moved to quarantine"),
        (Ending.DELETED, {"deleted": 1, "quarantined": 2}, "2 moved to quarantine, 1 deleted"),
        (Ending.DELETED_AND_QUARANTINED, {"deleted": 1, "quarantined": 2}, "2 moved to quarantine, 1 deleted"),
        (Ending.NONE_DELETED, {"deleted": 0, "quarantined": 0}, "0 deleted"),
        (Ending.NONE_QUARANTINED, {"deleted": 0, "quarantined": 0}, "0 moved to quarantine"),
        (Ending.KEPT_ARCHIVED, {"deleted": 0, "quarantined": 0}, "0 moved to quarantine"),
        (Ending.KEPT_LIVE, {"deleted": 0, "quarantined": 0}, "0 deleted"),
    ],
)
def test_what_was_moved_is_not_called_deleted(ending: Ending, counts: dict[str, int], said: str) -> None:
    assert replace(REPORT, ending=ending, counts=counts).did == said


def test_time_between_steps_is_no_part_of_the_duration() -> None:
    """A user may think for hours between the mark and its sweep."""
    days = replace(REPORT, started_at=NOW - timedelta(days=2), counts=COUNTS, object_bytes=BYTES)
    report = replace(
        days, worked_seconds={"store_df": 4.5, "deleted_report": 2}, waited_seconds={"deleted_report": 600}
    )
    assert report.statistics.seconds == 606.5
    assert "  took               606.5 s, 600.0 s of these waiting for safety" in reports.describe(report)
    assert "  took                 6.5 s" in reports.describe(replace(report, waited_seconds={}))


def test_a_sweep_that_failed_says_where_the_reasons_are() -> None:
    swept = replace(REPORT, dry_run=False, counts=COUNTS | {"failed": 2}, object_bytes=BYTES)
    reasons = f"  reasons: lakefs-gc deleted {REPORT.run_id}; missing permissions: lakefs-gc doctor"

    assert {"  failed                 2 objects", reasons} <= {*reports.describe(swept)}
    assert reasons not in reports.describe(replace(swept, counts=COUNTS | {"failed": 0}))


def test_what_the_recheck_kept_is_named_only_where_there_is_some() -> None:
    swept = replace(REPORT, dry_run=False, counts=COUNTS | {"kept_live": 1}, object_bytes=BYTES)
    kept = "  kept live              1 object: something has referenced it since the mark"

    assert kept in reports.describe(swept)
    none = reports.describe(replace(swept, counts=COUNTS | {"kept_live": 0}))
    assert not [line for line in none if line.startswith("  kept live")]


def test_the_duration_of_a_run_of_an_earlier_version_is_unknown() -> None:
    content = json.loads(REPORT.to_json())
    del content["worked_seconds"], content["sha256"]
    report = records_json.decode(Report, records_json.with_digest(content), "report.json")
    assert report.statistics.seconds is None
    counted = replace(report, counts=COUNTS, object_bytes=BYTES)
    assert not [line for line in reports.describe(counted) if line.startswith("  took")]


@pytest.mark.parametrize(
    "change",
    [
        {"ending": "well"},
        {"server_run_ids": "abc"},
        {"counts": []},
        {"counts": {"listed": 3.5}},
        {"storage_classes": {"listed": {"GLACIER": [1, 2]}}},
        {"storage_classes": {"listed": {"GLACIER": {"objects": "1", "bytes": 2}}}},
        {"previous_run": 7},
        {"format_version": 1},
    ],
)
def test_a_report_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptFile, match=r"^report\.json: "):
        records_json.decode(Report, changed(**change), "report.json")


@pytest.mark.parametrize(
    "ending",
    [
        "nothing to delete",
        "marked, nothing deleted",
        "deleted",
        "some deletions failed",
        "moved to quarantine",
        "some could not be moved to quarantine",
        "failed",
    ],
)
def test_reports_of_earlier_versions_are_read(ending: str) -> None:
    assert records_json.decode(Report, changed(ending=ending), "report.json").ending.value == ending


def test_a_report_from_before_classes_were_listed_names_none() -> None:
    content = json.loads(REPORT.to_json())
    del content["storage_classes"], content["sha256"]
    assert records_json.decode(Report, records_json.with_digest(content), "report.json") == replace(
        REPORT, storage_classes={}
    )


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        ({}, []),
        ({"STANDARD": 3}, []),
        ({"GLACIER": 1, "STANDARD": 2}, ["GLACIER 1 object, 10 B", "STANDARD 2 objects, 20 B"]),
        ({"Hot": 3}, ["Hot 3 objects, 30 B"]),
    ],
)
def test_classes_are_shown_where_one_is_not_the_usual(listed: dict[str, int], shown: list[str]) -> None:
    classes = {name: {"objects": count, "bytes": 10 * count} for name, count in listed.items()}
    counts = dict.fromkeys(["slices_listed", "uncommitted", "committed", "commits", "ranges_read"], 0)
    counts |= dict.fromkeys(["listed", "candidates"], sum(listed.values()))
    found = replace(
        REPORT,
        dry_run=True,
        counts=counts,
        object_bytes={"listed": 30, "candidates": 30},
        storage_classes={"listed": classes, "candidates": classes},
    )
    lines = [" ".join(line.split()) for line in reports.describe(found) if line.startswith("    ")]
    assert lines == shown * 2


@pytest.mark.parametrize("refused", [False, True])
def test_what_deletes_after_a_dry_run_is_said_with_what_must_come_first(refused: bool) -> None:
    counts = dict.fromkeys(["slices_listed", "uncommitted", "committed", "commits", "ranges_read"], 0)
    counts |= {"listed": 3, "candidates": 3}
    warnings = ("1 object is lost", *(["a sweep would be refused: guard share"] if refused else []))
    found = replace(REPORT, dry_run=True, counts=counts, object_bytes={}, warnings=warnings)
    *_, last = reports.describe(found)
    then = "resolve the warnings, then" if refused else "to delete its candidates"
    assert last == f"  a dry run deletes nothing; {then}: lakefs-gc approve {REPORT.run_id}"


class TestStored:
    def test_lies_in_its_runs_folder(self, store: ObjectStore) -> None:
        assert reports.read(store, REPORT.run_id) is None
        reports.write(store, REPORT)
        assert reports.read(store, REPORT.run_id) == REPORT

    def test_replaces_that_of_an_earlier_attempt(self, store: ObjectStore) -> None:
        reports.write(store, REPORT)
        reports.write(store, replace(REPORT, success=False, ending=Ending.FAILED))
        found = reports.read(store, REPORT.run_id)
        assert found is not None
        assert found.success is False

    def test_of_another_run_is_refused(self, store: ObjectStore) -> None:
        store.put(run_folder.report("other"), REPORT.to_json())
        with pytest.raises(CorruptFile, match=REPORT.run_id):
            reports.read(store, "other")


OLDER, NEWER = "g4uk6erfnfus73frbnr0", "g4uk6erfnfus73frbnq0"
"""Ids of runs before and after REPORT: ids descend in time."""


class TestOvertaking:
    @pytest.mark.parametrize("dry_run", [False, True])
    def test_older_launch_without_plan_is_overtaken_and_newer_one_is_not(
        self, store: ObjectStore, dry_run: bool
    ) -> None:
        ended = replace(REPORT, dry_run=dry_run)
        assert [reports.overtakes(store, ended, each) for each in (OLDER, NEWER)] == [True, False]

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_only_a_sweep_overtakes_a_sweep(self, store: ObjectStore, dry_run: bool) -> None:
        plans.write_first(store, replace(PLAN, run_id=OLDER, sweep=True))
        assert reports.overtakes(store, replace(REPORT, dry_run=dry_run), OLDER) is not dry_run

    def test_dry_run_overtakes_a_dry_run_until_that_is_approved(self, store: ObjectStore) -> None:
        plans.write_first(store, replace(PLAN, run_id=OLDER))
        assert reports.overtakes(store, replace(REPORT, dry_run=True), OLDER)
        plans.write_approval(store, Approval(OLDER, PLAN.attempt, "", NOW))
        assert not reports.overtakes(store, replace(REPORT, dry_run=True), OLDER)


def test_freed_bytes_skip_missing_and_unreadable_reports(store: ObjectStore) -> None:
    reports.write(store, REPORT)
    store.put(run_folder.report(OLDER), b"no report")
    assert reports.bytes_freed(store, [REPORT.run_id, OLDER, NEWER]) == REPORT.statistics.deleted_bytes == 10


def test_name_over_fewer_windows_means_the_run_over_more_that_ended_well(store: ObjectStore) -> None:
    plan = replace(PLAN, name="Monday", windows=REPORT.windows)
    plans.write_first(store, plan)
    plans.write_name(store, plan)
    fewer = REPORT.windows[:1]
    assert reports.find_named(store, "Monday", REPORT.windows) == PLAN.run_id
    assert reports.find_named(store, "Monday", fewer) is None
    reports.write(store, replace(REPORT, success=False, ending=Ending.FAILED))
    assert reports.find_named(store, "Monday", fewer) is None
    reports.write(store, REPORT)
    assert reports.find_named(store, "Monday", fewer) == PLAN.run_id
    assert reports.find_named(store, "Monday", ["2026-09"]) is None


def test_a_failed_run_is_no_success() -> None:
    found = reports.failed(replace(PLAN, sweep=True), NOW, "it broke")
    assert (found.success, found.ending, found.error, found.dry_run) == (False, Ending.FAILED, "it broke", False)
    assert (found.cutoff, found.windows, found.started_at, found.ended_at) == (PLAN.cutoff, PLAN.windows, NOW, NOW)
    assert reports.failed(PLAN, NOW, "").dry_run is True


ACCEPTED, QUARANTINED, FAILED, KEPT_LIVE = Outcome.ACCEPTED, Outcome.QUARANTINED, Outcome.FAILED, Outcome.KEPT_LIVE


class TestHowARunEnds:
    @pytest.mark.parametrize("sweep", [False, True])
    @pytest.mark.parametrize("quarantine", [False, True])
    def test_without_candidates(self, sweep: bool, quarantine: bool) -> None:
        assert reports.ending(sweep, quarantine, {}) is Ending.NOTHING_TO_DELETE
        assert reports.ending(sweep, quarantine, dict.fromkeys(Outcome, 0)) is Ending.NOTHING_TO_DELETE

    @pytest.mark.parametrize("quarantine", [False, True])
    def test_a_dry_run(self, quarantine: bool) -> None:
        assert reports.ending(False, quarantine, {Outcome.DRY_RUN: 3}) is Ending.MARKED

    @pytest.mark.parametrize(
        ("outcomes", "deleting", "moving"),
        [
            ({ACCEPTED: 3}, Ending.DELETED, Ending.DELETED),
            ({ACCEPTED: 2, KEPT_LIVE: 1}, Ending.DELETED, Ending.DELETED),
            ({ACCEPTED: 2, FAILED: 1}, Ending.PARTLY_DELETED, Ending.PARTLY_DELETED),
            ({QUARANTINED: 3}, Ending.QUARANTINED, Ending.QUARANTINED),
            ({QUARANTINED: 2, KEPT_LIVE: 1}, Ending.QUARANTINED, Ending.QUARANTINED),
            ({QUARANTINED: 2, FAILED: 1}, Ending.PARTLY_QUARANTINED, Ending.PARTLY_QUARANTINED),
            ({KEPT_LIVE: 3}, Ending.KEPT_LIVE, Ending.KEPT_LIVE),
            ({KEPT_LIVE: 3, Outcome.KEPT_ARCHIVED: 1}, Ending.KEPT_ARCHIVED, Ending.KEPT_ARCHIVED),
            ({QUARANTINED: 1, Outcome.KEPT_ARCHIVED: 1}, Ending.QUARANTINED, Ending.QUARANTINED),
            ({FAILED: 1, Outcome.KEPT_ARCHIVED: 1}, Ending.NONE_DELETED, Ending.NONE_QUARANTINED),
            ({FAILED: 3}, Ending.NONE_DELETED, Ending.NONE_QUARANTINED),
            ({FAILED: 2, KEPT_LIVE: 1}, Ending.NONE_DELETED, Ending.NONE_QUARANTINED),
            # A sweep resumed in the other mode: actual outcomes count, not the mode.
            ({ACCEPTED: 2, QUARANTINED: 1}, Ending.DELETED_AND_QUARANTINED, Ending.DELETED_AND_QUARANTINED),
            ({ACCEPTED: 1, QUARANTINED: 1, FAILED: 1}, Ending.PARTLY_DELETED, Ending.PARTLY_DELETED),
        ],
    )
    def test_a_sweep(self, outcomes: dict[Outcome, int], deleting: Ending, moving: Ending) -> None:
        counts = dict.fromkeys(Outcome, 0) | outcomes
        assert reports.ending(True, False, counts) is deleting
        assert reports.ending(True, True, counts) is moving

    @given(st.booleans(), st.booleans(), st.dictionaries(st.sampled_from(Outcome), st.integers(0, 3)))
    def test_none_says_more_than_happened(self, sweep: bool, quarantine: bool, counts: dict[Outcome, int]) -> None:
        ended = reports.ending(sweep, quarantine, counts).value
        if sweep:
            assert ("fail" in ended or "could" in ended) == bool(counts.get(FAILED))
        assert not ended.startswith("deleted") or counts[ACCEPTED]
        assert not ended.startswith("moved") or counts[QUARANTINED]

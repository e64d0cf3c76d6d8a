"""Optimized runs, on a recorded repository at four moments."""

import dataclasses
from collections.abc import Iterator
from datetime import timedelta

import pytest

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.expiring import PastFolder
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.frames import PENDING_DF
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.records import report, run_folder, tables
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Checkpoint, Ending, Report
from lakefs_gc_assets.collector.records.tables import StoredIds
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying, replays
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["replaying"]
DAY = timedelta(days=1)


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1, sweep=True)


def collected(runs: PlainRuns, flow: Flow = Flow.OPTIMIZED, *, sweep: bool | None = None) -> Report:
    """The report of another run, a day after the last."""
    runs.clock.moment += DAY
    opened = runs.open(flow)
    result = runs.make(opened, sweep=sweep)
    assert result.success, result.failures
    return runs.report(opened.run_id)


@pytest.fixture(scope="module")
def collected_once() -> Iterator[PlainRuns]:
    """A recording that a clean run has swept."""
    with replays() as replaying:
        runs = replaying("chain/1", deletes="overlay", max_candidate_share=1, sweep=True)
        collected(runs, Flow.CLEAN)
        yield runs


@pytest.fixture
def swept(replaying: Replaying, collected_once: PlainRuns) -> PlainRuns:
    """The same for one test, which may change it."""
    return replaying("chain/1", deletes="overlay", after=collected_once, max_candidate_share=1, sweep=True)


def last_report(runs: PlainRuns) -> Report:
    """The report of the newest run."""
    return runs.report(next(run_folder.newest_runs(runs.repository.store)))


def checkpoint_of(found: Report) -> Checkpoint:
    """The checkpoint of a run, which must exist."""
    assert found.checkpoint is not None, found.no_checkpoint
    return found.checkpoint


def change_open(store: ObjectStore, run_id: str) -> None:
    """Replaces the manifest of the pending objects by a changed one."""
    found = files.read_manifest(store, run_id, PENDING_DF)
    later = dataclasses.replace(found.span, ended_at=found.span.ended_at + timedelta(seconds=1))
    files.write_manifest(store, dataclasses.replace(found, span=later))


def test_with_nothing_new_nothing_is_read_and_nothing_listed(runs: PlainRuns) -> None:
    clean = collected(runs, Flow.CLEAN)
    assert (clean.flow, clean.ending) == ("clean", Ending.DELETED)
    assert checkpoint_of(clean).sealed == clean.counts["slices_listed"] == 1
    clean_ids = checkpoint.read_ids(runs.repository.store, clean.run_id, checkpoint_of(clean))
    assert len(clean_ids) > clean.counts["ranges_read"] > 0
    before = len(runs.server.requests)
    again = collected(runs)
    assert (again.flow, again.base_run, again.why_clean) == ("optimized", clean.run_id, None)
    assert (again.counts["slices_listed"], again.counts["ranges_read"], again.counts["listed"]) == (
        0,
        0,
        checkpoint_of(clean).pending,
    )
    assert again.ending is Ending.NOTHING_TO_DELETE
    asked = {request.path.rsplit("/", 1)[-1] for request in runs.server.requests[before:]}
    # A recording returns the same refs dump again, whose tables hold no objects.
    repository = runs.repository
    files = LiveFiles(repository.store, repository.namespace, repository.settings.slice_window)
    assert [name for name in asked & clean_ids if files.unnamed((name, 0)).num_rows] == []
    assert checkpoint_of(again).sealed == checkpoint_of(clean).sealed
    assert checkpoint_of(again).sealed_objects == checkpoint_of(clean).sealed_objects


def test_many_ids_are_taken_over_from_run_to_run(runs: PlainRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SMALL", 3)
    store = runs.repository.store
    clean, second = collected(runs, Flow.CLEAN), collected(runs)
    expiring.remove_frames(store, PastFolder(clean.run_id, expiring.FOLDERS, frozenset()))
    third = collected(runs)
    assert [each.base_run for each in (second, third)] == [clean.run_id, second.run_id]
    # A recording returns the same refs dump again, so no run has anything to add.
    assert [checkpoint_of(each).read for each in (second, third)] == [checkpoint_of(clean).read] * 2
    key = StoredIds(third.run_id, checkpoint_of(third).attempt).earlier_key
    store.delete([key])
    fourth = collected(runs)
    assert (fourth.flow, fourth.counts["ranges_read"]) == ("clean", clean.counts["ranges_read"])
    assert fourth.why_clean is not None and f"{key}: existence" in fourth.why_clean


def test_a_failed_deletion_waits_for_the_next_run(runs: PlainRuns) -> None:
    stubborn = sorted(truth_classes("chain/1")["unreferenced"])[0]
    runs.server.undeletable = {stubborn}
    clean = collected(runs, Flow.CLEAN)
    assert (clean.success, clean.ending, clean.counts["failed"]) == (False, Ending.PARTLY_DELETED, 1)
    runs.server.undeletable = set()
    again = collected(runs)
    assert again.flow == "optimized"
    assert runs.addresses(again.run_id, "candidates") == [stubborn]
    assert stubborn not in runs.server.stored()


def test_what_was_young_waits_for_the_next_run(runs: PlainRuns) -> None:
    generator = layout.XidGenerator()
    (slice_name,) = {key.split("/")[1] for key in runs.server.stored() if key.startswith("data/")}
    young = f"data/{slice_name}/{generator.ascending(runs.clock.moment)}"
    runs.server.place(young, written_at=runs.clock.moment)
    clean = collected(runs, Flow.CLEAN)
    assert young not in runs.addresses(clean.run_id, "candidates")
    assert young in runs.addresses(clean.run_id, "pending")
    collected(runs, sweep=False)
    again = collected(runs)
    assert (again.flow, again.counts["slices_listed"]) == ("optimized", 0)
    assert runs.addresses(again.run_id, "candidates") == [young]
    assert young not in runs.server.stored()


def test_a_new_slice_is_listed_and_an_old_one_is_not(swept: PlainRuns) -> None:
    generator, moment = layout.XidGenerator(), swept.clock.moment
    new = f"data/{generator.descending(moment)}/{generator.ascending(moment)}"
    (old_slice,) = {key.split("/")[1] for key in swept.server.stored() if key.startswith("data/")}
    late = f"data/{old_slice}/{generator.ascending(moment)}"
    swept.server.place(new, written_at=moment)
    swept.server.place(late, written_at=moment)
    swept.clock.moment += 2 * DAY
    again = collected(swept)
    assert again.counts["slices_listed"] == 1
    assert swept.addresses(again.run_id, "candidates") == [new]
    # An object that arrived late in a sealed slice waits for a clean run.
    clean = collected(swept, Flow.CLEAN)
    assert swept.addresses(clean.run_id, "candidates") == [late]
    assert (again.counts["late_arrivals"], clean.counts["late_arrivals"]) == (0, 1)


def test_a_run_limited_to_some_windows_leaves_nothing(runs: PlainRuns) -> None:
    generator = layout.XidGenerator()
    moment = runs.clock.moment - 90 * DAY
    runs.server.place(f"data/{generator.descending(moment)}/{generator.ascending(moment)}", written_at=moment)
    runs.clock.moment += DAY
    opened = runs.open(Flow.CLEAN)
    assert len(opened.windows) == 3
    result = runs.make(dataclasses.replace(opened, windows=opened.windows[:2]))
    assert result.success, result.failures
    found = runs.report(opened.run_id)
    assert found.checkpoint is None and "limited to the windows" in (found.no_checkpoint or "")
    assert found.limited_to == "the windows legacy, 2026-08"
    assert (found.counts["slices_listed"], found.counts["slices_elsewhere"]) == (1, 1)
    assert "stored" not in found.counts and len(runs.addresses(opened.run_id, "store_df")) == found.counts["listed"]
    again = collected(runs)
    assert again.flow == "clean" and "limited to the windows" in (again.why_clean or "")
    assert not again.limited_to and again.counts["slices_elsewhere"] == 0


def test_a_changed_frame_is_not_built_on(swept: PlainRuns) -> None:
    clean = last_report(swept)
    store = swept.repository.store
    change_open(store, clean.run_id)
    again = collected(swept)
    assert again.flow == "clean" and "pending/manifest.json: digest" in (again.why_clean or "")


def test_a_frame_that_is_changed_after_the_plan_ends_the_run_that_builds_on_it(
    swept: PlainRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = last_report(swept)
    store = swept.repository.store
    change_open(store, clean.run_id)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(checkpoint, "require_frames", lambda *given: ())
        swept.clock.moment += DAY
        result = swept.make(swept.open(Flow.OPTIMIZED))
    assert "pending differs from the frame in the report" in result.failures["store_df"]
    again = collected(swept)
    assert again.flow == "clean" and "failed" in (again.why_clean or "")


def test_a_run_with_an_odd_name_in_a_new_slice_can_be_built_on(swept: PlainRuns) -> None:
    generator, moment = layout.XidGenerator(), swept.clock.moment
    swept.server.place(f"data/{generator.descending(moment)}/odd name", written_at=moment)
    swept.clock.moment += 2 * DAY
    found = collected(swept)
    assert (found.flow, found.counts["slices_listed"]) == ("optimized", 1)
    assert checkpoint_of(found).pending_windows[-1:] == ("legacy",)


def test_the_report_is_written_once_with_checkpoint_and_success_together(
    runs: PlainRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Report] = []
    write = report.write

    def noted(store: ObjectStore, found: Report) -> None:
        written.append(found)
        write(store, found)

    monkeypatch.setattr(report, "write", noted)
    clean = collected(runs, Flow.CLEAN)
    assert [(found.success, found.checkpoint == clean.checkpoint) for found in written] == [(True, True)]

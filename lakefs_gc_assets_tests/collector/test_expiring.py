from collections.abc import Sequence
from datetime import timedelta
from itertools import count

import pytest

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.live.uncommitted import Prepared
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import run_folder, stored_forecasts
from lakefs_gc_assets.collector.records.plan import Approval, Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import LockLost, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectStore
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, IDS, NOW, began, ended, opened

__all__ = ["opened"]

KEPT_FILES = ("plan.json", "report.json", "receipts/0001.parquet", "deleted_report/part.parquet", "notes.txt")


def past(opened: OpenRepository, days: int, **changes: object) -> Plan:
    """A sweeping run with one file of every kind in its folder."""
    plan = began(opened, days * DAY, **changes)
    fill(opened, plan)
    return plan


def fill(opened: OpenRepository, plan: Plan) -> None:
    folder = run_folder.folder(plan.run_id)
    for frame in expiring.FOLDERS:
        for name in ("manifest.json", "slice_window=legacy/part.parquet"):
            opened.store.put(f"{folder}{frame}/{name}", b"frame")
    for name in KEPT_FILES[2:]:
        opened.store.put(folder + name, b"kept")


def files(opened: OpenRepository, run_id: str) -> set[str]:
    folder = run_folder.folder(run_id)
    keys = {key for batch in opened.store.list(folder) for key in batch["key"].to_pylist()}
    return {key.removeprefix(folder) for key in keys}


def expired(opened: OpenRepository, keep: int = 1) -> list[str]:
    return [run.run_id for run in expiring.decide(opened.store, keep).expired]


def why_kept(opened: OpenRepository, run_id: str, keep: int = 1) -> str | None:
    return expiring.decide(opened.store, keep).kept.get(run_id)


def swept(opened: OpenRepository, days: int, **changes: object) -> str:
    """A successful run that deleted."""
    plan = past(opened, days)
    ended(opened, plan, dry_run=False, **changes)
    return plan.run_id


def test_all_but_the_newest_runs_expire(opened: OpenRepository) -> None:
    runs = [swept(opened, days) for days in (1, 2, 3, 4)]

    assert expired(opened, keep=2) == runs[2:]
    assert expiring.decide(opened.store, 2).kept == dict.fromkeys(runs[:2], "it is among the newest 2")
    assert expired(opened, keep=9) == []


def test_plan_report_receipts_and_whatever_is_not_known_stay(opened: OpenRepository) -> None:
    swept(opened, 1)
    old = swept(opened, 2)
    (run,) = expiring.decide(opened.store, 1).expired

    removed = expiring.remove_frames(opened.store, run)

    left = files(opened, old)
    assert set(KEPT_FILES) <= left
    assert not any(
        name.startswith(tuple(f"{frame}/" for frame in expiring.FOLDERS if frame != "committed_df")) for name in left
    )
    assert removed == 2 * len(expiring.FOLDERS) + 1
    assert expired(opened) == [old], "its partition may be there still"
    assert expiring.remove_frames(opened.store, expiring.decide(opened.store, 1).expired[0]) == 0


@pytest.mark.parametrize("dry", [True, False])
def test_facts_that_a_dry_run_recorded_go_and_those_of_a_sweep_stay(opened: OpenRepository, dry: bool) -> None:
    newest = swept(opened, 1)
    plan = past(opened, 2, sweep=not dry)
    ended(opened, plan, dry_run=dry)
    recorded = {
        run_id: f"{SIZES.folder(run_id, 'attempt')}1-2-3-{'0' * 64}.parquet" for run_id in (newest, plan.run_id)
    }
    for key in recorded.values():
        opened.store.put(key, b"facts")
    (run,) = expiring.decide(opened.store, 1).expired

    expiring.remove_frames(opened.store, run)

    assert (recorded[newest] in keys(opened), recorded[plan.run_id] in keys(opened)) == (True, not dry)


def test_a_manifest_goes_before_what_it_names(opened: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(opened, 1)
    old = swept(opened, 2)
    for frame in expiring.FOLDERS:
        opened.store.put(f"{run_folder.frame(old, frame)}a-file-that-is-listed-first.parquet", b"frame")
    asked: list[str] = []
    delete = opened.store.delete

    def watched(keys: list[str]) -> object:
        asked.extend(keys)
        return delete(keys)

    monkeypatch.setattr(opened.store, "delete", watched)
    monkeypatch.setattr(opened.store, "delete_limit", 1)
    expiring.remove_frames(opened.store, expiring.decide(opened.store, 1).expired[0])

    order = count()
    place = {key: next(order) for key in asked}
    for key in asked:
        frame = key.split("/")[5]
        assert place[key] >= place[f"{'/'.join(key.split('/')[:5])}/{frame}/manifest.json"]


def test_folders_without_our_plan_are_not_looked_at(opened: OpenRepository) -> None:
    newest = swept(opened, 1)
    servers = IDS.descending(NOW - 9 * DAY)
    opened.store.put(f"{run_folder.folder(servers)}uncommitted/part.parquet", b"the server's")
    opened.store.put(f"{run_folder.folder(servers)}store_df/part.parquet", b"nobody knows")
    opened.store.put(f"{layout.RUNS_PREFIX}by-hand/plan.json", b"{}")

    decided = expiring.decide(opened.store, 1)

    assert (decided.expired, set(decided.kept)) == ((), {newest})


def test_past_runs_are_reported_newest_first_with_what_they_have(opened: OpenRepository) -> None:
    runs = [swept(opened, days) for days in (1, 2)]
    without = began(opened, 3 * DAY).run_id
    forecast_folder(opened, 1)
    reported = [*expiring.past_runs(expiring.folders(opened.store))]
    assert [(each.run_id, each.frames) for each in reported] == [
        *((run_id, expiring.FOLDERS) for run_id in runs),
        (without, ()),
    ]


def test_the_run_that_the_next_one_builds_on_stays(opened: OpenRepository) -> None:
    for days in (1, 2):
        ended(opened, past(opened, days, sweep=False), dry_run=True, checkpoint=None)
    built_on, older = swept(opened, 3), swept(opened, 4)

    assert why_kept(opened, built_on) == "the next optimized run builds on it"
    assert expired(opened)[1:] == [older]


def test_it_stays_also_where_a_run_without_a_listing_came_after_it(opened: OpenRepository) -> None:
    committed = past(opened, 1, flow=Flow.COMMITTED)
    ended(opened, committed, dry_run=False)
    built_on = swept(opened, 2)

    assert why_kept(opened, built_on) == "the next optimized run builds on it"


def test_a_sweep_that_has_not_ended_stays(opened: OpenRepository) -> None:
    swept(opened, 1)
    running = past(opened, 2)
    failed = past(opened, 3)
    ended(opened, failed, success=False, ending=Ending.FAILED, error="killed", checkpoint=None)
    partly = past(opened, 4)
    ended(opened, partly, success=False, ending=Ending.PARTLY_DELETED)

    assert why_kept(opened, running.run_id) == "its sweep is unfinished"
    assert why_kept(opened, failed.run_id) == "its sweep is unfinished"
    assert expired(opened) == [partly.run_id]


def test_a_run_that_failed_before_it_deleted_anything_does_not(opened: OpenRepository) -> None:
    swept(opened, 1)
    failed = began(opened, 2 * DAY)
    opened.store.put(run_folder.manifest(failed.run_id, "store_df"), b"frame")
    ended(opened, failed, success=False, ending=Ending.FAILED, error="no disk", checkpoint=None)

    assert failed.run_id in expired(opened)


def test_an_approved_mark_stays_until_it_has_deleted(opened: OpenRepository) -> None:
    swept(opened, 1)
    plan = past(opened, 2, sweep=False)
    ended(opened, plan, dry_run=True, checkpoint=None)
    assert expired(opened) == [plan.run_id]

    plans.write_approval(opened.store, Approval(plan.run_id, plan.attempt, "digest", NOW - timedelta(days=1)))
    assert why_kept(opened, plan.run_id) == "it was approved, but has not deleted yet"

    ended(opened, plan, dry_run=False)
    assert expired(opened) == [plan.run_id]


@pytest.mark.parametrize("file", ["plan.json", "report.json"])
def test_what_cannot_be_read_stays(opened: OpenRepository, file: str) -> None:
    swept(opened, 1)
    old = swept(opened, 2)
    opened.store.put(run_folder.folder(old) + file, b"{")

    assert (why_kept(opened, old) or "").startswith("it cannot be read: ")


def test_the_newest_plan_that_cannot_be_read_stays_and_others_go(opened: OpenRepository) -> None:
    newest, older = swept(opened, 1), swept(opened, 2)
    opened.store.put(run_folder.plan(newest), b"{")

    assert expired(opened, keep=0) == [older]


def forecast_folder(opened: OpenRepository, hours: float, *, made: bool = True) -> str:
    """A forecast that began `hours` ago, with its own files of every kind and with foreign ones."""
    forecast_id, prepared = IDS.descending(NOW - hours * HOUR), IDS.descending(NOW - hours * HOUR)
    for key in stored_forecasts.keys_of(forecast_id) if made else [stored_forecasts.begun_key(forecast_id)]:
        opened.store.put(key, b"forecast")
    opened.store.put(f"{run_folder.frame(forecast_id, 'range_sizes')}2-2-9-{'0' * 32}.sizes", b"of an older version")
    opened.store.put(f"{SIZES.folder(forecast_id, 'attempt')}1-2-3-{'0' * 64}.parquet", b"facts")
    uncommitted.record_preparations(opened.store, forecast_id, [prepared])
    opened.store.put(f"{run_folder.folder(prepared)}uncommitted/{prepared}", b"the server's")
    for name in FOREIGN:
        opened.store.put(run_folder.folder(forecast_id) + name, b"somebody's")
    return forecast_id


FOREIGN = ("notes.txt", "retention_forecast/mine.txt", "store_df/part.parquet")


def forecasts_expired(opened: OpenRepository, keep: int = 1) -> list[str]:
    return [each.run_id for each in expiring.decide(opened.store, keep).forecasts]


def test_all_but_the_newest_forecasts_go(opened: OpenRepository) -> None:
    run = swept(opened, 9)
    made = [forecast_folder(opened, hours) for hours in (1, 2, 3, 4)]

    assert forecasts_expired(opened, keep=2) == made[2:]
    decided = expiring.decide(opened.store, 2)
    assert decided.kept_forecasts == dict.fromkeys(made[:2], "it is among the newest 2")
    assert (decided.expired, set(decided.kept)) == ((), {run})
    assert forecasts_expired(opened, keep=9) == []


def test_a_forecast_goes_with_what_it_recorded_and_nothing_else_does(opened: OpenRepository) -> None:
    newest, old = forecast_folder(opened, 1), forecast_folder(opened, 2)
    others = {key for key in keys(opened) if old not in key}
    (expired,) = expiring.decide(opened.store, 1).forecasts
    (prepared,) = expired.prepared

    removed = expiring.remove_forecast(opened.store, expired)

    assert files(opened, old) == set(FOREIGN)
    assert others - keys(opened) == {f"{run_folder.folder(prepared)}uncommitted/{prepared}"}
    assert removed == len(stored_forecasts.keys_of(old)) + 4
    left = expiring.past_forecasts(opened.store, expiring.folders(opened.store))
    assert [each.run_id for each in left] == [newest]


def test_a_forecast_whose_removal_was_killed_is_found_again(opened: OpenRepository) -> None:
    forecast_folder(opened, 1)
    old = forecast_folder(opened, 30)
    opened.store.delete(stored_forecasts.keys_of(old)[:-1])
    assert forecasts_expired(opened) == [old]


def test_the_newest_forecast_that_came_to_its_end_stays(opened: OpenRepository) -> None:
    failed = [forecast_folder(opened, hours, made=False) for hours in (1, 2)]
    made, old = forecast_folder(opened, 50), forecast_folder(opened, 51)

    assert forecasts_expired(opened) == [old]
    assert expiring.decide(opened.store, 1).kept_forecasts == {
        failed[0]: "it is among the newest 1",
        failed[1]: "it may be in progress",
        made: "no newer one came to its end",
    }


def test_a_forecast_that_failed_goes_a_day_later(opened: OpenRepository) -> None:
    forecast_folder(opened, 1)
    forecast_folder(opened, 24, made=False)
    failed = [forecast_folder(opened, hours, made=False) for hours in (25, 26)]

    assert forecasts_expired(opened) == failed


def test_a_run_is_no_forecast_whatever_lies_in_its_folder(opened: OpenRepository) -> None:
    forecast_folder(opened, 1)
    swept(opened, 1)
    old = swept(opened, 2)
    for key in stored_forecasts.keys_of(old):
        opened.store.put(key, b"copied there")

    assert forecasts_expired(opened) == []
    assert expired(opened) == [old]


def test_what_the_server_prepared_for_a_forecast_that_stays_is_not_removed_with_a_run(opened: OpenRepository) -> None:
    newest, old = forecast_folder(opened, 1), forecast_folder(opened, 2)
    (prepared,) = uncommitted.recorded_preparations(opened.store, newest)
    uncommitted.record_preparations(opened.store, old, [prepared])
    swept(opened, 1)
    run = swept(opened, 2)
    uncommitted.record_preparations(opened.store, run, [prepared])
    decided = expiring.decide(opened.store, 1)

    assert [each.prepared for each in decided.expired] == [()]
    assert prepared not in decided.forecasts[0].prepared and len(decided.forecasts[0].prepared) == 1


def keys(opened: OpenRepository) -> set[str]:
    return {key for batch in opened.store.list(layout.RUNS_PREFIX) for key in batch["key"].to_pylist()}


@pytest.mark.parametrize("limit", [2, 1000])
def test_each_object_is_deleted_once_and_counted(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    swept(opened, 1)
    old = past(opened, 2)
    server_run = IDS.descending(NOW - 7 * DAY)
    ended(opened, old, dry_run=False, server_run_ids=(server_run,))
    opened.store.put(f"{run_folder.folder(server_run)}uncommitted/{IDS.ascending(NOW)}", b"the server's")
    uncommitted.record_preparations(opened.store, old.run_id, [server_run])
    there = {key for batch in opened.store.list("") for key in batch["key"].to_pylist()}
    asked: list[str] = []
    delete = opened.store.delete

    def watched(keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        assert 0 < len(keys) <= limit
        asked.extend(keys)
        return delete(keys)

    monkeypatch.setattr(opened.store, "delete", watched)
    monkeypatch.setattr(opened.store, "delete_limit", limit)
    (run,) = expiring.decide(opened.store, 1).expired
    assert run.prepared == (server_run,)

    removed = expiring.remove_frames(opened.store, run)

    left = {key for batch in opened.store.list("") for key in batch["key"].to_pylist()}
    assert sorted(asked) == sorted(there - left) and removed == len(asked)
    # Two files per frame, the ids read, the server's prepared file, and the note about it.
    assert removed == 2 * len(expiring.FOLDERS) + 3


def test_an_object_that_cannot_be_deleted_is_named(opened: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(opened, 1)
    swept(opened, 2)
    (run,) = expiring.decide(opened.store, 1).expired

    def refused(keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        results = [DeleteResult.ACCEPTED] * (len(keys) - 1) + [DeleteResult.FAILED]
        return [DeleteOutcome(key, result, "denied") for key, result in zip(keys, results, strict=True)]

    monkeypatch.setattr(opened.store, "delete", refused)
    with pytest.raises(StorageError, match=r"part\.parquet could not be deleted: denied"):
        expiring.remove_frames(opened.store, run)


def test_lost_lock_ends_removal_and_a_failure_does_not(opened: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    _, *old = [swept(opened, days) for days in (1, 2, 3, 4)]
    remove_frames, held = expiring.remove_frames, iter([True, True, False])

    def fail(store: ObjectStore, run: expiring.PastFolder) -> int:
        if run.run_id == old[0]:
            raise StorageError("AccessDenied")
        return remove_frames(store, run)

    def check_lock() -> None:
        if not next(held):
            raise LockLost("another client holds the lock")

    monkeypatch.setattr(expiring, "remove_frames", fail)
    removing = expiring.remove(opened.store, expiring.decide(opened.store, 1), check_lock)

    assert next(removing) == expiring.Removal(
        old[0], failure=f"frames of run {old[0]} could not be removed: AccessDenied"
    )
    removed = next(removing)
    assert (removed.run_id, removed.failure) == (old[1], None) and removed.objects >= 2 * len(expiring.FOLDERS)
    with pytest.raises(LockLost):
        next(removing)
    assert expiring.decide(opened.store, 1).expired[-1].frames == expiring.FOLDERS


def test_a_run_that_lost_its_frames_before_is_asked_nothing(opened: OpenRepository) -> None:
    swept(opened, 1)
    old = began(opened, 2 * DAY, sweep=False)
    assert expired(opened) == [old.run_id] and why_kept(opened, old.run_id) is None
    opened.store.put(run_folder.plan(old.run_id), b"{")
    (run,) = expiring.decide(opened.store, 1).expired
    assert (run.run_id, run.frames, run.prepared) == (old.run_id, (), ())


def test_what_the_server_prepared_for_a_question_goes_a_day_later(opened: OpenRepository) -> None:
    swept(opened, 1)
    old, young, others = (IDS.descending(NOW - hours * HOUR) for hours in (49, 25, 60))
    for server_run_id in (old, young, others):
        opened.store.put(f"{run_folder.folder(server_run_id)}uncommitted/{IDS.descending(NOW)}", b"addresses")
    uncommitted.record_without_run(opened, Prepared(NOW, NOW, (old, young), (), 0), pytest.fail)

    assert expiring.decide(opened.store, 1).explained == (old,)
    before = keys(opened)
    assert uncommitted.remove_preparation_without_run(opened.store, old) == 2
    assert before - keys(opened) == {key for key in before if old in key}
    assert uncommitted.recorded_preparations(opened.store, None) == [young]


def test_holdings_expire_by_days_and_facts_about_heads_when_newer_ones_are_there(opened: OpenRepository) -> None:
    ids = [IDS.descending(NOW - days * DAY) for days in (1, 2, 3, 4, 400)]
    newest = f"{run_folder.HOLDINGS_HEADS}newest.json"
    strange = [f"{run_folder.HOLDINGS}notes.txt", f"{run_folder.HOLDINGS_HEADS}others/sums.parquet"]
    rows, heads = (
        [f"{folder}{run_id}{name}" for run_id in ids]
        for folder, name in ((run_folder.HOLDINGS, ".parquet"), (run_folder.HOLDINGS_HEADS, "/sums.parquet"))
    )
    for key in (*rows, *heads, newest, *strange):
        opened.store.put(key, b"holdings")
    assert expiring.decide(opened.store, 1).holdings == ()
    decided = expiring.decide(opened.store, 1, NOW - 30 * DAY)
    assert sorted(decided.holdings) == sorted([rows[-1], *heads[3:]])
    assert sum(each.objects for each in expiring.remove(opened.store, decided, lambda: None)) == 3
    there = {key for batch in opened.store.list(run_folder.HOLDINGS) for key in batch["key"].to_pylist()}
    assert there == {*rows[:-1], *heads[:3], newest, *strange}


def test_listings_of_object_lifecycle_expire_when_nothing_in_their_folder_is_newer(opened: OpenRepository) -> None:
    old, new = f"{run_folder.LIFECYCLE}old/", f"{run_folder.LIFECYCLE}new/"
    for key in (f"{old}listing.json", f"{old}entries.parquet", f"{new}entries.parquet"):
        opened.store.put(key, b"listing")
    (first,) = opened.store.list_level(new).objects
    between = first.last_modified + timedelta(microseconds=1)
    opened.store.put(f"{new}listing.json", b"listing")
    assert expiring.decide(opened.store, 1).listings == ()
    decided = expiring.decide(opened.store, 1, listings_since=between)
    assert sorted(decided.listings) == [f"{old}entries.parquet", f"{old}listing.json"]
    assert sum(each.objects for each in expiring.remove(opened.store, decided, lambda: None)) == 2
    assert [*opened.store.list_level(run_folder.LIFECYCLE).prefixes] == [new]

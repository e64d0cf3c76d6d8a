"""Purging the quarantine, most of it in a folder; there, every call to the store is broken once."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import cast
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import COPIES
from lakefs_gc_assets.collector.quarantine import purge as quarantine_purge
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, Moved, Purged, PurgeFate, PurgeVerdict
from lakefs_gc_assets.collector.records import across_runs, run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.repository import Moment, OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import (
    CollectionError,
    GuardTripped,
    LakeFSError,
    LockLost,
    PermissionMissing,
    ServerUnavailable,
    StorageError,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    Commit,
    ObjectStats,
)
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.spark import faults
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, Level, ObjectFacts, ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.breaking import Break, BreakingStore, Killed, every_break
from lakefs_gc_assets_tests.collector.made_frames import opened_by
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began, opened
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import NOW as SCRIPTED_NOW
from lakefs_gc_assets_tests.collector.scripted import HandClock, Script, ScriptedApi, page
from lakefs_gc_assets_tests.collector.sweep.test_sweeping_deletion_move import ALL, KEYS, SLICE, Moving
from lakefs_gc_assets_tests.collector.written import Staged, put_commit_objects, put_dump, put_uncommitted
from lakefs_gc_assets_tests.servers.stores import bucket, in_a_folder, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "opened", "s3_server", "s3_store", "store"]

VALID = timedelta(minutes=15)


@dataclass
class CountingClock(HandClock):
    """Counts seconds, independently of changes to the wall time."""

    seconds: float = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.seconds += seconds

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Looking:
    """Returns scripted live addresses; records the requests."""

    clock: HandClock
    live: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    asked: list[set[str]] = field(default_factory=list)

    def __call__(self, moved: Sequence[Moved]) -> PurgeVerdict:
        self.asked.append({key for each in moved for key in each.copies["address"].to_pylist()})
        return PurgeVerdict(frozenset(self.live), frozenset(self.unsure), Moment.now(self.clock))


@dataclass
class Purging:
    """A repository with one run that moved all its objects."""

    moving: Moving
    clock: HandClock = field(default_factory=HandClock)

    @property
    def store(self) -> ObjectStore:
        return self.moving.store

    def prepare(self) -> None:
        for batch in self.store.list(layout.QUARANTINE_PREFIX):
            self.store.delete(batch["key"].to_pylist())
        self.moving.prepare()
        self.moving.quarantine(self.store)

    def moved(self, store: ObjectStore | None = None) -> list[Moved]:
        """Objects of runs in quarantine; all their plans can be read, except from a failing store."""
        unreadable: dict[str, str] = {}
        repository = replace(self.moving.opened, store=store or self.store)
        moved = [*quarantine_purge.in_quarantine(repository, None, unreadable)]
        assert not unreadable or store not in (None, self.store)
        return moved

    def purge(self, store: ObjectStore, live: Iterable[str] = (), unsure: Iterable[str] = ()) -> dict[str, PurgeFate]:
        """Purges the whole quarantine, like a repeated command."""
        return self.purge_by(store, Looking(self.clock, set(live), set(unsure)))

    def purge_by(self, store: ObjectStore, check: quarantine_purge.Check) -> dict[str, PurgeFate]:
        token = self.moving.lock().token
        moved = self.moved(store)
        return {
            each.address: each.fate for each in quarantine_purge.purge(store, moved, check, token, self.clock, VALID)
        }

    def receipts(self, outcome: Outcome) -> list[str]:
        rows = receipts.read(self.store, self.moving.run)
        return sorted(rows.filter(pc.equal(rows["outcome"], outcome.value))["address"].to_pylist())


@pytest.fixture
def purge(opened: OpenRepository, store: ObjectStore) -> Purging:
    """The repository after the run swept, in a folder and on S3."""
    made = Purging(Moving(replace(opened, store=store)))
    made.prepare()
    return made


def test_what_is_not_live_is_gone_for_good_and_has_receipts(purge: Purging) -> None:
    (moved,) = purge.moved()
    assert (moved.run_id, moved.size) == (purge.moving.run, sum(map(len, ALL.values())))
    assert moved.copies["address"].to_pylist() == KEYS

    assert purge.purge(purge.store) == dict.fromkeys(KEYS, PurgeFate.PURGED)

    assert (purge.moving.there(), purge.moving.moved()) == ({}, {})
    rows = receipts.read(purge.store, purge.moving.run)
    purged = rows.filter(pc.equal(rows["outcome"], "purged")).sort_by("address")
    assert purged["address"].to_pylist() == KEYS
    assert purged["size"].to_pylist() == [len(ALL[key]) for key in KEYS]
    assert set(purged["slice"].to_pylist()) == {SLICE.split("/")[1]}
    assert purge.moved() == []
    assert across_runs.read_restoration(purge.store) is None


@in_a_folder
def test_what_is_live_again_is_brought_back_and_the_next_run_is_clean(purge: Purging) -> None:
    reported = purge.purge(purge.store, live=[KEYS[1]])

    assert reported == {KEYS[0]: PurgeFate.PURGED, KEYS[1]: PurgeFate.RESTORED, KEYS[2]: PurgeFate.PURGED}
    assert purge.moving.there() == purge.moving.moved() == {KEYS[1]: ALL[KEYS[1]]}
    assert (purge.receipts(Outcome.RESTORED), purge.receipts(Outcome.PURGED)) == ([KEYS[1]], [KEYS[0], KEYS[2]])
    rows = receipts.read(purge.store, purge.moving.run)
    undone = rows.filter(pc.equal(rows["outcome"], Outcome.RESTORED.value))
    assert undone["attempt"].to_pylist() == ["attempt"], "as the receipt of its deletion"
    found = across_runs.read_restoration(purge.store)
    assert found is not None and found.concerns(purge.moving.run)


@in_a_folder
def test_the_copy_of_what_is_back_goes_by_the_next_purge_and_no_other_run_has_to_be_clean(purge: Purging) -> None:
    purge.purge(purge.store, live=KEYS)
    assert (purge.moving.there(), purge.moving.moved()) == (ALL, ALL)
    purge.store.delete([across_runs.RESTORATION_KEY])

    assert purge.purge(purge.store, live=KEYS[:2], unsure=KEYS[2:]) == dict.fromkeys(KEYS, PurgeFate.PURGED)

    assert (purge.moving.there(), purge.moving.moved()) == (ALL, {})
    assert purge.receipts(Outcome.PURGED) == KEYS
    assert across_runs.read_restoration(purge.store) is None


@in_a_folder
def test_what_cannot_be_found_out_stays_in_quarantine(purge: Purging) -> None:
    reported = purge.purge(purge.store, unsure=[KEYS[0]])

    assert reported == {KEYS[0]: PurgeFate.KEPT, KEYS[1]: PurgeFate.PURGED, KEYS[2]: PurgeFate.PURGED}
    assert purge.moving.moved() == {KEYS[0]: ALL[KEYS[0]]}


@in_a_folder
def test_of_each_copy_is_reported_what_became_of_it_and_why(purge: Purging) -> None:
    other = f"{KEYS[0][:-2]}v0"
    purge.store.put(sweeping.key(purge.moving.run, other), b"copied before the sweep was killed")
    purge.store.put(KEYS[1], b"x" * len(ALL[KEYS[1]]))
    token = purge.moving.lock().token
    moved = purge.moved()
    check = Looking(purge.clock, live={*KEYS[:2], other}, unsure={*KEYS[1:]})
    reported = [*quarantine_purge.purge(purge.store, moved, check, token, purge.clock, VALID)]

    assert {(each.run_id, each.address, each.size, each.fate) for each in reported} == {
        (purge.moving.run, KEYS[0], len(ALL[KEYS[0]]), PurgeFate.RESTORED),
        (purge.moving.run, KEYS[1], len(ALL[KEYS[1]]), PurgeFate.KEPT),
        (purge.moving.run, KEYS[2], len(ALL[KEYS[2]]), PurgeFate.KEPT),
        (purge.moving.run, other, 34, PurgeFate.RESTORED),
    }
    assert len(reported) == 4
    why = {each.address: each.why or "" for each in reported}
    assert why[KEYS[0]] == why[other] == ""
    assert "may differ from the deleted object" in why[KEYS[1]] and "hidden_suspect_limit" in why[KEYS[2]]


@in_a_folder
def test_only_the_runs_that_are_named_are_looked_at(purge: Purging) -> None:
    older = began(purge.moving.opened, 2 * DAY).run_id
    purge.store.put(sweeping.key(older, KEYS[0]), b"older")
    purge.store.put(f"{layout.QUARANTINE_PREFIX}by hand/{KEYS[0]}", b"somebody's")

    def named(run_id: str | None) -> list[str]:
        return [each.run_id for each in quarantine_purge.in_quarantine(purge.moving.opened, run_id, {})]

    assert named(None) == [purge.moving.run, older]
    assert (named(older), named(purge.moving.run), named("c" * 20)) == ([older], [purge.moving.run], [])


@in_a_folder
def test_what_was_taken_out_while_the_folders_were_listed_is_nothing(purge: Purging) -> None:
    class Emptied(BreakingStore):
        def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
            return iter([]) if prefix == sweeping.key(purge.moving.run, "") else super().list(prefix)

    (moved,) = purge.moved(Emptied(purge.store))
    assert (moved.copies, moved.size) == (COPIES.empty_table(), 0)
    assert purge.purge(Emptied(purge.store)) == {}


@in_a_folder
def test_where_it_cannot_be_found_out_what_is_live_nothing_goes(purge: Purging) -> None:
    def fails(moved: Sequence[Moved]) -> PurgeVerdict:
        raise GuardTripped("commits under way", "a commit", "wait")

    with pytest.raises(GuardTripped):
        purge.purge_by(purge.store, fails)
    assert (purge.moving.there(), purge.moving.moved()) == ({}, ALL)


@in_a_folder
def test_a_copy_of_what_was_not_deleted_goes_and_the_object_stays(purge: Purging) -> None:
    purge.store.put(KEYS[0], ALL[KEYS[0]])

    assert purge.purge(purge.store) == dict.fromkeys(KEYS, PurgeFate.PURGED)

    assert purge.moving.there() == {KEYS[0]: ALL[KEYS[0]]}


@in_a_folder
@pytest.mark.parametrize(
    ("content", "fate"),
    [(ALL[KEYS[0]], PurgeFate.PURGED), (b"x" * len(ALL[KEYS[0]]), PurgeFate.KEPT), (b"another size", PurgeFate.FAILED)],
)
def test_what_is_live_and_there_already_loses_only_a_copy_that_is_the_same(
    purge: Purging, content: bytes, fate: PurgeFate
) -> None:
    purge.store.put(KEYS[0], content)

    assert purge.purge(purge.store, live=KEYS)[KEYS[0]] is fate

    assert purge.moving.there() == {**ALL, KEYS[0]: content}
    assert purge.moving.moved().keys() == {*KEYS[fate is PurgeFate.PURGED :]}


@in_a_folder
def test_what_lakefs_does_not_name_so_is_none_of_ours(purge: Purging) -> None:
    note = sweeping.key(purge.moving.run, "note by hand.txt")
    purge.store.put(note, b"note")

    assert set(purge.purge(purge.store)) == set(KEYS)

    assert purge.store.get(note) == b"note"


@in_a_folder
def test_a_copy_that_could_not_be_deleted_is_reported_and_goes_the_next_time(purge: Purging) -> None:
    class Refusing(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            said = super().delete([key for key in keys if not key.endswith(KEYS[0])])
            refused = [DeleteOutcome(key, DeleteResult.FAILED, "AccessDenied") for key in keys if key.endswith(KEYS[0])]
            return [*refused, *said]

    token = purge.moving.lock().token
    moved = purge.moved()
    reported = quarantine_purge.purge(Refusing(purge.store), moved, Looking(purge.clock), token, purge.clock, VALID)

    sizes = [len(ALL[key]) for key in KEYS]
    assert sorted(reported, key=lambda each: each.address) == [
        Purged(purge.moving.run, KEYS[0], sizes[0], PurgeFate.FAILED, "AccessDenied"),
        Purged(purge.moving.run, KEYS[1], sizes[1], PurgeFate.PURGED),
        Purged(purge.moving.run, KEYS[2], sizes[2], PurgeFate.PURGED),
    ]
    assert purge.receipts(Outcome.PURGED) == KEYS[1:]
    assert purge.purge(purge.store) == {KEYS[0]: PurgeFate.PURGED}
    assert purge.receipts(Outcome.PURGED) == KEYS


def with_two_more_runs(purge: Purging) -> list[str]:
    """Adds two runs with a copy each; returns the ids of all runs, in purge order."""
    for hours in (2, 3):
        plan = began(purge.moving.opened, hours * HOUR)
        purge.store.put(sweeping.key(plan.run_id, KEYS[0]), b"copy")
    return [moved.run_id for moved in purge.moved()]


@in_a_folder
def test_a_store_that_fails_at_the_second_of_three_runs_keeps_no_other(purge: Purging) -> None:
    run_ids = with_two_more_runs(purge)

    class Refusing(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            if keys[0].startswith(sweeping.key(run_ids[1], "data")):
                raise StorageError("400 MalformedXML")
            return super().delete(keys)

    token = purge.moving.lock().token
    refusing, moved = Refusing(purge.store), purge.moved()
    purged = quarantine_purge.purge(refusing, moved, Looking(purge.clock), token, purge.clock, VALID)
    by_run = {run_id: [*rows] for run_id, rows in groupby(purged, lambda each: each.run_id)}

    assert list(by_run) == run_ids
    assert {each.fate for run_id in (run_ids[0], run_ids[2]) for each in by_run[run_id]} == {PurgeFate.PURGED}
    (failed,) = by_run[run_ids[1]]
    assert (failed.address, failed.fate) == (sweeping.key(run_ids[1], ""), PurgeFate.FAILED)
    assert failed.why is not None and "400 MalformedXML" in failed.why
    assert [each.run_id for each in purge.moved() if each.copies.num_rows] == [run_ids[1]]
    assert set(purge.purge(purge.store).values()) == {PurgeFate.PURGED}


@in_a_folder
def test_a_list_of_a_batch_that_cannot_be_settled_keeps_no_other_run(purge: Purging) -> None:
    run_ids = with_two_more_runs(purge)

    class Unlisted(BreakingStore):
        def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
            if prefix == sweeping.key(run_ids[1], "purging/"):
                raise StorageError("503")
            return super().list(prefix)

    moved = purge.moved()
    token, store = purge.moving.lock().token, Unlisted(purge.store)
    purged = [*quarantine_purge.purge(store, moved, Looking(purge.clock), token, purge.clock, VALID)]
    assert [each.run_id for each in purged if each.fate is PurgeFate.FAILED] == [run_ids[1]]
    assert [each.run_id for each in purge.moved() if each.copies.num_rows] == [run_ids[1]]


@in_a_folder
def test_a_live_object_that_the_store_fails_at_keeps_no_other(purge: Purging) -> None:
    class Forbidding(BreakingStore):
        def head(self, key: str) -> ObjectFacts:
            if key.endswith(KEYS[1]):
                raise PermissionMissing("403: its key may not be used")
            return super().head(key)

        def copy_if_absent(self, source: str, target: str) -> None:
            if target == KEYS[1]:
                raise PermissionMissing("403: its key may not be used")
            super().copy_if_absent(source, target)

    reported = purge.purge(Forbidding(purge.store), live=[KEYS[1], KEYS[2]])
    assert reported == {KEYS[0]: PurgeFate.PURGED, KEYS[1]: PurgeFate.FAILED, KEYS[2]: PurgeFate.RESTORED}
    assert KEYS[1] in purge.moving.moved()


@in_a_folder
def test_a_store_that_does_not_tell_of_every_copy_fails_the_run_and_no_receipt_says_more_than_it_reported(
    purge: Purging,
) -> None:
    class Silent(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            return [outcome for outcome in super().delete(keys) if not outcome.key.endswith(KEYS[0])]

    assert purge.purge(Silent(purge.store)) == {sweeping.key(purge.moving.run, ""): PurgeFate.FAILED}
    assert purge.receipts(Outcome.PURGED) == []
    assert purge.purge(purge.store) == {}


@in_a_folder
def test_a_list_of_a_batch_that_cannot_be_removed_is_reported_and_settled_the_next_time(purge: Purging) -> None:
    class Refusing(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            if "/purging/" in keys[0]:
                return [DeleteOutcome(keys[0], DeleteResult.FAILED, "AccessDenied")]
            return super().delete(keys)

    assert purge.purge(Refusing(purge.store)) == {sweeping.key(purge.moving.run, ""): PurgeFate.FAILED}
    assert len(purge.moving.moved()) == 1
    assert purge.purge(purge.store) == {}
    assert (purge.moving.moved(), purge.receipts(Outcome.PURGED)) == ({}, KEYS)


@in_a_folder
def test_a_list_of_a_batch_that_is_damaged_keeps_the_copies_of_its_run(purge: Purging) -> None:
    begun = sweeping.key(purge.moving.run, "purging/purged-1")
    purge.store.put(begun, b"damaged")
    assert purge.purge(purge.store) == {sweeping.key(purge.moving.run, ""): PurgeFate.KEPT}
    assert purge.moving.moved() == {**ALL, "purging/purged-1": b"damaged"}
    purge.store.delete([begun])
    assert set(purge.purge(purge.store).values()) == {PurgeFate.PURGED}


@in_a_folder
class TestTime:
    def test_it_is_due_after_the_set_time_by_the_last_receipt_of_the_sweep(self, purge: Purging) -> None:
        (moved,) = purge.moved()
        assert abs(moved.since - datetime.now(moved.since.tzinfo)) < HOUR
        repository = replace(purge.moving.opened, settings=CollectionSettings(quarantine_days=1))
        for now, is_due in ((moved.since + DAY - timedelta(seconds=1), False), (moved.since + DAY, True)):
            plan = quarantine_purge.plan_purge(replace(repository, clock=HandClock(now)), None)
            assert ([each.run_id for each in plan.due], len(plan.waiting)) == ([moved.run_id] * is_due, not is_due)

    def test_it_counts_from_the_last_of_several_receipts_and_without_any_from_the_start(self, purge: Purging) -> None:
        folder, first = run_folder.receipts(purge.moving.run), NOW - 9 * DAY

        class Dated(BreakingStore):
            def list_level(self, prefix: str) -> Level:
                level, times = super().list_level(prefix), [first - HOUR, first, first - DAY]
                if prefix != folder:
                    return level
                dated = zip(level.objects, times, strict=True)
                return Level(level.prefixes, tuple(replace(each, last_modified=time) for each, time in dated))

        purge.store.put(f"{folder}one-more.parquet", b"")
        assert len(receipts.keys(purge.store, purge.moving.run)) == 3
        (moved,) = purge.moved(Dated(purge.store))
        assert moved.since == first
        purge.store.delete(receipts.keys(purge.store, purge.moving.run))
        (moved,) = purge.moved()
        assert moved.since == moved.plan.started_at

    def test_receipts_of_a_purge_that_was_broken_off_do_not_make_the_rest_wait(self, purge: Purging) -> None:
        (before,) = purge.moved()
        purge.purge(purge.store, live=[KEYS[0]], unsure=[KEYS[1]])
        (after,) = purge.moved()
        assert after.since == before.since

    def test_a_verdict_that_has_become_too_old_is_asked_for_again(self, purge: Purging) -> None:
        check = Looking(purge.clock)

        class Slow(BreakingStore):
            delete_limit = 1

            def __post_init__(self) -> None:
                self.delete_limit = 1

            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                purge.clock.sleep(400)
                check.live = {KEYS[2]}
                return super().delete(keys)

        reported = purge.purge_by(Slow(purge.store), check)

        assert check.asked == [set(KEYS), set(KEYS[1:])]
        assert reported == {KEYS[0]: PurgeFate.PURGED, KEYS[1]: PurgeFate.PURGED, KEYS[2]: PurgeFate.RESTORED}

    def test_a_batch_that_a_busy_store_makes_wait_ends_in_time(self, purge: Purging) -> None:
        check = Looking(purge.clock)

        class Busy(BreakingStore):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                if len(keys) == 1:
                    return super().delete(keys)
                first = super().delete(keys[:1])
                purge.clock.sleep(VALID.total_seconds())
                check.live = {KEYS[1]}
                # The answer for the first key is lost.
                return [replace(first[0], result=DeleteResult.LEFT), *super().delete(keys[1:])]

        reported = purge.purge_by(Busy(purge.store), check)

        assert check.asked == [set(KEYS), set(KEYS[1:])]
        assert reported == {KEYS[0]: PurgeFate.PURGED, KEYS[1]: PurgeFate.RESTORED, KEYS[2]: PurgeFate.PURGED}
        assert purge.moving.moved().keys() == {KEYS[1]}
        assert purge.receipts(Outcome.PURGED) == [KEYS[0], KEYS[2]]

    def test_a_clock_that_is_set_back_does_not_stretch_a_verdict(self, purge: Purging) -> None:
        clock = purge.clock = CountingClock()
        check = Looking(clock)

        class Slow(BreakingStore):
            delete_limit = 1

            def __post_init__(self) -> None:
                self.delete_limit = 1

            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                clock.sleep(600)
                clock.moment -= HOUR
                check.live = {KEYS[2]}
                return super().delete(keys)

        assert purge.purge_by(Slow(purge.store), check)[KEYS[2]] is PurgeFate.RESTORED

    def test_where_the_look_alone_takes_too_long_nothing_goes(self, purge: Purging) -> None:
        def old(moved: Sequence[Moved]) -> PurgeVerdict:
            return PurgeVerdict(
                frozenset(), frozenset(), replace(Moment.now(purge.clock), at=purge.clock.now() - VALID)
            )

        with pytest.raises(CollectionError, match="recheck_valid_minutes"):
            purge.purge_by(purge.store, old)
        assert purge.moving.moved() == ALL


@in_a_folder
def test_a_rate_is_kept_on_average(purge: Purging) -> None:
    settings = CollectionSettings(max_delete_rate=0.5, quarantine_days=0)
    clock = HandClock(datetime.now(UTC))
    repository = replace(purge.moving.opened, settings=settings, clock=clock)
    purge.store.delete([lock.KEY])
    check = Looking(clock)
    purged = [*quarantine_purge.purge_by(repository, None, "purge", lambda plan, lock: check, print)]
    assert {each.fate for each in purged} == {PurgeFate.PURGED}
    assert sum(clock.slept) == 2 * (len(purged) - 1)


@in_a_folder
def test_without_the_lock_nothing_goes(purge: Purging) -> None:
    held = purge.moving.lock()
    moved = purge.moved()
    check = Looking(purge.clock)

    def losing(given: Sequence[Moved]) -> PurgeVerdict:
        held.release()
        return check(given)

    with pytest.raises(LockLost):
        list(quarantine_purge.purge(purge.store, moved, losing, held.token, purge.clock, VALID))
    assert purge.moving.moved() == ALL and len(check.asked) == 1
    with pytest.raises(LockLost):
        list(quarantine_purge.purge(purge.store, moved, check, held.token, purge.clock, VALID))
    assert len(check.asked) == 1, "without the lock nothing is asked, and no receipt written"


@in_a_folder
def test_a_run_without_its_frames_is_purged_and_its_receipts_stay(purge: Purging) -> None:
    purge.store.put(run_folder.manifest(purge.moving.run, "store_df"), b"frame")
    before = receipts.keys(purge.store, purge.moving.run)
    for run in expiring.past_runs(expiring.folders(purge.store)):
        assert expiring.remove_frames(purge.store, run)
    assert receipts.keys(purge.store, purge.moving.run) == before

    assert purge.purge(purge.store, live=[KEYS[0]])[KEYS[0]] is PurgeFate.RESTORED


@pytest.mark.parametrize("damage", [None, b"damaged"])
@in_a_folder
def test_a_run_that_nobody_can_read_is_reported_and_stays(purge: Purging, damage: bytes | None) -> None:
    key = run_folder.plan(purge.moving.run)
    if damage is None:
        purge.store.delete([key])
    else:
        purge.store.put(key, damage)
    reported: dict[str, str] = {}
    assert [*quarantine_purge.in_quarantine(purge.moving.opened, None, reported)] == []
    assert [*reported] == [purge.moving.run]
    assert purge.moving.moved() == ALL


@in_a_folder
def test_what_is_live_comes_back_although_its_receipts_cannot_be_read(purge: Purging) -> None:
    for key in receipts.keys(purge.store, purge.moving.run):
        purge.store.put(key, b"damaged")
    fates = purge.purge(purge.store, live=[KEYS[0]])
    assert fates == {**dict.fromkeys(KEYS, PurgeFate.PURGED), KEYS[0]: PurgeFate.RESTORED}
    assert purge.store.get(KEYS[0]) == ALL[KEYS[0]]


@in_a_folder
@pytest.mark.parametrize("how", list(Break))
def test_whatever_call_breaks_nothing_live_is_lost_and_a_repeat_finishes_it(purge: Purging, how: Break) -> None:
    live, garbage = KEYS[:1], KEYS[1:]
    count = 0

    def work(store: ObjectStore) -> None:
        purge.purge(store, live)

    for what in every_break(lambda: purge.store, work, purge.prepare, how):
        held = purge.moving.moved() | purge.moving.there()
        assert {key: held[key] for key in live} == {key: ALL[key] for key in live}, what
        assert set(purge.receipts(Outcome.PURGED)) <= set(garbage) - set(purge.moving.moved()), what
        if purge.moving.there():
            assert across_runs.read_restoration(purge.store) is not None, what

        for _ in range(2):
            assert PurgeFate.FAILED not in purge.purge(purge.store, live).values(), what

        assert (purge.moving.there(), purge.moving.moved()) == ({key: ALL[key] for key in live}, {}), what
        assert purge.moved() == [], what
        assert purge.receipts(Outcome.PURGED) == KEYS, what
        count += 1
    assert count > 15


@in_a_folder
def test_a_sweep_killed_after_it_deleted_is_undone_from_the_receipts_of_the_copies(purge: Purging) -> None:
    """The batch was deleted, but its receipts were not written."""
    purge.moving.prepare()

    class Dying(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            super().delete(keys)
            raise Killed

    with pytest.raises(Killed):
        purge.moving.quarantine(Dying(purge.store))
    assert (purge.moving.there(), purge.moving.moved()) == ({}, ALL)

    reported = purge.moving.restore(purge.store)

    assert all(fate.is_well for fate in reported.values())
    assert purge.moving.there() == ALL


@in_a_folder
def test_a_store_that_fails_while_it_is_asked_what_is_there_purges_nothing(purge: Purging) -> None:
    class Unlisted(BreakingStore):
        def list_level(self, prefix: str) -> Level:
            raise StorageError("503")

    with pytest.raises(StorageError):
        purge.purge(Unlisted(purge.store))
    assert purge.moving.moved() == ALL


# The check of what is live before a purge.


PREPARED = "_lakefs/retention/gc/uncommitted/run1/uncommitted/"
LIST = "_lakefs/retention/gc/commits/run_id=r/commits.csv"
CONTENT = b"content"
MD5 = hashlib.md5(CONTENT).hexdigest()
HELD, OTHER = (f"data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5s{number}0" for number in "ab")
COPIED = [f"data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5s{number}0" for number in "0123"]


class World:
    """A repository with one branch, a run that moved COPIED to quarantine, and the check for live copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        self.opened = opened_by(StoreOpener(StoreSettings(local_root=str(folder)), "local://repository"))
        self.api, self.store = cast(ScriptedApi, self.opened.api), self.opened.store
        self.clock = cast(HandClock, self.opened.clock)
        self.wait = timedelta(seconds=self.opened.settings.wait_before_dump_seconds)
        self.lines: list[str] = []
        plan = replace(PLAN, storage_namespace=self.opened.namespace.uri)
        self.step: Step[ArrowRows] = Step(self.lines.append, self.lines.append, self.opened, LocalEngine(), plan, None)
        self.check = LiveCheck(self.step)
        for address in COPIED:
            self.store.put(sweeping.key(plan.run_id, address), CONTENT)
        rows = [
            {
                "address": address,
                "size": len(CONTENT),
                "slice": None,
                "slice_window": "2026-11",
                "etag": None,
                "key": sweeping.key(plan.run_id, address),
            }
            for address in COPIED
        ]
        table = pa.Table.from_pylist(rows, schema=COPIES)
        self.moved = [Moved(plan, SCRIPTED_NOW, table.slice(0, 1)), Moved(plan, SCRIPTED_NOW, table.slice(1))]
        self.commit({"other": Staged(OTHER, size=1)})
        self.stage()

    def commit(self, entries: Mapping[str | bytes, Staged]) -> None:
        """Commits these entries as the branch's head; the server returns each as committed."""
        head = Commit("c" * 64, put_commit_objects(self.store, entries), (), 7)
        self.api.dumps = Script(put_dump(self.store, [head], [Branch("main", head.id)]))
        for path, entry in entries.items():
            if isinstance(path, str):
                self.show(path, entry.address)

    def show(self, path: str, address: str) -> None:
        self.api.stats["main", path] = Script(ObjectStats(path, self.opened.namespace.uri + address, len(CONTENT)))

    def stage(self, *addresses: str) -> None:
        """Makes these addresses the only uncommitted data."""
        put_uncommitted(self.store, f"{PREPARED}a", addresses)
        self.api.pages = Script(page(f"local:///var/lakefs/repository/{PREPARED}"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_committed_or_staged_is_live(world: World) -> None:
    world.commit({"other": Staged(OTHER), "p": Staged(COPIED[1])})
    world.stage(COPIED[2], HELD)
    found = world.check(world.moved)
    assert (found.live, found.unsure) == (frozenset(COPIED[1:3]), frozenset())
    # One of the ranges belongs to a commit that is no longer on any branch.
    assert [line for line in world.lines if line.endswith(" live")] == [
        "1 file of uncommitted data, 1 commit, 2 ranges: 2 copies are live",
        "1 file of uncommitted data, 1 commit, 0 ranges: 1 copy is live",
    ]


def test_the_first_question_takes_two_looks_and_each_further_one_takes_one(world: World) -> None:
    assert world.check(world.moved).as_of.at == SCRIPTED_NOW + world.wait
    assert (len(world.api.tasks_asked), world.api.tokens) == (2, [None, None])
    began = world.clock.moment
    world.clock.sleep(60)
    assert world.check(world.moved).as_of.at == began + timedelta(minutes=1)
    assert (len(world.api.tasks_asked), world.api.tokens) == (3, [None] * 3)
    looks = [line for line in world.lines if line.endswith(" live")]
    assert ["1 range" in line for line in looks] == [True, False, False], "a range is read once"


def test_what_becomes_live_while_the_first_look_takes_its_time_is_found_by_the_next_one(world: World) -> None:
    first, second = (f"local:///var/lakefs/repository/{PREPARED.replace('run1', run)}" for run in ("run1", "run2"))
    put_uncommitted(world.store, f"{PREPARED.replace('run1', 'run2')}a", [COPIED[3]])
    world.api.pages = Script(page(first), page(second, run_id="run2"))
    assert world.check(world.moved).live == {COPIED[3]}


def test_what_was_live_once_stays_live(world: World) -> None:
    world.stage(COPIED[0])
    assert world.check(world.moved).live == {COPIED[0]}
    world.stage(COPIED[1])
    assert world.check(world.moved[1:]).live == {COPIED[0], COPIED[1]}


def test_what_is_committed_since_is_live_by_its_new_range_alone(world: World) -> None:
    assert world.check(world.moved).live == frozenset()
    world.commit({"other": Staged(OTHER, size=1), "p": Staged(COPIED[2])})
    assert world.check(world.moved).live == {COPIED[2]}


def test_a_copy_that_is_staged_with_the_content_of_a_committed_object_is_live(world: World) -> None:
    """It is missing from uncommitted data, so the branch is asked at the path of the committed object."""
    world.commit({"other": Staged(OTHER, size=1), "p": Staged(HELD, size=len(CONTENT), etag=MD5)})
    world.show("p", COPIED[3])
    found = world.check(world.moved)
    assert (found.live, found.unsure) == (frozenset(COPIED[3:]), frozenset())
    world.api.asked.clear()
    assert world.check(world.moved).live == {COPIED[3]}
    assert world.api.asked == [], "a further look is at uncommitted data and new ranges"


def test_a_copy_that_the_head_before_uncommitted_data_hid_is_live(world: World) -> None:
    """The branch is set to another commit before the refs dump."""
    before = put_commit_objects(world.store, {"p": Staged(HELD, size=len(CONTENT), etag=MD5)})
    world.api.branch_lists = Script((Branch("main", "b" * 64),))
    world.api.commits["b" * 64] = Script(Commit("b" * 64, before, (), 7))
    world.show("p", COPIED[3])
    assert world.check(world.moved).live == {COPIED[3]}


def test_what_is_committed_stays_live_where_something_is_staged_unseen_besides(world: World) -> None:
    """Only the first check reads the range that holds it."""
    held = Staged(HELD, size=len(CONTENT), etag=MD5)
    world.commit({"other": Staged(OTHER, size=1), "p": held, "q": Staged(COPIED[1], size=1)})
    world.show("p", COPIED[3])
    assert world.check(world.moved).live == {COPIED[1], COPIED[3]}


def test_what_may_be_staged_where_nobody_can_ask_is_told_apart(world: World) -> None:
    world.commit({"other": Staged(OTHER, size=1), b"\xff": Staged(HELD, size=len(CONTENT), etag=MD5)})
    world.stage(COPIED[1])
    found = world.check(world.moved)
    assert found.live == {COPIED[1]}
    assert found.unsure == {COPIED[0], *COPIED[2:]}


def test_what_is_live_anyway_is_not_looked_for_among_what_is_hidden(world: World) -> None:
    world.commit({"other": Staged(OTHER, size=1), "p": Staged(HELD, size=len(CONTENT), etag=MD5)})
    world.stage(*COPIED)
    assert world.check(world.moved).live == frozenset(COPIED)
    assert ("main", "p") not in world.api.asked


def test_an_error_ends_it(world: World) -> None:
    failure = ServerUnavailable("GET dump: 503")
    world.api.dumps = Script(failure)
    with pytest.raises(ServerUnavailable) as reported:
        world.check(world.moved)
    assert reported.value is failure


def test_what_a_task_of_spark_said_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> Iterator[Purged]:
        raise RuntimeError
        yield

    monkeypatch.setattr(maintenance, "purge_by", fails)
    monkeypatch.setattr(faults, "from_spark", lambda error: LakeFSError("what a task said"))
    with pytest.raises(LakeFSError, match="what a task said"):
        [*maintenance.purge(mock.Mock(spec=Collector), None, "owner", pytest.fail, pytest.fail)]

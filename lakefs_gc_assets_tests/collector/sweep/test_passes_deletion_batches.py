from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import Moment, Pace
from lakefs_gc_assets.collector.sweep import passes
from lakefs_gc_assets.collector.sweep.passes import Quarantine, Sweep
from lakefs_gc_assets.collector.sweep.recheck import Countdown, Validity
from lakefs_gc_assets.errors import CollectionError, LockLost, ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import CollectionSettings, SweepMode
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectStore
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock
from lakefs_gc_assets_tests.servers.s3_server import Faults, S3Server
from lakefs_gc_assets_tests.servers.stores import s3_server

__all__ = ["s3_server"]

RUN = "g4uk6erfnfus73frbnqg"
SLICE = "data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5s"
KEYS = [f"{SLICE}{number:01x}{end}" for number in range(5) for end in "0g"]


class SmallBatches(LocalStore):
    """Takes three keys at a time; records each delete."""

    delete_limit = 3

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deletes: list[list[str]] = []

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        self.deletes.append(list(keys))
        return super().delete(keys)


@dataclass
class Held:
    """A store whose lock is held."""

    store: SmallBatches
    lock: Lock

    def sweep(self) -> Sweep:
        return Sweep(self.store, RUN, self.lock.token, HandClock())

    def there(self) -> set[str]:
        return {key for batch in self.store.list("data/") for key in batch.column("key").to_pylist()}


def locked(store: ObjectStore, owner: str = "owner") -> Lock:
    return Lock.acquire(store, run_id=RUN, owner=owner, now=NOW, expiry=timedelta(hours=1))


@pytest.fixture
def held(tmp_path: Path) -> Held:
    store = SmallBatches(tmp_path)
    for key in KEYS:
        store.put(key, b"garbage")
    return Held(store, locked(store))


def test_candidates_are_deleted_in_batches_each_with_receipts(held: Held) -> None:
    rows = pa.concat_tables(held.sweep().delete(candidates(*KEYS[:7])))
    assert held.there() == set(KEYS[7:])
    assert held.store.deletes == [KEYS[:3], KEYS[3:6], KEYS[6:7]]
    assert rows.column("address").to_pylist() == KEYS[:7]
    assert set(rows.column("outcome").to_pylist()) == {"accepted"}
    assert rows.column("decided_at").to_pylist() == [NOW] * 7
    stored = receipts.read(held.store, RUN)
    assert sorted(stored.column("address").to_pylist()) == sorted(KEYS[:7])


def test_a_rate_is_kept_on_average_and_no_batch_is_larger_than_a_second_of_it(held: Held) -> None:
    clock = HandClock()
    sweep = replace(held.sweep(), clock=clock, pace=Pace(2, clock))
    # Spark passes on rows in several pieces.
    for piece in (KEYS[:5], KEYS[5:]):
        list(sweep.delete(candidates(*piece)))
    assert held.store.deletes == [KEYS[:2], KEYS[2:4], KEYS[4:5], KEYS[5:7], KEYS[7:9], KEYS[9:]]
    assert clock.moment - NOW == timedelta(seconds=4.5)


def test_no_batch_begins_when_the_recheck_ended_while_it_waited_for_its_turn(held: Held) -> None:
    clock = HandClock()
    countdown = Countdown(clock, timedelta(seconds=2.5), Moment.now(clock))
    sweep = replace(held.sweep(), clock=clock, pace=Pace(3, clock), countdown=countdown)
    list(sweep.delete(candidates(*KEYS)))
    assert held.there() == {KEYS[9]}


def test_tasks_that_delete_at_a_rate_are_no_more_than_run_at_once_and_can_keep_to_it(held: Held) -> None:
    def tasks(rate: float, at_once: int, sweep_mode: SweepMode = "delete") -> int | None:
        settings = CollectionSettings(max_delete_rate=rate, sweep_mode=sweep_mode)
        repository = SimpleNamespace(settings=settings, store=SimpleNamespace(delete_limit=1000))
        step: Any = SimpleNamespace(repository=repository, engine=SimpleNamespace(tasks_at_once=at_once))
        return passes._tasks_of_rate(step)

    assert tasks(0, 16) is None
    assert [tasks(rate, 16) for rate in (0.1, 100, 3500, 10**6)] == [1, 1, 7, 16]
    assert tasks(3500, 2) == 2
    assert tasks(100, 16, "quarantine") == 2
    # With more tasks, a throttling store would get so many keys at once that it refuses some for a minute.
    assert [tasks(0, at_once) for at_once in (32, 33, 256)] == [None, 32, 32]
    assert tasks(0, 256, "quarantine") is None


def test_receipts_name_the_attempt_and_each_delete_marker(s3_server: S3Server) -> None:
    bucket = s3_server.new_versioned_bucket()
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/repo"))
    for key in KEYS[:3]:
        store.put(key, b"garbage")
    sweep = Sweep(store, RUN, locked(store).token, HandClock(), attempt="attempt")
    (rows,) = sweep.delete(candidates(*KEYS[:3]))
    markers = s3_server.client().list_object_versions(Bucket=bucket, Prefix="repo/data/")["DeleteMarkers"]
    made = {marker["Key"].removeprefix("repo/"): marker["VersionId"] for marker in markers}
    assert {row["address"]: row["version_id"] for row in rows.to_pylist()} == made
    assert made.keys() == set(KEYS[:3])
    assert set(rows.column("attempt").to_pylist()) == {"attempt"}
    assert receipts.read(store, RUN) == rows


def test_receipts_hold_what_the_store_says_of_each_version(tmp_path: Path) -> None:
    class Versioned(SmallBatches):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            return [DeleteOutcome(key, DeleteResult.ACCEPTED, version_id=f"marker of {key}") for key in keys]

    store = Versioned(tmp_path)
    sweep = Sweep(store, RUN, locked(store).token, HandClock(), attempt="attempt")
    (rows,) = sweep.delete(candidates(*KEYS[:2]))
    assert rows.column("version_id").to_pylist() == [f"marker of {key}" for key in KEYS[:2]]
    assert rows.column("attempt").to_pylist() == ["attempt"] * 2


def test_no_candidates_delete_nothing(held: Held) -> None:
    assert list(held.sweep().delete(candidates())) == []
    assert held.store.deletes == []


def test_receipts_are_there_before_the_next_batch_is_deleted(held: Held) -> None:
    batches = held.sweep().delete(candidates(*KEYS))
    for done in range(1, 4):
        next(batches)
        assert receipts.read(held.store, RUN).num_rows == 3 * done
        assert len(held.store.deletes) == done


@pytest.mark.parametrize(
    "wrong",
    [
        "_lakefs/" + "a" * 64,
        "_lakefs/retention/gc/rules/config.json",
        "dummy",
        "data/by-hand",
        "data/repo2/data/x/y",
        "by-hand",
        "",
        "../repo2/" + KEYS[0],
        "/" + KEYS[0],
        KEYS[0] + "/",
    ],
)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_name_that_must_never_be_deleted_stops_its_whole_batch(held: Held, wrong: str, position: int) -> None:
    batch = [*KEYS[:position], wrong, *KEYS[position:2]]
    with pytest.raises(CollectionError, match="lakeFS never gives such a name to data"):
        list(held.sweep().delete(candidates(*batch)))
    assert held.store.deletes == []
    assert receipts.read(held.store, RUN).num_rows == 0


class TestTheLock:
    def test_is_checked_before_each_batch(self, held: Held) -> None:
        batches = held.sweep().delete(candidates(*KEYS))
        next(batches)
        held.lock.release()
        locked(held.store, "another")
        with pytest.raises(LockLost):
            next(batches)
        assert held.store.deletes == [KEYS[:3]]
        assert receipts.read(held.store, RUN).num_rows == 3

    def test_that_is_gone_stops_the_first_batch(self, held: Held) -> None:
        held.store.delete([lock.KEY])
        held.store.deletes.clear()
        with pytest.raises(LockLost):
            list(held.sweep().delete(candidates(*KEYS)))
        assert held.store.deletes == []


class TestFailures:
    def test_of_single_keys_are_reported_and_the_others_go(self, s3_server: S3Server) -> None:
        store = open_store(s3_server.settings(), Namespace.parse(f"s3://{s3_server.new_bucket()}/repo"))
        for key in KEYS:
            store.put(key, b"garbage")
        sweep = Sweep(store, RUN, locked(store).token, HandClock())
        with s3_server.failing(Faults(undeletable={"repo/" + KEYS[2]: "AccessDenied"})):
            (rows,) = sweep.delete(candidates(*KEYS))
        by_address = {row["address"]: row for row in rows.to_pylist()}
        refused = by_address.pop(KEYS[2])
        assert refused["outcome"] == "failed"
        assert "AccessDenied" in refused["error"]
        assert {(row["outcome"], row["error"]) for row in by_address.values()} == {("accepted", None)}
        assert store.head(KEYS[2]).size == len(b"garbage")
        with pytest.raises(ObjectNotFound):
            store.head(KEYS[3])
        assert receipts.read(store, RUN) == rows

    def test_of_a_whole_batch_leave_no_receipts_of_it(self, tmp_path: Path) -> None:
        class Breaking(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                if len(self.deletes) == 1:
                    raise StorageError("503 SlowDown")
                return super().delete(keys)

        held = Held(Breaking(tmp_path), locked(Breaking(tmp_path)))
        with pytest.raises(StorageError, match="SlowDown"):
            list(held.sweep().delete(candidates(*KEYS)))
        assert receipts.read(held.store, RUN).column("address").to_pylist() == KEYS[:3]

    def test_an_object_that_is_gone_already_is_accepted(self, held: Held) -> None:
        held.store.delete(KEYS[:1])
        (rows,) = held.sweep().delete(candidates(*KEYS[:2]))
        assert rows.column("outcome").to_pylist() == ["accepted", "accepted"]

    def test_outcomes_are_those_of_their_keys_in_any_order(self, tmp_path: Path) -> None:
        class Shuffling(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                return [*reversed(super().delete(keys[1:])), DeleteOutcome(keys[0], DeleteResult.FAILED, "busy")]

        store = Shuffling(tmp_path)
        (rows,) = Sweep(store, RUN, locked(store).token, HandClock()).delete(candidates(*KEYS[:3]))
        assert rows.column("address").to_pylist() == KEYS[:3]
        assert rows.column("outcome").to_pylist() == ["failed", "accepted", "accepted"]

    @pytest.mark.parametrize("reported", [[], KEYS[:1], [*KEYS[:1], KEYS[5]], KEYS[:3]])
    def test_a_store_that_tells_of_other_keys_ends_the_sweep(self, tmp_path: Path, reported: list[str]) -> None:
        class Confused(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                return [DeleteOutcome(key, DeleteResult.ACCEPTED) for key in reported]

        store = Confused(tmp_path)
        with pytest.raises(StorageError, match="2 deletions were requested"):
            list(Sweep(store, RUN, locked(store).token, HandClock()).delete(candidates(*KEYS[:2])))
        assert receipts.read(store, RUN).num_rows == 0


class TestTheTimeOfARecheck:
    @dataclass
    class Minutes(HandClock):
        """Advances by a minute at each reading."""

        tick: timedelta = timedelta(minutes=1)

    def swept(self, held: Held, minutes: int) -> set[str]:
        clock = self.Minutes()
        countdown = Validity.begin(held.store, RUN, timedelta(minutes=minutes)).countdown(held.store, RUN, clock)
        sweep = Sweep(held.store, RUN, held.lock.token, clock, countdown=countdown)
        tables = list(sweep.delete(candidates(*KEYS)))
        return {address for table in tables for address in table.column("address").to_pylist()}

    def test_no_batch_begins_when_it_is_over(self, held: Held) -> None:
        decided = self.swept(held, 6)
        deletes = [keys for keys in held.store.deletes if keys[0] in KEYS]
        assert 0 < len(deletes) < 4
        assert decided and decided <= {key for keys in deletes for key in keys}
        assert held.there() == set(KEYS) - decided

    def test_none_begins_where_it_was_over_before(self, held: Held) -> None:
        assert self.swept(held, 0) == set()
        assert held.there() == set(KEYS)

    def test_all_go_where_it_lasts(self, held: Held) -> None:
        assert self.swept(held, 60) == set(KEYS)

    def test_it_stays_over(self, held: Held) -> None:
        clock = self.Minutes()
        countdown = Validity.begin(held.store, RUN, timedelta(minutes=6)).countdown(held.store, RUN, clock)
        list(Sweep(held.store, RUN, held.lock.token, clock, countdown=countdown).delete(candidates(*KEYS)))
        over = Sweep(held.store, RUN, held.lock.token, clock, countdown=countdown)
        assert list(over.delete(candidates(*KEYS))) == []

    @pytest.mark.parametrize(("kind", "outcome"), [(Sweep, "accepted"), (Quarantine, "quarantined")])
    def test_a_batch_that_a_busy_store_makes_wait_ends_in_time(
        self, tmp_path: Path, kind: type[Sweep], outcome: str
    ) -> None:
        clock = HandClock()

        class Busy(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                if keys == [lock.KEY] or not keys[0].startswith("data/"):
                    return super().delete(keys)
                first = super().delete(keys[:1])
                clock.sleep(15 * 60)
                return [*first, *super().delete(keys[1:])]

        store = Busy(tmp_path)
        for key in KEYS:
            store.put(key, b"garbage")
        countdown = Validity.begin(store, RUN, timedelta(minutes=15)).countdown(store, RUN, clock)
        sweep = kind(store, RUN, locked(store).token, clock, countdown=countdown)
        (rows,) = sweep.delete(candidates(*KEYS))
        assert rows.select(["address", "outcome"]).to_pylist() == [{"address": KEYS[0], "outcome": outcome}]
        assert Held(store, locked(store)).there() == set(KEYS[1:])

    def test_a_look_at_the_lock_that_takes_too_long_counts(self, held: Held, tmp_path: Path) -> None:
        clock = HandClock()

        class Slow(SmallBatches):
            def get(self, key: str) -> bytes:
                clock.sleep(16 * 60)
                return super().get(key)

        store = Slow(tmp_path)
        countdown = Validity.begin(held.store, RUN, timedelta(minutes=15)).countdown(held.store, RUN, clock)
        sweep = Sweep(store, RUN, held.lock.token, clock, countdown=countdown)
        assert list(sweep.delete(candidates(*KEYS))) == []
        assert store.deletes == []

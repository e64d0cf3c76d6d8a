"""Restores by the command line and the UI: their addresses, their lock, and their tasks."""

import queue
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.quarantine import restore as quarantine_restore
from lakefs_gc_assets.collector.quarantine.restore import Restored, RestoreFate, plan_restore, restore
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LockHeld, LockLost
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.spark import engine as spark_engine
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.faults import errors_of_spark
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.past_runs import HOUR, opened
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.collector.sweep.test_sweeping_deletion_move import ALL, KEYS, Moving

__all__ = ["opened"]


@pytest.fixture
def moved(opened: OpenRepository, tmp_path: Path) -> Moving:
    """A repository after a run moved all its objects."""
    opener = StoreOpener(StoreSettings(local_root=str(tmp_path.parent)), f"local://{tmp_path.name}")
    made = Moving(replace(opened, opener=opener))
    made.prepare()
    made.quarantine(made.store)
    return made


def taken_by_another(opened: OpenRepository) -> Lock:
    return Lock.acquire(opened.store, run_id="work", owner="another", now=opened.clock.now(), expiry=HOUR)


def no_warning(line: str) -> None:
    raise AssertionError(line)


def test_what_would_be_restored_is_reported_once_with_its_bytes(moved: Moving) -> None:
    """Each object has two receipts, as after a resumed sweep."""
    receipts.write(moved.store, moved.run, "again", receipts.read(moved.store, moved.run))
    found = plan_restore(moved.opened, moved.run, [], pytest.fail)
    assert found.to_pylist() == [{"address": key, "size": len(ALL[key])} for key in KEYS]
    some = plan_restore(moved.opened, moved.run, [KEYS[2], f"{moved.opened.namespace.uri}{KEYS[0]}"], pytest.fail)
    assert some["address"].to_pylist() == [KEYS[0], KEYS[2]]
    assert moved.there() == {}


def test_it_is_restored_under_the_lock_which_others_may_take_afterwards(moved: Moving) -> None:
    reported = restore(moved.opened, moved.run, [f"{moved.opened.namespace.uri}{KEYS[1]}"], "owner", no_warning)
    assert moved.there() == {}
    assert next(reported) == Restored(KEYS[1], RestoreFate.RESTORED)
    with pytest.raises(LockHeld, match=f"restore {moved.run}"):
        taken_by_another(moved.opened)
    assert [*reported] == []
    assert moved.there() == {KEYS[1]: ALL[KEYS[1]]}
    taken_by_another(moved.opened)


def test_nothing_is_restored_while_another_holds_the_lock(moved: Moving) -> None:
    with pytest.raises(LockHeld):
        next(restore(moved.opened, moved.run, [], "somebody else", no_warning))
    assert moved.there() == {}


@pytest.mark.parametrize(
    ("address", "refusal", "why"),
    [
        ("s3://elsewhere/data/x", ConfigurationError, "is outside of local://repo/"),
        ("data/x", CollectionError, "did not delete 'data/x'"),
    ],
)
def test_an_address_that_the_run_did_not_delete_is_refused_and_the_lock_is_free(
    moved: Moving, address: str, refusal: type[CollectionError], why: str
) -> None:
    with pytest.raises(refusal, match=why):
        plan_restore(moved.opened, moved.run, [address], pytest.fail)
    with pytest.raises(refusal, match=why):
        [*restore(moved.opened, moved.run, [KEYS[0], address], "owner", no_warning)]
    assert moved.there() == {}
    taken_by_another(moved.opened)


def test_a_lock_that_is_lost_meanwhile_is_warned_of(moved: Moving) -> None:
    warned = queue.Queue[str]()
    hasty = replace(moved.opened, settings=CollectionSettings(lock_expiry_minutes=0.01))
    reported = restore(hasty, moved.run, KEYS[:1], "owner", warned.put)
    assert next(reported).fate is RestoreFate.RESTORED
    moved.store.delete([lock.KEY])
    assert "lock" in warned.get(timeout=900)
    with pytest.raises(LockLost):
        list(reported)


# Many objects, in tasks of the local engine and of Spark.


def restored(moved: Moving) -> list[str]:
    """Addresses with a receipt of their restoration."""
    rows = receipts.read(moved.store, moved.run)
    return sorted(rows.filter(pc.equal(rows["outcome"], Outcome.RESTORED.value))["address"].to_pylist())


@pytest.mark.parametrize(("many", "in_tasks"), [(2, False), (1, True)])
def test_only_many_objects_need_an_engine(
    moved: Moving, monkeypatch: pytest.MonkeyPatch, many: int, in_tasks: bool
) -> None:
    collector = mock.Mock(spec=Collector)
    collector.open.return_value, collector.engine.return_value = moved.opened, LocalEngine()
    monkeypatch.setattr(maintenance, "_MANY", many)
    planned: list[int] = []
    (reported,) = maintenance.bring_back(collector, moved.run, KEYS[:1], "owner", pytest.fail, planned.append)
    assert (reported.address, reported.fate, planned) == (KEYS[0], RestoreFate.RESTORED, [1])
    assert collector.engine.called is in_tasks


def test_each_task_looks_at_the_lock(moved: Moving) -> None:
    class LosesTheLock(StoreOpener):
        """Opens a store right after the lock was lost."""

        def open(self) -> ObjectStore:
            moved.store.delete([lock.KEY])
            return moved.store

    token = moved.lock().token
    deleted = quarantine_restore.deleted_by(moved.store, moved.run)
    in_tasks = LocalEngine(), LosesTheLock(StoreSettings(), "local://repo")
    with pytest.raises(LockLost):
        [*quarantine_restore.restore_copies(moved.store, moved.run, deleted, token, HandClock(), in_tasks)]
    assert (moved.there(), restored(moved)) == ({}, [])


def test_many_objects_are_restored_by_spark(
    moved: Moving, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_engine, "_FEW_REQUESTS", 1)
    engine = SparkEngine(lambda: spark, 2)
    moved.store.put(KEYS[1], b"something else")

    restoring = restore(moved.opened, moved.run, [], "owner", pytest.fail, lambda count: engine)
    reported = {each.address: (each.fate, each.why) for each in restoring}

    assert engine.ran_on == "Spark"
    assert [reported[key] for key in (KEYS[0], KEYS[2])] == [(RestoreFate.RESTORED, None)] * 2
    why = "the address has an object of 14 bytes, but the deleted one had 20"
    assert reported[KEYS[1]] == (RestoreFate.FAILED, why)
    assert moved.there() == {**ALL, KEYS[1]: b"something else"}
    assert restored(moved) == [KEYS[0], KEYS[2]]


def test_the_loss_of_the_lock_is_known_as_such_from_a_task_of_spark(
    moved: Moving, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_engine, "_FEW_REQUESTS", 1)
    deleted, token = quarantine_restore.deleted_by(moved.store, moved.run), moved.lock().token
    in_tasks = SparkEngine(lambda: spark, 2), moved.opened.opener
    moved.store.delete([lock.KEY])
    # Only in this process.
    monkeypatch.setattr(quarantine_restore, "verify", lambda store, token: None)

    with pytest.raises(LockLost, match="is gone"), errors_of_spark():
        [*quarantine_restore.restore_copies(moved.store, moved.run, deleted, token, HandClock(), in_tasks)]

    assert moved.there() == {}

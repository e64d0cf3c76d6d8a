"""Restoring many objects in tasks, of the local engine and of Spark."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.quarantine import restore as quarantine_restore
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate, restore
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import LockLost
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.spark import engine as spark_engine
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.faults import errors_of_spark
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.past_runs import opened
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.collector.sweep.test_passes_deletion_move import ALL, KEYS, Moving

__all__ = ["opened"]


@pytest.fixture
def moved(opened: OpenRepository, tmp_path: Path) -> Moving:
    """A repository after a run moved all its objects."""
    opener = StoreOpener(StoreSettings(local_root=str(tmp_path.parent)), f"local://{tmp_path.name}")
    made = Moving(replace(opened, opener=opener))
    made.prepare()
    made.quarantine(made.store)
    return made


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

"""Restores by the command line and the UI: their addresses and their lock."""

import queue
from dataclasses import replace

import pytest

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.quarantine.restore import Restored, RestoreFate, plan_restore, restore
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LockHeld, LockLost
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.collector.past_runs import HOUR, opened
from lakefs_gc_assets_tests.collector.sweep.test_passes_deletion_move import ALL, KEYS, Moving

__all__ = ["opened"]


@pytest.fixture
def moved(opened: OpenRepository) -> Moving:
    """A repository after a run moved all its objects; each has two receipts, as after a resumed sweep."""
    made = Moving(opened)
    made.prepare()
    made.quarantine(opened.store)
    receipts.write(opened.store, made.run, "again", receipts.read(opened.store, made.run))
    return made


def taken_by_another(opened: OpenRepository) -> Lock:
    return Lock.acquire(opened.store, run_id="work", owner="another", now=opened.clock.now(), expiry=HOUR)


def no_warning(line: str) -> None:
    raise AssertionError(line)


def test_what_would_be_restored_is_reported_once_with_its_bytes(moved: Moving) -> None:
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
    assert "lock" in warned.get(timeout=30)
    with pytest.raises(LockLost):
        list(reported)

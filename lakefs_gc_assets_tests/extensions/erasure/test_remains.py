"""Versions of deleted objects in a bucket that keeps versions: found, and erased if nothing is live."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from unittest import mock

import pytest

from lakefs_gc_assets.collector.quarantine.purge import Moved, PurgeVerdict
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import Moment, OpenRepository
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.errors import CollectionError, LockLost, PermissionMissing
from lakefs_gc_assets.extensions.erasure.remains import Remains, erase_versions, look
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import ListsVersions, Version
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW, began, opened
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import s3_server

__all__ = ["opened", "s3_server"]

SLICE = "data/g4uk6erfnfus73frbnqg/"
GONE, LIVE, UNSURE, THERE = (f"{SLICE}dc0n8tpksdu988af5s{number}0" for number in range(4))
COPY = sweeping.key("g4uk6erfnfus73frbnqg", GONE)


class Erasing:
    """A bucket with versions: three deleted objects, one that was not deleted, and a purged copy."""

    def __init__(self, repository: OpenRepository, server: S3Server) -> None:
        bucket = server.new_versioned_bucket()
        self.store = cast(ListsVersions, open_store(server.settings(), Namespace.parse(f"s3://{bucket}/repo/")))
        self.repository = replace(repository, store=self.store)
        self.plan = began(self.repository, DAY)
        self.asked: list[Moved] = []
        for key in (GONE, LIVE, UNSURE, THERE, COPY):
            self.store.put(key, b"first")
            self.store.put(key, b"second one")
        self.store.delete([GONE, LIVE, UNSURE, COPY])
        self.lock = Lock.acquire(self.store, run_id=self.plan.run_id, owner="owner", now=NOW, expiry=timedelta(hours=1))

    def check(self, moved: Sequence[Moved]) -> PurgeVerdict:
        self.asked += moved
        return PurgeVerdict(frozenset([LIVE]), frozenset([UNSURE]), Moment.now(self.repository.clock))

    def erase(self) -> list[str]:
        addresses = [GONE, LIVE, UNSURE, THERE]
        outcomes = erase_versions(self.repository, self.plan, self.lock, addresses, self.check)
        return [outcome.name for outcome in outcomes if outcome.error is None]

    def count(self) -> dict[str, int]:
        keys = [
            version.key for prefix in ("data/", layout.QUARANTINE_PREFIX) for version in self.store.versions(prefix)
        ]
        return {key: keys.count(key) for key in sorted({*keys})}

    def remains(self, address: str) -> Remains:
        (remains,) = look(self.repository, [address])
        return remains


@pytest.fixture
def erasing(opened: OpenRepository, s3_server: S3Server) -> Erasing:
    return Erasing(opened, s3_server)


def test_versions_of_what_is_live_or_may_be_or_is_there_stay(erasing: Erasing) -> None:
    before = erasing.remains(GONE)
    assert (before.size, before.copies, len(before.versions or ())) == (None, (), 6) and not before.is_gone
    erased = erasing.erase()
    assert {*erased} == {*(before.versions or ())}
    assert erasing.count() == {LIVE: 3, UNSURE: 3, THERE: 2}
    assert erasing.remains(GONE).is_gone and str(erasing.remains(GONE)) == "nothing"
    there = erasing.remains(THERE)
    assert there.size == 10 and len(there.versions or ()) == 1 and str(there).startswith("the object, version data/")
    assert erasing.erase() == [], "again there is nothing to erase"


def test_what_is_asked_for_has_size_and_checksum_of_the_object(erasing: Erasing) -> None:
    erasing.erase()
    (moved,) = erasing.asked
    assert moved.copies.column("address").to_pylist() == [GONE, LIVE, UNSURE]
    assert {*moved.copies.column("size").to_pylist()} <= {5, 10}
    assert moved.copies.column("etag").null_count == 0


def test_objects_go_before_their_marker(erasing: Erasing) -> None:
    markers = {f"{each.key} {each.version_id}" for each in erasing.store.versions("data/") if each.is_marker}
    of_object = [version in markers for version in erasing.erase() if version.startswith("data/")]
    assert of_object == [False, False, True]


@pytest.mark.parametrize("is_marker", [False, True])
def test_refused_version_stays_below_its_marker_and_all_others_go(erasing: Erasing, is_marker: bool) -> None:
    store, delete = erasing.store, erasing.store.delete_version
    held = next(each for each in store.versions(GONE) if each.is_marker is is_marker)

    def refuse(key: str, version_id: str) -> None:
        if version_id == held.version_id:
            raise PermissionMissing("the object is under legal hold")
        delete(key, version_id)

    addresses = [GONE, LIVE, UNSURE, THERE]
    with mock.patch.object(store, "delete_version", refuse):
        outcomes = [*erase_versions(erasing.repository, erasing.plan, erasing.lock, addresses, erasing.check)]
    refused = [outcome for outcome in outcomes if outcome.error is not None]
    assert [(each.name, each.error) for each in refused] == [
        (f"{GONE} {held.version_id}", "the object is under legal hold")
    ]
    assert erasing.count() == {GONE: 1 if is_marker else 2, LIVE: 3, UNSURE: 3, THERE: 2}
    assert erasing.remains(GONE).size is None, "the store shows no object at this address"
    assert len(erasing.erase()) == (1 if is_marker else 2) and erasing.remains(GONE).is_gone


class Suspended:
    """A store that lists a key below a delete marker with a null version, as S3 does while versioning is suspended."""

    def __init__(self, store: object, *versions: Version) -> None:
        self._store, self._versions = store, versions
        self.erased: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def versions(self, prefix: str) -> Iterator[Version]:
        return (version for version in self._versions if version.key.startswith(prefix))

    def delete_version(self, key: str, version_id: str) -> None:
        self.erased.append(version_id)


def test_while_versioning_is_suspended(erasing: Erasing) -> None:
    marker, old = Version(GONE, "null", True, True), Version(GONE, "old", False, False, 5)
    store = Suspended(erasing.store, old, marker)
    erasing.repository = replace(erasing.repository, store=cast(ListsVersions, store))
    assert erasing.remains(GONE).versions == (f"{GONE} old",)
    assert erasing.erase() == [f"{GONE} old"] and store.erased == ["old"], "what is written next has the marker's id"
    store = Suspended(erasing.store, marker)
    erasing.repository = replace(erasing.repository, store=cast(ListsVersions, store))
    assert erasing.erase() == [] and erasing.remains(GONE).is_gone


def test_nothing_is_erased_without_the_lock(erasing: Erasing) -> None:
    before = erasing.count()
    erasing.lock.release()
    with pytest.raises(LockLost):
        erasing.erase()
    assert erasing.count() == before


def test_nothing_is_erased_once_it_is_no_longer_known_what_is_live(erasing: Erasing) -> None:
    before, answer = erasing.count(), erasing.check

    def late(moved: Sequence[Moved]) -> PurgeVerdict:
        verdict = answer(moved)
        erasing.repository.clock.sleep(3600)
        return verdict

    erasing.check = late  # type: ignore[method-assign]
    with pytest.raises(CollectionError, match="recheck_valid_minutes"):
        erasing.erase()
    assert erasing.count() == before


def test_what_is_left_when_the_time_is_over_goes_after_another_check(erasing: Erasing) -> None:
    store, delete = erasing.store, erasing.store.delete_version

    def slow(key: str, version_id: str) -> None:
        delete(key, version_id)
        if len(erasing.asked) == 1:
            erasing.repository.clock.sleep(1800)

    with mock.patch.object(store, "delete_version", slow):
        erased = erasing.erase()
    assert len(erased) == len({*erased}) == 6 and len(erasing.asked) == 2
    assert erasing.count() == {LIVE: 3, UNSURE: 3, THERE: 2}


def test_a_store_that_lists_no_versions(opened: OpenRepository) -> None:
    opened.store.put(GONE, b"1")
    (there, gone) = look(opened, [GONE, LIVE])
    assert (there.size, there.versions, there.is_gone) == (1, None, False) and gone.is_gone
    plan = began(opened, DAY)
    lock = Lock.acquire(opened.store, run_id=plan.run_id, owner="owner", now=NOW, expiry=timedelta(hours=1))
    assert not [*erase_versions(opened, plan, lock, [LIVE], lambda moved: pytest.fail("asked"))]

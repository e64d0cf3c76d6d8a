"""Restoring deleted objects of a bucket that keeps versions: S3 over HTTP, and a folder that imitates it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.sweeping import Sweep
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LockLost, ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import NULL_VERSION, DeleteOutcome, KeepsVersions, ObjectFacts, ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.breaking import Break, BreakingStore, Killed, every_break
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.past_runs import DAY, began, opened
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import s3_server

__all__ = ["opened", "s3_server"]

SLICE = "data/g4uk6erfnfus73frbnqg/"
KEYS = [f"{SLICE}dc0n8tpksdu988af5s{number:01x}0" for number in range(4)]


@dataclass
class Deleting:
    """A repository whose store keeps versions, with one run that may delete."""

    opened: OpenRepository
    run: str = ""

    @property
    def store(self) -> KeepsVersions:
        return cast(KeepsVersions, self.opened.store)

    def prepare(self) -> None:
        """Writes objects of different sizes, and a plan."""
        self.run = began(self.opened, DAY).run_id
        for size, key in enumerate(KEYS):
            self.store.put(key, b"x" * size)

    def lock(self) -> Lock:
        return Lock.acquire(self.store, run_id=self.run, owner="owner", now=NOW, expiry=timedelta(hours=1))

    def sweep(self, *keys: str, attempt: str = "attempt") -> pa.Table:
        lock = self.lock()
        rows = [{"address": key, "size": KEYS.index(key)} for key in keys]
        table = candidates(*keys).set_column(6, "size", pa.array([row["size"] for row in rows], pa.int64()))
        found = pa.concat_tables(Sweep(self.store, self.run, lock.token, HandClock(), attempt=attempt).delete(table))
        lock.release()
        return found

    def restore(self, *addresses: str) -> dict[str, RestoreFate]:
        return self.restore_by(self.store, *addresses)

    def restore_by(self, store: ObjectStore, *addresses: str) -> dict[str, RestoreFate]:
        lock = self.lock()
        deleted = restore.deleted_by(store, self.run, addresses)
        found = {
            each.address: each.fate
            for each in restore.restore_copies(store, self.run, deleted, lock.token, HandClock())
        }
        lock.release()
        return found

    def sizes(self) -> dict[str, int]:
        """Sizes of existing objects."""
        return {
            key: size
            for batch in self.store.list("data/")
            for key, size in zip(batch["key"].to_pylist(), batch["size"].to_pylist(), strict=True)
        }


def all_sizes(keys: Sequence[str] = KEYS) -> dict[str, int]:
    return {key: KEYS.index(key) for key in keys}


class VersionedFolder(LocalStore):
    """A folder whose deletes of data leave delete markers, each with the versions below it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self._ids = count()
        self.markers: dict[str, list[tuple[str, bytes | None]]] = defaultdict(list)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        reported = []
        for key in keys:
            below = self.get(key) if self._is_there(key) else None
            (outcome,) = super().delete([key])
            if key.startswith("data/"):
                self.markers[key].append((f"marker-{next(self._ids)}", below))
                outcome = replace(outcome, version_id=self.markers[key][-1][0])
            reported.append(outcome)
        return reported

    def remove_delete_marker(self, key: str, version_id: str) -> bool:
        if version_id == NULL_VERSION:
            raise StorageError("it has no version of its own")
        if not self.markers[key] or self.markers[key][-1][0] != version_id or self._is_there(key):
            return False
        _, below = self.markers[key].pop()
        if below is not None:
            self.put(key, below)
        return True

    def _is_there(self, key: str) -> bool:
        try:
            return bool(self.head(key))
        except ObjectNotFound:
            return False

    def clear(self) -> None:
        """Removes every object and every delete marker."""
        for batch in self.list(""):
            super().delete(batch["key"].to_pylist())
        self.markers.clear()


@pytest.fixture
def folder(opened: OpenRepository, tmp_path: Path) -> Deleting:
    """The repository before the run deletes, in a folder."""
    made = Deleting(replace(opened, store=VersionedFolder(tmp_path)))
    made.prepare()
    return made


def test_in_a_bucket_everything_comes_back_and_no_other_version_is_touched(
    s3_server: S3Server, opened: OpenRepository
) -> None:
    bucket, client = s3_server.new_versioned_bucket(), s3_server.client()
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/repo"))
    versioned = Deleting(replace(opened, store=store))
    versioned.prepare()

    def versions() -> set[tuple[str, str, bool]]:
        """Every version of data: key, id, and True for a delete marker."""
        answer = client.list_object_versions(Bucket=bucket, Prefix="repo/data/")
        return {
            (each["Key"], each["VersionId"], marker)
            for found, marker in ((answer.get("Versions", []), False), (answer.get("DeleteMarkers", []), True))
            for each in found
        }

    before = versions()
    versioned.sweep(*KEYS)
    assert versioned.sizes() == {}
    assert versioned.restore() == dict.fromkeys(KEYS, RestoreFate.RESTORED)
    assert versioned.sizes() == all_sizes()
    assert versions() == before


def test_the_record_is_there_before_the_first_object(folder: Deleting) -> None:
    folder.sweep(*KEYS)
    seen = []

    class Watching(BreakingStore):
        def remove_delete_marker(self, key: str, version_id: str) -> bool:
            seen.append(across_runs.read_restoration(self.store))
            return super().remove_delete_marker(key, version_id)

    folder.restore_by(Watching(folder.store))
    assert len(seen) == len(KEYS)
    assert all(each is not None and each.concerns(folder.run) for each in seen)


def test_without_versions_nothing_can_come_back(opened: OpenRepository) -> None:
    store, run_id = opened.store, began(opened, DAY).run_id
    rows = receipts.table(candidates(KEYS[0]), [Outcome.ACCEPTED], [None], NOW, "attempt")
    receipts.write(store, run_id, "batch", rows)
    with pytest.raises(CollectionError, match="name neither delete markers"):
        restore.deleted_by(store, run_id)
    lock = Lock.acquire(store, run_id=run_id, owner="owner", now=NOW, expiry=timedelta(hours=1))
    with pytest.raises(ConfigurationError, match="no delete markers"):
        list(restore.restore_copies(store, run_id, rows, lock.token, HandClock()))
    assert across_runs.read_restoration(store) is None


@pytest.mark.slow
@pytest.mark.parametrize("how", [Break.FAILS, Break.DIES_AFTER])
def test_whatever_call_breaks_nothing_is_lost_and_a_repeat_brings_all_back(folder: Deleting, how: Break) -> None:
    keys, store = KEYS[:2], cast(VersionedFolder, folder.store)

    def prepare() -> None:
        store.clear()
        folder.prepare()
        folder.sweep(*keys)

    broken = 0
    for what in every_break(lambda: store, folder.restore_by, prepare, how):
        hidden = {key for key, markers in store.markers.items() for _, below in markers if below is not None}
        assert hidden | folder.sizes().keys() == {*KEYS}, what
        if any(key in folder.sizes() for key in keys):
            assert across_runs.read_restoration(store) is not None, what
        reported = folder.restore()
        assert all(fate.is_well for fate in reported.values()), what
        assert folder.sizes() == all_sizes(), what
        assert not any(store.markers.values()), what
        undone = receipts.read(store, folder.run)
        undone = undone.filter(pc.equal(undone.column("outcome"), Outcome.RESTORED.value))
        assert set(undone.column("address").to_pylist()) == set(keys), what
        broken += 1
    assert broken > 8


def test_a_sweep_that_is_killed_anywhere_can_be_undone_as_far_as_its_receipts_go(folder: Deleting) -> None:
    """Deletions of a killed batch have no receipt until the sweep is resumed, which finds a delete marker."""
    lock, store = folder.lock(), cast(VersionedFolder, folder.store)
    broken = BreakingStore(store, at=2, how=Break.DIES_AFTER)
    with pytest.raises(Killed):
        list(Sweep(broken, folder.run, lock.token, HandClock()).delete(candidates(KEYS[3])))
    assert KEYS[3] not in folder.sizes()
    with pytest.raises(CollectionError, match="deleted nothing"):
        restore.deleted_by(store, folder.run)
    folder.sweep(KEYS[3])
    assert folder.restore() == {KEYS[3]: RestoreFate.HIDDEN}
    assert [below for _, below in store.markers[KEYS[3]]] == [b"xxx"]


class TestInAFolder:
    """The result for each object, with its reason."""

    def reported(self, folder: Deleting, rows: pa.Table | None = None) -> dict[str, tuple[RestoreFate, str | None]]:
        lock = folder.lock()
        deleted = restore.deleted_by(folder.store, folder.run) if rows is None else rows
        found = [*restore.restore_copies(folder.store, folder.run, deleted, lock.token, HandClock())]
        lock.release()
        assert len({each.address for each in found}) == len(found)
        return {each.address: (each.fate, each.why) for each in found}

    def test_everything_comes_back_and_may_again(self, folder: Deleting) -> None:
        folder.sweep(*KEYS)
        assert folder.sizes() == {}
        assert self.reported(folder) == dict.fromkeys(KEYS, (RestoreFate.RESTORED, None))
        assert folder.sizes() == all_sizes()
        record = across_runs.read_restoration(folder.store)
        assert record is not None and record.concerns(folder.run)
        assert self.reported(folder) == dict.fromkeys(KEYS, (RestoreFate.THERE, None))

    def test_receipts_say_what_came_back(self, folder: Deleting) -> None:
        made = folder.sweep(*KEYS)
        folder.store.delete([KEYS[1]])
        self.reported(folder)
        rows = receipts.read(folder.store, folder.run)
        undone = rows.filter(pc.equal(rows["outcome"], Outcome.RESTORED.value)).sort_by("address")
        expected = made.filter(pc.not_equal(made["address"], KEYS[1])).sort_by("address")
        assert undone.drop_columns("outcome").to_pylist() == expected.drop_columns("outcome").to_pylist()
        assert len(receipts.keys(folder.store, folder.run, receipts.OF_RESTORE)) == 1

    def test_only_what_is_named_comes_back(self, folder: Deleting) -> None:
        folder.sweep(*KEYS)
        assert folder.restore(KEYS[2], KEYS[1]) == dict.fromkeys(KEYS[1:3], RestoreFate.RESTORED)
        assert folder.sizes() == all_sizes(KEYS[1:3])
        with pytest.raises(CollectionError, match="did not delete 'data/nothing'"):
            restore.deleted_by(folder.store, folder.run, ["data/of another run", KEYS[0], "data/nothing"])

    def test_what_is_not_as_expected_is_reported(self, folder: Deleting) -> None:
        folder.sweep(*KEYS)
        folder.store.delete([KEYS[0]])
        folder.store.put(KEYS[1], b"another one")
        folder.store.put(KEYS[2], b"yy")
        assert self.reported(folder) == {
            KEYS[0]: (RestoreFate.HIDDEN, "the run's delete marker is not the newest version"),
            KEYS[1]: (RestoreFate.FAILED, "the address has an object of 11 bytes, but the deleted one had 1"),
            KEYS[2]: (RestoreFate.THERE, None),
            KEYS[3]: (RestoreFate.RESTORED, None),
        }

    def test_a_marker_that_no_receipt_names_is_reported_of(self, folder: Deleting) -> None:
        folder.store.delete([KEYS[0]])
        folder.sweep(*KEYS)
        assert self.reported(folder)[KEYS[0]] == (
            RestoreFate.HIDDEN,
            "below the run's delete marker is nothing, or a marker that its receipts do not name",
        )

    @pytest.mark.parametrize(
        ("version_id", "why"),
        [
            (NULL_VERSION, "versioning was suspended: the run's delete marker has no unique id"),
            (None, "the bucket kept no version of it"),
        ],
    )
    def test_without_an_id_of_the_marker_it_stays_gone(
        self, folder: Deleting, version_id: str | None, why: str
    ) -> None:
        rows = folder.sweep(*KEYS)
        ids = [version_id, *rows["version_id"].to_pylist()[1:]]
        place = rows.schema.get_field_index("version_id")
        rows = rows.set_column(place, rows.schema.field(place), pa.array(ids, pa.string()))
        assert self.reported(folder, rows) == {KEYS[0]: (RestoreFate.HIDDEN, why)} | dict.fromkeys(
            KEYS[1:], (RestoreFate.RESTORED, None)
        )

    def test_every_marker_that_the_receipts_name_goes_the_latest_first(self, folder: Deleting) -> None:
        times = []
        for number in range(3):
            folder.sweep(KEYS[3], attempt=str(number))
            times.append(NOW + timedelta(hours=number))
        rows = restore.deleted_by(folder.store, folder.run)
        place = rows.schema.get_field_index("decided_at")
        moments = [times[int(attempt)] for attempt in rows["attempt"].to_pylist()]
        rows = rows.set_column(place, rows.schema.field(place), pa.array(moments, rows.schema.field(place).type))
        for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
            assert self.reported(folder, rows.take(order))[KEYS[3]][0].is_well
            assert folder.sizes()[KEYS[3]] == 3
        undone = receipts.read(folder.store, folder.run)
        undone = undone.filter(pc.equal(undone["outcome"], Outcome.RESTORED.value))
        assert set(undone["attempt"].to_pylist()) == {"0", "1", "2"}

    def test_a_store_that_fails_at_one_address_is_reported_and_the_others_come_back(self, folder: Deleting) -> None:
        class Refusing(BreakingStore):
            def remove_delete_marker(self, key: str, version_id: str) -> bool:
                if key == KEYS[1]:
                    raise StorageError("AccessDenied")
                return super().remove_delete_marker(key, version_id)

        rows, lock = folder.sweep(*KEYS), folder.lock()
        found = restore.restore_copies(Refusing(folder.store), folder.run, rows, lock.token, HandClock())
        assert {each.address: (each.fate, each.why) for each in found} == dict.fromkeys(
            KEYS, (RestoreFate.RESTORED, None)
        ) | {KEYS[1]: (RestoreFate.FAILED, "AccessDenied")}
        undone = receipts.read(folder.store, folder.run)
        undone = undone.filter(pc.equal(undone["outcome"], Outcome.RESTORED.value))
        assert KEYS[1] not in undone["address"].to_pylist() and undone.num_rows == 3

    def test_of_what_was_moved_and_what_was_not_each_goes_its_own_way(self, folder: Deleting) -> None:
        rows = folder.sweep(*KEYS[:2])
        plain = LocalStore(cast(VersionedFolder, folder.store).folder)
        plain.copy(KEYS[2], sweeping.key(folder.run, KEYS[2]))
        plain.delete([KEYS[2]])
        moved = receipts.table(candidates(KEYS[2]), [Outcome.QUARANTINED], [None], NOW, "attempt")
        place = moved.schema.get_field_index("size")
        moved = moved.set_column(place, moved.schema.field(place), pa.array([2], pa.int64()))
        rows = pa.concat_tables([rows, moved])
        lock = folder.lock()
        found = [*restore.restore_copies(plain, folder.run, rows, lock.token, HandClock())]
        assert {each.address: (each.fate, each.why) for each in found} == {
            KEYS[0]: (RestoreFate.HIDDEN, "the run deleted it without a copy in quarantine"),
            KEYS[1]: (RestoreFate.HIDDEN, "the run deleted it without a copy in quarantine"),
            KEYS[2]: (RestoreFate.RESTORED, None),
        }
        lock.release()
        assert self.reported(folder, rows) == {
            KEYS[0]: (RestoreFate.RESTORED, None),
            KEYS[1]: (RestoreFate.RESTORED, None),
            KEYS[2]: (RestoreFate.THERE, None),
        }

    def test_what_a_run_deleted_without_versions_and_without_copies_is_refused(self, folder: Deleting) -> None:
        failed = receipts.table(candidates(KEYS[0]), [Outcome.FAILED], ["AccessDenied"], NOW, "attempt")
        receipts.write(folder.store, folder.run, "failed", failed)
        with pytest.raises(CollectionError, match="deleted nothing"):
            restore.deleted_by(folder.store, folder.run)
        folder.store.delete(receipts.keys(folder.store, folder.run))
        rows = folder.sweep(*KEYS[:1])
        place = rows.schema.get_field_index("version_id")
        none = rows.set_column(place, rows.schema.field(place), pa.nulls(1, pa.string()))
        (key,) = receipts.keys(folder.store, folder.run)
        folder.store.delete([key])
        receipts.write(folder.store, folder.run, "without", none)
        with pytest.raises(CollectionError, match="name neither delete markers"):
            restore.deleted_by(folder.store, folder.run)
        # One object with a marker is enough.
        folder.sweep(KEYS[1])
        assert restore.deleted_by(folder.store, folder.run).num_rows == 2
        with pytest.raises(CollectionError, match="this repository has no run"):
            restore.deleted_by(folder.store, "c" * 20)

    def test_what_was_copied_may_have_been_deleted_without_a_receipt(self, folder: Deleting) -> None:
        for name, keys, outcome in (("1", KEYS[:2], Outcome.COPIED), ("2", KEYS[:1], Outcome.QUARANTINED)):
            rows = receipts.table(candidates(*keys), [outcome] * len(keys), [None] * len(keys), NOW, "attempt")
            receipts.write(folder.store, folder.run, name, rows)
        found = restore.deleted_by(folder.store, folder.run)
        assert sorted(zip(found["address"].to_pylist(), found["outcome"].to_pylist(), strict=True)) == [
            (KEYS[0], "quarantined"),
            (KEYS[1], "copied"),
        ]

    def test_without_the_lock_nothing_begins_and_no_batch_is_followed(
        self, folder: Deleting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(restore, "BATCH", 2)
        rows, lock = folder.sweep(*KEYS), folder.lock()
        reported = restore.restore_copies(folder.store, folder.run, rows, lock.token, HandClock())
        assert [next(reported).fate, next(reported).fate] == [RestoreFate.RESTORED] * 2
        lock.release()
        with pytest.raises(LockLost):
            next(reported)
        assert len(folder.sizes()) == 2
        folder.store.delete([across_runs.RESTORATION_KEY])
        with pytest.raises(LockLost):
            list(restore.restore_copies(folder.store, folder.run, rows, lock.token, HandClock()))
        assert across_runs.read_restoration(folder.store) is None

    def test_sixteen_objects_are_restored_at_once(self, folder: Deleting, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = [f"{SLICE}dc0n8tpksdu988af5t{number:01x}0" for number in range(16)]
        rows = receipts.table(candidates(*keys), [Outcome.ACCEPTED] * 16, [None] * 16, NOW, "attempt")
        all_at_once, head = Barrier(16, timeout=900), folder.store.head

        def waiting(key: str) -> ObjectFacts:
            if key in keys:
                all_at_once.wait()
            return head(key)

        monkeypatch.setattr(folder.store, "head", waiting)
        assert {fate for fate, _ in self.reported(folder, rows).values()} == {RestoreFate.HIDDEN}

"""Moves into quarantine and back. Most tests use a folder, where each call to the store fails once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Barrier

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.quarantine import restore as restore_module
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.recheck import Validity
from lakefs_gc_assets.collector.sweep.sweeping import Quarantine
from lakefs_gc_assets.collector.universe import listing as parts
from lakefs_gc_assets.errors import LockLost, ObjectArchived, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage import azure as azure_module
from lakefs_gc_assets.storage import gcs as gcs_module
from lakefs_gc_assets.storage import interface
from lakefs_gc_assets.storage.bucket_store import BucketStore
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectFacts, ObjectStore
from lakefs_gc_assets_tests.collector.breaking import Break, BreakingStore, every_break
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.past_runs import DAY, began, opened
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock
from lakefs_gc_assets_tests.servers.stores import (
    azure_container,
    azure_server,
    azure_store,
    bucket,
    gcs_bucket,
    gcs_server,
    gcs_store,
    in_a_folder,
    local_store,
    s3_server,
    s3_store,
    store,
)

__all__ = [
    "azure_container",
    "azure_server",
    "azure_store",
    "bucket",
    "gcs_bucket",
    "gcs_server",
    "gcs_store",
    "local_store",
    "opened",
    "s3_server",
    "s3_store",
    "store",
]

SLICE = "data/g4uk6erfnfus73frbnqg/"
KEYS = [f"{SLICE}dc0n8tpksdu988af5s{number:01x}0" for number in range(3)]


@dataclass
class Moving:
    """A repository with objects of different content, which one run moves."""

    opened: OpenRepository
    run: str = ""

    @property
    def store(self) -> ObjectStore:
        return self.opened.store

    def prepare(self) -> None:
        """Prepares exactly the objects and a plan."""
        for batch in self.store.list(""):
            self.store.delete([key for key in batch["key"].to_pylist() if key != lock.KEY])
        self.run = began(self.opened, DAY).run_id
        for number, key in enumerate(KEYS):
            self.store.put(key, content(number))

    def lock(self) -> Lock:
        return Lock.acquire(self.store, run_id=self.run, owner="owner", now=NOW, expiry=timedelta(hours=1))

    def quarantine(self, store: ObjectStore, keys: Sequence[str] = KEYS, beyond: int = 0) -> pa.Table:
        """Sweeps as a resumed sweep continues: objects with receipts are done.

        Args:
            beyond: bytes by which clients overstated sizes.
        """
        token = self.lock().token
        earlier = receipts.read(store, self.run)
        done = earlier.filter(pc.equal(earlier.column("outcome"), "quarantined")).column("address").to_pylist()
        left = [key for key in keys if key not in done]
        sizes = [len(content(KEYS.index(key))) + beyond for key in left]
        rows = candidates(*left).set_column(6, "size", pa.array(sizes, pa.int64()))
        found = list(Quarantine(store, self.run, token, HandClock(), attempt="attempt").delete(rows))
        return pa.concat_tables(found) if found else None

    def restore(self, store: ObjectStore) -> dict[str, RestoreFate]:
        token = self.lock().token
        deleted = restore_module.deleted_by(store, self.run)
        return {
            each.address: each.fate
            for each in restore_module.restore_copies(store, self.run, deleted, token, HandClock())
        }

    def there(self, prefix: str = "data/") -> dict[str, bytes]:
        """Objects and their content."""
        keys = [key for batch in self.store.list(prefix) for key in batch["key"].to_pylist()]
        return {key.removeprefix(f"{layout.QUARANTINE_PREFIX}{self.run}/"): self.store.get(key) for key in keys}

    def moved(self) -> dict[str, bytes]:
        return self.there(layout.QUARANTINE_PREFIX)


def content(number: int) -> bytes:
    return f"content {number} ".encode() * (number + 1)


ALL = {key: content(number) for number, key in enumerate(KEYS)}


@pytest.fixture
def moving(opened: OpenRepository, store: ObjectStore) -> Moving:
    """The repository before the run sweeps."""
    made = Moving(replace(opened, store=store))
    made.prepare()
    return made


@in_a_folder
def test_what_is_swept_lies_in_quarantine_and_no_listing_finds_it(moving: Moving) -> None:
    rows = moving.quarantine(moving.store, KEYS[:2])
    assert rows.column("outcome").to_pylist() == ["quarantined"] * 2
    assert set(rows.column("attempt").to_pylist()) == {"attempt"}
    assert moving.there() == {KEYS[2]: ALL[KEYS[2]]}
    assert moving.moved() == {key: ALL[key] for key in KEYS[:2]}
    listing = parts.listing(moving.store, NOW + DAY)
    found = [
        address
        for part in listing.parts
        for batch in parts.list_part(moving.store, part, "month")[0]
        for address in batch.column("address").to_pylist()
    ]
    assert found == KEYS[2:]


@in_a_folder
def test_receipts_say_that_there_is_a_copy_before_anything_is_deleted(moving: Moving) -> None:
    seen = []

    class Watching(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            seen.append(receipts.read(self.store, moving.run).select(["address", "outcome"]).to_pylist())
            assert moving.moved() == ALL
            return super().delete(keys)

    moving.quarantine(Watching(moving.store))
    assert seen == [[{"address": key, "outcome": "copied"} for key in KEYS]]


@pytest.mark.parametrize("store", ["local", "s3", "gcs", pytest.param("azure", marks=pytest.mark.slow)], indirect=True)
def test_everything_comes_back_and_copies_stay(moving: Moving) -> None:
    moving.quarantine(moving.store)
    assert moving.there() == {}
    assert moving.restore(moving.store) == dict.fromkeys(KEYS, RestoreFate.RESTORED)
    assert (moving.there(), moving.moved()) == (ALL, ALL)
    assert moving.restore(moving.store) == dict.fromkeys(KEYS, RestoreFate.THERE)
    assert (moving.there(), moving.moved()) == (ALL, ALL)


@in_a_folder
@pytest.mark.parametrize("is_done_before", [False, True])
def test_what_a_deletion_that_is_done_late_takes_away_comes_back(moving: Moving, is_done_before: bool) -> None:
    """Its answer was lost, or its process stood still: the store executes it (again) after a restore."""

    class Late(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            if is_done_before:
                super().delete(keys)
            raise StorageError("the connection broke")

    with pytest.raises(StorageError, match="broke"):
        moving.quarantine(Late(moving.store))
    assert all(fate.is_well for fate in moving.restore(moving.store).values()) and moving.there() == ALL
    moving.store.delete(KEYS)
    assert moving.restore(moving.store) == dict.fromkeys(KEYS, RestoreFate.RESTORED) and moving.there() == ALL


@in_a_folder
def test_what_a_client_named_another_size_of_comes_back(moving: Moving) -> None:
    """A run without a listing knows sizes only from entries."""
    moving.quarantine(moving.store, beyond=9)
    assert moving.restore(moving.store) == dict.fromkeys(KEYS, RestoreFate.RESTORED)
    assert moving.there() == ALL


@pytest.mark.parametrize(
    ("store", "changed"),
    [
        ("local", b"XX"),
        *((store, b"x" * len(content(1))) for store in ("local", "s3", "gcs")),
        pytest.param("azure", b"x" * len(content(1)), marks=pytest.mark.slow),
    ],
    indirect=["store"],
)
def test_copy_that_was_cut_or_exchanged_does_not_come_back(moving: Moving, changed: bytes) -> None:
    moving.quarantine(moving.store)
    moving.store.put(sweeping.key(moving.run, KEYS[1]), changed)
    fates = {KEYS[0]: RestoreFate.RESTORED, KEYS[1]: RestoreFate.FAILED, KEYS[2]: RestoreFate.RESTORED}
    assert moving.restore(moving.store) == fates
    assert moving.there() == {key: ALL[key] for key in (KEYS[0], KEYS[2])}
    moving.store.put(KEYS[1], ALL[KEYS[1]])
    assert moving.restore(moving.store) == dict.fromkeys(KEYS, RestoreFate.THERE)
    assert moving.there() == ALL


@in_a_folder
def test_receipts_of_earlier_versions_name_no_etag_and_copies_come_back_as_they_are(moving: Moving) -> None:
    moving.quarantine(moving.store)
    for key in receipts.keys(moving.store, moving.run):
        old = receipts.read_file(moving.store, key).drop_columns(["copy_etag"])
        moving.store.put(key, tables.encode(old))
    moving.store.put(sweeping.key(moving.run, KEYS[1]), b"XX")
    assert moving.restore(moving.store) == dict.fromkeys(KEYS, RestoreFate.RESTORED)


@in_a_folder
def test_the_copy_of_what_cannot_be_deleted_goes_whatever_size_a_client_named(moving: Moving) -> None:
    class Refusing(BreakingStore):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            if KEYS[1] not in keys:
                return super().delete(keys)
            others = super().delete([key for key in keys if key != KEYS[1]])
            return [*others, DeleteOutcome(KEYS[1], DeleteResult.FAILED, "Forbidden")]

    moving.quarantine(Refusing(moving.store), beyond=9)
    assert ({*moving.there()}, {*moving.moved()}) == ({KEYS[1]}, {KEYS[0], KEYS[2]})


def test_a_batch_is_one_request_of_every_store_so_that_no_answer_is_lost_in_part() -> None:
    assert min(gcs_module.BATCH, azure_module.BATCH, BucketStore.delete_limit) >= sweeping.BATCH


@in_a_folder
def test_what_is_at_the_address_again_is_not_known_to_be_the_same_where_a_store_tells_no_etags(moving: Moving) -> None:
    class WithoutEtags(BreakingStore):
        def head(self, key: str) -> ObjectFacts:
            return replace(super().head(key), etag=None)

    moving.quarantine(moving.store)
    moving.store.put(KEYS[0], b"x" * len(ALL[KEYS[0]]))
    moving.store.put(KEYS[1], ALL[KEYS[1]])
    store = WithoutEtags(moving.store)
    assert restore_module.find_back(store, moving.run, KEYS) == {KEYS[1]}
    assert moving.restore(store) == {
        KEYS[0]: RestoreFate.THERE,
        KEYS[1]: RestoreFate.THERE,
        KEYS[2]: RestoreFate.RESTORED,
    }
    assert restore_module.find_back(store, moving.run, KEYS) == {*KEYS[1:]}


@in_a_folder
def test_every_batch_has_its_receipts_of_copies_and_of_deletions(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(BreakingStore):
        def copy(self, source: str, target: str) -> ObjectFacts:
            if source == KEYS[1]:
                raise StorageError("AccessDenied")
            return super().copy(source, target)

    monkeypatch.setattr(sweeping, "BATCH", 1)
    moving.quarantine(Refusing(moving.store))
    rows = receipts.read(moving.store, moving.run)
    assert sorted(zip(*(rows[name].to_pylist() for name in ("address", "outcome", "attempt")), strict=True)) == [
        (KEYS[0], "copied", "attempt"),
        (KEYS[0], "quarantined", "attempt"),
        (KEYS[1], "failed", "attempt"),
        (KEYS[2], "copied", "attempt"),
        (KEYS[2], "quarantined", "attempt"),
    ]


@in_a_folder
def test_an_archived_object_is_kept_without_a_failure_until_it_is_brought_back(moving: Moving) -> None:
    class Archiving(BreakingStore):
        def copy(self, source: str, target: str) -> ObjectFacts:
            if source == KEYS[1]:
                raise ObjectArchived(f"cannot copy {source!r}: it is in an archive tier")
            return super().copy(source, target)

    for _ in range(2):
        rows = moving.quarantine(Archiving(moving.store)).to_pylist()
        kept = [(row["address"], row["error"]) for row in rows if row["outcome"] == "kept_archived"]
        ((address, error),) = kept
        assert address == KEYS[1] and "no copy in quarantine: cannot copy" in error
        assert not [row for row in rows if row["outcome"] == "failed"]
        assert moving.there() == {KEYS[1]: ALL[KEYS[1]]}
    assert moving.moved() == {key: ALL[key] for key in (KEYS[0], KEYS[2])}
    moving.quarantine(moving.store)
    assert (moving.there(), moving.moved()) == ({}, ALL)


@in_a_folder
def test_sixteen_objects_are_copied_at_once(moving: Moving) -> None:
    keys, all_at_once = [f"{SLICE}dc0n8tpksdu988af5t{number:01x}0" for number in range(16)], Barrier(16, timeout=900)

    class Waiting(BreakingStore):
        def copy(self, source: str, target: str) -> ObjectFacts:
            all_at_once.wait()
            return super().copy(source, target)

    for key in keys:
        moving.store.put(key, b"")
    sweep = Quarantine(Waiting(moving.store), moving.run, moving.lock().token, HandClock())
    (rows,) = sweep.delete(candidates(*keys))
    assert rows["outcome"].to_pylist() == ["quarantined"] * 16


@in_a_folder
class TestWhatIsToldOfARestoration:
    def reported(self, moving: Moving, store: ObjectStore) -> list[tuple[str, RestoreFate, str | None]]:
        token, deleted = moving.lock().token, restore_module.deleted_by(store, moving.run)
        found = restore_module.restore_copies(store, moving.run, deleted, token, HandClock())
        return sorted((each.address, each.fate, each.why) for each in found)

    def test_where_there_is_something_else_or_nothing(self, moving: Moving) -> None:
        moving.quarantine(moving.store)
        moving.store.delete([sweeping.key(moving.run, KEYS[0])])
        moving.store.put(KEYS[1], b"x" * len(ALL[KEYS[1]]))
        moving.store.put(KEYS[2], b"another size")
        copy = sweeping.key(moving.run, KEYS[1])
        assert self.reported(moving, moving.store) == [
            (KEYS[0], RestoreFate.HIDDEN, "it is no longer in quarantine: purged, or removed by hand"),
            (
                KEYS[1],
                RestoreFate.THERE,
                f"it may differ from the deleted object, whose copy {copy} stays in quarantine",
            ),
            (
                KEYS[2],
                RestoreFate.FAILED,
                f"the address has an object of 12 bytes, but the deleted one had {len(ALL[KEYS[2]])}",
            ),
        ]
        assert moving.there() == {KEYS[1]: b"x" * len(ALL[KEYS[1]]), KEYS[2]: b"another size"}
        assert moving.moved() == {key: ALL[key] for key in KEYS[1:]}
        assert restore_module.find_back(moving.store, moving.run, KEYS) == frozenset()

    @pytest.mark.parametrize(
        ("left_to_read", "same", "known"), [(0, True, True), (-1, True, False), (-1, False, False)]
    )
    def test_where_only_reading_says_whether_it_is_the_same(
        self, moving: Moving, monkeypatch: pytest.MonkeyPatch, left_to_read: int, same: bool, known: bool
    ) -> None:
        class WithoutEtags(BreakingStore):
            def head(self, key: str) -> ObjectFacts:
                return replace(super().head(key), etag=None)

        size = len(ALL[KEYS[0]])
        monkeypatch.setattr(interface, "LARGEST_READ", size + left_to_read)
        moving.quarantine(moving.store, KEYS[:1])
        moving.store.put(KEYS[0], ALL[KEYS[0]] if same else b"x" * size)
        ((_, fate, why),) = self.reported(moving, WithoutEtags(moving.store))
        assert (fate, why is None) == (RestoreFate.THERE, known)
        back = restore_module.find_back(WithoutEtags(moving.store), moving.run, KEYS)
        assert back == ({KEYS[0]} if known else set())

    def test_where_etags_say_that_it_is_the_same_nothing_is_read(self, moving: Moving) -> None:
        class Unread(BreakingStore):
            def get(self, key: str) -> bytes:
                assert KEYS[0] not in key
                return super().get(key)

        moving.quarantine(moving.store, KEYS[:1])
        moving.store.copy(sweeping.key(moving.run, KEYS[0]), KEYS[0])
        assert restore_module.find_back(Unread(moving.store), moving.run, KEYS) == {KEYS[0]}
        assert self.reported(moving, Unread(moving.store)) == [(KEYS[0], RestoreFate.THERE, None)]
        assert moving.there()[KEYS[0]] == ALL[KEYS[0]]

    def test_where_the_store_refuses(self, moving: Moving) -> None:
        class Refusing(BreakingStore):
            def copy_if_absent(self, source: str, target: str) -> None:
                if target == KEYS[0]:
                    raise StorageError("AccessDenied")
                super().copy_if_absent(source, target)

        moving.quarantine(moving.store)
        assert self.reported(moving, Refusing(moving.store)) == [
            (KEYS[0], RestoreFate.FAILED, "AccessDenied"),
            (KEYS[1], RestoreFate.RESTORED, None),
            (KEYS[2], RestoreFate.RESTORED, None),
        ]

    def test_what_was_copied_back_by_a_request_without_an_answer(self, moving: Moving) -> None:
        class Repeating(BreakingStore):
            def copy_if_absent(self, source: str, target: str) -> None:
                super().copy_if_absent(source, target)
                super().copy_if_absent(source, target)

        moving.quarantine(moving.store)
        assert self.reported(moving, Repeating(moving.store)) == [(key, RestoreFate.THERE, None) for key in KEYS]
        assert moving.there() == ALL


@in_a_folder
class TestWithoutACopy:
    def test_nothing_is_deleted(self, moving: Moving) -> None:
        class Refusing(BreakingStore):
            def copy(self, source: str, target: str) -> ObjectFacts:
                if source == KEYS[1]:
                    raise StorageError("AccessDenied")
                return super().copy(source, target)

        rows = moving.quarantine(Refusing(moving.store))
        assert dict(zip(rows["address"].to_pylist(), rows["outcome"].to_pylist(), strict=True)) == {
            KEYS[0]: "quarantined",
            KEYS[1]: "failed",
            KEYS[2]: "quarantined",
        }
        assert moving.there() == {KEYS[1]: ALL[KEYS[1]]}
        (failed,) = rows.filter(pc.equal(rows["outcome"], "failed")).to_pylist()
        assert "no copy in quarantine: AccessDenied" in failed["error"]

    def test_an_object_that_is_not_there_counts_as_failed(self, moving: Moving) -> None:
        moving.store.delete([KEYS[0]])
        rows = moving.quarantine(moving.store)
        outcomes = dict(zip(rows["address"].to_pylist(), rows["outcome"].to_pylist(), strict=True))
        assert outcomes[KEYS[0]] == "failed"


@in_a_folder
def test_a_stale_copy_is_replaced(moving: Moving) -> None:
    moving.store.put(sweeping.key(moving.run, KEYS[0]), b"x" * len(ALL[KEYS[0]]))
    moving.store.put(sweeping.key(moving.run, KEYS[1]), b"another size")
    moving.quarantine(moving.store)
    assert moving.moved() == ALL


@in_a_folder
class TestTheTimeAndTheLock:
    def test_copies_that_take_too_long_are_not_followed_by_deletes(self, moving: Moving) -> None:
        clock = HandClock()

        class Slow(BreakingStore):
            def copy(self, source: str, target: str) -> ObjectFacts:
                clock.sleep(600)
                return super().copy(source, target)

        token = moving.lock().token
        slow = Slow(moving.store)
        countdown = Validity.begin(slow, moving.run, timedelta(minutes=15)).countdown(slow, moving.run, clock)
        sweep = Quarantine(slow, moving.run, token, clock, countdown=countdown)
        (rows,) = sweep.delete(candidates(*KEYS))
        assert rows.num_rows == 0
        assert (moving.there(), moving.moved()) == (ALL, ALL)

    def test_a_lock_lost_while_copying_stops_the_deletes(self, moving: Moving) -> None:
        held = moving.lock()

        class Losing(BreakingStore):
            def copy(self, source: str, target: str) -> ObjectFacts:
                facts = super().copy(source, target)
                if source == KEYS[2]:
                    held.release()
                return facts

        with pytest.raises(LockLost):
            list(Quarantine(Losing(moving.store), moving.run, held.token, HandClock()).delete(candidates(*KEYS)))
        assert moving.there() == ALL

    def test_a_name_that_is_no_data_stops_the_batch(self, moving: Moving) -> None:
        token = moving.lock().token
        with pytest.raises(Exception, match="lakeFS never gives such a name to data"):
            list(Quarantine(moving.store, moving.run, token, HandClock()).delete(candidates("_lakefs/" + "a" * 64)))
        assert moving.moved() == {}


def breaks(moving: Moving, work: Callable[[ObjectStore], object], prepare: Callable[[], None], how: Break) -> int:
    """Breaks every call of some work once: nothing is ever lost, and a repetition finishes the work."""
    count = 0
    for what in every_break(lambda: moving.store, work, prepare, how):
        assert moving.moved() | moving.there() == ALL, what
        work(moving.store)
        assert moving.moved() | moving.there() == ALL, what
        count += 1
    return count


@in_a_folder
@pytest.mark.parametrize("how", list(Break))
def test_whatever_call_of_a_sweep_breaks_nothing_is_lost_and_a_repeat_finishes_it(moving: Moving, how: Break) -> None:
    def sweep(store: ObjectStore) -> None:
        moving.quarantine(store)
        if store is moving.store:
            assert (moving.there(), moving.moved()) == ({}, ALL)

    assert breaks(moving, sweep, moving.prepare, how) > 8


@pytest.mark.slow
@in_a_folder
@pytest.mark.parametrize("how", list(Break))
def test_whatever_call_of_a_restore_breaks_nothing_is_lost_and_a_repeat_finishes_it(moving: Moving, how: Break) -> None:
    def prepare() -> None:
        moving.prepare()
        moving.quarantine(moving.store)

    def restore(store: ObjectStore) -> None:
        reported = moving.restore(store)
        if store is moving.store:
            assert all(fate.is_well for fate in reported.values())
            assert (moving.there(), moving.moved()) == (ALL, ALL)
            rows = receipts.read(moving.store, moving.run)
            undone = rows.filter(pc.equal(rows["outcome"], Outcome.RESTORED.value))
            assert set(undone["address"].to_pylist()) == set(KEYS)

    assert breaks(moving, restore, prepare, how) > 10

"""Undoing the deletions of a run in a bucket that keeps versions: the delete markers that it made are removed.

Only markers whose version ids are in the run's receipts are touched, and only where they are still the newest version.
An answer that got lost can leave a marker that no receipt names below one that does: its object stays hidden, which is
told.
"""

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collection import plan as plans
from lakefs_gc_assets.collection import receipts, restoration
from lakefs_gc_assets.collection.clock import Clock
from lakefs_gc_assets.collection.lock import LockToken, verify
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.tables import RECEIPTS
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, ObjectNotFound, StorageError
from lakefs_gc_assets.storage.interface import NULL_VERSION, KeepsVersions, ObjectStore

BATCH = 500
"""Addresses between two looks at the lock; their receipts are stored together."""
_CALLERS = 16


class Fate(StrEnum):
    """What became of a deleted object."""

    RESTORED = "restored"
    THERE = "there already"
    HIDDEN = "still gone"
    FAILED = "failed"

    @property
    def is_well(self) -> bool:
        """Whether the object is there."""
        return self in (Fate.RESTORED, Fate.THERE)


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of one address; `why` is set where it is not there."""

    address: str
    fate: Fate
    why: str | None = None


def deleted_by(store: ObjectStore, run_id: str, addresses: Sequence[str] = ()) -> pa.Table:
    """The receipts (RECEIPTS) of deletions of a run that can be undone, of some addresses or of all.

    Raises CollectionError where there is no such run, where it did not delete one of the addresses, or where nothing of
    it can come back.
    """
    plans.read(store, run_id)
    rows = receipts.read(store, run_id)
    accepted = rows.filter(pc.equal(rows.column("outcome"), Outcome.ACCEPTED.value))
    if addresses:
        unknown = set(addresses).difference(accepted.column("address").to_pylist())
        if unknown:
            raise CollectionError(f"run {run_id} did not delete {min(unknown)!r}")
        accepted = accepted.filter(pc.is_in(accepted.column("address"), pa.array(addresses, pa.string())))
    if not accepted.num_rows:
        raise CollectionError(f"run {run_id} deleted nothing")
    if accepted.column("version_id").null_count == accepted.num_rows:
        raise CollectionError(
            f"what run {run_id} deleted is gone: its receipts name no delete marker. Only a bucket that kept versions "
            "when the run deleted can bring objects back"
        )
    return accepted


def restore(store: ObjectStore, run_id: str, deleted: pa.Table, lock: LockToken, clock: Clock) -> Iterator[Restored]:
    """Brings objects back, and tells of each address as it happens. May be repeated after a failure.

    The next run is a clean one, whatever comes of this.

    Args:
        deleted: receipts of the run, see `deleted_by`.
        lock: the repository's, held.
    Raises:
        ConfigurationError: the store keeps no versions.
        LockLost: before a batch, when the lock is no longer held.
    """
    if not isinstance(store, KeepsVersions):
        raise ConfigurationError("this kind of store has no delete markers: what a run deleted there is gone")
    verify(store, lock)
    restoration.write(store, run_id, clock.now())
    latest_first = deleted.sort_by([("decided_at", "descending")])
    # In one thread the ids of an address stay in this order.
    groups = latest_first.group_by("address", use_threads=False)
    by_address = groups.aggregate([("version_id", "list"), ("size", "max")])
    with ThreadPoolExecutor(_CALLERS) as pool:
        for start in range(0, by_address.num_rows, BATCH):
            verify(store, lock)
            found = list(pool.map(lambda row: _restored(store, row), by_address.slice(start, BATCH).to_pylist()))
            there = pa.array([each.address for each in found if each.fate.is_well], pa.string())
            if len(there):
                rows = deleted.filter(pc.is_in(deleted.column("address"), there))
                receipts.write(store, run_id, uuid.uuid4().hex, _as_restored(rows, clock.now()))
            yield from found


def _restored(store: KeepsVersions, row: dict[str, Any]) -> Restored:
    """Removes the markers of one address, the latest first, and looks what is there then."""
    address, version_ids = row["address"], row["version_id_list"]
    try:
        named = [version_id for version_id in version_ids if version_id not in (None, NULL_VERSION)]
        removed = [store.remove_delete_marker(address, version_id) for version_id in named]
        size = _size(store, address)
    except StorageError as error:
        return Restored(address, Fate.FAILED, str(error))
    if size is None:
        return Restored(address, Fate.HIDDEN, _why_hidden(version_ids, removed))
    if size != row["size_max"]:
        return Restored(address, Fate.FAILED, f"there is an object of {size:,} bytes, {row['size_max']:,} were deleted")
    return Restored(address, Fate.RESTORED if any(removed) else Fate.THERE)


def _size(store: ObjectStore, address: str) -> int | None:
    try:
        return store.head(address).size
    except ObjectNotFound:
        return None


def _why_hidden(version_ids: Sequence[str | None], removed: Sequence[bool]) -> str:
    if any(removed):
        return "below the delete marker of the run is another one that its receipts do not name, or nothing"
    if removed:
        return "the delete marker of the run is not the newest version"
    if NULL_VERSION in version_ids:
        return "versioning was suspended: the delete marker of the run has no id of its own"
    return "the bucket kept no version of it"


def _as_restored(rows: pa.Table, now: datetime) -> pa.Table:
    """Receipts of the same deletions that say that they were undone."""
    values = {"outcome": [Outcome.RESTORED.value] * rows.num_rows, "decided_at": [now] * rows.num_rows}
    for name, column in values.items():
        field = RECEIPTS.field(name)
        rows = rows.set_column(RECEIPTS.get_field_index(name), field, pa.array(column, field.type))
    return rows

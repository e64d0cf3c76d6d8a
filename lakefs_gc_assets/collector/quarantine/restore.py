"""Restores objects that a run deleted: from quarantine, or by removing delete markers.

From quarantine, the store copies an object to its address if no object is there. The copy stays until it is purged,
since a late deletion may follow the restoration: its answer was lost, or its process stalled and lost the lock.

In a versioned bucket, delete markers are removed. Only markers whose version ids are in the run's receipts are removed,
and only if they are still the newest version. If the answer to a deletion was lost, an unrecorded marker can be below a
recorded one. That object stays hidden, and its outcome says so.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.frames import DELETED_REPORT, RECEIPTS
from lakefs_gc_assets.collector.frame.receipts import DamagedFile
from lakefs_gc_assets.collector.records import across_runs, plan, run_folder
from lakefs_gc_assets.collector.records.outcomes import BaseFate, Outcome
from lakefs_gc_assets.collector.repository.lock import LockToken, locked, verify
from lakefs_gc_assets.collector.repository.repository import Clock, OpenRepository, relative
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.errors import (
    AlreadyExists,
    CollectionError,
    ConfigurationError,
    CorruptFile,
    LogLine,
    ObjectNotFound,
    OrderViolation,
    StorageError,
    counted,
)
from lakefs_gc_assets.storage import interface
from lakefs_gc_assets.storage.interface import (
    NULL_VERSION,
    KeepsVersions,
    ObjectFacts,
    ObjectStore,
    OpensStore,
    head_if_there,
)

BATCH = 500
"""Addresses between two checks of the lock; their receipts are stored together."""
_CALLERS = 16
_IN_TASK = 1000
_MOVED = frozenset([Outcome.COPIED, Outcome.QUARANTINED])


class RestoreFate(BaseFate):
    """Result for a deleted object."""

    RESTORED = "restored"
    THERE = "there already"
    HIDDEN = "still gone"
    FAILED = "failed"

    @property
    def is_well(self) -> bool:
        """True if the object exists."""
        return self in (RestoreFate.RESTORED, RestoreFate.THERE)


@dataclass(frozen=True, slots=True)
class Restored:
    """Result for one address; `why` is the reason for an unexpected result, else None."""

    address: str
    fate: RestoreFate
    why: str | None = None


def deleted_by(
    store: ObjectStore, run_id: str, addresses: Sequence[str] = (), damaged: DamagedFile | None = None
) -> pa.Table:
    """The receipts (RECEIPTS) of a run's deletions that may be undone, for some addresses or all.

    Receipts suffice: the run's plan may be damaged or gone.

    Args:
        damaged: as for `undoable`.
    Raises:
        CorruptFile: receipts cannot be read, and `damaged` does not handle it.
        CollectionError: there is no such run, it did not delete one of the addresses, or none of its objects can be
            restored.
    """
    deleted = undoable(store, run_id, damaged)
    if not deleted.num_rows:
        plan.read(store, run_id)
    if addresses:
        unknown = set(addresses).difference(deleted.column("address").to_pylist())
        if unknown:
            raise CollectionError(f"run {run_id} did not delete {min(unknown)!r}")
        deleted = deleted.filter(pc.is_in(deleted.column("address"), pa.array(addresses, pa.string())))
    if not deleted.num_rows:
        raise CollectionError(f"run {run_id} deleted nothing")
    if deleted.column("version_id").null_count == deleted.num_rows and not _moved(deleted):
        raise CollectionError(
            f"objects that run {run_id} deleted are gone: its receipts name neither delete markers nor objects in "
            "quarantine. Objects can be restored only if the bucket kept versions when the run deleted, or if "
            "collection.sweep_mode was quarantine"
        )
    return deleted


def undoable(store: ObjectStore, run_id: str, damaged: DamagedFile | None = None) -> pa.Table:
    """The receipts (RECEIPTS) of objects that a run deleted, or copied and may have deleted without a receipt.

    Args:
        damaged: handles each unreadable file that nothing replaces. By default such a file is an error.
    """
    lost: list[CorruptFile] = []
    rows = receipts.read(store, run_id, lost.append)
    if lost:
        # A finished run's frame `deleted_report` has the same rows.
        reported, missing = _reported(store, run_id)
        for each in [*lost, *missing] if missing else ():
            if damaged is None:
                raise each
            damaged(each)
        receipt_addresses = rows.column("address").combine_chunks()
        rows = pa.concat_tables(
            [rows, reported.filter(pc.invert(pc.is_in(reported.column("address"), receipt_addresses)))]
        )
    deleted = rows.filter(pc.is_in(rows.column("outcome"), pa.array(receipts.GONE, pa.string())))
    copied = rows.filter(pc.equal(rows.column("outcome"), Outcome.COPIED.value))
    unsure = pc.invert(pc.is_in(copied.column("address"), deleted.column("address").combine_chunks()))
    return pa.concat_tables([deleted, copied.filter(unsure)])


def _reported(store: ObjectStore, run_id: str) -> tuple[pa.Table, list[CorruptFile]]:
    """The rows of a run's frame `deleted_report` (RECEIPTS), and errors of its damaged or missing files."""
    parts, missing = [RECEIPTS.empty_table()], list[CorruptFile]()
    try:
        manifest = files.read_manifest(store, run_id, DELETED_REPORT)
        if not manifest.figures.swept:
            # It dates from the dry run, before the approval.
            raise OrderViolation(f"{DELETED_REPORT.name} of run {run_id} contains no sweep")
        stored = manifest.files
    except OrderViolation:
        stored, missing = (), [CorruptFile.missing(run_folder.manifest(run_id, DELETED_REPORT.name))]
    except CorruptFile as corrupt:
        stored, missing = (), [corrupt]
    for file in stored:
        try:
            parts.append(files.read_file(store, file, RECEIPTS, added=DELETED_REPORT.added).cast(RECEIPTS))
        except CorruptFile as corrupt:
            missing.append(corrupt)
    return pa.concat_tables(parts), missing


def _moved(gone: pa.Table) -> bool:
    """True if some of these objects have a copy in quarantine."""
    return not _MOVED.isdisjoint(gone.column("outcome").unique().to_pylist())


def restore_copies(
    store: ObjectStore,
    run_id: str,
    deleted: pa.Table,
    lock: LockToken,
    clock: Clock,
    in_tasks: tuple[Engine[Any], OpensStore] | None = None,
) -> Iterator[Restored]:
    """Restores objects during iteration; yields the result for each address.

    May be repeated after a failure. The next run is a clean one, even if no object was restored.

    Args and errors are those of `undo_deletions`.
    """
    # Raises before anything is done.
    _undoing(store, run_id, _moved(deleted))
    verify(store, lock)
    across_runs.write_restoration(store, run_id, clock.now())
    yield from undo_deletions(store, run_id, deleted, lock, clock, in_tasks)


def undo_deletions(
    store: ObjectStore,
    run_id: str,
    deleted: pa.Table,
    lock: LockToken,
    clock: Clock,
    in_tasks: tuple[Engine[Any], OpensStore] | None = None,
) -> Iterator[Restored]:
    """Restores objects that no run of the repository builds on, during iteration; yields the result for each address.

    May be repeated after a failure.

    Args:
        deleted: receipts of the run, see `deleted_by`.
        lock: the repository's lock, held by the caller.
        in_tasks: an engine to restore addresses in its tasks, and the opener of the store there; None for this process.
            Each task checks the lock before a batch. A task that runs twice finds its objects already restored.
    Raises:
        ConfigurationError: the run left no copies, and this kind of store has no delete markers.
        LockLost: before a batch, if the lock is no longer held.
    """
    has_copies = _moved(deleted)
    engine, open_store = (in_tasks[0], in_tasks[1].open) if in_tasks else (LocalEngine(), lambda: store)
    undo = partial(_undo_all, open_store, run_id, lock, has_copies)
    verify(store, lock)
    latest_first = deleted.sort_by([("decided_at", "descending")])
    # Grouping in one thread keeps the version ids of an address in this order.
    groups = latest_first.group_by("address", use_threads=False)
    by_address = groups.aggregate(
        [("version_id", "list"), ("outcome", "list"), ("size", "max"), ("copy_etag", "first")]
    )
    at_once = engine.tasks * _IN_TASK if in_tasks else BATCH
    for start in range(0, by_address.num_rows, at_once):
        addresses = engine.spread(engine.table(by_address.slice(start, at_once)))
        rows = engine.collect(engine.map_batches(addresses, undo, _RESULTS)).to_pylist()
        results = [Restored(row["address"], RestoreFate(row["fate"]), row["why"]) for row in rows]
        whys = {each.address: each.why for each in results if each.fate.is_well}
        if whys:
            restored = pc.is_in(deleted.column("address"), pa.array(whys, pa.string()))
            undone = _as_restored(deleted.filter(restored), whys, clock.now())
            receipts.write(store, run_id, f"{receipts.OF_RESTORE}{uuid.uuid4().hex}", undone)
        yield from results


_RESULTS = pa.schema([(name, pa.string()) for name in ("address", "fate", "why")])


def _undo_all(
    open_store: Callable[[], ObjectStore],
    run_id: str,
    lock: LockToken,
    has_copies: bool,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Restores the addresses of a task (_RESULTS)."""
    store = open_store()
    undo = _undoing(store, run_id, has_copies)
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH):
            verify(store, lock)
            with ThreadPoolExecutor(_CALLERS) as pool:
                results = list(pool.map(undo, batch.slice(start, BATCH).to_pylist()))
            columns = zip(*((each.address, each.fate.value, each.why) for each in results), strict=True)
            yield pa.record_batch([pa.array(column, pa.string()) for column in columns], schema=_RESULTS)


def _undoing(store: ObjectStore, run_id: str, has_copies: bool) -> Callable[[dict[str, Any]], Restored]:
    """A function that restores one address."""
    versions = store if isinstance(store, KeepsVersions) else None
    if not has_copies and versions is None:
        raise ConfigurationError("this kind of store has no delete markers: objects that a run deleted there are gone")

    def undo(row: dict[str, Any]) -> Restored:
        if has_copies and not _MOVED.isdisjoint(row["outcome_list"]):
            return from_quarantine(store, run_id, row["address"], row["size_max"], row["copy_etag_first"])
        if versions is not None:
            return _from_versions(versions, row)
        return Restored(row["address"], RestoreFate.HIDDEN, "the run deleted it without a copy in quarantine")

    return undo


def from_quarantine(store: ObjectStore, run_id: str, address: str, size: int, copy_etag: str | None = None) -> Restored:
    """Copies one object back if its address is free, unless its copy was changed since the run made it.

    A copy with another ETag than the recorded one was truncated or replaced, and is not restored.

    Args:
        run_id: the run that moved it; names a folder of the quarantine.
        size: bytes of the object, as the run knew it.
        copy_etag: ETag of the copy as the run made it; None if unknown.
    """
    try:
        return _copy_back(store, address, sweeping.key(run_id, address), size, copy_etag)
    except StorageError as error:
        return Restored(address, RestoreFate.FAILED, str(error))


def _copy_back(store: ObjectStore, address: str, copy: str, size: int, copy_etag: str | None) -> Restored:
    kept = None if copy_etag is None else head_if_there(store, copy)
    if kept is not None and kept.etag not in (None, copy_etag):
        why = (
            f"its copy {copy} was changed after the run made it, and now has {counted(kept.size, 'bytes')}: restore an "
            "earlier version of the copy, or inspect it and copy it to the address yourself"
        )
        return Restored(
            address, RestoreFate.FAILED if head_if_there(store, address) is None else RestoreFate.THERE, why
        )
    try:
        # The store compares the new object with the copy.
        store.copy_if_absent(copy, address)
        return Restored(address, RestoreFate.RESTORED)
    except AlreadyExists:
        kept = head_if_there(store, copy)
    except ObjectNotFound:
        if head_if_there(store, address) is None:
            return Restored(address, RestoreFate.HIDDEN, "it is no longer in quarantine: purged, or removed by hand")
    there = store.head(address)
    # A receipt may have a size that a client stated; a copy has its own.
    moved_size = size if kept is None else kept.size
    if there.size != moved_size:
        return Restored(address, RestoreFate.FAILED, _other_size(there.size, moved_size))
    # Any other object at the address is not the original of the copy.
    if kept is not None and not _alike(store, there, kept):
        why = f"it may differ from the deleted object, whose copy {copy} stays in quarantine"
        return Restored(address, RestoreFate.THERE, why)
    return Restored(address, RestoreFate.THERE)


def find_back(store: ObjectStore, run_id: str, addresses: Sequence[str]) -> frozenset[str]:
    """The addresses whose object is the original of a run's copy in quarantine.

    Addresses at which the store fails are left out: restoring them reports why. Raises StorageError for unreadable
    receipts.
    """
    if not addresses:
        return frozenset()
    # A copy of a copy may have another ETag, and be too large to read: receipts prove that the store made it.
    rows = receipts.read(store, run_id, lambda damage: None, receipts.OF_RESTORE)
    restored = frozenset(rows.filter(pc.is_null(rows.column("error"))).column("address").to_pylist())

    def is_back(address: str) -> bool:
        with suppress(StorageError):
            there, kept = head_if_there(store, address), head_if_there(store, sweeping.key(run_id, address))
            if there is not None and kept is not None and there.size == kept.size:
                return address in restored or _alike(store, there, kept)
        return False

    return frozenset(compress(addresses, work_ahead(is_back, addresses, _CALLERS)))


def _alike(store: ObjectStore, one: ObjectFacts, other: ObjectFacts) -> bool:
    """True if two objects of equal size are known to have the same content."""
    if one.etag is not None and one.etag == other.etag:
        return True
    if one.size > interface.LARGEST_READ:
        return False
    checksums = interface.content_digest(store, one.key), interface.content_digest(store, other.key)
    return checksums[0] is not None and checksums[0] == checksums[1]


def _from_versions(store: KeepsVersions, row: dict[str, Any]) -> Restored:
    """Removes the delete markers of one address, latest first, and checks whether the object is then visible."""
    address, version_ids = row["address"], row["version_id_list"]
    try:
        named = [version_id for version_id in version_ids if version_id not in (None, NULL_VERSION)]
        removed = [store.remove_delete_marker(address, version_id) for version_id in named]
        there = head_if_there(store, address)
    except StorageError as error:
        return Restored(address, RestoreFate.FAILED, str(error))
    if there is None:
        return Restored(address, RestoreFate.HIDDEN, _why_hidden(version_ids, removed))
    if there.size != row["size_max"]:
        return Restored(address, RestoreFate.FAILED, _other_size(there.size, row["size_max"]))
    return Restored(address, RestoreFate.RESTORED if any(removed) else RestoreFate.THERE)


def _other_size(there: int, deleted: int) -> str:
    return f"the address has an object of {counted(there, 'bytes')}, but the deleted one had {deleted:,}"


def _why_hidden(version_ids: Sequence[str | None], removed: Sequence[bool]) -> str:
    if any(removed):
        return "below the run's delete marker is nothing, or a marker that its receipts do not name"
    if removed:
        return "the run's delete marker is not the newest version"
    if NULL_VERSION in version_ids:
        return "versioning was suspended: the run's delete marker has no unique id"
    return "the bucket kept no version of it"


def _as_restored(rows: pa.Table, whys: Mapping[str, str | None], now: datetime) -> pa.Table:
    """Receipts of the same deletions as undone. `whys` has the reason for an unexpected result, by address."""
    values = {
        "outcome": [Outcome.RESTORED.value] * rows.num_rows,
        "error": [whys[address] for address in rows.column("address").to_pylist()],
        "decided_at": [now] * rows.num_rows,
    }
    for name, column in values.items():
        field = RECEIPTS.field(name)
        rows = rows.set_column(RECEIPTS.get_field_index(name), field, pa.array(column, field.type))
    return rows


def plan_restore(repository: OpenRepository, run_id: str, addresses: Sequence[str], warn: LogLine) -> pa.Table:
    """Address and bytes of the objects that `restore` would restore.

    Args:
        addresses: relative to the storage namespace or in full; empty for everything that the run deleted.
        warn: receives a line about each unreadable file that no other file replaces.
    Raises:
        CollectionError: an address lies elsewhere or was not deleted by the run, or nothing of the run can be restored.
    """
    deleted = _deleted(repository, run_id, addresses, lambda damage: warn(f"some deletions are unknown: {damage}"))
    sizes = deleted.group_by("address").aggregate([("size", "max")]).rename_columns(["address", "size"])
    return sizes.sort_by("address")


def restore(
    repository: OpenRepository,
    run_id: str,
    addresses: Sequence[str],
    owner: str,
    warn: LogLine,
    choose_engine: Callable[[int], Engine[R] | None] = lambda count: None,
) -> Iterator[Restored]:
    """Restores objects that a run deleted, under the lock, during iteration; yields the result for each address.

    An unreadable file of receipts that nothing replaces is yielded as failed, in place of its addresses.

    Args:
        addresses: as for `plan_restore`.
        owner: owner of the lock.
        warn: receives a line if the lock could not be renewed.
        choose_engine: receives the number of objects before the first is restored, and returns an engine to restore
            them in its tasks; None for this process.
    Raises:
        LockHeld: another owner holds the lock.
        CollectionError: as for `plan_restore`, or `restore_copies`.
    """
    with locked(repository, f"restore {run_id}", owner, warn) as lock:
        lost: list[CorruptFile] = []
        deleted = _deleted(repository, run_id, addresses, lost.append)
        engine = choose_engine(deleted.num_rows)
        in_tasks = None if engine is None else (engine, repository.opener)
        yield from restore_copies(repository.store, run_id, deleted, lock.token, repository.clock, in_tasks)
        for damage in lost:
            yield Restored(
                damage.file,
                RestoreFate.FAILED,
                f"the objects that this file records are unknown: {damage.check}: {damage.detail}",
            )


def _deleted(repository: OpenRepository, run_id: str, addresses: Sequence[str], damaged: DamagedFile) -> pa.Table:
    keys = [relative(repository, address) for address in addresses]
    return deleted_by(repository.store, run_id, keys, damaged)

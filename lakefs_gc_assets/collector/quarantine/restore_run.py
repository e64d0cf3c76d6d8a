"""Restoring what a run deleted: what the command line and the job of the UI do."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakefs_gc_assets.collector.frame.receipts import DamagedFile
from lakefs_gc_assets.collector.lock import locked
from lakefs_gc_assets.collector.quarantine import restore as quarantine_restore
from lakefs_gc_assets.collector.quarantine.restore import Fate, Restored
from lakefs_gc_assets.collector.repository import OpenRepository, relative
from lakefs_gc_assets.errors import CorruptFile, LogLine


def plan_restore(repository: OpenRepository, run_id: str, addresses: Sequence[str], warn: LogLine) -> pa.Table:
    """Address and bytes of what `restore` would restore.

    Args:
        addresses: relative to the storage namespace or in full; empty for all that the run deleted.
        warn: is told of each file that cannot be read, and that nothing else stands in for.
    Raises:
        CollectionError: an address lies elsewhere or was not deleted by the run, or nothing of the run can be restored.
    """
    deleted = _deleted(repository, run_id, addresses, lambda damage: warn(f"not everything is known: {damage}"))
    found = deleted.group_by("address").aggregate([("size", "max")]).rename_columns(["address", "size"])
    return found.sort_by("address")


def restore(
    repository: OpenRepository, run_id: str, addresses: Sequence[str], owner: str, warn: LogLine
) -> Iterator[Restored]:
    """Restores what a run deleted, under the lock, as somebody iterates; yields what became of each address.

    A file of receipts that cannot be read, and that nothing else stands in for, is yielded as failed in place of the
    addresses that it tells of.

    Args:
        addresses: as for `plan_restore`.
        owner: who takes the lock.
        warn: is told where the lock could not be renewed.
    Raises:
        LockHeld: another owner holds the lock.
        CollectionError: as for `plan_restore`, or what `quarantine.restore.restore` raises.
    """
    with locked(repository, f"restore {run_id}", owner, warn) as lock:
        lost: list[CorruptFile] = []
        deleted = _deleted(repository, run_id, addresses, lost.append)
        yield from quarantine_restore.restore(repository.store, run_id, deleted, lock.token, repository.clock)
        for damage in lost:
            yield Restored(damage.file, Fate.FAILED, f"what it tells of is not known: {damage.check}: {damage.detail}")


def _deleted(repository: OpenRepository, run_id: str, addresses: Sequence[str], damaged: DamagedFile) -> pa.Table:
    keys = [relative(repository, address) for address in addresses]
    return quarantine_restore.deleted_by(repository.store, run_id, keys, damaged)

"""Receipts: one row for each candidate that a sweep decided about, stored as it happens.

A batch's receipts are written after its deletion was answered, so a receipt never claims what did not happen. A sweep
that was killed is resumed with the candidates that have none.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

import pyarrow as pa

from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.frame.schemas import RECEIPTS
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.collector.sweep.outcome import Outcome
from lakefs_gc_assets.collector.work import spread, work_ahead
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener

_ADDED = ("attempt", "version_id")
_AT_ONCE = 16
"""Files that a process reads at once: it waits for the store, not for them."""
_READ_HERE = 100
"""So few files are read by the process that makes a run: tasks would take longer to begin."""

GONE = (Outcome.ACCEPTED.value, Outcome.QUARANTINED.value)
"""Outcomes of objects that the run deleted from their address."""
NOT_THERE = (*GONE, Outcome.DELETED_BY_ANOTHER_RUN.value)
"""Outcomes of objects that are no longer at their address, whichever run deleted them."""


def table(
    candidates: pa.Table,
    outcomes: Sequence[Outcome],
    errors: Sequence[str | None],
    decided_at: datetime,
    attempt: str | None = None,
    version_ids: Sequence[str | None] | None = None,
) -> pa.Table:
    """Receipts (RECEIPTS) for candidates, in their order.

    Args:
        attempt: the attempt of the run that decided.
        version_ids: of the delete markers that were made; None where the store keeps no versions.
    """
    count = candidates.num_rows
    columns = [candidates.column(name) for name in ("address", "size", "slice", "slice_window")]
    return pa.table(
        [
            *columns,
            pa.array([outcome.value for outcome in outcomes], pa.string()),
            pa.array(errors, pa.string()),
            pa.array([decided_at] * count, RECEIPTS.field("decided_at").type),
            pa.array([attempt] * count, pa.string()),
            pa.array([None] * count if version_ids is None else version_ids, pa.string()),
        ],
        schema=RECEIPTS,
    )


OF_RESTORE, OF_PURGE = "restored-", "purged-"
"""Beginnings of the names of files whose receipts were written by a restoration or a purge, not by a sweep."""


def write(store: ObjectStore, run_id: str, batch_id: str, receipts: pa.Table) -> None:
    """Stores the receipts of one batch."""
    store.put(f"{run_folder.receipts(run_id)}{batch_id}.parquet", tables.encode(receipts))


def keys(store: ObjectStore, run_id: str, beginning: str = "") -> list[str]:
    """The files that hold the receipts of a run, or those whose names have a beginning."""
    folder = run_folder.receipts(run_id)
    return [each.key for each in store.list_level(folder).objects if each.key.startswith(folder + beginning)]


def read_file(store: ObjectStore, key: str) -> pa.Table:
    """The receipts of one file (RECEIPTS). Raises CorruptFile.

    Files of earlier versions have no `attempt` and no `version_id`: both columns are null then, so delete markers of
    that time are not known and stay.
    """
    found = tables.decode(RECEIPTS, store.get(key), key, "receipts", _ADDED)
    unknown = set(found.column("outcome").unique().to_pylist()).difference(Outcome)
    if unknown:
        raise CorruptFile(key, "receipts", f"there is no outcome {min(unknown)!r}")
    return found


def read_files(store: ObjectStore, keys: Sequence[str]) -> Iterator[pa.Table]:
    """The receipts of each file (RECEIPTS), in the order of the files; several are read at once. Raises CorruptFile."""
    yield from work_ahead(partial(read_file, store), keys, _AT_ONCE)


def read(store: ObjectStore, run_id: str) -> pa.Table:
    """All receipts of a run (RECEIPTS). Raises CorruptFile."""
    return _read_together(store, keys(store, run_id))


def rows(engine: Engine[R], opener: StoreOpener, keys: Sequence[str]) -> R:
    """The receipts of files (RECEIPTS), which tasks read where the files are many. Raises CorruptFile."""
    if len(keys) <= _READ_HERE:
        return engine.table(_read_together(opener.open(), keys))

    def read(group: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for found in read_files(opener.open(), group):
            yield from found.to_batches()

    return engine.read([[group] for group in spread(keys, engine.tasks)], read, RECEIPTS)


def _read_together(store: ObjectStore, keys: Sequence[str]) -> pa.Table:
    return pa.concat_tables([RECEIPTS.empty_table(), *read_files(store, keys)])

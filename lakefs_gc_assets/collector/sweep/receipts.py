"""Receipts: one row for each candidate that a sweep decided about, stored as it happens.

A batch's receipts are written after its deletion was answered, so a receipt never claims what did not happen. A sweep
that was killed is resumed with the candidates that have none.
"""

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from lakefs_gc_assets.collector.frame.schemas import RECEIPTS
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.collector.sweep.outcome import Outcome
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore

_ADDED = ("attempt", "version_id")


GONE = (Outcome.ACCEPTED.value, Outcome.QUARANTINED.value)
"""Outcomes of objects that are no more at their address."""


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


def keys(store: ObjectStore, run_id: str) -> list[str]:
    """The files that hold the receipts of a run."""
    return [key for batch in store.list(run_folder.receipts(run_id)) for key in batch.column("key").to_pylist()]


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


def read(store: ObjectStore, run_id: str) -> pa.Table:
    """All receipts of a run (RECEIPTS). Raises CorruptFile."""
    parts = [read_file(store, key) for key in keys(store, run_id)]
    return pa.concat_tables(parts) if parts else RECEIPTS.empty_table()

"""Receipts: one row for each candidate that a sweep decided, stored during the sweep.

A batch's receipts are written after the store answered its deletion, so a receipt never claims a deletion that did not
happen. A killed sweep is resumed with the candidates that have no receipt.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import spread, work_ahead
from lakefs_gc_assets.collector.frame.frames import RECEIPTS
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore

ADDED = ("attempt", "version_id", "copy_etag")
"""Columns that files of earlier versions lack."""
_COPY = "copy_etag"
_AT_ONCE = 16
"""Files that a process reads at once, to hide the latency of the store."""
_READ_HERE = 100
"""Maximum files that the driver reads itself: starting tasks would take longer."""

DamagedFile = Callable[[CorruptFile], None]
"""Handles an unreadable file, which is then skipped. It may be called in a thread or a worker."""

GONE = (Outcome.ACCEPTED.value, Outcome.QUARANTINED.value)
"""Outcomes of objects that the run deleted from their address."""
NOT_THERE = (*GONE, Outcome.DELETED_BY_ANOTHER_RUN.value)
"""Outcomes of objects that are no longer at their address, regardless of the run that deleted them."""


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
        candidates: with the column `copy_etag` if they have copies in quarantine.
        attempt: the attempt of the run that decided.
        version_ids: versions of the delete markers that were made; None if the store keeps no versions.
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
            candidates.column(_COPY) if _COPY in candidates.column_names else pa.nulls(count, pa.string()),
        ],
        schema=RECEIPTS,
    )


def of_outcome(candidates: pa.Table, outcome: Outcome, decided_at: datetime, attempt: str | None = None) -> pa.Table:
    """Receipts (RECEIPTS) with one outcome for all candidates. The arguments are as for `table`."""
    count = candidates.num_rows
    return table(candidates, [outcome] * count, [None] * count, decided_at, attempt)


OF_RESTORE, OF_PURGE = "restored-", "purged-"
"""Beginnings of the names of files whose receipts were written by a restoration or a purge, not by a sweep."""


def write(store: ObjectStore, run_id: str, batch_id: str, receipts: pa.Table) -> None:
    """Stores a batch's receipts."""
    store.put(f"{run_folder.receipts(run_id)}{batch_id}.parquet", tables.encode(receipts))


def keys(store: ObjectStore, run_id: str, beginning: str = "") -> list[str]:
    """Keys of the files with a run's receipts, or only those whose names have a prefix."""
    folder = run_folder.receipts(run_id)
    return [listed.key for listed in store.list_level(folder).objects if listed.key.startswith(folder + beginning)]


def read_file(store: ObjectStore, key: str) -> pa.Table:
    """The receipts in a file (RECEIPTS). Raises CorruptFile.

    Columns that files of earlier versions lack are null, so delete markers of that time are unknown and stay.
    """
    receipts = tables.decode(RECEIPTS, store.get(key), key, "receipts", ADDED)
    unknown = set(receipts.column("outcome").unique().to_pylist()).difference(Outcome)
    if unknown:
        raise CorruptFile(key, "receipts", f"there is no outcome {min(unknown)!r}")
    return receipts


def read_files(store: ObjectStore, keys: Sequence[str], damaged: DamagedFile | None = None) -> Iterator[pa.Table]:
    """The receipts file by file (RECEIPTS), in the given order; several files are read at once.

    Args:
        damaged: handles each unreadable file, which then counts as empty; by default it is an error.
    Raises:
        CorruptFile: a file cannot be read.
    """
    yield from work_ahead(partial(_read_or_exclude, store, damaged), keys, _AT_ONCE)


def _read_or_exclude(store: ObjectStore, damaged: DamagedFile | None, key: str) -> pa.Table:
    try:
        return read_file(store, key)
    except CorruptFile as damage:
        if damaged is None:
            raise
        damaged(damage)
        return RECEIPTS.empty_table()


def read(store: ObjectStore, run_id: str, damaged: DamagedFile | None = None, beginning: str = "") -> pa.Table:
    """The receipts of a run (RECEIPTS): all, or as for `keys`. For `damaged` and errors see `read_files`."""
    return _read_together(store, keys(store, run_id, beginning), damaged)


def rows(engine: Engine[R], opener: OpensStore, keys: Sequence[str], damaged: DamagedFile | None = None) -> R:
    """The receipts of files (RECEIPTS), read by tasks if there are many files.

    For `damaged` and errors see `read_files`.
    """
    if len(keys) <= _READ_HERE:
        return engine.table(_read_together(opener.open(), keys, damaged))

    def read(group: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for table in read_files(opener.open(), group, damaged):
            yield from table.to_batches()

    return engine.read([[group] for group in spread(keys, engine.tasks)], read, RECEIPTS)


def _read_together(store: ObjectStore, keys: Sequence[str], damaged: DamagedFile | None) -> pa.Table:
    return pa.concat_tables([RECEIPTS.empty_table(), *read_files(store, keys, damaged)])

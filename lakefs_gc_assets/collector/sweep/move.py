"""Sweeping into quarantine: each candidate is copied by the store itself, and only then deleted.

The copy lies at `_lakefs/retention/gc/quarantine/<run id>/<address>`, outside of `data/`, so that no listing finds it.
A receipt `copied` is stored when the copies of a batch are verified, before the first object of the batch is deleted; a
receipt `quarantined` says that the object is no longer at its address. A sweep that is killed in between repeats the
batch; a copy that is there already is not made again. The copy of an object that cannot be deleted is removed.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.lock import verify
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository import require_copies
from lakefs_gc_assets.collector.sweep.batches import Sweep
from lakefs_gc_assets.errors import ObjectNotFound, StorageError
from lakefs_gc_assets.storage.interface import CopiesObjects

ROOT = "_lakefs/retention/gc/quarantine/"
BATCH = 100
"""Candidates that are copied before the first of them is deleted: few, since copies of large objects take long."""
_CALLERS = 16


def key(run_id: str, address: str) -> str:
    """The key of the copy of an object that a run moved to quarantine."""
    return f"{ROOT}{run_id}/{address}"


@dataclass(frozen=True, slots=True)
class Quarantine(Sweep):
    """Moves candidates of one run, whose lock is held, into quarantine."""

    @property
    def batch_size(self) -> int:
        """How many candidates a batch has."""
        return min(BATCH, self.store.delete_limit)

    def decide(self, batch: pa.Table) -> pa.Table:
        """Copies a batch and deletes what was copied; returns the receipts.

        Where the countdown is over once the copies are made, nothing is deleted, and only receipts of failed copies are
        returned.
        """
        store = require_copies(self.store)
        addresses = batch.column("address").to_pylist()
        with ThreadPoolExecutor(_CALLERS) as pool:
            errors = list(pool.map(lambda address: self._copied(store, address), addresses))
        now = self.clock.now()
        failed = [error is not None for error in errors]
        refused = receipts.table(
            batch.filter(pa.array(failed)),
            [Outcome.FAILED] * sum(failed),
            [error for error in errors if error is not None],
            now,
            self.attempt,
        )
        copied = batch.filter(pa.array([not each for each in failed]))
        kept = receipts.table(copied, [Outcome.COPIED] * copied.num_rows, [None] * copied.num_rows, now, self.attempt)
        receipts.write(self.store, self.run_id, uuid.uuid4().hex, pa.concat_tables([refused, kept]))
        verify(self.store, self.lock)
        if not copied.num_rows or self.is_over():
            return refused
        gone = self.delete_batch(copied, Outcome.QUARANTINED)
        receipts.write(self.store, self.run_id, uuid.uuid4().hex, gone)
        self._remove_copies_of_what_stays(gone)
        return pa.concat_tables([refused, gone])

    def _remove_copies_of_what_stays(self, decided: pa.Table) -> None:
        """Removes the copies of objects that could not be deleted: each run would add another one.

        An answer that says so may be wrong, so an object has to be there with its size. Where that cannot be asked, or
        a copy cannot be removed, the copy stays: it does no harm, and a purge removes it later.
        """
        refused = decided.filter(pc.equal(decided.column("outcome"), Outcome.FAILED.value))
        with ThreadPoolExecutor(_CALLERS) as pool:
            stays = list(pool.map(self._is_there, *(refused.column(name).to_pylist() for name in ("address", "size"))))
        addresses = refused.filter(pa.array(stays, pa.bool_())).column("address").to_pylist()
        if addresses:
            with suppress(StorageError):
                self.store.delete([key(self.run_id, address) for address in addresses])

    def _is_there(self, address: str, size: int) -> bool:
        try:
            return self.store.head(address).size == size
        except StorageError:
            return False

    def _copied(self, store: CopiesObjects, address: str) -> str | None:
        """Makes sure that there is a copy; returns why there is none. Without one nothing is deleted."""
        copy = key(self.run_id, address)
        try:
            try:
                store.copy(address, copy)
            except ObjectNotFound:
                # A sweep that was killed after it had deleted leaves the copy.
                store.head(copy)
        except StorageError as error:
            return f"there is no copy in quarantine: {error}"
        return None

"""Deleting: in bulk, under the lock, with a receipt for every address.

The lock is checked right before each batch, and the receipts of the batch are stored right after it. Where the lock is
lost, each task that deletes finishes at most the batch that it has begun.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakefs_gc_assets.collector.clock import Clock
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.lock import LockToken, verify
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.sweep.validity import Countdown
from lakefs_gc_assets.errors import CollectionError, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore

_NEVER_DELETED = (Layout.SPECIAL, Layout.UNRECOGNISED)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Deletes candidates of one run, whose lock is held.

    Attributes:
        attempt: the attempt of the run, for its receipts.
        countdown: once it is over, no further batch begins; None for no limit. It counts in the process that began it.
    """

    store: ObjectStore
    run_id: str
    lock: LockToken
    clock: Clock
    attempt: str | None = None
    countdown: Countdown | None = None

    def delete(self, candidates: pa.Table) -> Iterator[pa.Table]:
        """Deletes candidates (at least address, size, slice, slice_window) batch by batch; yields their receipts.

        Candidates that are left when the countdown is over have no receipts.

        Raises:
            LockLost: before a batch, when the lock is no longer this run's.
            StorageError: the store failed at a batch as a whole, or does not say what became of each object.
            CollectionError: a candidate has a name that must never be deleted.
        """
        for start in range(0, candidates.num_rows, self.batch_size):
            verify(self.store, self.lock)
            # After the call to the store, which may take its time.
            if self.is_over():
                return
            yield self._batch(candidates.slice(start, self.batch_size))

    @property
    def batch_size(self) -> int:
        """How many candidates a batch has."""
        return self.store.delete_limit

    def is_over(self) -> bool:
        """Whether the time of the recheck is over."""
        return self.countdown is not None and self.countdown.is_over()

    def _batch(self, batch: pa.Table) -> pa.Table:
        for address in batch.column("address").to_pylist():
            if layout.parse(address).layout in _NEVER_DELETED:
                raise CollectionError(f"{address!r} is among the candidates, but is no name that lakeFS gives to data")
        return self.decide(batch)

    def decide(self, batch: pa.Table) -> pa.Table:
        """Deletes a batch and stores its receipts; returns them."""
        rows = self.delete_batch(batch, Outcome.ACCEPTED)
        receipts.write(self.store, self.run_id, uuid.uuid4().hex, rows)
        return rows

    def delete_batch(self, batch: pa.Table, accepted: Outcome) -> pa.Table:
        """Asks the store to delete a batch; returns receipts that are yet to be stored.

        Args:
            accepted: the outcome of objects whose deletion the store accepted.
        """
        addresses = batch.column("address").to_pylist()
        said = {outcome.key: outcome for outcome in self.store.delete(addresses)}
        if said.keys() != set(addresses):
            raise StorageError(
                f"the store told what became of {len(said)} keys, {len(addresses)} were to be deleted: what it did "
                "cannot be reported. List the candidates to see which are gone"
            )
        outcomes = [said[address] for address in addresses]
        return receipts.table(
            batch,
            [accepted if outcome.result is DeleteResult.ACCEPTED else Outcome.FAILED for outcome in outcomes],
            [outcome.error for outcome in outcomes],
            self.clock.now(),
            self.attempt,
            [outcome.version_id for outcome in outcomes],
        )

"""Deletes candidates in bulk, under the lock, with a receipt for every address; or moves them into quarantine.

The lock is checked right before each batch, and the receipts of the batch are stored right after it. Where the lock is
lost, each task that deletes finishes at most the batch that it has begun.

A sweep into quarantine has the store copy each candidate to `_lakefs/retention/gc/quarantine/<run id>/<address>`,
outside of `data/`, so that no listing finds it, and only then deletes it. A receipt `copied` is stored when the copies
of a batch are verified, before the first object of the batch is deleted; a receipt `quarantined` says that the object
is no longer at its address. A sweep that is killed in between repeats the batch; a copy that exists is not made again.
The copy of an object that cannot be deleted is removed.
"""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.lock import LockToken, verify
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository import Clock, require_copies
from lakefs_gc_assets.collector.sweep.validity import Countdown
from lakefs_gc_assets.errors import CollectionError, ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.storage.interface import CopiesObjects, DeleteResult, ObjectStore

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
        """Number of candidates in a batch."""
        return self.store.delete_limit

    def is_over(self) -> bool:
        """True if the time of the recheck is over."""
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
        results = {outcome.key: outcome for outcome in self.store.delete(addresses)}
        if results.keys() != set(addresses):
            raise StorageError(
                f"the store answered for {len(results)} keys, {len(addresses)} were to be deleted: what it did "
                "cannot be reported. List the candidates to see which are gone"
            )
        outcomes = [results[address] for address in addresses]
        return receipts.table(
            batch,
            [accepted if outcome.result is DeleteResult.ACCEPTED else Outcome.FAILED for outcome in outcomes],
            [outcome.error for outcome in outcomes],
            self.clock.now(),
            self.attempt,
            [outcome.version_id for outcome in outcomes],
        )


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
        """Number of candidates in a batch."""
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
        deleted = self.delete_batch(copied, Outcome.QUARANTINED)
        receipts.write(self.store, self.run_id, uuid.uuid4().hex, deleted)
        self._remove_copies_of_what_stays(deleted)
        return pa.concat_tables([refused, deleted])

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

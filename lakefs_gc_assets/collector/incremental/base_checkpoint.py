"""The checkpoint that a run takes over from its base run, with the ranges that were live when the base run marked.

These ranges hold whatever a run by retention rules left in sealed slices. It does not matter by which definition they
were live, nor why one of them is live no more: the next run looks again at the objects of such a range.
"""

from collections.abc import Iterable, Set

import pyarrow as pa

from lakefs_gc_assets.collector.earlier.history import deleted_before
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame.kinds import (
    CHECKPOINT_COMMITTED_DF,
    LOST_DF,
    PENDING_DF,
    Frame,
    NoFigures,
)
from lakefs_gc_assets.collector.frame.schemas import RANGES
from lakefs_gc_assets.collector.incremental import checkpoint as checkpoints
from lakefs_gc_assets.collector.incremental import ranges_read
from lakefs_gc_assets.collector.incremental.ranges_read import StoredIds
from lakefs_gc_assets.collector.live.range_records import RangeRecords
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.report import Checkpoint, Report
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore

_WHAT = "tracked ranges"


def write(store: ObjectStore, run_id: str, attempt: str, records: RangeRecords) -> str:
    """Stores the ranges that are live at the commits step of an attempt; returns the file's SHA-256."""
    return tables.put(store, _key(run_id, attempt), records.rows)


def read(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> RangeRecords:
    """The ranges that were live then. Raises CorruptFile where the file is missing, damaged or another one."""
    key = _key(run_id, attempt)
    parts = tables.decode_parts(RANGES, tables.get(store, key, sha256), key, _WHAT)
    return RangeRecords.of_rows(pa.Table.from_batches(parts, RANGES))


def count(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> int:
    """How many ranges `read` gives, for less. Raises CorruptFile where the file is missing, or another one."""
    key = _key(run_id, attempt)
    return tables.count(tables.get(store, key, sha256), key, _WHAT)


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}tracked-{attempt}.parquet"


class BaseCheckpoint:
    """A base run's report and checkpoint, and the slices, ids and frames that belong to the checkpoint.

    Raises CorruptFile where the report is gone or names no checkpoint, or where a file is not the one that it names.
    """

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self.run_id = run_id
        found = report.read(store, run_id)
        if found is None or found.checkpoint is None:
            raise CorruptFile(run_id, "report", "the run that this one builds on has lost its report")
        self.report: Report = found
        self.checkpoint: Checkpoint = found.checkpoint

    @property
    def sealed(self) -> frozenset[str]:
        """The sealed slices."""
        return checkpoints.read_sealed(self._store, self.run_id, self.checkpoint)

    @property
    def read_ids(self) -> Set[str]:
        """Ids of the ranges and metaranges whose addresses are known."""
        return checkpoints.read_ids(self._store, self.run_id, self.checkpoint)

    def add_read_ids(self, run_id: str, attempt: str, known: Set[str], new: Iterable[str]) -> str:
        """Stores for an attempt of the next run what it knows of this one, and what it has read itself.

        Args:
            known: what `read_ids` gave.
        Returns:
            The SHA-256 by which `ranges_read.read` finds them.
        Raises:
            CorruptFile: the file that `read_ids` read is no longer the same one.
        """
        left = StoredIds(self.run_id, self.checkpoint.attempt, self.checkpoint.read_sha256)
        return ranges_read.add(self._store, run_id, attempt, new, known, left)

    @property
    def tracked(self) -> RangeRecords:
        """The ranges that were live. Raises CorruptFile where the base run kept all commits."""
        return checkpoints.read_tracked(self._store, self.run_id, self.checkpoint)

    def pending_objects(self, step: Step[R]) -> R:
        """The pending objects of the base run (LISTED).

        By retention rules they may have been committed since, and have expired: those that a run of the flow
        `committed` deleted meanwhile are left out.
        """
        rows = self._rows(step, PENDING_DF, self.checkpoint.pending_digest)
        if not step.plan.follows_expiry:
            return rows
        return step.engine.without_exactly(rows, deleted_before(step, newer_than=self.run_id))

    def committed(self, step: Step[R]) -> R | None:
        """Committed addresses outside of sealed slices (LIVE); None by rules, where all that is live is read."""
        if self.checkpoint.tracked_sha256 is not None:
            return None
        return self._rows(step, CHECKPOINT_COMMITTED_DF, self.checkpoint.committed_digest)

    def lost(self, step: Step[R]) -> R | None:
        """Addresses (LIVE) that were held by a branch head or staging although earlier runs had deleted them.

        None where there were none, or where they cannot be read: they only make a report complete.
        """
        if not any(self.report.counts.get(name) for name in ("lost", "named_again")):
            return None
        try:
            frame = step.stored_of(self.run_id, LOST_DF)
        except (OrderViolation, CorruptFile) as error:
            step.warn(f"losses that run {self.run_id} reported are not looked at again: {error}")
            return None
        return frame.rows(step.engine) if frame.manifest.span.attempt == self.checkpoint.attempt else None

    def _rows(self, step: Step[R], kind: Frame[NoFigures], digest: str) -> R:
        frame = step.stored_of(self.run_id, kind)
        if frame.manifest.digest != digest:
            raise CorruptFile(
                frame.uri, "digest", f"{kind.name} is not the frame that the report of run {self.run_id} names"
            )
        return frame.rows(step.engine)


def open_base_checkpoint(step: Step[R]) -> BaseCheckpoint | None:
    """The checkpoint that this run builds on; None where it looks at everything.

    Raises OrderViolation where the base run was made again since: files of its two attempts do not belong together.
    """
    if step.plan.base_run is None:
        return None
    found = BaseCheckpoint(step.repository.store, step.plan.base_run)
    if found.checkpoint.attempt != step.plan.base_run_attempt:
        raise OrderViolation(
            f"run {found.run_id}, which this one builds on, was made again since this one began: open a new run"
        )
    return found

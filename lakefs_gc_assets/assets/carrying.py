"""Leaving what the next run can build on, and taking up what an earlier run left."""

from dataclasses import dataclass
from functools import partial

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import carry as carries
from lakefs_gc_assets.collection import planning, ranges_read, receipts
from lakefs_gc_assets.collection.carry import Carry
from lakefs_gc_assets.collection.inheritance import Inheritance
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.collection.predecessor import NoPredecessor
from lakefs_gc_assets.collection.universe import Folders
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.lakefs.layout import OTHER_WINDOW
from lakefs_gc_assets.sources import carrying, subtraction, tasks
from lakefs_gc_assets.sources.tasks import Rows


class Inherited(Inheritance):
    """What an earlier run left, its frames too.

    Raises CorruptFile where a file is not the one that the report names.
    """

    def __init__(self, run: Step, run_id: str) -> None:
        super().__init__(run.repository.store, run_id)
        self._run = run

    def open_objects(self) -> DataFrame:
        """Objects that wait (LISTED)."""
        return self._frame(carries.OPEN, self.carry.open_digest).dataframe(self._run.spark)

    def committed(self) -> Rows:
        """Committed addresses outside of settled slices (LIVE)."""
        return self._frame(carries.COMMITTED, self.carry.committed_digest).rows(self._run.spark)

    def _frame(self, name: str, digest: str) -> StoredFrame:
        frame = self._run.stored_of(self.run_id, name)
        if frame.manifest.digest != digest:
            raise CorruptFile(
                frame.uri, "digest", f"{name} is not the frame that the report of run {self.run_id} names"
            )
        return frame


def late_arrivals(run: Step, candidates: StoredFrame) -> int:
    """How many candidates of a clean run came into a slice after an earlier run had settled it.

    An optimized run would not have found them. Where no earlier run can be compared with there are none.
    """
    if run.plan.flow is not Flow.CLEAN or not candidates.manifest.rows:
        return 0
    try:
        found = planning.find_predecessor(run.repository, run.plan.run_id)
    except NoPredecessor:
        return 0
    rows = tasks.dataframe_of(carrying.of_settled(candidates.rows(run.spark), found.settled))
    return subtraction.without_exactly(rows, Inherited(run, found.run_id).open_objects()).count()


def inherited(run: Step) -> Inherited | None:
    """What an optimized run builds on; None for other flows.

    Raises OrderViolation where that run was made again since: parts of what its two attempts left do not fit.
    """
    if run.plan.predecessor is None:
        return None
    found = Inherited(run, run.plan.predecessor)
    if found.carry.attempt != run.plan.predecessor_attempt:
        raise OrderViolation(
            f"run {found.run_id}, which this one builds on, was made again since this one began: open a new run"
        )
    return found


def reason_for_none(run: Step, outcomes: StoredFrame) -> str | None:
    """Why the next run cannot build on this one; None where it can."""
    listed = run.stored("store_df").manifest
    if run.plan.flow.by_retention:
        return f"its flow was {run.plan.flow.value}, which keeps other commits"
    if not outcomes.manifest.figures["swept"]:
        return "it was a dry run"
    if listed.rows_by_window().get(OTHER_WINDOW):
        return f"it was limited to the windows {', '.join(run.plan.windows)}"
    if Folders((), tuple(listed.figures["other_folders"])).sharded:
        return "the repository has the sharded layout, where slices cannot be told apart by one listing"
    return None


def leave(run: Step, outcomes: StoredFrame) -> Carry | str:
    """Stores what the next run can build on, or says why it must be a clean one.

    The carry is complete, and exists once a report names it.
    """
    if reason := reason_for_none(run, outcomes):
        return reason
    listed, committed = run.stored("store_df"), run.stored("committed_df")
    store, run_id, attempt = run.repository.store, run.plan.run_id, run.plan.attempt
    before = inherited(run)
    settled = carries.settled(
        before.settled if before else frozenset(),
        carries.read_listed_slices(store, run_id, attempt),
        run.plan.cutoff,
        run.plan.skew,
    )
    held = committed.rows(run.spark, "address")
    gone = F.col("outcome").isin(*receipts.GONE)
    deleted = outcomes.dataframe(run.spark, "address", "outcome").where(gone)
    still_open = carrying.still_open(
        listed.rows(run.spark),
        settled,
        held,
        deleted,
        rows=listed.manifest.rows + committed.manifest.rows,
        deleted_rows=outcomes.manifest.rows,
    )
    kept = carrying.of_unsettled(committed.rows(run.spark), settled)
    with tasks.beside(partial(run.store_everywhere, carries.COMMITTED, kept)) as stored_committed:
        waiting = run.store_everywhere(carries.OPEN, still_open)
        there = carrying.of_settled(listed.rows(run.spark, "address"), settled)
        open_again = waiting.rows(run.spark, "address")
        rows = sum(frame.manifest.rows for frame in (listed, waiting, committed, outcomes))
        checked = _counted(there, open_again, held, deleted, rows)
        carried = stored_committed()
    if problem := checked.contradiction:
        return problem
    windows = waiting.manifest.rows_by_window()
    read_sha256 = committed.manifest.figures["read_sha256"]
    return Carry(
        attempt=attempt,
        settled=len(settled),
        settled_objects=listed.manifest.figures["settled_objects"] + checked.committed,
        settled_sha256=carries.write_settled(store, run_id, attempt, settled),
        read=len(ranges_read.read(store, run_id, attempt, read_sha256)),
        read_sha256=read_sha256,
        open=waiting.manifest.rows,
        open_digest=waiting.manifest.digest,
        committed=carried.manifest.rows,
        committed_digest=carried.manifest.digest,
        open_windows=tuple(sorted(windows)),
        other_folders=tuple(listed.manifest.figures["other_folders"]),
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Objects of settled slices, or of no slice, by what became of them.

    Attributes:
        committed: those that commits hold.
        both: those that would be carried as open although commits hold them.
        lost: those that would be neither carried nor committed nor deleted.
    """

    committed: int
    both: int
    lost: int

    @property
    def contradiction(self) -> str | None:
        """What would make the next run inexact."""
        if self.both:
            return f"{self.both:,} objects would be carried as open although commits hold them"
        if self.lost:
            return f"{self.lost:,} listed objects would be neither carried nor committed nor deleted"
        return None


def _counted(there: Rows, waiting: Rows, committed: Rows, deleted: Rows, rows: int) -> _Counts:
    """Checks the open frame as stored, with one action."""
    counts = subtraction.count_by_sets(there, waiting, committed, deleted, rows=rows)
    is_there, is_open, is_committed, is_deleted = 1, 2, 4, 8
    return _Counts(
        committed=sum(n for sets, n in counts.items() if sets & is_there and not sets & (is_open | is_deleted)),
        both=sum(n for sets, n in counts.items() if sets & is_open and sets & is_committed),
        lost=counts.get(is_there, 0),
    )

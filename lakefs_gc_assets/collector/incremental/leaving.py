"""Stores the checkpoint on which the next run can build, or says why there is none."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import planning
from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.frame.kinds import (
    CHECKPOINT_COMMITTED_DF,
    COMMITTED_DF,
    PENDING_DF,
    STORE_DF,
    CandidateFigures,
    DeletedFigures,
    Frame,
    NoFigures,
)
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.incremental import checkpoint as checkpoints
from lakefs_gc_assets.collector.incremental import ranges_read
from lakefs_gc_assets.collector.incremental.base_checkpoint import BaseCheckpoint, open_base_checkpoint
from lakefs_gc_assets.collector.incremental.base_run import NoBaseRun
from lakefs_gc_assets.collector.incremental.checkpoint import Checkpoint
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import receipts
from lakefs_gc_assets.collector.universe.parts import Folders
from lakefs_gc_assets.lakefs.layout import OTHER_WINDOW

_NO_SLICE = ""
_SLICE_FOLDER = r"^data/(?P<folder>[0-9a-v]{19}[0g])/"


def leave(step: Step[R], outcomes: StoredFrame[DeletedFigures]) -> Checkpoint | str:
    """Stores the files and frames of a checkpoint and returns it, or returns why the next run must be a clean one.

    The checkpoint exists once a report names it.
    """
    if reason := reason_for_none(step, outcomes):
        return reason
    engine, listed, committed = step.engine, step.stored(STORE_DF), step.stored(COMMITTED_DF)
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    sealed = seal(step)
    held = committed.rows(engine, "address")
    ended = engine.where_among(outcomes.rows(engine, "address", "outcome"), "outcome", receipts.GONE)
    deleted = engine.select(ended, "address")
    waiting_rows = select_pending(
        engine,
        listed.rows(engine),
        sealed,
        held,
        deleted,
        count=listed.count + committed.count,
        deleted_count=outcomes.count,
    )
    kept = select_unsealed(engine, committed.rows(engine), sealed)
    with engine.in_background(partial(_store, step, CHECKPOINT_COMMITTED_DF, kept)) as stored_committed:
        waiting = _store(step, PENDING_DF, waiting_rows)
        checked = count_checkpoint(
            engine,
            select_sealed(engine, listed.rows(engine, "address"), sealed),
            waiting.rows(engine, "address"),
            held,
            deleted,
            count=listed.count + waiting.count + committed.count + outcomes.count,
        )
        carried = stored_committed()
    if problem := checked.contradiction:
        return problem
    read_sha256 = committed.figures.read_sha256
    return Checkpoint(
        attempt=attempt,
        sealed=len(sealed),
        sealed_objects=listed.figures.sealed_objects + checked.committed,
        sealed_sha256=checkpoints.write_sealed(store, run_id, attempt, sealed),
        read=len(ranges_read.read(store, run_id, attempt, read_sha256)),
        read_sha256=read_sha256,
        pending=waiting.count,
        pending_digest=waiting.manifest.digest,
        committed=carried.count,
        committed_digest=carried.manifest.digest,
        pending_windows=tuple(sorted(waiting.manifest.rows_by_window())),
        other_folders=listed.figures.other_folders,
    )


def _store(step: Step[R], frame: Frame[NoFigures], rows: R) -> StoredFrame[NoFigures]:
    began = step.repository.clock.now()
    return step.complete(frame, NoFigures(), step.write_everywhere(frame, rows), started_at=began)


def reason_for_none(step: Step[R], outcomes: StoredFrame[DeletedFigures]) -> str | None:
    """Why the next run cannot build on this one; None where it can."""
    listed = step.stored(STORE_DF)
    if step.plan.flow.by_retention:
        return f"its flow was {step.plan.flow.value}, which keeps other commits"
    if not outcomes.figures.swept:
        return "it was a dry run"
    if listed.manifest.rows_by_window().get(OTHER_WINDOW):
        return f"it was limited to the windows {', '.join(step.plan.windows)}"
    if Folders((), listed.figures.other_folders).sharded:
        return "the repository has the sharded layout, where slices cannot be told apart by one listing"
    return None


def seal(step: Step[R]) -> frozenset[str]:
    """The slices that are sealed after this run."""
    before = open_base_checkpoint(step)
    return checkpoints.sealed(
        before.sealed if before else frozenset(),
        checkpoints.read_listed_slices(step.repository.store, step.plan.run_id, step.plan.attempt),
        step.plan.cutoff,
        step.plan.skew,
    )


def select_pending(
    engine: Engine[R],
    universe: R,
    sealed: Iterable[str],
    committed: R,
    deleted: R,
    count: int,
    deleted_count: int | None = None,
) -> R:
    """Selects the pending objects: in sealed slices, or in no slice, held by no commit, and not deleted by this run.

    Args:
        deleted: addresses whose deletion the store accepted, compared as strings.
        count: how many rows the universe and what is committed have together, about.
        deleted_count: how many are deleted at most, where that is known.
    """
    not_held = engine.without(select_sealed(engine, universe, sealed), committed, count=count)
    return engine.without_exactly(not_held, deleted, deleted_count)


def select_sealed(engine: Engine[R], rows: R, sealed: Iterable[str]) -> R:
    """Rows whose address lies in a sealed slice or in no slice at all.

    The folder decides and not the column `slice`, which is null for odd names inside of a slice.
    """
    return engine.where(rows, partial(_in_folders, pa.array([_NO_SLICE, *sorted(sealed)], pa.string())))


def select_unsealed(engine: Engine[R], rows: R, sealed: Iterable[str]) -> R:
    """Rows whose address lies in a slice that is not sealed."""
    return engine.where(rows, partial(_outside_of_folders, pa.array([_NO_SLICE, *sorted(sealed)], pa.string())))


def _in_folders(folders: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    found = pc.extract_regex(rows.column("address"), _SLICE_FOLDER)
    return pc.is_in(pc.coalesce(pc.struct_field(found, "folder"), _NO_SLICE), value_set=folders)


def _outside_of_folders(folders: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    return pc.invert(_in_folders(folders, rows))


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """Objects of sealed slices, or of no slice, by what became of them.

    Attributes:
        committed: those that commits hold.
        both: those that would be pending although commits hold them.
        lost: those that would be neither pending nor committed nor deleted.
    """

    committed: int
    both: int
    lost: int

    @property
    def contradiction(self) -> str | None:
        """Why the next run cannot build on these frames; None where it can."""
        if self.both:
            return f"{self.both:,} objects would be pending although commits hold them"
        if self.lost:
            return f"{self.lost:,} listed objects would be neither pending nor committed nor deleted"
        return None


def count_checkpoint(engine: Engine[R], there: R, waiting: R, committed: R, deleted: R, count: int) -> CheckpointCounts:
    """Counts objects of sealed slices by what became of them, to check the pending frame as it is stored."""
    counts = engine.count_by_sets(there, waiting, committed, deleted, count=count)
    is_there, is_open, is_committed, is_deleted = 1, 2, 4, 8
    return CheckpointCounts(
        committed=sum(n for sets, n in counts.items() if sets & is_there and not sets & (is_open | is_deleted)),
        both=sum(n for sets, n in counts.items() if sets & is_open and sets & is_committed),
        lost=counts.get(is_there, 0),
    )


def count_late_arrivals(step: Step[R], candidates: StoredFrame[CandidateFigures]) -> int:
    """How many candidates of a clean run came into a slice after an earlier run had sealed it.

    An optimized run would not have found them. 0 for other flows, and where no earlier run can be built on.
    """
    if step.plan.flow is not Flow.CLEAN or not candidates.count:
        return 0
    try:
        found = planning.find_base_run(step.repository, step.plan.run_id)
    except NoBaseRun:
        return 0
    return step.engine.count(
        select_late(step, candidates, found.sealed, BaseCheckpoint(step.repository.store, found.run_id))
    )


def select_late(
    step: Step[R], candidates: StoredFrame[CandidateFigures], sealed: Iterable[str], before: BaseCheckpoint
) -> R:
    """The candidates that lie in sealed slices, or in no slice, and were not pending in the base run."""
    rows = select_sealed(step.engine, candidates.rows(step.engine, *STORE_DF.schema.names), sealed)
    return step.engine.without_exactly(rows, step.engine.select(before.pending_objects(step), "address"))

"""Stores the checkpoint that the next run can build on, or gives the reason why there is none."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CHECKPOINT_COMMITTED_DF,
    COMMITTED_DF,
    NOT_COMMITTED_DF,
    PENDING_DF,
    STORE_DF,
    TIME,
    CandidateFigures,
    CommittedFigures,
    DeletedFigures,
    Frame,
    NoFigures,
    StoredFigures,
)
from lakefs_gc_assets.collector.frame.slices import SLICES, Folders, select_sealed, select_unsealed, slices_in_shards
from lakefs_gc_assets.collector.incremental import checkpoint as checkpoints
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint, open_base_checkpoint
from lakefs_gc_assets.collector.incremental.planning import NoBaseRun
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.figures import required
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.step import Step, Universe, universe_of
from lakefs_gc_assets.errors import OrderViolation, counted
from lakefs_gc_assets.lakefs.layout import OTHER_WINDOW


def write_checkpoint(step: Step[R], outcomes: StoredFrame[DeletedFigures]) -> Checkpoint | str:
    """Stores the files and frames of a checkpoint and returns it, or returns why the next run must be a clean one.

    The checkpoint exists once a report names it.
    """
    if reason := reason_for_none(step, outcomes):
        return reason
    engine, listed, committed = step.engine, step.stored(STORE_DF), step.stored(COMMITTED_DF)
    not_committed, universe = step.stored(NOT_COMMITTED_DF), universe_of(step, listed, committed)
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    # Without a listing no slice is sealed: the next run checks all objects again, wherever they lie.
    sealed = seal(step) if step.plan.flow is not Flow.COMMITTED else None
    ended = engine.where_among(outcomes.rows(engine, "address", "outcome"), "outcome", receipts.NOT_THERE)
    deleted = engine.select(ended, "address")
    waiting_rows = select_pending(
        engine, not_committed.rows(engine), sealed, deleted, not_committed.count + outcomes.count
    )
    with engine.in_background(partial(_store_committed, step, committed, sealed)) as stored_committed:
        waiting = _store(step, PENDING_DF, waiting_rows)
        pending = waiting.rows(engine, "address")
        kept, lost = count_sealed(
            engine,
            _select_carried(engine, universe.rows("address"), sealed),
            _select_carried(engine, not_committed.rows(engine, "address"), sealed),
            pending,
            deleted,
            not_committed.count + waiting.count + outcomes.count,
        )
        held = committed.rows(engine, "address")
        both = engine.count(engine.among_exactly(held, pending, committed.count + waiting.count))
        checked = CheckpointCounts(kept, both, lost)
        carried = stored_committed()
    if problem := checked.contradiction:
        return problem
    sealed_before = required(listed.figures.sealed_objects)
    checkpoint = Checkpoint(
        attempt=attempt,
        sealed=len(sealed or ()),
        # Expired objects were among the sealed objects that commits held, and are counted again if they still are.
        sealed_objects=(
            0
            if sealed is None
            else max(sealed_before - (committed.figures.expired_objects or 0), 0) + checked.committed
        ),
        sealed_sha256=checkpoints.write_sealed(store, run_id, attempt, sealed or frozenset()),
        read=0,
        read_sha256="",
        pending=waiting.count,
        pending_digest=waiting.manifest.digest,
        committed=0,
        committed_digest="",
        pending_windows=tuple(sorted(waiting.manifest.rows_by_window())),
        other_folders=listed.figures.other_folders,
    )
    figures = committed.figures
    return _track(step, checkpoint, figures) if carried is None else _carry(step, checkpoint, figures, carried)


def _store_committed(
    step: Step[R], committed: StoredFrame[CommittedFigures], sealed: frozenset[str] | None
) -> StoredFrame[NoFigures] | None:
    """Stores the committed objects outside of sealed slices; None by retention rules, because commits may expire."""
    if sealed is None or step.plan.flow.by_retention:
        return None
    return _store(step, CHECKPOINT_COMMITTED_DF, select_unsealed(step.engine, committed.rows(step.engine), sealed))


def _carry(
    step: Step[R], checkpoint: Checkpoint, figures: CommittedFigures, carried: StoredFrame[NoFigures]
) -> Checkpoint:
    """Adds the ranges that were read, and the committed objects, to a checkpoint."""
    return replace(
        checkpoint,
        read=tables.count_run_ids(step.repository.store, step.plan.run_id, checkpoint.attempt, figures.read_sha256),
        read_sha256=figures.read_sha256,
        committed=carried.count,
        committed_digest=carried.manifest.digest,
    )


def _track(step: Step[R], checkpoint: Checkpoint, figures: CommittedFigures) -> Checkpoint:
    """Adds the tracked ranges to a checkpoint by retention rules."""
    assert figures.tracked_sha256 is not None
    before = open_base_checkpoint(step)
    return replace(
        checkpoint,
        tracked=checkpoints.count_ranges(
            step.repository.store, step.plan.run_id, checkpoint.attempt, figures.tracked_sha256
        ),
        tracked_sha256=figures.tracked_sha256,
        full_run=before.checkpoint.full_run if before else step.plan.run_id,
    )


def _store(step: Step[R], frame: Frame[NoFigures], rows: R) -> StoredFrame[NoFigures]:
    began = step.repository.clock.now()
    return step.complete(frame, NoFigures(), step.write_everywhere(frame, rows), started_at=began)


def reason_for_none(step: Step[R], outcomes: StoredFrame[DeletedFigures]) -> str | None:
    """The reason why the next run cannot build on this one; None if it can."""
    listed, committed = step.stored(STORE_DF), step.stored(COMMITTED_DF)
    if not outcomes.figures.swept:
        return "it was a dry run"
    if step.plan.flow.by_retention and committed.figures.tracked_sha256 is None:
        return (
            "which ranges were live is not noted: commits came from other places than this repository's refs dump, or "
            "an earlier version of the collector read them"
        )
    if step.plan.flow is Flow.COMMITTED and _has_young(step, listed):
        return "an expired commit holds objects without a time in their names, which were younger than the cutoff"
    if is_limited(listed, universe_of(step, listed, committed)):
        return f"it was limited to {step.plan.scope}"
    if not _has_not_committed(step):
        return "its candidates were found by an earlier version of the collector"
    return None


def _has_young(step: Step[R], listed: StoredFrame[StoredFigures]) -> bool:
    """True if an object without a time in its name is younger than the cutoff.

    Its age is the age of its youngest entry, which the next run would not see.
    """
    moment = pa.scalar(step.plan.cutoff, TIME)

    def is_young(rows: pa.RecordBatch) -> pa.BooleanArray:
        return pc.and_(pc.is_null(rows.column("issued_at")), pc.greater_equal(rows.column("last_modified"), moment))

    rows = listed.rows(step.engine, "address", "issued_at", "last_modified")
    return step.engine.count(step.engine.where(rows, is_young)) > 0


def is_limited(listed: StoredFrame[StoredFigures], universe: Universe[R]) -> bool:
    """True if a run excluded windows: it did not list them, or knows of objects there that it does not collect."""
    has_others = any(frame.manifest.rows_by_window().get(OTHER_WINDOW) for frame in universe.frames)
    return bool(listed.figures.limited_to) or has_others


def _has_not_committed(step: Step[R]) -> bool:
    """True if this attempt has stored the frame `unheld`; earlier versions did not."""
    try:
        return step.stored(NOT_COMMITTED_DF).manifest.span.attempt == step.plan.attempt
    except OrderViolation:
        return False


def seal(step: Step[R]) -> frozenset[str]:
    """The slices that are sealed after this run: all shards were listed, so a slice is complete in every shard."""
    before = open_base_checkpoint(step)
    listed = checkpoints.read_listed_slices(step.repository.store, step.plan.run_id, step.plan.attempt)
    return checkpoints.sealed(
        before.sealed if before else frozenset(),
        listed.union(_listed_in_shards(step)),
        step.plan.cutoff,
        step.plan.skew,
    )


def _listed_in_shards(step: Step[R]) -> Iterable[str]:
    """The slices of the sharded layout that were listed; only the names of their objects show them."""
    engine, listed = step.engine, step.stored(STORE_DF)
    if not Folders((), listed.figures.other_folders).shards:
        return ()
    each = engine.map_batches(listed.rows(engine, "address"), slices_in_shards, SLICES)
    found: list[str] = engine.collect(engine.distinct(each)).column("slice").to_pylist()
    return found


def _select_carried(engine: Engine[R], rows: R, sealed: Iterable[str] | None) -> R:
    """Rows that the next run does not find by itself: in sealed slices or in no slice; all rows if `sealed` is None."""
    return rows if sealed is None else select_sealed(engine, rows, sealed)


def select_pending(
    engine: Engine[R], not_committed: R, sealed: Iterable[str] | None, deleted: R, count: int | None = None
) -> R:
    """Selects the pending objects: in sealed slices, or in no slice, held by no commit, and not deleted.

    Args:
        not_committed: objects that no commit holds.
        sealed: sealed slices; None for objects wherever they lie.
        deleted: addresses whose deletion the store accepted, in this run or meanwhile in another one, compared as
            strings.
        count: approximate number of objects and addresses together, if known.
    """
    return engine.without_exactly(_select_carried(engine, not_committed, sealed), deleted, count)


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """Numbers of objects in sealed slices, or in no slice, by their state.

    Attributes:
        committed: objects that commits hold.
        both: objects that would be pending although commits hold them.
        lost: objects that no commit holds and that would be neither pending nor deleted.
    """

    committed: int
    both: int
    lost: int

    @property
    def contradiction(self) -> str | None:
        """The reason why the next run cannot build on these frames; None if it can."""
        if self.both:
            return f"{counted(self.both, 'objects')} would be pending although commits hold them"
        if self.lost:
            return f"{counted(self.lost, 'listed objects')} would be neither pending nor committed nor deleted"
        return None


def count_sealed(
    engine: Engine[R], universe: R, not_committed: R, waiting: R, deleted: R, count: int
) -> tuple[int, int]:
    """Counts objects of sealed slices by their state, to check the pending frame as it is stored.

    All rows have an address. Returns the numbers of committed and of lost objects, see CheckpointCounts.

    Args:
        universe: all objects.
        not_committed: objects that no commit holds.
        waiting: objects of the pending frame.
        count: approximate number of rows of `not_committed`, `waiting` and `deleted` together.
    """
    counts = engine.count_by_sets(not_committed, waiting, deleted, count=count)
    is_not_committed = 1
    committed = engine.count(universe) - sum(n for sets, n in counts.items() if sets & is_not_committed)
    return committed, counts.get(is_not_committed, 0)


def count_late_arrivals(step: Step[R], candidates: StoredFrame[CandidateFigures]) -> int:
    """Counts the candidates of a clean run that came into a slice after an earlier run had sealed it.

    An optimized run would not find them. 0 for other flows, and without an earlier run to build on.
    """
    if step.plan.flow is not Flow.CLEAN or not candidates.count:
        return 0
    try:
        base = planning.find_base_run(step.repository, step.plan)
        planning.require_files(step.repository.store, base)
    except NoBaseRun:
        return 0
    return step.engine.count(
        select_late(step, candidates, base.sealed, BaseCheckpoint(step.repository.store, base.run_id))
    )


def select_late(
    step: Step[R], candidates: StoredFrame[CandidateFigures], sealed: Iterable[str], before: BaseCheckpoint
) -> R:
    """The candidates that lie in sealed slices, or in no slice, and were not pending in the base run."""
    rows = select_sealed(step.engine, candidates.rows(step.engine, *STORE_DF.schema.names), sealed)
    return step.engine.without_exactly(rows, step.engine.select(before.pending_objects(step), "address"))

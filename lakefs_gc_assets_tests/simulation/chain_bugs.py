"""Seeded bugs of optimized runs: state that a hurried collector passes from one run to the next.

All can be built, but three take more than one line. A checkpoint is part of the report, so leaving one without success
takes another report. A run limited to some windows leaves no checkpoint at all. Slices to list, pending objects and
objects committed elsewhere all come from one set of sealed slices.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import make_step, run
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame import receipts, slices
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, DELETED_REPORT, LIVE, STORE_DF, TIME, DeletedFigures
from lakefs_gc_assets.collector.frame.slices import folders, select_unsealed
from lakefs_gc_assets.collector.incremental import checkpoint as checkpoints
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.incremental.checkpoint import (
    BaseCheckpoint,
    CheckpointCounts,
    open_base_checkpoint,
    reason_for_none,
    select_pending,
    write_checkpoint,
)
from lakefs_gc_assets.collector.live.current import Committed, Unread, ask_committed, find_unread
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report, run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.retention import commits
from lakefs_gc_assets.collector.retention.commits import CommitSource, Dump, complete_dump
from lakefs_gc_assets.collector.run import sweep_candidates
from lakefs_gc_assets.collector.sweep import passes, recheck
from lakefs_gc_assets.lakefs.layout import OTHER_WINDOW
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation.bug import ArrowStep, Bug, Replacement, ignored, replaced, without_unnamed

Frame = StoredFrame[Any]
_UNCHECKED: Replacement = (CheckpointCounts, "contradiction", None)
"""Skips the check that the checkpoint does not contradict itself."""


def reading_only(step: ArrowStep, found: Committed, metarange_ids: Collection[str], known: frozenset[str]) -> Committed:
    """Treats only these metaranges of this repository as unread."""
    chosen = tuple(name for name in found.own.metarange_ids if name in metarange_ids)
    unread = find_unread(step, step.repository, replace(found.own, metarange_ids=chosen), known)
    return replace(found, unread=(unread, *found.unread[1:]))


def _new_by_date(limit: Callable[[BaseCheckpoint, Mapping[str, float]], float]) -> Bug:
    """Reads only commits that are dated after some moment of the base run."""

    def replacements() -> Sequence[Replacement]:
        dumps: list[Dump] = []
        newest: dict[str, float] = {}

        def dump(*arguments: Any, **named: Any) -> Dump:
            dumps[:] = [complete_dump(*arguments, **named)]
            return dumps[0]

        def ask(step: ArrowStep, until: datetime, known: frozenset[str], *more: Any, **named: Any) -> Committed:
            found = ask_committed(step, until, known, *more, **named)
            before = open_base_checkpoint(step)
            if found.own.source is not CommitSource.REFS_DUMP:
                return found
            dated = dumps[-1].commits
            seconds = dated.seconds.tolist()
            newest[step.plan.run_id] = max(seconds, default=0)
            if before is None or before.report.commit_source != found.source:
                return found
            after = limit(before, newest)
            pairs = zip(dated.metarange_ids.to_pylist(), seconds, strict=True)
            return reading_only(step, found, {metarange_id for metarange_id, made in pairs if made > after}, known)

        return (commits, "complete_dump", dump), (run, "ask_committed", ask)

    return Bug(replacements)


def _newest_commit(before: BaseCheckpoint, newest: Mapping[str, float]) -> float:
    """Date of the newest commit known to the base run."""
    return newest[before.run_id]


def _start(before: BaseCheckpoint, newest: Mapping[str, float]) -> float:
    """When the base run began."""
    return before.report.started_at.timestamp()


class _UpToLastSlice(BaseCheckpoint):
    """Treats every slice as sealed unless it is newer than the newest one that the base run listed."""

    @property
    def sealed(self) -> frozenset[str]:
        there = folders(self._store).slices
        return frozenset(name for name in there if name >= self.report.last_read_slice)


def _open_at_last_slice(step: ArrowStep) -> BaseCheckpoint | None:
    before = open_base_checkpoint(step)
    return None if before is None else _UpToLastSlice(step.repository.store, before.run_id)


def _young_pending() -> Sequence[Replacement]:
    """Carries all objects that are too young, including committed ones."""
    steps: dict[int, ArrowStep] = {}

    def leave_by_age(step: ArrowStep, outcomes: Frame) -> Checkpoint | str:
        steps[id(step.engine)] = step
        return write_checkpoint(step, outcomes)

    def select(engine: LocalEngine, rows: ArrowRows, *more: Any, **named: Any) -> Any:
        step = steps[id(engine)]
        moment = pa.scalar(step.plan.cutoff, TIME)
        listed, held = step.stored(STORE_DF), step.stored(COMMITTED_DF)
        young = engine.where(
            engine.among_exactly(listed.rows(engine), held.rows(engine, "address")),
            lambda batch: pc.greater_equal(batch.column("last_modified"), moment),
        )
        left: ArrowRows = select_pending(engine, engine.union(rows, young), *more, **named)
        return left

    return (checkpoints, "write_checkpoint", leave_by_age), (checkpoints, "select_pending", select), _UNCHECKED


def _rechecked_as_read() -> Sequence[Replacement]:
    """Records the ranges that a recheck reads as known, but keeps none of their addresses."""
    rechecked: dict[str, frozenset[str]] = {}

    def ask(step: ArrowStep, until: datetime, known: frozenset[str], *more: Any) -> Committed:
        found = ask_committed(step, until, known, *more)
        rechecked[step.plan.run_id] = known | found.ids
        return found

    def leave_more(step: ArrowStep, outcomes: Frame) -> Checkpoint | str:
        left = write_checkpoint(step, outcomes)
        ids = rechecked.get(step.plan.run_id)
        if not isinstance(left, Checkpoint) or ids is None:
            return left
        sha256 = tables.write_run_ids(step.repository.store, step.plan.run_id, step.plan.attempt, ids)
        return replace(left, read=len(ids), read_sha256=sha256)

    return (recheck, "ask_committed", ask), (checkpoints, "write_checkpoint", leave_more)


def _sealed_anew(step: ArrowStep) -> frozenset[str]:
    """Seals only slices that it lists itself."""
    plan = step.plan
    listed = checkpoints.read_listed_slices(step.repository.store, plan.run_id, plan.attempt)
    return checkpoints.sealed(frozenset(), listed, plan.cutoff, plan.skew)


def _dealt_with(*outcomes: Outcome) -> Replacement:
    """Never retries candidates that have one of these outcomes."""
    return (
        checkpoints,
        "receipts",
        SimpleNamespace(NOT_THERE=(*receipts.NOT_THERE, *(each.value for each in outcomes))),
    )


def _as_if_swept(step: ArrowStep, outcomes: Frame) -> str | None:
    figures = DeletedFigures(swept=True)
    return reason_for_none(step, replace(outcomes, manifest=replace(outcomes.manifest, figures=figures)))


def _newest_of_all(
    store: ObjectStore, before: str | None = None, among: int | None = None, *, committed: bool = False
) -> Plan | None:
    run_ids: Iterator[str] = run_folder.newest_runs(store)
    newest = next((run_id for run_id in run_ids if before is None or run_id > before), None)
    return None if newest is None else plans.read(store, newest)


def all_accepted(step: ArrowStep, candidates: Frame) -> Frame:
    """The outcomes of a sweep that has not begun, as if every deletion succeeded."""
    decide = vars(passes)["_decide"]
    written = step.write(DELETED_REPORT, decide(step, candidates.rows(step.engine), Outcome.ACCEPTED))
    return step.unfinished(DELETED_REPORT, DeletedFigures(swept=True), written)


def _carry_before_sweep(step: ArrowStep, candidates: Frame) -> Iterator[Any]:
    """Writes the checkpoint of a fully successful sweep before it deletes."""
    left = vars(checkpoints)["write_checkpoint"](step, all_accepted(step, candidates))
    early = report.failed(step.plan, step.repository.clock.now(), "it has not ended")
    source = step.stored(COMMITTED_DF).figures.commit_source
    checkpoint = left if isinstance(left, Checkpoint) else None
    report.write(step.repository.store, replace(early, commit_source=source, checkpoint=checkpoint))
    yield from sweep_candidates(step, candidates)


def _first_row(step: ArrowStep, outcomes: Frame) -> Checkpoint | str:
    """Makes the next run list from the slice of an arbitrary row, mistaken for the newest one."""
    left = write_checkpoint(step, outcomes)
    if not isinstance(left, Checkpoint):
        return left
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    before = open_base_checkpoint(step)
    listed = checkpoints.read_listed_slices(store, run_id, attempt)
    rows = sorted(step.stored(STORE_DF).table().to_pylist(), key=_hash)
    first = next((row["slice"] for row in rows if row["slice"] in listed), "")
    older = frozenset(name for name in listed if name >= first) | (before.sealed if before else frozenset())
    return replace(left, sealed_sha256=checkpoints.write_sealed(store, run_id, attempt, older))


def _hash(row: Mapping[str, Any]) -> str:
    return hashlib.md5(row["address"].encode(), usedforsecurity=False).hexdigest()


def _inside_alone(engine: LocalEngine, rows: ArrowRows, *more: Any, **named: Any) -> Any:
    """Carries only rows in the windows of the run."""
    inside = engine.where(rows, lambda batch: pc.not_equal(batch.column("slice_window"), OTHER_WINDOW))
    return select_pending(engine, inside, *more, **named)


def _everything(self: Committed) -> tuple[Unread, ...]:
    unnamed = () if self.unnamed is None else (self.unnamed,)
    return (*self.unread, *unnamed, *self.provisional)


def _select_unsharded(engine: LocalEngine, rows: ArrowRows, sealed: Iterable[str]) -> ArrowRows:
    """Treats all rows in shards as sealed."""
    return engine.where(
        select_unsealed(engine, rows, sealed),
        lambda batch: pc.invert(pc.starts_with(batch.column("address"), "data/!")),
    )


CHAIN_BUGS: dict[str, Bug] = {
    "what is live for now taken for committed": replaced((Committed, "everything", property(_everything))),
    "new commits chosen by date": _new_by_date(_newest_commit),
    "new commits chosen by the last run's timestamp": _new_by_date(_start),
    "stop at the last read slice": replaced((checkpoints, "open_base_checkpoint", _open_at_last_slice)),
    "pending without subtracting committed": replaced((checkpoints, "NOT_COMMITTED_DF", STORE_DF), _UNCHECKED),
    "too young without subtracting committed": Bug(_young_pending),
    "ranges of the recheck marked as read": without_unnamed(Bug(_rechecked_as_read)),
    "sealed recomputed and shrinking": replaced((checkpoints, "seal", _sealed_anew)),
    "committed left out of the checkpoint": replaced(
        (BaseCheckpoint, "committed", lambda self, step: step.engine.table(LIVE.empty_table()))
    ),
    "committed in shards left out of the checkpoint": replaced((checkpoints, "select_unsealed", _select_unsharded)),
    "what lies in shards taken for sealed": replaced((slices, "_SLICE_FOLDER", r"^data/(?P<folder>[0-9a-v]{19}[0g])/")),
    "failed deletions dropped": replaced(_dealt_with(Outcome.FAILED), _UNCHECKED),
    "a dry run as base run": replaced(
        (planning, "newest_sweep", _newest_of_all),
        (checkpoints, "reason_for_none", _as_if_swept),
        _dealt_with(Outcome.DRY_RUN),
        _UNCHECKED,
    ),
    "checkpoint without success": replaced(
        (run, "sweep_candidates", _carry_before_sweep), (make_step, "store_report", ignored)
    ),
    "first slice from an unsorted frame": replaced((checkpoints, "write_checkpoint", _first_row)),
    "rows outside the run's windows dropped from the checkpoint": replaced(
        (checkpoints, "is_limited", lambda listed, universe: False),
        (checkpoints, "select_pending", _inside_alone),
        _UNCHECKED,
    ),
}
"""Seeded bugs by name."""

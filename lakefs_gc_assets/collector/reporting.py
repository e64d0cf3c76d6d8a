"""The figures of a mark, the report of a finished run, and checks of its candidates, all from stored frames.

The checks look for errors that no mark may contain, by other means than the subtraction.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards, standing_approvals
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import sum_all
from lakefs_gc_assets.collector.frame.files import Manifest, Span, StoredFrame, read_spans
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    STORE_DF,
    TIME,
    UNCOMMITTED_DF,
    CandidateFigures,
    CommittedFigures,
    DeletedFigures,
    StoredFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.guards import Mark
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.across_runs import Verdict
from lakefs_gc_assets.collector.records.figures import required, stated
from lakefs_gc_assets.collector.records.outcomes import Amount, Kept, Outcome, count_known, size
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import WOULD_BE_REFUSED, Checkpoint, Report, ending, failed, from_plan
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError, GuardTripped, counted
from lakefs_gc_assets.settings import UNKNOWN_CLASS, CollectionSettings
from lakefs_gc_assets.storage.interface import ARCHIVE_CLASSES, ObjectStore

_BY_OUTCOME = pa.schema([("outcome", pa.string()), ("objects", pa.int64()), ("bytes", pa.int64())])
_WAY_BACK = (
    "`lakefs-gc explain ADDRESS` names the run; `lakefs-gc restore RUN --address ADDRESS --yes` restores the object "
    "if the bucket keeps versions or the run moved it to quarantine"
)


def mark_of(
    listed: Manifest[StoredFigures],
    uncommitted: Manifest[UncommittedFigures],
    committed: Manifest[CommittedFigures],
    candidates: Manifest[CandidateFigures],
) -> Mark:
    """The figures of a mark."""
    # Expired objects were listed by an earlier run, so they are among the objects that are not listed now.
    known = listed.rows + required(listed.figures.sealed_objects)
    if listed.figures.flow == Flow.COMMITTED:
        known = count_known(committed.rows, candidates.rows, candidates.figures.kept)
    return Mark(
        **stated(listed.figures, uncommitted.figures, committed.figures, candidates.figures),
        listed=listed.rows + (committed.figures.expired_objects or 0),
        listed_bytes=listed.object_bytes + (committed.figures.expired_bytes or 0),
        uncommitted=uncommitted.rows,
        committed=committed.rows,
        branches=len(committed.figures.heads),
        candidates=candidates.rows,
        candidates_bytes=candidates.object_bytes,
        known=known,
        missing_examples=candidates.figures.missing_examples,
        retention=guards.from_stored(committed.figures.retention_guards),
        nested=listed.figures.nested_namespaces,
        limited_to=listed.figures.limited_to,
        repositories_unknown=listed.figures.repositories_unknown,
    )


def stored_mark(step: Step[R]) -> Mark:
    """The figures of the mark that this run has stored. Raises OrderViolation if a frame does not exist."""
    return mark_of(
        step.stored(STORE_DF).manifest,
        step.stored(UNCOMMITTED_DF).manifest,
        step.stored(COMMITTED_DF).manifest,
        step.stored(CANDIDATES_DF).manifest,
    )


def count_amounts(step: Step[R], outcomes: StoredFrame[DeletedFigures]) -> Mapping[Outcome, Amount]:
    """Counts the candidates by their outcome."""
    rows = outcomes.rows(step.engine, "outcome", "size")
    sums = sum_all(step.engine, rows, _amounts, "outcome", _BY_OUTCOME).to_pylist()
    counted = {Outcome(row["outcome"]): Amount(row["objects"], row["bytes"]) for row in sums}
    return dict.fromkeys(Outcome, Amount()) | counted


def _amounts(receipts: pa.RecordBatch) -> list[pa.Array]:
    return [receipts.column("outcome"), np.ones(receipts.num_rows, np.int64), receipts.column("size")]


def make_report(
    step: Step[R],
    outcomes: StoredFrame[DeletedFigures],
    checkpoint_or_reason: Checkpoint | str,
    amounts: Mapping[Outcome, Amount],
    late_arrivals: int,
    failures: Verdict | None,
) -> Report:
    """The report of a finished run.

    Args:
        checkpoint_or_reason: checkpoint for the next run, or the reason why there is none.
        late_arrivals: candidates that were written into a slice after an earlier run had sealed it.
        failures: judgement of failed deletions; None for a dry run.
    """
    listed, uncommitted = step.stored(STORE_DF), step.stored(UNCOMMITTED_DF)
    committed, candidates = step.stored(COMMITTED_DF), step.stored(CANDIDATES_DF)
    mark = mark_of(listed.manifest, uncommitted.manifest, committed.manifest, candidates.manifest)
    plan, swept = step.plan, outcomes.figures.swept
    # In the flow `committed`, the provisional ranges include those that no commit names.
    unnamed = required(mark.unnamed_ranges) if plan.flow is Flow.COMMITTED else 0
    objects = {outcome: amount.objects for outcome, amount in amounts.items()}
    statistics = replace(
        mark,
        stored=None if plan.flow is Flow.COMMITTED or mark.limited_to else mark.known,
        committed=mark.committed if plan.base_run is None or plan.flow is Flow.COMMITTED else None,
        provisional_ranges=max((mark.provisional_ranges or 0) - unnamed, 0),
        late_arrivals=late_arrivals,
        deleted=objects[Outcome.ACCEPTED],
        deleted_bytes=amounts[Outcome.ACCEPTED].bytes,
        quarantined=objects[Outcome.QUARANTINED],
        quarantined_bytes=amounts[Outcome.QUARANTINED].bytes,
        failed=objects[Outcome.FAILED],
        undeletable=len(failures.failing) if failures else 0,
        kept_live=objects[Outcome.KEPT_LIVE],
        kept_archived=objects[Outcome.KEPT_ARCHIVED],
        kept_archived_bytes=amounts[Outcome.KEPT_ARCHIVED].bytes,
        deleted_by_another_run=objects[Outcome.DELETED_BY_ANOTHER_RUN],
    )
    swept_well = failures is None or failures.success
    return from_plan(
        plan,
        ending(swept, step.repository.settings.quarantines, objects),
        step.repository.clock.now(),
        dry_run=not swept,
        success=swept_well and not candidates.figures.lost,
        ended_well=swept_well,
        limited_to=mark.limited_to,
        last_read_slice=listed.figures.last_read_slice,
        counts=statistics.counts | dict(committed.figures.retention),
        object_bytes=statistics.object_bytes,
        storage_classes={
            "listed": by_class(listed.manifest, Amount(required(mark.listed), required(mark.listed_bytes))),
            "candidates": by_class(candidates.manifest, Amount(candidates.count, candidates.manifest.object_bytes)),
        },
        kept=dict(candidates.figures.kept),
        commit_source=committed.figures.commit_source,
        server_run_ids=uncommitted.figures.server_run_ids,
        checkpoint=checkpoint_or_reason if isinstance(checkpoint_or_reason, Checkpoint) else None,
        no_checkpoint=checkpoint_or_reason if isinstance(checkpoint_or_reason, str) else None,
        loosened={**plan.loosened, **step.repository.loosened},
        approved_by=_approver(step.repository.store, plan) if swept else "",
        **seconds_by_step(frame.manifest.span for frame in (listed, uncommitted, committed, candidates, outcomes)),
        warnings=(
            *([f"no lock was held: {step.lock.why_unfenced}"] if step.lock and step.lock.why_unfenced else []),
            *list_warnings(mark, candidates, committed, step.repository.settings, swept),
            *([] if swept or not candidates.count else _list_limits_met(step, mark)),
            *([failures.warning] if failures and failures.warning else []),
            *filter(None, [describe_archived(amounts[Outcome.KEPT_ARCHIVED])]),
        ),
    )


def _list_limits_met(step: Step[R], mark: Mark) -> list[str]:
    planned = standing_approvals.planned_sweep(step.plan.run_id, mark, mark.known)
    return standing_approvals.list_limits_met(step.repository, standing_approvals.ApprovedWork.COLLECTION, planned)


def seconds_by_step(spans: Iterable[Span]) -> dict[str, Any]:
    """Report entries for working and waiting time per step."""
    worked = {span.frame: span for span in spans}
    return {
        "worked_seconds": {name: span.worked_seconds for name, span in worked.items()},
        "waited_seconds": {name: span.waited_seconds for name, span in worked.items() if span.waited_seconds},
    }


def report_failure(store: ObjectStore, plan: Plan, now: datetime, error: str) -> Report:
    """The report of a run that failed, with the steps that had ended before."""
    spans = read_spans(store, plan.run_id, plan.attempt)
    return replace(failed(plan, now, error), approved_by=_approver(store, plan), **seconds_by_step(spans))


def _approver(store: ObjectStore, plan: Plan) -> str:
    """Name of the approver of a dry run's candidates; empty for other runs, and if the approval cannot be read."""
    if plan.sweep:
        return ""
    try:
        approval = plans.read_approval(store, plan.run_id)
    except CollectionError:
        return ""  # The report of a failed run is stored in any case.
    return approval.approved_by if approval is not None and approval.attempt == plan.attempt else ""


def by_class(manifest: Manifest[Any], total: Amount) -> dict[str, dict[str, int]]:
    """Objects and bytes by storage class; those without a known class are under `UNKNOWN_CLASS`."""
    amounts = manifest.classes
    rest = total - Amount.total(amounts.values())
    if amounts and rest.objects:
        amounts[UNKNOWN_CLASS] = rest
    return {name: amount._asdict() for name, amount in sorted(amounts.items())}


def list_warnings(
    mark: Mark,
    candidates: StoredFrame[CandidateFigures],
    committed: StoredFrame[CommittedFigures],
    settings: CollectionSettings,
    swept: bool,
) -> tuple[str, ...]:
    """Warnings for a person to read first; in a dry run also the guards that a sweep would trip."""
    advice = describe_unasked(candidates, settings), describe_compacted(committed.figures, settings)
    return (
        *describe_gone(candidates.figures),
        *filter(None, advice),
        *committed.figures.retention_warnings,
        *(() if swept else list_obstacles(mark, candidates, settings)),
    )


def list_obstacles(mark: Mark, candidates: StoredFrame[CandidateFigures], settings: CollectionSettings) -> list[str]:
    """One line for each guard that would refuse a sweep of a mark, and for objects that such a sweep could not move."""
    foreseen = guards.from_stored(candidates.figures.sweep_guards)
    refusals = [f"{WOULD_BE_REFUSED}{guard}" for guard in (*guards.tripped(mark, settings), *foreseen)]
    return [*refusals, *filter(None, [foresee_archived(candidates.manifest.classes, settings)])]


def describe_gone(figures: CandidateFigures) -> Iterator[str]:
    """Lines about deleted objects that are referenced: losses, and objects that had expired by rule."""
    if lost := describe_losses(figures):
        yield lost
    if figures.named_again:
        yield (
            f"{counted(figures.named_again, 'objects are')} referenced again by a branch head or by staging, such as "
            f"{', '.join(figures.named_again_examples)}. Only expired commits referenced them when earlier runs "
            "deleted them, so no rule was broken: for example, a branch was created on an expired commit. Reading them "
            f"returns 410 Gone. {_WAY_BACK}"
        )


def describe_losses(figures: CandidateFigures) -> str | None:
    """Line about referenced objects that earlier runs deleted, the most important figure; None if there are none."""
    if not figures.lost:
        return None
    return (
        f"{counted(figures.lost, 'objects that earlier runs deleted are')} referenced by a branch head or by staging, "
        f"such as {', '.join(figures.lost_examples)}. {_WAY_BACK}"
    )


def describe_compacted(figures: CommittedFigures, settings: CollectionSettings) -> str | None:
    """Advice on the settings of unnamed ranges for a server that compacts staging; None if they suit it."""
    if not figures.compacted_bases:
        return None
    fact = f"the server compacts staging: {counted(figures.compacted_bases, 'compacted bases are')} on branches"
    if not settings.keep_unnamed_ranges:
        return (
            f"{fact}, but collection.keep_unnamed_ranges is off. So only the server's list and the refs dump protect "
            "objects that move from staging into a new base. Turn it on, and turn collection.keep_old_unnamed_ranges "
            "off: then young ranges count in any case, and objects of superseded compactions can be deleted"
        )
    if settings.keep_old_unnamed_ranges and figures.unnamed_ranges:
        return (
            f"{fact}, and {counted(figures.unnamed_ranges, 'ranges that belong to no commit keep')} their objects. To "
            "delete objects of superseded compactions, turn collection.keep_old_unnamed_ranges off, if no other "
            "repository is on this storage namespace"
        )
    return None


def describe_unasked(candidates: StoredFrame[CandidateFigures], settings: CollectionSettings) -> str | None:
    """Line about objects kept because too many paths needed a check, and the setting for it; None if there are none."""
    kept = sum(candidates.figures.kept.get(why.value, 0) for why in (Kept.UNCERTAIN, Kept.UNREADABLE))
    unasked = candidates.figures.paths_unasked
    if not kept or not unasked:
        return None
    return (
        f"{counted(kept, 'objects stay')} although they may be garbage: collection.hidden_suspect_limit "
        f"({settings.hidden_suspect_limit:,}) did not suffice to look up whether they are staged. "
        f"{counted(unasked, 'more lookups')} are needed: raise it by that number, or delete unneeded branches"
    )


def describe_archived(kept: Amount) -> str | None:
    """Warning about archived objects that were kept because quarantine cannot copy them; None if there were none."""
    if not kept.objects:
        return None
    return (
        f"{counted(kept.objects, 'objects')} of garbage, {size(kept.bytes)}, kept: quarantine cannot copy objects in "
        "an archive tier. Move them out of the tier, or sweep with sweep_mode: delete"
    )


def foresee_archived(classes: Mapping[str, Amount], settings: CollectionSettings) -> str | None:
    """Warning about candidates, by storage class, that a sweep into quarantine could not copy; None if there are none.

    An object restored from the archive for some days keeps its class, and can be copied meanwhile.
    """
    archived = sorted(classes.keys() & ARCHIVE_CLASSES)
    if not archived or not settings.quarantines:
        return None
    kept = Amount.total(classes[name] for name in archived)
    return (
        f"a sweep would keep {counted(kept.objects, 'objects')} of garbage, {size(kept.bytes)}, of storage class "
        f"{', '.join(archived)}, which quarantine cannot copy. Move them out of the tier, or sweep with sweep_mode: "
        "delete"
    )


_SHOWN = 20


@dataclass(frozen=True)
class Violation:
    """One violated rule of a frame; `rows` if they were counted."""

    rule: str
    detail: str
    rows: int | None = None


def find_live_candidates(
    engine: Engine[R], candidates: StoredFrame[CandidateFigures], *live: StoredFrame[Any]
) -> list[Violation]:
    """Finds candidates that are live; addresses are compared as strings."""
    violations = []
    for frame in live if candidates.count else ():
        if not frame.count:
            continue
        addresses = candidates.rows(engine, "address")
        both = engine.among_exactly(frame.rows(engine, "address"), addresses, frame.count + candidates.count)
        # Grouping rows by address is skipped if there are none.
        if engine.count(both):
            live_addresses = engine.distinct(both)
            shown = ", ".join(sorted(engine.collect(live_addresses, limit=_SHOWN).column("address").to_pylist()))
            violations.append(Violation(f"disjoint from {frame.name}", shown, engine.count(live_addresses)))
    return violations


def find_young_candidates(
    engine: Engine[R], candidates: StoredFrame[CandidateFigures], cutoff: datetime
) -> list[Violation]:
    """Finds candidates that were written or named at or after the cutoff (UTC)."""
    if not candidates.count:
        return []
    moment = pa.scalar(cutoff, TIME)

    def is_young(rows: pa.RecordBatch) -> pa.BooleanArray:
        is_named_young = pc.fill_null(pc.greater_equal(rows.column("issued_at"), moment), False)
        return pc.or_(pc.greater_equal(rows.column("last_modified"), moment), is_named_young)

    count = engine.count(engine.where(candidates.rows(engine, "last_modified", "issued_at"), is_young))
    return [Violation("older than the cutoff", f"the cutoff is {cutoff:%F %T}Z", count)] if count else []


def find_empty_live_set(
    listed: StoredFrame[StoredFigures],
    uncommitted: StoredFrame[UncommittedFigures],
    committed: StoredFrame[CommittedFigures],
    candidates: StoredFrame[CandidateFigures],
) -> list[Violation]:
    """Finds an empty live set although live commits count entries and there are candidates."""
    try:
        figures = mark_of(listed.manifest, uncommitted.manifest, committed.manifest, candidates.manifest)
        guards.require_live_set(figures)
    except GuardTripped as tripped:
        return [Violation(tripped.guard, str(tripped))]
    return []


def find_losses(candidates: StoredFrame[CandidateFigures]) -> list[Violation]:
    """Finds objects of a branch head or of staging that earlier runs deleted."""
    losses = describe_losses(candidates.figures)
    return [Violation("nothing deleted is live", losses, candidates.figures.lost)] if losses else []

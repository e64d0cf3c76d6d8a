"""The report of a run that came to its end, put together from what its frames say of themselves."""

import pyspark.sql.functions as F

from lakefs_gc_assets.assets.candidates import mark_of
from lakefs_gc_assets.assets.carrying import late_arrivals
from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import guards
from lakefs_gc_assets.collection.carry import Carry
from lakefs_gc_assets.collection.guards import Mark
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.report import Ending, Report
from lakefs_gc_assets.configuration import CollectionSettings
from lakefs_gc_assets.frames.spark import StoredFrame

Totals = tuple[dict[Outcome, int], dict[Outcome, int]]


def report_of(run: Step, deleted: StoredFrame, left: Carry | str, amounts: Totals) -> Report:
    """The report; `success` only where every deletion was accepted or none was asked for.

    Args:
        left: what the next run can build on, or why it cannot.
        amounts: what became of how many objects and bytes.
    """
    listed, uncommitted = run.stored("store_df"), run.stored("uncommitted_df")
    committed, candidates = run.stored("committed_df"), run.stored("candidates")
    mark = mark_of(listed, uncommitted, committed, candidates)
    objects, sizes = amounts
    failed = objects[Outcome.FAILED]
    plan, sweep = run.plan, bool(deleted.manifest.figures["swept"])
    return Report(
        run_id=plan.run_id,
        attempt=plan.attempt,
        repository=plan.repository,
        storage_namespace=plan.storage_namespace,
        flow=plan.flow.value,
        previous_run=plan.previous_run,
        dry_run=not sweep,
        success=not failed,
        ending=ending(sweep, mark.candidates, failed, moves(run) and not objects[Outcome.ACCEPTED]),
        started_at=plan.started_at,
        ended_at=run.repository.clock.now(),
        cutoff=plan.cutoff,
        windows=plan.windows,
        last_read_slice=listed.manifest.figures["last_read_slice"],
        counts={
            "listed": mark.listed,
            "slices_listed": listed.manifest.figures["slices_listed"],
            "slices_skipped": listed.manifest.figures["slices_skipped"],
            "uncommitted": mark.uncommitted,
            "committed": mark.committed,
            "commits": committed.manifest.figures["commits"],
            "branches": len(committed.manifest.figures["heads"]),
            "missing": mark.missing,
            "ranges_read": committed.manifest.figures["ranges_read"],
            **committed.manifest.figures.get("retention", {}),
            "candidates": mark.candidates,
            "late_arrivals": late_arrivals(run, candidates),
            "deleted": objects[Outcome.ACCEPTED],
            "quarantined": objects[Outcome.QUARANTINED],
            "failed": failed,
            "kept_live": objects[Outcome.KEPT_LIVE],
        },
        object_bytes={
            "listed": mark.listed_bytes,
            "candidates": mark.candidate_bytes,
            "deleted": sizes[Outcome.ACCEPTED],
            "quarantined": sizes[Outcome.QUARANTINED],
        },
        kept=mark.kept,
        commit_source=committed.manifest.figures["commit_source"],
        server_run_ids=tuple(uncommitted.manifest.figures["server_run_ids"]),
        why_clean=plan.why_clean,
        predecessor=plan.predecessor,
        carry=left if isinstance(left, Carry) else None,
        no_carry=left if isinstance(left, str) else None,
        warnings=warnings(mark, committed, run.repository.settings, sweep),
    )


def warnings(mark: Mark, committed: StoredFrame, settings: CollectionSettings, sweep: bool) -> tuple[str, ...]:
    """What a person must know before anything else; the guards that a sweep would trip are among it in a dry run."""
    told = tuple(committed.manifest.figures.get("retention_warnings", ()))
    tripped = () if sweep else guards.tripped(mark, settings)
    return told + tuple(f"a sweep would be refused: {guard}" for guard in tripped)


def figures(found: Report) -> dict[str, int | str]:
    """What the UI shows of the report beside the frame; bytes that moved to quarantine are not freed."""
    shown: dict[str, int | str] = {"ending": found.ending.value}
    for name in ("deleted", *(["quarantined"] if found.moved else []), "failed", "kept_live"):
        shown[name] = found.counts[name]
        if name in found.object_bytes:
            shown[f"{name}_bytes"] = found.object_bytes[name]
    return shown


def moves(run: Step) -> bool:
    """Whether a sweep of the run moves candidates to quarantine."""
    return run.repository.settings.sweep_mode == "quarantine"


def ending(sweep: bool, candidates: int, failed: int, moved: bool = False) -> Ending:
    """How a run that came to its end ended.

    Args:
        moved: whether the sweep moved candidates to quarantine, all of them.
    """
    if not candidates:
        return Ending.NOTHING_TO_DELETE
    if not sweep:
        return Ending.MARKED
    if moved:
        return Ending.PARTLY_QUARANTINED if failed else Ending.QUARANTINED
    return Ending.PARTLY_DELETED if failed else Ending.DELETED


def totals(run: Step, deleted: StoredFrame) -> Totals:
    """Objects and bytes by outcome."""
    rows = (
        deleted.dataframe(run.spark)
        .groupBy("outcome")
        .agg(F.count("*").alias("objects"), F.sum("size").alias("bytes"))
        .collect()
    )
    objects, sizes = dict.fromkeys(Outcome, 0), dict.fromkeys(Outcome, 0)
    for row in rows:
        objects[Outcome(row.outcome)] = row.objects
        sizes[Outcome(row.outcome)] = row.bytes
    return objects, sizes

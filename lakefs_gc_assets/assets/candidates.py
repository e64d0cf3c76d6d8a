"""The fourth step: subtract what is live from what is stored, and tell what may go from what is kept all the same."""

from functools import partial

import dagster as dg
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets import gap_check, sightings
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.step import Step, step
from lakefs_gc_assets.collection import guards, order
from lakefs_gc_assets.collection.eligibility import MULTIPART_ETAG, Kept
from lakefs_gc_assets.collection.guards import Mark
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector
from lakefs_gc_assets.sources import hidden_staged, subtraction, tasks
from lakefs_gc_assets.sources.hidden_staged import Cleared


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("candidates")
    def candidates(
        context: dg.AssetExecutionContext,
        collector: Collector,
        store_df: StoredFrame,
        uncommitted_df: StoredFrame,
        committed_df: StoredFrame,
    ) -> StoredFrame:
        with step(context, collector) as run:
            order.require_safe_order(store_df.manifest.span, uncommitted_df.manifest.span, committed_df.manifest.span)
            return mark(run, store_df, uncommitted_df, committed_df)

    return candidates


def mark(run: Step, listed: StoredFrame, uncommitted: StoredFrame, committed: StoredFrame) -> StoredFrame:
    """Stores the candidates, and beside them what is kept for a reason that a later run or a person must know."""
    earlier = sightings.earlier(run, listed.manifest.span.started_at)
    rows = subtraction.kept_because(
        subtraction.without(
            listed.rows(run.spark),
            uncommitted.rows(run.spark, "address"),
            committed.rows(run.spark, "address"),
            rows=listed.manifest.rows + uncommitted.manifest.rows + committed.manifest.rows,
        ),
        run.plan.cutoff,
        run.plan.windows,
        sightings.old_enough(earlier, listed.manifest.span.started_at),
    )
    compared = partial(gap_check.find, run, listed, uncommitted, committed)
    with tasks.beside(compared) as found_gap, tasks.made_once(rows, listed.manifest.rows) as unreferenced:
        kept, multipart = count_by_reason(unreferenced)
        eligible = unreferenced.where("kept is null").drop("kept")
        cleared = Cleared(eligible)
        if kept.pop(None, 0):
            heads = committed.manifest.figures["heads"]
            cleared = hidden_staged.clear(eligible, run.references(), run.repository, heads, run.log)
        sightings.keep(run, unreferenced if multipart else None, earlier, listed.manifest.span.ended_at)
        unrecognised = unreferenced.where(F.col("kept") == Kept.UNRECOGNISED.value)
        run.store("unrecognised", unrecognised if kept.get(Kept.UNRECOGNISED) else None)
        gap = found_gap()
        figures = {
            "kept": {reason: count for reason, count in kept.items() if reason} | cleared.kept,
            "paths_asked": cleared.asked,
            "missing": gap.missing,
            "expected": gap.expected,
            "missing_examples": gap.examples,
        }
        stored = run.store("candidates", cleared.candidates, (listed, uncommitted, committed), figures)
    found = mark_of(listed, uncommitted, committed, stored)
    guards.require_live_set(found)
    for warning in guards.tripped(found, run.repository.settings):
        run.log(f"a sweep would be refused: {warning}")
    return stored


def count_by_reason(unreferenced: DataFrame) -> tuple[dict[str | None, int], int]:
    """How many unreferenced objects are kept, by reason (None: may go), and how many were uploaded in parts."""
    counted = unreferenced.groupBy("kept").agg(
        F.count("*").alias("objects"), F.count_if(F.col("etag").rlike(MULTIPART_ETAG)).alias("multipart")
    )
    rows = counted.collect()
    return {row.kept: row.objects for row in rows}, sum(row.multipart for row in rows)


def _not_listed(listed: StoredFrame, committed: StoredFrame) -> int:
    """Objects of the repository that the run knows of without having looked at them."""
    if listed.manifest.figures["flow"] == Flow.COMMITTED:
        return committed.manifest.rows
    settled: int = listed.manifest.figures["settled_objects"]
    return settled


def mark_of(listed: StoredFrame, uncommitted: StoredFrame, committed: StoredFrame, candidates: StoredFrame) -> Mark:
    """The figures of a mark, from what its frames say of themselves."""
    return Mark(
        listed=listed.manifest.rows,
        stored=listed.manifest.rows + _not_listed(listed, committed),
        listed_bytes=listed.manifest.object_bytes,
        uncommitted=uncommitted.manifest.rows,
        committed=committed.manifest.rows,
        entries_promised=committed.manifest.figures["entries_promised"],
        candidates=candidates.manifest.rows,
        candidate_bytes=candidates.manifest.object_bytes,
        kept=dict(candidates.manifest.figures["kept"]),
        missing=candidates.manifest.figures["missing"],
        expected=candidates.manifest.figures["expected"],
        missing_examples=tuple(candidates.manifest.figures["missing_examples"]),
        branches=len(committed.manifest.figures["heads"]),
        branches_before=committed.manifest.figures["branches_before"],
        retention=tuple(GuardTripped(*guard) for guard in committed.manifest.figures.get("retention_guards", ())),
        nested=tuple(listed.manifest.figures["nested_namespaces"]),
    )

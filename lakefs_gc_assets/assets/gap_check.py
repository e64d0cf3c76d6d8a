"""Whether the listing has what branch heads and staging hold: where it lacks too much of it, nothing may be deleted."""

from dataclasses import dataclass

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.carrying import inherited
from lakefs_gc_assets.assets.history import deleted_before
from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import carry
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.sources import gap, subtraction

_EXAMPLES = 3
_COLUMNS = ("address", "slice")
_EXPECTED, _LISTED = 1, 2


@dataclass(frozen=True, slots=True)
class Gap:
    """Addresses that the listing lacks, of those that it should have."""

    missing: int
    expected: int
    examples: tuple[str, ...] = ()


def find(run: Step, listed: StoredFrame, uncommitted: StoredFrame, committed: StoredFrame) -> Gap:
    """Compares the listing with every live address first, which costs one aggregation and usually finds nothing.

    Only what is missing there is looked for among branch heads and staging: of old commits, objects may have been
    collected by lakeFS's own retention.
    """
    slices = carry.read_listed_slices(run.repository.store, run.plan.run_id, run.plan.attempt)
    if not slices:
        return Gap(0, 0)
    staged, held = uncommitted.dataframe(run.spark, *_COLUMNS), committed.dataframe(run.spark, *_COLUMNS)
    there = listed.dataframe(run.spark, "address")
    everything = gap.expected(staged.unionAll(held), slices, run.plan.cutoff)
    counts = subtraction.count_by_sets(everything, there)
    if not counts.get(_EXPECTED):
        return Gap(0, counts.get(_EXPECTED | _LISTED, 0))
    heads = gap.expected(staged.unionAll(_of_heads(run, committed)), slices, run.plan.cutoff).distinct()
    lacking = subtraction.without_exactly(gap.missing(heads, there), deleted_before(run)).persist()
    try:
        found = _counted(heads, lacking)
        examples = tuple(row.address for row in lacking.select("address").limit(_EXAMPLES).collect())
        return Gap(found.missing, found.expected, examples)
    finally:
        lacking.unpersist()


def _counted(expected: DataFrame, missing: DataFrame) -> Gap:
    rows = (
        expected.select(F.lit("expected").alias("what"))
        .unionAll(missing.select(F.lit("missing").alias("what")))
        .groupBy("what")
        .count()
        .collect()
    )
    counts = {row["what"]: row["count"] for row in rows}
    return Gap(counts.get("missing", 0), counts.get("expected", 0))


def _of_heads(run: Step, committed: StoredFrame) -> DataFrame:
    """Addresses that branch heads hold, in an optimized run only through the ranges that it read."""
    before = inherited(run)
    known = before.read_ids if before else frozenset()
    references = run.references()
    records = references.range_records(sorted(set(committed.manifest.figures["heads"].values())))
    return references.committed([record for record in records if record.id not in known]).select(*_COLUMNS)

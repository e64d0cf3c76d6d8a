"""Whether the listing has what branch heads and staging hold: where it lacks too much of it, nothing may be deleted."""

from dataclasses import dataclass
from functools import partial

import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.carrying import inherited
from lakefs_gc_assets.assets.history import deleted_before
from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import carry
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.sources import gap, subtraction, tasks
from lakefs_gc_assets.sources.tasks import Rows

_EXAMPLES = 3
_COLUMNS = ("address", "slice")
_LISTED = 1
"""In what `count_by_sets` tells: that an address is listed."""


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
    expected = partial(gap.expected, slices=slices, cutoff=run.plan.cutoff)
    staged, held = (expected(live.rows(run.spark, *_COLUMNS)) for live in (uncommitted, committed))
    there = listed.rows(run.spark, "address")
    rows = listed.manifest.rows + uncommitted.manifest.rows + committed.manifest.rows
    counts = subtraction.count_by_sets(there, staged, held, rows=rows)
    if all(sets & _LISTED for sets in counts):
        return Gap(0, sum(count for sets, count in counts.items() if sets != _LISTED))
    of_heads = expected(_of_heads(run, committed))
    heads = tasks.together([staged, tasks.dataframe_of(of_heads).select(*_COLUMNS)]).distinct()
    missing = subtraction.without(heads, there, rows=rows)
    lacking = subtraction.without_exactly(missing, deleted_before(run)).persist()
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


def _of_heads(run: Step, committed: StoredFrame) -> Rows:
    """Addresses that branch heads hold, in an optimized run only through the ranges that it read."""
    before = inherited(run)
    known = before.read_ids if before else frozenset()
    references = run.references()
    records = references.range_records(sorted(set(committed.manifest.figures["heads"].values())))
    return references.committed([record for record in records if record.id not in known])

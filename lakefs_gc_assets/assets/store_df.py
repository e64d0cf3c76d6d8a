"""The first step: decide the plan, then find the objects that may be garbage and keep the list.

The listing is stored before uncommitted data is prepared, so whatever appears later is never a candidate.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import dagster as dg
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets import expired
from lakefs_gc_assets.assets.carrying import inherited
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.history import deleted_before
from lakefs_gc_assets.assets.step import Step, step
from lakefs_gc_assets.collection import carry, inventoried, neighbours, planning, universe
from lakefs_gc_assets.collection.neighbours import Neighbours
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.collection.universe import Listing
from lakefs_gc_assets.frames import listing as stored_listing
from lakefs_gc_assets.frames.manifest import FrameFile
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.partitions import asked_flow
from lakefs_gc_assets.resources import Collector
from lakefs_gc_assets.sources import subtraction
from lakefs_gc_assets.sources.listing import inventoried_objects


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("store_df")
    def store_df(context: dg.AssetExecutionContext, collector: Collector) -> StoredFrame:
        with step(context, collector, begin=partial(planning.begin, flow=asked_flow(context.run))) as run:
            plan, store = run.plan, run.repository.store
            if plan.why_clean:
                context.log.warning(f"a clean run instead of an optimized one: {plan.why_clean}")
            before = inherited(run)
            around = neighbours.neighbours(
                run.repository.api, run.repository.facts.id, run.repository.namespace, run.repository.settings.also_live
            )
            for note in told(around):
                run.log(note)
            listing, found = universe.nothing(store), Found()
            if plan.flow is Flow.COMMITTED:
                found = Found(expired.objects(run))
            else:
                listing = universe.listing(store, plan.cutoff, before.settled if before else None)
                run.log(f"cutoff {plan.cutoff:%F %T}Z; listing {len(listing.slices)} slices")
                found = listed(run, listing)
            if before:
                found = found.and_also(before.open_objects())
            figures = {
                "flow": plan.flow.value,
                "slices_listed": len(listing.slices),
                "slices_skipped": len(listing.skipped_slices),
                "last_read_slice": min(listing.slices, default=""),
                "other_folders": listing.folders.others,
                "nested_namespaces": around.nested,
                "repositories_not_checked": around.unchecked,
                "settled_objects": before.carry.settled_objects if before else 0,
                **({"inventory": plan.inventory} if plan.inventory else {}),
                **({"why_clean": plan.why_clean} if plan.why_clean else {}),
                **({"predecessor": before.run_id, "open_before": before.carry.open} if before else {}),
            }
            carry.write_listed_slices(store, plan.run_id, plan.attempt, listing.slices)
            return run.store("store_df", found.rows, figures=figures, further=found.listed)

    return store_df


@dataclass(frozen=True, slots=True)
class Found:
    """Objects that may be garbage: rows of a frame (LISTED), and a listing that stores what it finds."""

    rows: DataFrame | None = None
    listed: Callable[[], Sequence[FrameFile]] = tuple

    def and_also(self, rows: DataFrame) -> "Found":
        """These and further rows."""
        return Found(rows if self.rows is None else self.rows.unionByName(rows), self.listed)


def listed(run: Step, listing: Listing) -> Found:
    """The objects of a listing, from the store or from the inventory that the plan names.

    An inventory may still show what earlier runs deleted; that is left out.
    """
    partitions = run.partitions(run.repository.settings.listing_partitions)
    inventory = inventoried.of(run.repository, run.plan)
    if inventory is not None:
        run.log(f"reading {len(inventory.files)} files of the inventory of {inventory.created_at:%F %T}Z")
        objects = inventoried_objects(run.spark, inventory, listing, run.plan.slice_window, partitions)
        return Found(subtraction.without_exactly(objects, deleted_before(run, since=run.plan.cutoff)))
    store = partial(stored_listing.store, run.spark, run.repository.opener, run.plan, listing.parts, partitions)
    return Found(listed=store)


def told(around: Neighbours) -> Iterator[str]:
    """What is worth a line in the log about other repositories."""
    if around.refusal:
        yield f"other repositories are not known, and their references are not checked: {around.refusal}"
    if around.unchecked:
        yield (
            f"not checked for references into this repository: {', '.join(around.unchecked)}, on the same bucket; "
            "name them in collection.also_live where they import from it"
        )

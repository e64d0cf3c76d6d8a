"""The first step: decide the plan, then list the store and keep the listing.

The listing is stored before uncommitted data is prepared, so whatever appears later is never a candidate.
"""

import dagster as dg

from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.step import step
from lakefs_gc_assets.collection import planning, universe
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector
from lakefs_gc_assets.sources.listing import listed_objects


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("store_df")
    def store_df(context: dg.AssetExecutionContext, collector: Collector) -> StoredFrame:
        with step(context, collector, begin=planning.begin) as run:
            listing = universe.listing(run.repository.store, run.plan.cutoff)
            run.log(f"cutoff {run.plan.cutoff:%F %T}Z; listing {len(listing.slices)} slices")
            objects = listed_objects(
                run.spark,
                run.repository.opener,
                listing,
                run.plan.slice_window,
                run.partitions(run.repository.settings.listing_partitions),
            )
            figures = {
                "slices_listed": len(listing.slices),
                "slices_skipped": len(listing.skipped_slices),
                "last_read_slice": min(listing.slices, default=""),
            }
            return run.store("store_df", objects, figures=figures)

    return store_df

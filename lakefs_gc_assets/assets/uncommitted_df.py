"""The second step: make the server write its uncommitted data, prove it complete, and keep the addresses."""

from functools import partial

import dagster as dg

from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.live import Uncommitted
from lakefs_gc_assets.assets.step import step
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("uncommitted_df")
    def uncommitted_df(context: dg.AssetExecutionContext, collector: Collector, store_df: StoredFrame) -> StoredFrame:
        with step(context, collector) as run:
            found = Uncommitted.prepare(run, lambda pages: run.log(f"prepare_uncommited: page {pages}"))
            own = found.prepared[0]
            figures = {"server_run_ids": own.server_run_ids, "pages": own.pages, "files": own.files}
            store = partial(run.store_distinct, "uncommitted_df", found.addresses, found.rows)
            return run.store("uncommitted_df", None, (store_df,), figures, found.started_at, further=store)

    return uncommitted_df

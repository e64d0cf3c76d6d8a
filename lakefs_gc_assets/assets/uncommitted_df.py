"""The second step: make the server write its uncommitted data, prove it complete, and keep the addresses."""

import dagster as dg

from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.step import step
from lakefs_gc_assets.collection import uncommitted
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("uncommitted_df")
    def uncommitted_df(context: dg.AssetExecutionContext, collector: Collector, store_df: StoredFrame) -> StoredFrame:
        with step(context, collector) as run:
            prepared = uncommitted.prepare_checked(
                run.repository.api,
                run.repository.store,
                run.repository.namespace,
                run.repository.settings,
                run.repository.clock,
                run.plan.cutoff,
                lambda pages: run.log(f"prepare_uncommited: page {pages}"),
            )
            figures = {
                "server_run_ids": prepared.server_run_ids,
                "pages": prepared.pages,
                "files": prepared.files,
            }
            addresses = run.references().uncommitted(prepared.files)
            return run.store("uncommitted_df", addresses, (store_df,), figures, prepared.started_at)

    return uncommitted_df

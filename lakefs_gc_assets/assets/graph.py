"""What the five assets have in common: their order, names, partitions, and what the UI shows of their columns."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

import dagster as dg

from lakefs_gc_assets.frames.columns import column_lineage, column_schema
from lakefs_gc_assets.frames.models import MODELS
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.naming import Names

ORDER = ("store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report")
"""The safe order, which is also the order of the edges."""


@dataclass(frozen=True)
class Graph:
    """Options of one repository's assets."""

    names: Names

    def asset(self, name: str) -> Callable[[Callable[..., StoredFrame]], dg.AssetsDefinition]:
        """The decorator `dagster.asset` for one of the five.

        What it decorates takes the context, the repository's `collector`, and frames by the names of their assets.
        """
        metadata: dict[str, object] = {"dagster/column_schema": column_schema(MODELS[name])}
        names = self.names
        if lineage := column_lineage(name, names.asset(name).path[:-1]):
            metadata["dagster/column_lineage"] = lineage

        def define(compute: Callable[..., StoredFrame]) -> dg.AssetsDefinition:
            @dg.asset(
                key=names.asset(name),
                ins={
                    frame: dg.AssetIn(names.asset(frame)) for frame in signature(compute).parameters if frame in ORDER
                },
                description=(MODELS[name].__doc__ or "").strip(),
                partitions_def=names.partitions.definition,
                backfill_policy=dg.BackfillPolicy.single_run(),
                group_name=names.of("garbage_collection"),
                kinds={"pyspark", "parquet"},
                required_resource_keys={names.of("collector")},
                io_manager_key=names.of("frames"),
                pool=names.pool,
                metadata=metadata,
            )
            def asset(context: dg.AssetExecutionContext, **frames: StoredFrame) -> StoredFrame:
                return compute(context, collector=names.resource(context.resources, "collector"), **frames)

            return asset

        return define

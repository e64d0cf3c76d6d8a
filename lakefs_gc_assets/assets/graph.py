"""What the five assets have in common: their order, partitions, and what the UI shows of their columns."""

from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg

from lakefs_gc_assets.frames.columns import column_lineage, column_schema
from lakefs_gc_assets.frames.models import MODELS
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.partitions import RunPartitions

ORDER = ("store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report")
"""The safe order, which is also the order of the edges."""


@dataclass(frozen=True)
class Graph:
    """Options of one repository's assets."""

    partitions: RunPartitions

    def asset(self, name: str) -> Callable[[Callable[..., StoredFrame]], dg.AssetsDefinition]:
        """The decorator `dagster.asset` for one of the five."""
        metadata: dict[str, object] = {"dagster/column_schema": column_schema(MODELS[name])}
        if lineage := column_lineage(name):
            metadata["dagster/column_lineage"] = lineage
        return dg.asset(
            name=name,
            description=(MODELS[name].__doc__ or "").strip(),
            partitions_def=self.partitions.definition,
            backfill_policy=dg.BackfillPolicy.single_run(),
            group_name="garbage_collection",
            kinds={"pyspark", "parquet"},
            io_manager_key="frames",
            metadata=metadata,
        )

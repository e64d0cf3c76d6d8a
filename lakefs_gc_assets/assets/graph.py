"""What the five assets have in common: their order, partitions, and what the UI shows of their columns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import dagster as dg

from lakefs_gc_assets.frames.models import MODELS, Frame, description
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.partitions import RunPartitions

ORDER = ("store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report")
"""The safe order, which is also the order of the edges."""

_COLUMN_SOURCES: Mapping[str, tuple[str, ...]] = {
    "candidates": ("store_df",),
    "deleted_report": ("candidates",),
}
"""Frames whose columns come from a column of the same name; addresses also depend on what is subtracted."""


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


def column_schema(model: type[Frame]) -> dg.TableSchema:
    """Columns, types and meanings of a frame, for the UI."""
    fields = model.to_schema().columns
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=name,
                type=field.dtype.type.simpleString(),
                description=description(model, name),
                constraints=dg.TableColumnConstraints(nullable=field.nullable),
            )
            for name, field in fields.items()
        ]
    )


def column_lineage(name: str) -> dg.TableColumnLineage | None:
    """Which columns of earlier frames each column comes from; None for frames read from outside."""
    if name not in _COLUMN_SOURCES:
        return None
    deps: dict[str, list[dg.TableColumnDep]] = {}
    for source in _COLUMN_SOURCES[name]:
        shared = set(MODELS[source].to_schema().columns) & set(MODELS[name].to_schema().columns)
        for column in shared:
            deps.setdefault(column, []).append(dg.TableColumnDep(dg.AssetKey(source), column))
    if name == "candidates":
        for subtracted in ("uncommitted_df", "committed_df"):
            deps["address"].append(dg.TableColumnDep(dg.AssetKey(subtracted), "address"))
    return dg.TableColumnLineage(deps)

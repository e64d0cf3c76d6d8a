"""What the UI shows of a frame's columns: their types and meanings, and where they come from."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pyspark.sql.pandas.types import from_arrow_type

from lakefs_gc_assets.collector.frame.kinds import FRAMES, Frame

_COLUMN_SOURCES: Mapping[str, tuple[str, ...]] = {
    "candidates": ("store_df",),
    "deleted_report": ("candidates",),
}
"""Frames whose columns come from a column of the same name; addresses also depend on what is subtracted."""


def column_schema(frame: Frame[Any]) -> dg.TableSchema:
    """Columns, types and meanings of a frame, for the UI; types are named as Spark names them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=from_arrow_type(column.type).simpleString(),
                description=column.description,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in frame.columns
        ]
    )


def column_lineage(name: str, prefix: Sequence[str] = ()) -> dg.TableColumnLineage | None:
    """Which columns of earlier frames each column comes from; None for frames read from outside.

    Args:
        prefix: of the keys of the assets.
    """
    if name not in _COLUMN_SOURCES:
        return None
    deps: dict[str, list[dg.TableColumnDep]] = {}
    for source in _COLUMN_SOURCES[name]:
        shared = set(FRAMES[source].schema.names) & set(FRAMES[name].schema.names)
        for column in shared:
            deps.setdefault(column, []).append(dg.TableColumnDep(dg.AssetKey([*prefix, source]), column))
    if name == "candidates":
        for subtracted in ("uncommitted_df", "committed_df"):
            deps["address"].append(dg.TableColumnDep(dg.AssetKey([*prefix, subtracted]), "address"))
        deps["why"] = [*deps["address"]]
    return dg.TableColumnLineage(deps)

"""What the UI shows of a frame's columns: their types and meanings, and where they come from."""

from collections.abc import Mapping, Sequence

import dagster as dg

from lakefs_gc_assets.defs.models import MODELS, Frame, description

_COLUMN_SOURCES: Mapping[str, tuple[str, ...]] = {
    "candidates": ("store_df",),
    "deleted_report": ("candidates",),
}
"""Frames whose columns come from a column of the same name; addresses also depend on what is subtracted."""


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


def column_lineage(name: str, prefix: Sequence[str] = ()) -> dg.TableColumnLineage | None:
    """Which columns of earlier frames each column comes from; None for frames read from outside.

    Args:
        prefix: of the keys of the assets.
    """
    if name not in _COLUMN_SOURCES:
        return None
    deps: dict[str, list[dg.TableColumnDep]] = {}
    for source in _COLUMN_SOURCES[name]:
        shared = set(MODELS[source].to_schema().columns) & set(MODELS[name].to_schema().columns)
        for column in shared:
            deps.setdefault(column, []).append(dg.TableColumnDep(dg.AssetKey([*prefix, source]), column))
    if name == "candidates":
        for subtracted in ("uncommitted_df", "committed_df"):
            deps["address"].append(dg.TableColumnDep(dg.AssetKey([*prefix, subtracted]), "address"))
    return dg.TableColumnLineage(deps)

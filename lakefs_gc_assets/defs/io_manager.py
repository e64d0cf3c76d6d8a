"""How frames pass between assets: as what is stored, with what the UI shows of it."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import dagster as dg
import pyarrow as pa

from lakefs_gc_assets.collector.frame.kinds import FRAMES, STEPS
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.defs.columns import column_lineage
from lakefs_gc_assets.defs.failures import between_steps
from lakefs_gc_assets.defs.partitions import asset_of, chosen, selected
from lakefs_gc_assets.defs.resources import Collector

PREVIEW_ROWS = 20


class FrameIOManager(dg.ConfigurableIOManager):
    """Hands stored frames from asset to asset and to checks; assets store them themselves, as their last act."""

    collector: dg.ResourceDependency[Collector]

    def handle_output(self, context: dg.OutputContext, obj: StoredFrame[Any]) -> None:
        """Tells the UI about a frame: rows, bytes, windows, path, and a preview."""
        with between_steps(self.collector, obj.manifest.span.run_id):
            context.add_output_metadata(metadata(obj, context.asset_key.path[:-1]))

    def load_input(self, context: dg.InputContext) -> StoredFrame[Any]:
        """The frame of the one run that the partitions name; always whole, whichever windows are asked for.

        Raises dagster.Failure where it was not made or its manifest cannot be read.
        """
        run_id, _ = selected(context.asset_partition_keys)
        frame = context.asset_key.path[-1]
        step = context.step_context
        first = next(chosen(step.dagster_run, STEPS))
        with between_steps(self.collector, run_id, holds_lock=asset_of(step.step.key) != first):
            repository = self.collector.open()
            return StoredFrame.of(repository.store, repository.opener, run_id, FRAMES[frame])


def metadata(frame: StoredFrame[Any], prefix: Sequence[str] = ()) -> dict[str, Any]:
    """What the UI shows of a frame; small, because Dagster copies it to every cell.

    Args:
        prefix: of the keys of the repository's assets.
    """
    manifest = frame.manifest
    return {
        "dagster/row_count": manifest.rows,
        "dagster/uri": frame.uri,
        "path": dg.MetadataValue.path(frame.uri),
        "run_id": manifest.span.run_id,
        "attempt": manifest.span.attempt,
        "started_at": dg.MetadataValue.timestamp(manifest.span.started_at),
        "ended_at": dg.MetadataValue.timestamp(manifest.span.ended_at),
        "object_bytes": manifest.object_bytes,
        "file_bytes": manifest.file_bytes,
        "files": len(manifest.files),
        "rows_by_window": dg.MetadataValue.md(_counts("window", manifest.rows_by_window())),
        "preview": dg.MetadataValue.md(_preview(frame.preview(rows=PREVIEW_ROWS))),
        **_figures(manifest.figures),
        **({"dagster/column_lineage": lineage} if (lineage := column_lineage(frame.name, prefix)) else {}),
    }


def _counts(what: str, counts: dict[str, int]) -> str:
    lines = [f"| {name} | {count:,} |" for name, count in sorted(counts.items())]
    return "\n".join([f"| {what} | rows |", "|---|---:|", *lines]) if lines else "no rows"


def _preview(rows: pa.Table) -> str:
    if not rows.num_rows:
        return "no rows"
    names = rows.column_names
    lines = ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows.to_pylist()]
    return "\n".join(["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *lines])


def _cell(value: object) -> str:
    return "" if value is None else str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _figures(figures: Any) -> dict[str, Any]:
    """Counts that a step made, also those by reason; lists and maps of names stay in the manifest."""
    values = {field.name: getattr(figures, field.name) for field in fields(figures)}
    found: dict[str, Any] = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
    for name, value in values.items():
        if isinstance(value, dict) and value and all(isinstance(count, int) for count in value.values()):
            found[name] = dg.MetadataValue.md(_counts(name, value))
    return found

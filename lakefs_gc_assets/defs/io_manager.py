"""IO manager of frames: assets pass stored frames, with metadata for the UI."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import dagster as dg
import pyarrow as pa

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.statistics import declarations
from lakefs_gc_assets.defs.failures import between_steps, readable
from lakefs_gc_assets.defs.history import forget_unused
from lakefs_gc_assets.defs.pages import column_lineage, plain
from lakefs_gc_assets.defs.partitions import Names, asset_of, assets_to_make, selected
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import OrderViolation

PREVIEW_ROWS = 20


@dataclass(frozen=True)
class FrameIOManager(dg.IOManager):
    """Passes stored frames to assets and checks. Assets store their own frames as their last act."""

    collector: Collector

    def handle_output(self, context: dg.OutputContext, obj: StoredFrame[Any]) -> None:
        """Adds metadata of a frame for the UI: rows, bytes, windows, path, and a preview."""
        with between_steps(self.collector, obj.manifest.span.run_id):
            context.add_output_metadata(metadata(obj, context.asset_key.path[:-1]))

    def load_input(self, context: dg.InputContext) -> StoredFrame[Any]:
        """The frame of the one run that the partitions name; always the whole frame, for any selection of windows.

        Raises dagster.Failure if it was not made or its manifest cannot be read.
        """
        frame, cells, step = context.asset_key.path[-1], context.asset_partition_keys, context.step_context
        first = next(assets_to_make(step.dagster_run, STEPS))
        try:
            with readable():
                run_id = self.collector.require_run(*selected(cells))
            with between_steps(self.collector, run_id, holds_lock=asset_of(step.step.key) != first):
                repository = self.collector.open()
                return StoredFrame.from_run(repository.store, repository.opener, run_id, FRAMES[frame])
        except dg.Failure as failure:
            if isinstance(failure.__cause__, OrderViolation):
                forget_unused(step.instance, self.collector, cells, step.dagster_run)
            raise


def frame_io_manager(names: Names) -> dg.IOManagerDefinition:
    """The IO manager of a repository's assets; a launch cannot configure it."""

    @dg.io_manager(config_schema={}, required_resource_keys={names.collector}, description=FrameIOManager.__doc__)
    def frames(context: dg.InitResourceContext) -> FrameIOManager:
        return FrameIOManager(getattr(context.resources, names.collector))

    return frames


def cell_metadata(manifest: Manifest[Any], window: str) -> dict[str, Any]:
    """Metadata of one cell for the UI: numbers of its window, which the UI plots from cell to cell.

    Texts name the window, since an asset's page shows them below the figures of the whole run.
    """
    files = [file for file in manifest.files if file.slice_window == window]
    objects = sum(file.object_bytes for file in files)
    rows = sum(file.rows for file in files)
    return {
        "dagster/partition_row_count": rows,
        "window_object_bytes": objects,
        "window_in_words": f"{window}: {described(rows, 'rows', objects)}",
    }


def metadata(frame: StoredFrame[Any], prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Metadata of a whole frame for the UI; small, because Dagster copies it to every cell.

    Its numbers are in a table: as numbers, the same value would be plotted for every cell.

    Args:
        prefix: prefix of the keys of the repository's assets.
    """
    manifest = frame.manifest
    return {
        "dagster/uri": frame.uri,
        "path": dg.MetadataValue.path(frame.uri),
        "run_id": manifest.span.run_id,
        "attempt": manifest.span.attempt,
        "started_at": dg.MetadataValue.timestamp(manifest.span.started_at),
        "ended_at": dg.MetadataValue.timestamp(manifest.span.ended_at),
        "frame": table_of(
            {
                "rows": described(manifest.rows, "rows", manifest.object_bytes),
                "files": described(len(manifest.files), "files", manifest.file_bytes),
                "seconds": f"{manifest.span.worked_seconds:,.1f}",
                "seconds of waiting": f"{manifest.span.waited_seconds:,.1f}",
                **_numbers(manifest.figures),
            }
        ),
        "rows_by_window": dg.MetadataValue.md(_counts("window", manifest.rows_by_window())),
        "preview": dg.MetadataValue.md(_preview(frame.preview(rows=PREVIEW_ROWS))),
        **_figures(manifest.figures),
        **({"dagster/column_lineage": lineage} if (lineage := column_lineage(frame.name, prefix)) else {}),
    }


def described(count: int | None, unit: str, size_in_bytes: int | None = None) -> str:
    """A count in words, with its bytes if given; empty if it is unknown."""
    if count is None:
        return ""
    return f"{count:,} {unit}" if size_in_bytes is None else f"{count:,} {unit}, {size(size_in_bytes)}"


def table_of(rows: Mapping[str, object]) -> dg.MarkdownMetadataValue:
    """A table of names and values, which the UI shows and does not plot."""
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows.items()]
    return dg.MetadataValue.md("\n".join(["| figure | value |", "|---|---:|", *lines]))


def _counts(what: str, counts: dict[str, int]) -> str:
    # Counts come first, since a long name would push them out of sight.
    lines = [f"| {count:,} | {plain(name)} |" for name, count in sorted(counts.items())]
    return "\n".join([f"| rows | {what} |", "|---:|---|", *lines]) if lines else "no rows"


def _preview(rows: pa.Table) -> str:
    if not rows.num_rows:
        return "no rows"
    names = rows.column_names
    lines = ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows.to_pylist()]
    return "\n".join(["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *lines])


def _cell(value: object) -> str:
    return "" if value is None else plain(str(value))


def _numbers(figures: Any) -> dict[str, str]:
    """Figures with their units, and texts, among what a step counted; a figure that it does not know is left out."""
    shown, declared = {}, declarations(type(figures))
    for name in (field.name for field in fields(figures)):
        value = getattr(figures, name)
        if name in declared and value is not None:
            shown[name] = described(value, declared[name].unit)
        elif isinstance(value, str | bool):
            shown[name] = str(value)
    return shown


def _figures(figures: Any) -> dict[str, Any]:
    """Counts by reason among a step's figures; lists and maps of names stay in the manifest."""
    values = {field.name: getattr(figures, field.name) for field in fields(figures)}
    return {
        name: dg.MetadataValue.md(_counts(name, value))
        for name, value in values.items()
        if isinstance(value, dict) and value and all(isinstance(count, int) for count in value.values())
    }

"""IO manager of frames: assets pass stored frames, with metadata for the UI."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
import pyarrow as pa

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, FRAMES, STEPS
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.page.garbage import FrameReader
from lakefs_gc_assets.collector.page.page import trace
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.figures import STEP_FIGURES
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.defs.failures import between_steps, readable
from lakefs_gc_assets.defs.history import forget_unused
from lakefs_gc_assets.defs.pages import column_lineage, markdown_table, place, plain
from lakefs_gc_assets.defs.partitions import Names, asset_of, assets_to_make, run_keys_of, selected
from lakefs_gc_assets.defs.resources import Collector, session
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, OrderViolation, counted
from lakefs_gc_assets.results import Table

PREVIEW_ROWS = 20
_COUNTS_SHOWN = 50
_ID = re.compile("[0-9a-f]{32,}|[0-9a-v]{20}")


@dataclass(frozen=True)
class NotBegun:
    """Replaces a missing frame if a user materializes only later assets, under a name without a run."""

    name: str
    windows: tuple[str, ...]


FRAME_TYPE = dg.PythonObjectDagsterType(StoredFrame)
"""Output type of the five assets. Dagster cannot read generic types from annotations."""
INPUT_TYPE = dg.PythonObjectDagsterType((StoredFrame, NotBegun), name="StoredFrameOrNotBegun")
"""Input type of the five assets."""

_CONVERSIONS: Mapping[str, Callable[[Table, Collector], object]] = {
    "pyspark.sql.DataFrame": lambda table, collector: table.to_spark(session(collector.spark)),
    "pyarrow.Table": lambda table, _: table.to_arrow(),
    "pandas.DataFrame": lambda table, _: table.to_pandas(),
    "polars.DataFrame": lambda table, _: deferred("polars").DataFrame(table),
    "lakefs_gc_assets.results.Table": lambda table, _: table,
}
"""Conversions to the input type of a user's own asset, by the type's name. The type need not be installed."""


@dataclass(frozen=True)
class FrameIOManager(dg.IOManager):
    """Passes stored frames to assets and checks. Assets store their own frames as their last act.

    An asset of one's own gets the frame as its annotation says: a DataFrame of Spark, pandas or polars, or a table of
    pyarrow. Without an annotation it gets a `lakefs_gc_assets.results.Table`.
    """

    collector: Collector

    def handle_output(self, context: dg.OutputContext, obj: StoredFrame[Any]) -> None:
        """Adds metadata of a frame for the UI: rows, bytes, windows, path, and a preview."""
        with between_steps(self.collector, obj.manifest.span.run_id):
            self.collector.keep(obj)
            # An ephemeral instance ends with its process: its paths would never be seen.
            is_seen = not context.step_context.instance.is_ephemeral
            context.add_output_metadata(metadata(obj, context.asset_key.path[:-1], with_paths=is_seen))

    def load_input(self, context: dg.InputContext) -> object:
        """The frame for one of the five assets, or its conversion for a user's own asset.

        Raises dagster.Failure if the frame does not exist, cannot be read, or cannot be converted to that type.
        """
        if context.dagster_type is INPUT_TYPE:
            return self._for_next_step(context)
        with readable():
            return self._convert(context)

    def _for_next_step(self, context: dg.InputContext) -> StoredFrame[Any] | NotBegun:
        """The frame of the one run that the partitions name; always the whole frame, for any selection of windows."""
        frame, cells, step = context.asset_key.path[-1], context.asset_partition_keys, context.step_context
        first = next(assets_to_make(step.dagster_run, STEPS))
        try:
            with readable():
                key, windows = selected(cells)
                if plans.is_name(key) and self.collector.run_of(key, windows) is None:
                    return NotBegun(key, windows)
                run_id = self.collector.require_run(key, windows)
            with between_steps(self.collector, run_id, holds_lock=asset_of(step.step.key) != first):
                return self.collector.stored(run_id, FRAMES[frame])
        except dg.Failure as failure:
            if isinstance(failure.__cause__, OrderViolation):
                forget_unused(step.instance, self.collector, cells, step.dagster_run)
            raise

    def _convert(self, context: dg.InputContext) -> object:
        """The frame as the type of an asset's input. Reading takes no lock and ends no run.

        A Dagster run over cells of a run reads that run, and only the rows of its windows. Any other reads the newest
        finished run. Raises CollectionError.
        """
        wanted: Any = context.dagster_type.typing_type
        name = _public_name(Table if wanted is Any else wanted)
        if name is None:
            raise ConfigurationError(
                f"{context.asset_key.path[-1]} cannot be loaded as {wanted}: annotate the input as one of "
                + ", ".join(_CONVERSIONS)
            )
        repository = self.collector.open(to_read=True)
        keys = run_keys_of(context.step_context.dagster_run)
        # A Dagster run without partitions would list every existing cell.
        cells = [cell for cell in context.asset_partition_keys if cell.partition("|")[0] in keys] if keys else []
        run_id = self.collector.require_run(*selected(cells)) if cells else earlier_runs.newest_run(repository.store)
        frame = FRAMES[context.asset_key.path[-1]]
        stored = StoredFrame.from_run(repository.store, repository.opener, run_id, frame)
        if cells:
            windows = selected(cells)[1]
            files = tuple(file for file in stored.manifest.files if file.slice_window in windows)
            stored = replace(stored, manifest=replace(stored.manifest, files=files))
        context.log.info(f"{frame.name} of run {run_id}: {counted(stored.count, 'rows')}, as {name}")
        return _CONVERSIONS[name](Table.from_stored(stored), self.collector)


def _public_name(wanted: Any) -> str | None:
    """The name of a type in _CONVERSIONS, from any module of its package; None if it is another type."""
    for name in _CONVERSIONS:
        package, _, rest = name.partition(".")
        if f"{wanted.__module__}.".startswith(f"{package}.") and wanted.__name__ == rest.rpartition(".")[2]:
            return name
    return None


def frame_io_manager(names: Names) -> dg.IOManagerDefinition:
    """The IO manager of a repository's assets; a launch cannot configure it."""

    @dg.io_manager(config_schema={}, required_resource_keys={names.collector}, description=FrameIOManager.__doc__)
    def frames(context: dg.InitResourceContext) -> FrameIOManager:
        resources: Any = context.resources
        return FrameIOManager(resources.original_resource_dict[names.collector])

    return frames


def cell_metadata(manifest: Manifest[Any], window: str) -> dict[str, Any]:
    """Metadata of a cell for the UI: a text that names its window, below the figures of the whole run.

    Dagster would plot numbers from cell to cell, over keys too long for an axis, as if they described the whole run.
    """
    files = [file for file in manifest.files if file.slice_window == window]
    objects = sum(file.object_bytes for file in files)
    rows = sum(file.rows for file in files)
    return {"window_in_words": f"{window}: {described(rows, 'rows', objects)}"}


def metadata(frame: StoredFrame[Any], prefix: Sequence[str] = (), with_paths: bool = False) -> dict[str, Any]:
    """Metadata of a whole frame for the UI; small, because Dagster copies it to every cell.

    Its numbers are in a table: otherwise Dagster would plot the same value for every cell.

    Args:
        prefix: prefix of the keys of the repository's assets.
        with_paths: find the paths and the last commits of the candidates in the preview.
    """
    manifest, sampled = frame.manifest, frame.sample(PREVIEW_ROWS)
    traced = _trace(frame, sampled) if with_paths and frame.frame is CANDIDATES_DF else None
    return {
        "frame": table_of(
            {
                "rows": described(manifest.rows, "rows", manifest.object_bytes),
                "files": described(len(manifest.files), "files", sum(file.bytes for file in manifest.files)),
                "seconds": f"{manifest.span.worked_seconds:,.1f}",
                "seconds of waiting": f"{manifest.span.waited_seconds:,.1f}",
                **_numbers(manifest.figures),
            }
        ),
        **_figures(manifest.figures),
        "preview": dg.MetadataValue.md(_preview(sampled, manifest.span.ended_at, traced)),
        "rows_by_window": dg.MetadataValue.md(_counts("window", manifest.rows_by_window())),
        "run_id": manifest.span.run_id,
        "started_at": dg.MetadataValue.timestamp(manifest.span.started_at),
        "ended_at": dg.MetadataValue.timestamp(manifest.span.ended_at),
        "attempt": manifest.span.attempt,
        "path": place(frame.uri),
        "dagster/uri": frame.uri,
        **({"dagster/column_lineage": lineage} if (lineage := column_lineage(frame.name, prefix)) else {}),
    }


def described(count: int | None, unit: str, size_in_bytes: int | None = None) -> str:
    """A count in words, with its bytes if given; empty if it is unknown."""
    if count is None:
        return ""
    return counted(count, unit) if size_in_bytes is None else f"{counted(count, unit)}, {size(size_in_bytes)}"


def table_of(rows: Mapping[str, object]) -> dg.MarkdownMetadataValue:
    """A table of names and values, which the UI shows and does not plot."""
    return dg.MetadataValue.md(markdown_table({"figure": "---", "value": "---:"}, rows.items()))


def _counts(what: str, counts: dict[str, int]) -> str:
    # Counts come first, since a long name would push them out of sight.
    rows = [(f"{count:,}", name) for name, count in sorted(counts.items())]
    if len(rows) > _COUNTS_SHOWN:
        rows[_COUNTS_SHOWN:] = [("", f"{len(rows) - _COUNTS_SHOWN:,} more, which are not shown")]
    return markdown_table({"rows": "---:", what: "---"}, rows) if rows else "no rows"


def _trace(frame: StoredFrame[Any], sampled: pa.Table) -> list[tuple[str, str]] | str:
    try:
        reader = FrameReader(LocalEngine(), frame.opener)
        return trace(frame.opener.open(), frame.manifest.span.run_id, sampled, reader)
    except CollectionError as error:
        return str(error)


_LEADING = ("why", "outcome", "error", "path", "last held by", "address", "size", "age")
"""Leading columns of a preview, in this order; the others follow."""


def _preview(rows: pa.Table, now: datetime, traced: Sequence[tuple[str, str]] | str | None) -> str:
    """Rows as Markdown, without columns that are empty in every row.

    Args:
        now: the time from which ages count back, UTC.
        traced: paths and last holders of the rows, or the reason why they are unknown; None for frames without
            paths.
    """
    unknown = f"\n\nPaths and last commits are unknown: {plain(traced)}." if isinstance(traced, str) else ""
    holders = [] if traced is None or isinstance(traced, str) else traced
    shown: list[dict[str, object]] = []
    for number, row in enumerate(rows.to_pylist()):
        if holders:
            row["path"], row["last held by"] = holders[number]
        if "last_modified" in row:
            row["age"] = f"{(now - row['last_modified']) / timedelta(days=1):,.1f} days"
        if "size" in row:
            row["size"] = size(row["size"])
        shown.append(row)
    if not shown:
        return "no rows"
    names = [name for name in dict.fromkeys([*_LEADING, *shown[0]]) if any(row.get(name) is not None for row in shown)]
    return markdown_table(dict.fromkeys(names, "---"), ([row[name] for name in names] for row in shown)) + unknown


def _numbers(figures: Any) -> dict[str, str]:
    """Figures with their units, and texts, among a step's figures; unknown figures are left out.

    Empty texts are left out too, and so are digests and ids, which only programs compare and which are too long for a
    column.
    """
    shown = {}
    for name in (field.name for field in fields(figures)):
        value = getattr(figures, name)
        if name in STEP_FIGURES and value is not None:
            shown[name] = described(value, STEP_FIGURES[name].unit)
        elif isinstance(value, str | bool) and str(value) and not _ID.fullmatch(str(value)):
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

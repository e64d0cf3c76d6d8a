"""Pure functions over frames: what a run leaves to the next one."""

from collections.abc import Iterable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakefs_gc_assets.lakefs import names
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.sources.subtraction import without, without_exactly
from lakefs_gc_assets.sources.tasks import Rows

_NO_SLICE = ""
_SLICE_FOLDER = r"^data/(?P<folder>[0-9a-v]{19}[0g])/"


def of_settled(rows: Rows, settled: Iterable[str]) -> Rows:
    """Rows whose address lies in a settled slice or in no slice at all.

    The folder decides and not the column `slice`, which is null for odd names inside of a slice.
    """
    return tasks.where(rows, partial(_in_folders, pa.array([_NO_SLICE, *settled], pa.string())))


def of_unsettled(rows: Rows, settled: Iterable[str]) -> Rows:
    """Rows whose address lies in a slice that is not settled."""
    folders = pa.array([_NO_SLICE, *settled], pa.string())
    return tasks.where(rows, lambda batch: pc.invert(_in_folders(folders, batch)))


def still_open(
    universe: Rows,
    settled: Iterable[str],
    committed: Rows,
    deleted: DataFrame,
    rows: int,
    deleted_rows: int | None = None,
) -> DataFrame:
    """Rows of the universe where nothing new is written that neither a commit holds nor this run deleted.

    Args:
        deleted: addresses whose deletion the store accepted, compared as strings.
        rows: how many rows the universe and what is committed have together, about.
        deleted_rows: how many are deleted at most, where that is known.
    """
    not_held = without(of_settled(universe, settled), committed, rows=rows)
    return without_exactly(not_held, deleted, deleted_rows)


def in_windows(batch: pa.RecordBatch, window_size: WindowSize) -> pa.RecordBatch:
    """The same rows with the window that each address itself belongs to, also where a run did not collect it."""
    position = batch.schema.get_field_index("slice_window")
    windows = names.read(batch.column("address"), window_size).windows
    return batch.set_column(position, batch.schema.field(position), windows)


def _in_folders(folders: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    found = pc.extract_regex(rows.column("address"), _SLICE_FOLDER)
    return pc.is_in(pc.coalesce(pc.struct_field(found, "folder"), _NO_SLICE), value_set=folders)

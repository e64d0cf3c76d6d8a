"""Pure functions over frames: what a run leaves to the next one."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.lakefs import names
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.sources.subtraction import without, without_exactly

_NO_SLICE = ""
_SLICE_FOLDER = r"^data/([0-9a-v]{19}[0g])/"


def of_settled(rows: DataFrame, settled: Iterable[str]) -> DataFrame:
    """Rows whose address lies in a settled slice or in no slice at all.

    The folder decides and not the column `slice`, which is null for odd names inside of a slice.
    """
    return _by_folder(rows, settled, "left_semi")


def of_unsettled(rows: DataFrame, settled: Iterable[str]) -> DataFrame:
    """Rows whose address lies in a slice that is not settled."""
    return _by_folder(rows, settled, "left_anti")


def still_open(
    universe: DataFrame,
    settled: Iterable[str],
    committed: DataFrame,
    deleted: DataFrame,
    committed_rows: int | None = None,
    deleted_rows: int | None = None,
) -> DataFrame:
    """Rows of the universe where nothing new is written that neither a commit holds nor this run deleted.

    Args:
        deleted: addresses whose deletion the store accepted, compared as strings.
        committed_rows: how many rows are committed, where that is known.
        deleted_rows: how many are deleted at most, where that is known.
    """
    not_held = without(of_settled(universe, settled), committed, live_rows=committed_rows)
    return without_exactly(not_held, deleted, deleted_rows)


def in_windows(rows: DataFrame, window_size: WindowSize) -> DataFrame:
    """The same rows with the window that each address itself belongs to, also where a run did not collect it."""
    schema = rows.schema
    position = schema.names.index("slice_window")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            windows = names.read(batch.column("address"), window_size).windows
            yield batch.set_column(position, batch.schema.field(position), windows)

    return rows.mapInArrow(read, schema)


def _by_folder(rows: DataFrame, settled: Iterable[str], how: str) -> DataFrame:
    schema = pa.schema([pa.field("folder", pa.string(), nullable=False)])
    folders = tasks.of_table(rows.sparkSession, pa.table({"folder": [_NO_SLICE, *settled]}, schema))
    folder = F.regexp_extract(rows["address"], _SLICE_FOLDER, 1)
    return rows.join(F.broadcast(folders), folder == folders["folder"], how)

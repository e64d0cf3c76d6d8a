"""Which sizes the entries of a range have, noted when a range is read, so that it need not be read again for others.

A staged entry that the server does not list has the size of the committed entry at its path. So of the ranges of branch
heads only those are read for candidates that have an entry of a candidate's size.
"""

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.live import range_notes
from lakefs_gc_assets.collector.live.range_notes import Notes, NotesFile, NotesKind
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore

RANGE_SIZES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("sizes", pa.list_(pa.int64()), nullable=False),
    ]
)
"""Ranges, and the distinct sizes of the entries of each, in order."""
SIZES = NotesKind("sizes of ranges", 2, RANGE_SIZES)
NAME = "range_sizes"
"""Folder of the notes in the folder of a run."""
LOOKED_UP = pa.schema(
    [pa.field("range_id", pa.string()), pa.field("holds", pa.bool_()), pa.field("damage", pa.string())]
)
"""Ranges of a file and whether they hold one of the sizes; or else what is wrong with the file."""


class RangeSizes(Notes):
    """Notes the sizes of ranges that a task reads."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        """Nothing is noted yet.

        Args:
            folder: where the files go, with a trailing slash.
        """
        super().__init__(SIZES, store, folder)

    def note(self, range_id: str, sizes: pa.Int64Array) -> None:
        """Notes the sizes of all entries of a range."""
        self.add(range_id, pa.array(np.unique(sizes.to_numpy()), pa.int64()))


def folder(run_id: str) -> str:
    """Where a run's notes are, with a trailing slash."""
    return run_folder.frame(run_id, NAME)


def files_of(store: ObjectStore, run_id: str) -> list[NotesFile]:
    """The files of a run's notes that this version can read."""
    return range_notes.files_of(SIZES, store, folder(run_id))


def look_up(
    store: ObjectStore, wanted: Collection[str], sizes: pa.Int64Array, file: NotesFile
) -> Iterator[pa.RecordBatch]:
    """Which of the wanted ranges a file tells of, and whether they hold one of the sizes (LOOKED_UP)."""
    try:
        rows = range_notes.read(SIZES, store, file)
    except CorruptFile as damage:
        yield pa.RecordBatch.from_pylist([{"damage": range_notes.describe(damage)}], LOOKED_UP)
        return
    rows = rows.filter(pc.is_in(rows.column("range_id"), value_set=pa.array(wanted, pa.string())))
    lists = rows.column("sizes").combine_chunks()
    matches = pc.is_in(pc.list_flatten(lists), value_set=sizes)
    holding = pc.unique(pc.list_parent_indices(lists).filter(matches))
    holds = pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=holding.cast(pa.int64()))
    ids = rows.column("range_id")
    yield from pa.table([ids, holds, pa.nulls(len(ids), pa.string())], schema=LOOKED_UP).to_batches()

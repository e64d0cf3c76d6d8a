"""Frames to and from Spark: a DataFrame is stored once, and every later step reads what was stored."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collection import carry, run_folder, tables
from lakefs_gc_assets.frames import files
from lakefs_gc_assets.frames.files import Placed
from lakefs_gc_assets.frames.manifest import FrameFile, Manifest
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.sources.tasks import Reading, Rows
from lakefs_gc_assets.spark import blocks
from lakefs_gc_assets.storage.opening import StoreOpener

SCHEMAS: dict[str, pa.Schema] = {
    "store_df": tables.LISTED,
    "uncommitted_df": tables.LIVE,
    "committed_df": tables.LIVE,
    "candidates": tables.LISTED,
    "deleted_report": tables.RECEIPTS,
    "unrecognised": tables.UNRECOGNISED,
    "sightings": tables.SIGHTINGS,
    carry.OPEN: tables.LISTED,
    carry.COMMITTED: tables.LIVE,
}
"""Columns of each frame as they are stored: the five assets, and what a run keeps beside them."""


@dataclass(frozen=True)
class StoredFrame:
    """A frame as stored. Reading it costs nothing until a DataFrame of it is used."""

    manifest: Manifest
    opener: StoreOpener
    partitions: int

    @property
    def name(self) -> str:
        """Name of the asset."""
        return self.manifest.span.frame

    @property
    def schema(self) -> pa.Schema:
        """Columns as stored."""
        return SCHEMAS[self.name]

    @property
    def uri(self) -> str:
        """Where the frame lies in the object store."""
        return self.opener.namespace_uri + run_folder.frame(self.manifest.span.run_id, self.name)

    def rows(self, spark: SparkSession, *columns: str) -> Rows:
        """The rows with all columns or some; files are dealt out to tasks by their size."""
        chosen = columns or self.schema.names
        if self.manifest.rows <= tasks.LOCAL_ROWS:
            return tasks.of_table(spark, self.table().select(chosen))
        groups = tasks.spread_by_weight(self.manifest.files, self.partitions, lambda file: file.bytes)
        schema = files.nullable(pa.schema([self.schema.field(name) for name in chosen]))
        return Reading(spark, groups, _reader(self.opener, self.schema, chosen), schema)

    def dataframe(self, spark: SparkSession, *columns: str) -> DataFrame:
        """The same as Spark's own rows."""
        return tasks.dataframe_of(self.rows(spark, *columns))

    def table(self) -> pa.Table:
        """All rows, read without Spark: for frames that fit into memory."""
        return files.preview(self.opener.open(), self.manifest.files, self.schema, self.manifest.rows)

    def preview(self, rows: int = 20) -> pa.Table:
        """The first rows, read without Spark."""
        return files.preview(self.opener.open(), self.manifest.files, self.schema, rows)


def _reader(
    opener: StoreOpener, schema: pa.Schema, columns: Sequence[str]
) -> Callable[[FrameFile], Iterator[pa.RecordBatch]]:
    def read(file: FrameFile) -> Iterator[pa.RecordBatch]:
        yield from files.read_file(opener.open(), file, schema, columns).to_batches()

    return read


def store(rows: Rows, opener: StoreOpener, run_id: str, frame: str, placed: Placed) -> tuple[FrameFile, ...]:
    """Writes rows as files of a frame; the frame exists when its manifest is written."""
    write = _write_task(opener, run_id, frame, placed)
    return _files(tasks.changed(rows, write, files.WRITTEN))


def store_distinct(
    rows: Sequence[Rows], count: int, opener: StoreOpener, run_id: str, frame: str, placed: Placed
) -> tuple[FrameFile, ...]:
    """The same, of the rows of one address only one.

    Args:
        count: how many rows there are, about.
    """
    parts = blocks.parts_of(rows[0], count)
    cut = [blocks.cut_once(each, parts) for each in rows]
    return _files(blocks.merged(cut, _write_task(opener, run_id, frame, placed), files.WRITTEN))


def _write_task(opener: StoreOpener, run_id: str, frame: str, placed: Placed) -> tasks.Change:
    return files.write_task(opener.open, run_folder.frame(run_id, frame), SCHEMAS[frame], placed)


def _files(written: DataFrame) -> tuple[FrameFile, ...]:
    return tuple(FrameFile(**row.asDict()) for row in written.collect())

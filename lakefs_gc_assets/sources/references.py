"""What is referenced, as DataFrames: ranges of metaranges, addresses of ranges and of uncommitted data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collection.live_files import LiveFiles
from lakefs_gc_assets.collection.tables import HEAD_ENTRIES, LISTED, LIVE, RANGES
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.lakefs.ranges import RangeRecord
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.sources.tasks import Reading
from lakefs_gc_assets.storage.opening import StoreOpener

_REQUEST = 20_000
"""Reading a file of references takes as long as so many entries of it, however few it has."""


@dataclass(frozen=True)
class References:
    """Reads references of one repository on Spark's workers.

    Attributes:
        partitions: how many tasks read files.
    """

    spark: SparkSession
    opener: StoreOpener
    namespace: Namespace
    window_size: WindowSize
    partitions: int

    def ranges(self, metarange_ids: Sequence[str]) -> DataFrame:
        """The distinct ranges of metaranges (RANGES). Two counts for one id give two rows, and the reading fails."""
        groups = tasks.spread(metarange_ids, self.partitions)
        return tasks.dataframe(self.spark, groups, self._each(LiveFiles.metarange), RANGES).distinct()

    def range_records(self, metarange_ids: Sequence[str]) -> list[RangeRecord]:
        """The same on the driver."""
        rows = self.ranges(metarange_ids).collect() if metarange_ids else []
        return [
            RangeRecord(row["id"], bytes(row["min_key"]), bytes(row["max_key"]), row["count"], row["estimated_size"])
            for row in rows
        ]

    def committed(self, ranges: Sequence[RangeRecord]) -> Reading:
        """The addresses of ranges (LIVE), those of each range once.

        Neighbours share a task, since ranges that follow each other hold many of the same addresses; tasks read about
        the same number of entries.
        """
        ordered = sorted(ranges, key=lambda record: record.min_key)
        groups = tasks.runs_by_weight(ordered, self.partitions, _weight)
        return Reading(self.spark, groups, self._each(LiveFiles.range), LIVE)

    def entries(self, ranges: Sequence[RangeRecord]) -> DataFrame:
        """What ranges hold, as objects (LISTED), each address once: as young as its youngest entry."""
        groups = tasks.spread_by_weight(ranges, self.partitions, _weight)
        rows = tasks.dataframe(self.spark, groups, self._each(LiveFiles.entries), LISTED)
        newest = F.max_by(F.struct(*LISTED.names), "last_modified").alias("row")
        return rows.groupBy("address").agg(newest).select("row.*")

    def of_metadata_files(self, names: Sequence[str]) -> Reading:
        """The addresses of all ranges among the files of the metadata folder (LIVE), those of each range once."""
        return Reading(self.spark, tasks.spread(names, self.partitions), self._each(LiveFiles.metadata_file), LIVE)

    def uncommitted(self, files: Sequence[str]) -> Reading:
        """The addresses of files of uncommitted data (LIVE), those of each file once."""
        return Reading(self.spark, tasks.spread(files, self.partitions), self._each(LiveFiles.uncommitted), LIVE)

    def head_entries(self, range_ids: Sequence[str], sizes: pa.Int64Array) -> DataFrame:
        """Entries of branch heads' ranges that have one of these sizes (HEAD_ENTRIES)."""
        groups = tasks.spread(range_ids, self.partitions)
        read = self._each(partial(_head_entries, sizes))
        return tasks.dataframe(self.spark, groups, read, HEAD_ENTRIES)

    def _each(
        self, table: Callable[[LiveFiles, tasks.Item], pa.Table]
    ) -> Callable[[tasks.Item], Iterator[pa.RecordBatch]]:
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read(item: tasks.Item) -> Iterator[pa.RecordBatch]:
            yield from table(LiveFiles(opener.open(), namespace, window_size), item).to_batches()

        return read


def _weight(record: RangeRecord) -> int:
    return _REQUEST + record.count


def _head_entries(sizes: pa.Int64Array, files: LiveFiles, range_id: str) -> pa.Table:
    return files.head_entries(range_id, sizes)

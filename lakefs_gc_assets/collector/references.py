"""What is referenced: ranges of metaranges, addresses of ranges and of uncommitted data."""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import pyarrow as pa

from lakefs_gc_assets.collector.engine import Engine, Item, R
from lakefs_gc_assets.collector.frame.schemas import HEAD_ENTRIES, LISTED, LIVE, RANGES
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.range_sizes import RangeSizes, SizesFolder
from lakefs_gc_assets.collector.stored.id_set import lacking
from lakefs_gc_assets.collector.work import runs_by_weight, spread, spread_by_weight
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.opening import StoreOpener

_RECORDS_AT_ONCE = 65_536
REQUEST_WEIGHT = 20_000
"""What a request for a file costs, as a number of entries: even a file with few entries takes as long to fetch."""


@dataclass(frozen=True)
class References(Generic[R]):
    """Reads references of one repository.

    Attributes:
        opener: opens the store that has the files.
        namespace: what addresses are relative to.
        tasks: how many tasks read files.
    """

    engine: Engine[R]
    opener: StoreOpener
    namespace: Namespace
    window_size: WindowSize
    tasks: int

    def range_records(self, metarange_ids: Sequence[str]) -> list[RangeRecord]:
        """The distinct ranges of metaranges. Two counts for one id give two records, and the reading fails."""
        return self._records(metarange_ids, LiveFiles.metarange)

    def unnamed_records(self, names: Sequence[str]) -> list[RangeRecord]:
        """The distinct ranges among files that no commit names, and of the metaranges among them; sizes are left out.

        As with `range_records`, two counts for one id fail when it is read.
        """
        return self._records(names, LiveFiles.unnamed)

    def _records(self, names: Sequence[str], table: Callable[[LiveFiles, str], pa.Table]) -> list[RangeRecord]:
        if not names:
            return []
        ranges = self.engine.distinct(self.engine.read(spread(names, self.tasks), self._each(table), RANGES))
        columns = self.engine.collect(ranges).select(RANGES.names)
        # A few at a time: all of them as Python's values, beside the records, would take as much again.
        batches = columns.to_batches(max_chunksize=_RECORDS_AT_ONCE)
        return [RangeRecord(*row) for batch in batches for row in zip(*map(_values, batch.columns), strict=True)]

    def committed(self, ranges: Sequence[RangeRecord], sizes_into: SizesFolder | None = None) -> R:
        """The addresses of ranges (LIVE), those of each range once.

        Neighbours share a task, since ranges that follow each other hold many of the same addresses; tasks read about
        the same number of entries.

        Args:
            sizes_into: where the sizes of what is read are noted; None for nowhere.
        """
        ordered = sorted(ranges, key=lambda record: (record.min_key, record.id))
        groups = runs_by_weight(ordered, self.tasks, weight_of)
        if sizes_into is None:
            return self.engine.read(groups, self._each(LiveFiles.range), LIVE)
        return self.engine.read([[group] for group in groups], self._noting_sizes(sizes_into), LIVE)

    def entries(self, ranges: Sequence[RangeRecord]) -> R:
        """What ranges hold, as objects (LISTED), each address once: as young as its youngest entry."""
        groups = spread_by_weight(ranges, self.tasks, weight_of)
        return self.engine.youngest_of_each(self.engine.read(groups, self._each(LiveFiles.entries), LISTED))

    def of_metadata_files(self, names: Sequence[str]) -> R:
        """The addresses of all ranges among the files of the metadata folder (LIVE), those of each range once."""
        return self.engine.read(spread(names, self.tasks), self._each(LiveFiles.metadata_file), LIVE)

    def uncommitted(self, files: Sequence[str]) -> R:
        """The addresses of files of uncommitted data (LIVE), those of each file once."""
        return self.engine.read(spread(files, self.tasks), self._each(LiveFiles.uncommitted), LIVE)

    def head_entries(self, range_ids: Sequence[str], sizes: pa.Int64Array) -> R:
        """Entries of branch heads' ranges that have one of these sizes (HEAD_ENTRIES)."""
        read = self._each(partial(_head_entries, sizes))
        return self.engine.read(spread(range_ids, self.tasks), read, HEAD_ENTRIES)

    def _noting_sizes(self, into: SizesFolder) -> Callable[[Sequence[RangeRecord]], Iterator[pa.RecordBatch]]:
        """Reads a group of ranges and notes the sizes of each; a task that does not come to its end notes fewer."""
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read(group: Sequence[RangeRecord]) -> Iterator[pa.RecordBatch]:
            noted = RangeSizes(into.opener.open(), into.key)
            files = LiveFiles(opener.open(), namespace, window_size, noted)
            for record in group:
                yield from files.range(record).to_batches()
            noted.put()

        return read

    def _each(self, table: Callable[[LiveFiles, Item], pa.Table]) -> Callable[[Item], Iterator[pa.RecordBatch]]:
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read(item: Item) -> Iterator[pa.RecordBatch]:
            yield from table(LiveFiles(opener.open(), namespace, window_size), item).to_batches()

        return read


def unread_ranges(ranges: Sequence[RangeRecord], known: Set[str]) -> tuple[RangeRecord, ...]:
    """The ranges whose ids are not known."""
    unread = frozenset(lacking(known, [record.id for record in ranges]))
    return tuple(record for record in ranges if record.id in unread)


def weight_of(record: RangeRecord) -> int:
    """How long a range takes to be read, in entries."""
    return REQUEST_WEIGHT + record.count


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _head_entries(sizes: pa.Int64Array, files: LiveFiles, range_id: str) -> pa.Table:
    return files.head_entries(range_id, sizes)

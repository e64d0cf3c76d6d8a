"""References: ranges of metaranges, addresses of ranges and of uncommitted data, and ranges that no commit names.

Ranges that lie beside those of the repository's commits and that none of its commits names may belong to another
repository on the same storage namespace: lakeFS allows a second one that is made `bare`, and two servers know nothing
of each other (a migration, a restored backup). No list of repositories is sure to name it, but its ranges can always be
seen. Failed commits, merges and imports leave such ranges as well, and a commit under way writes them before it exists.
Where a range comes from cannot be known, so the objects that it holds count as live.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Generic

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import Engine, Item, R
from lakefs_gc_assets.collector.engine.work import merge, runs_by_weight, spread, work_ahead
from lakefs_gc_assets.collector.frame.frames import HEAD_ENTRIES, LISTED, LIVE, RANGES
from lakefs_gc_assets.collector.live import facts_of_ranges, live_files
from lakefs_gc_assets.collector.live.facts import FactsFolder, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, SIZES, SUMS, record_hashes, sum_up
from lakefs_gc_assets.collector.live.live_files import LiveFiles, RangeRecords, each_once
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.retention.commits import list_ids
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, read_ahead

FILES_AHEAD = 4
"""So many metaranges of a task are asked for at once: most of the time of a small file is that of waiting for it."""
ROWS_MERGED = 65_536
"""A task that reads metaranges leaves out what it has already whenever it has so many rows of ranges more."""
_METARANGES_RECORDED = 16
"""Metaranges that a task records at least, if there are as many: each task leaves a file."""


@dataclass(frozen=True)
class References(Generic[R]):
    """Reads references of one repository.

    Attributes:
        opener: opens the store that has the files.
        namespace: what addresses are relative to.
        tasks: how many tasks read files.
    """

    engine: Engine[R]
    opener: OpensStore
    namespace: Namespace
    window_size: WindowSize
    tasks: int

    @classmethod
    def from_step(cls, step: Step[R], repository: OpenRepository | None = None) -> "References[R]":
        """A reader of references, with as many tasks as `collection.range_partitions` says.

        Args:
            repository: the one whose files are read, by default the step's. The addresses that are read are relative to
                the storage namespace of the step's repository in either case.
        """
        return cls(
            step.engine,
            (repository or step.repository).opener,
            step.repository.namespace,
            step.plan.slice_window,
            step.tasks(step.repository.settings.range_partitions),
        )

    def range_records(self, metarange_ids: Sequence[str], facts_into: str | None = None) -> RangeRecords:
        """The distinct ranges of metaranges. Two counts for one id give two records, and the reading fails.

        Neighbours are read by one task, which hands on once what they both name.

        Args:
            facts_into: the folder, with a trailing slash, where the ranges of each are recorded; None for nowhere.
        """
        if facts_into is None:
            return self._records(metarange_ids, partial(_read_each_once, LiveFiles.metarange), self.tasks)
        tasks = min(self.tasks, -(-len(metarange_ids) // _METARANGES_RECORDED))
        return self._records(metarange_ids, partial(_read_and_record, facts_into, self.opener), tasks)

    def unnamed_records(self, sizes: Mapping[str, int]) -> RangeRecords:
        """The distinct ranges among files that no commit names, and of the metaranges among them; sizes are left out.

        As with `range_records`, two counts for one id fail when it is read.

        Args:
            sizes: bytes of each file, by its name.
        """
        return self._records([*sizes.items()], partial(_read_each_once, LiveFiles.unnamed), self.tasks)

    def _records(
        self, files: Sequence[Item], ranges_of: Callable[[LiveFiles, Sequence[Item]], pa.Table], tasks: int
    ) -> RangeRecords:
        """The distinct ranges (RANGES) that a function finds in each task's share of files, which are neighbours."""
        if not files:
            return RangeRecords.from_records([])
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read(group: Sequence[Item]) -> Iterator[pa.RecordBatch]:
            yield from ranges_of(LiveFiles(opener.open(), namespace, window_size), group).to_batches()

        groups = [[group] for group in runs_by_weight(files, tasks, lambda file: 1)]
        ranges = self.engine.distinct(self.engine.read(groups, read, RANGES))
        return RangeRecords.of_rows(self.engine.collect(ranges))

    def committed(
        self, ranges: RangeRecords, sizes_into: FactsFolder | None = None, hashes_into: FactsFolder | None = None
    ) -> R:
        """The addresses of ranges (LIVE), those of each range once.

        Args:
            sizes_into: where the sizes of entries are recorded; None for nowhere.
            hashes_into: where the hashes of the addresses are recorded; None for nowhere.
        """
        return self._of_ranges(ranges, LiveFiles.range, LIVE, sizes_into, hashes_into)

    def sums(self, ranges: RangeRecords) -> R:
        """How many addresses ranges hold, and what they add up to (SUMS)."""
        return self._of_ranges(ranges, _sum_up, SUMS)

    def entries(self, ranges: RangeRecords, held: RangeRecords | None = None) -> R:
        """Objects of ranges (LISTED), each address once: as young as its youngest entry.

        Args:
            held: ranges whose addresses are left out before anything else is done; None for none.
        """
        rows = self._of_ranges(ranges, LiveFiles.entries, LISTED)
        if held:
            rows = self.engine.without(rows, self.committed(held), count=ranges.entries + held.entries)
        return self.engine.youngest_of_each(rows)

    def _of_ranges(
        self,
        ranges: RangeRecords,
        table: Callable[[LiveFiles, RangeRecord], pa.Table],
        schema: pa.Schema,
        sizes_into: FactsFolder | None = None,
        hashes_into: FactsFolder | None = None,
    ) -> R:
        """Rows that a function reads from each range; a task that does not come to its end records fewer.

        Args:
            hashes_into: only for what reads addresses (LIVE).
        """
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read(packed: bytes) -> Iterator[pa.RecordBatch]:
            sizes = None if sizes_into is None else FactWriter(SIZES, sizes_into.opener.open(), sizes_into.key)
            hashes = None if hashes_into is None else FactWriter(HASHES, hashes_into.opener.open(), hashes_into.key)
            with read_ahead(opener.open(), live_files.files_of(packed)) as store:
                files = LiveFiles(store, namespace, window_size, sizes)
                for record in live_files.unpack(packed):
                    rows = table(files, record)
                    if hashes is not None:
                        record_hashes(hashes, record, rows, namespace.uri)
                    yield from rows.to_batches()
            for writer in (sizes, hashes):
                if writer is not None:
                    writer.put()

        return self.engine.read([[packed] for packed in ranges.packed(self.tasks)], read, schema)

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

    def _each(self, table: Callable[[LiveFiles, Item], pa.Table]) -> Callable[[Item], Iterator[pa.RecordBatch]]:
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read(item: Item) -> Iterator[pa.RecordBatch]:
            yield from table(LiveFiles(opener.open(), namespace, window_size), item).to_batches()

        return read


def _read_each_once(table: Callable[[LiveFiles, Item], pa.Table], files: LiveFiles, names: Sequence[Item]) -> pa.Table:
    return merge(work_ahead(partial(table, files), names, FILES_AHEAD), each_once, ROWS_MERGED)


def _read_and_record(facts_into: str, opener: OpensStore, files: LiveFiles, metarange_ids: Sequence[str]) -> pa.Table:
    """The distinct ranges of metaranges, which are recorded in a folder of a store."""

    def named(place: int) -> pa.Table:
        metarange_id = metarange_ids[place]
        return facts_of_ranges.name_ranges(metarange_id, place, files.metarange(metarange_id))

    tables = work_ahead(named, range(len(metarange_ids)), FILES_AHEAD)
    rows = merge(tables, facts_of_ranges.join_runs, ROWS_MERGED)
    facts_of_ranges.put_metaranges(opener.open(), facts_into, rows)
    return each_once(facts_of_ranges.select_ranges(rows))


def _sum_up(files: LiveFiles, record: RangeRecord) -> pa.Table:
    return sum_up(record, files.range(record))


def _head_entries(sizes: pa.Int64Array, files: LiveFiles, range_id: str) -> pa.Table:
    return files.head_entries(range_id, sizes)


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Files of the metadata folder that no commit names and nobody read before.

    Attributes:
        ids: the files, of whatever kind: tables of earlier refs dumps are among them.
        records: ranges that are among the files, or that a metarange among them names.
    """

    ids: tuple[str, ...]
    records: RangeRecords


def find_unnamed(
    store: ObjectStore,
    references: References[R],
    read: Set[str],
    expired: Set[str],
    since: datetime | None = None,
) -> Unnamed:
    """Lists the metadata folder, and reads of it only what no commit names.

    It is asked last: whatever is committed until then is seen.

    Args:
        read: ids of everything that was read before, or is read by this question.
        expired: ids of metaranges and ranges that only expired commits name. They are no sign of another repository,
            but such a range stays where an unnamed metarange names it, too. So it is with a branch's compacted base.
        since: only files that were last modified at this moment, UTC, or later; None for all.
    Raises:
        CorruptFile: a file is of no known kind, or damaged.
    """
    sizes = list_ids(store, IdSet.from_ids(read) | expired, since)
    return Unnamed(tuple(sizes), references.unnamed_records(sizes).without(read))

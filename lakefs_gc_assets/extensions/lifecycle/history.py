"""Times since which paths of a branch have their objects, by the commits on its line of first parents.

From the head back, each commit is compared with its first parent. Ranges that both have are skipped, since the id of a
range is a hash of its content. Among the other ranges of the parent, only ranges that may have a path in question are
read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.live.live_files import LiveFiles, records_of
from lakefs_gc_assets.collector.retention.active_commits import Graph
from lakefs_gc_assets.errors import CorruptFile, LakeFSError, LogLine
from lakefs_gc_assets.extensions.lifecycle.entries import EntryReader, Integers
from lakefs_gc_assets.extensions.lifecycle.rules import Flags

_METARANGES_KEPT = 64
_COMMITS_OF_A_NOTE = 1_000


@dataclass
class PathHistory:
    """The commits of a repository.

    Attributes:
        graph: with the latest known dates.
        now: UTC.
    """

    files: LiveFiles
    reader: EntryReader
    graph: Graph
    now: datetime
    note: LogLine

    def __post_init__(self) -> None:
        self._ranges = lru_cache(_METARANGES_KEPT)(self._read_ranges)

    def are_older(self, commit_id: str, entries: pa.Table, period: timedelta) -> Flags:
        """True for each entry whose path has had its object for longer than a period, up to a commit.

        The commit that brought an object is the last one on the line whose first parent lacks it at its path.

        Args:
            entries: entries of the commit (ENTRIES) in order of paths.
        Raises:
            LakeFSError: the graph lacks the commit.
            CorruptFile: a file cannot be read. Nothing is known about the entries then.
            StorageError: the store fails.
        """
        line = [*self._line(commit_id)]
        is_old = self._are_old(np.array(line, np.int64), period)
        old = np.zeros(entries.num_rows, np.bool_)
        waiting = np.ones(entries.num_rows, np.bool_)
        paths = entries.column("path").combine_chunks().cast(pa.binary())
        addresses = entries.column("address").combine_chunks()
        # From the last commit that is not old on, every entry that is still there came long ago.
        young = np.flatnonzero(~is_old)
        for number in range(int(young[-1]) + 1 if len(young) else 0):
            if number and not number % _COMMITS_OF_A_NOTE:
                self.note(f"compared {number:,} commits; {waiting.sum():,} entries are left")
            if not waiting.any():
                return old
            parent = line[number + 1] if number + 1 < len(line) else -1
            came = self._came(line[number], parent, paths, addresses, waiting)
            old[came] = is_old[number]
            waiting[came] = False
        return old | waiting

    def _line(self, commit_id: str) -> Iterator[int]:
        at = int(self.graph.commits.positions(pa.array([commit_id]))[0])
        if at < 0:
            raise LakeFSError(f"commit {commit_id}, the head of a branch, is missing from the commits")
        while at >= 0:
            yield at
            at = int(self.graph.main_parents[at])

    def _are_old(self, line: Integers, period: timedelta) -> Flags:
        """True for each commit of a line that was certainly made before the period began.

        A commit is no older than its parents, unless their dates lie in the future.
        """
        seconds = self.graph.commits.seconds[line] + (self.graph.commits.nanos[line] > 0)
        now = int(self.now.timestamp())
        past = np.where(seconds > now, np.iinfo(np.int64).min, seconds)
        latest = np.maximum(seconds, np.maximum.accumulate(past[::-1])[::-1])
        is_old: Flags = latest < now - int(period.total_seconds())
        return is_old

    def _came(self, at: int, parent: int, paths: pa.BinaryArray, addresses: pa.StringArray, waiting: Flags) -> Integers:
        """Numbers of waiting entries that a commit has and its parent, -1 for none, lacks or has changed."""
        ranges, before = self._ranges(self._metarange(at)), self._ranges(self._metarange(parent))
        changed = _lacking(ranges, before)
        if not changed.num_rows:
            return np.empty(0, np.int64)
        replaced = _lacking(before, ranges)
        came = []
        for first, last in zip(*(changed.column(name).to_pylist() for name in ("min_key", "max_key")), strict=True):
            start = bisect_left(range(len(paths)), first, key=lambda place: paths[place].as_py())
            end = bisect_right(range(len(paths)), last, key=lambda place: paths[place].as_py())
            touched = start + np.flatnonzero(waiting[start:end])
            if len(touched):
                came.append(touched[~self._were_there(touched, paths, addresses, replaced)])
        return np.concatenate([np.empty(0, np.int64), *came])

    def _were_there(
        self, touched: Integers, paths: pa.BinaryArray, addresses: pa.StringArray, replaced: pa.Table
    ) -> Flags:
        """True for each touched entry that one of the parent's ranges has, at the same path and address."""
        own_paths, own_addresses = paths.take(pa.array(touched)), addresses.take(pa.array(touched))
        there = np.zeros(len(touched), np.bool_)
        near = pc.and_(
            pc.less_equal(replaced.column("min_key"), own_paths[-1]),
            pc.greater_equal(replaced.column("max_key"), own_paths[0]),
        )
        for record in (record for batch in replaced.filter(near).to_batches() for record in records_of(batch)):
            entries = self.reader.read(record)
            if isinstance(entries, CorruptFile):
                raise entries
            place = pc.index_in(own_paths, value_set=entries.keys)
            same = pc.equal(entries.addresses.take(place), own_addresses)
            there |= pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return there

    def _metarange(self, at: int) -> str:
        return "" if at < 0 else str(self.graph.commits.metarange_ids[at])

    def _read_ranges(self, metarange_id: str) -> pa.Table:
        return self.files.metarange(metarange_id) if metarange_id else RANGES.empty_table()


def _lacking(ranges: pa.Table, others: pa.Table) -> pa.Table:
    """The ranges that are not among others."""
    return ranges.filter(pc.invert(pc.is_in(ranges.column("id"), value_set=others.column("id").combine_chunks())))

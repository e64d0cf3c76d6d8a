"""Records of ranges in columns: of a million ranges 180 MB, with 32 MB of ids, where as many objects take 600 MB."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.work import cut_by_weight
from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.stored.ids import IdSet
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

REQUEST_WEIGHT = 20_000
"""Cost of a request for a file, as a number of entries: even a file with few entries takes as long to fetch."""
_COVERING_ONE = 4
"""So many ranges are taken at most in place of one."""
_AT_ONCE = 8_192
"""Records that there are as Python's values at one time."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True)
class RangeRecords:
    """Ranges as their metaranges state them, in order of their keys.

    Attributes:
        rows: RANGES.
    """

    rows: pa.Table

    @classmethod
    def from_records(cls, records: Iterable[RangeRecord]) -> "RangeRecords":
        """Records that this process has as objects."""
        values = [[getattr(record, name) for name in RANGES.names] for record in records]
        columns = zip(*values, strict=True) if values else [[] for _ in RANGES]
        return cls.of_rows(pa.table([*columns], schema=RANGES))

    @classmethod
    def of_rows(cls, rows: pa.Table) -> "RangeRecords":
        """Rows that have the columns of RANGES, in any order."""
        declared = rows.select(RANGES.names).cast(RANGES)
        return cls(declared.take(pc.sort_indices(declared, [("min_key", "ascending"), ("id", "ascending")])))

    def __len__(self) -> int:
        rows: int = self.rows.num_rows
        return rows

    def __iter__(self) -> Iterator[RangeRecord]:
        return _records(self.rows.to_batches(max_chunksize=_AT_ONCE))

    @cached_property
    def ids(self) -> IdSet:
        """The ids of the ranges."""
        return IdSet.of_columns(batch.column("id") for batch in self.rows.to_batches(max_chunksize=_AT_ONCE))

    @property
    def entries(self) -> int:
        """How many entries the ranges have."""
        return pc.sum(self.rows.column("count")).as_py() or 0

    def without(self, known: Set[str]) -> "RangeRecords":
        """The ranges whose ids are not known."""
        of = IdSet.from_ids(known)
        lacks = [of.lacks(batch.column("id")) for batch in self.rows.to_batches(max_chunksize=_AT_ONCE)]
        unknown = np.concatenate([np.empty(0, np.bool_), *lacks])
        return self if unknown.all() else RangeRecords(self.rows.filter(pa.array(unknown)))

    def covering(self, others: "RangeRecords") -> "RangeRecords":
        """Some of the ranges, which together have the keys of the others as far as a few have them: of each place one.

        Versions of a range have mostly the same keys, and which of them is taken does not matter. So there are about as
        many as there are others.
        """
        least, greatest = self.rows.column("min_key"), self.rows.column("max_key")
        chosen: set[int] = set()
        for start, end in zip(*(others.rows.column(name) for name in ("min_key", "max_key")), strict=True):
            key, last = start.as_py(), end.as_py()
            for _ in range(_COVERING_ONE):
                after = bisect_right(range(len(self)), key, key=lambda place: least[place].as_py())
                place = after - 1
                if place < 0 or greatest[place].as_py() < key:
                    # No range has the key itself, or another one does than the last that begins before it.
                    place = after
                if place == len(self) or least[place].as_py() > last:
                    break
                chosen.add(place)
                key = greatest[place].as_py() + b"\0"
                if key > last:
                    break
        return RangeRecords(self.rows.take(pa.array(sorted(chosen), pa.int64())))

    def packed(self, tasks: int) -> list[bytes]:
        """The ranges for so many tasks at most, of which each reads about the same number of entries.

        Neighbours share a task, since ranges that follow each other hold many of the same addresses.
        """
        return pack(self.rows, tasks)


def each_once(rows: pa.Table) -> pa.Table:
    """Rows that have the columns of RANGES, each once; two counts for one id are two rows."""
    return rows.group_by(rows.column_names).aggregate([])


def pack(rows: pa.Table, tasks: int) -> list[bytes]:
    """Ranges in order of their keys as `RangeRecords.packed` gives them.

    Args:
        rows: RANGES, perhaps with further columns.
    """
    weights = rows.column("count").to_numpy() + REQUEST_WEIGHT
    return [_pack(rows.slice(start, end - start)) for start, end in cut_by_weight(weights, tasks)]


def weight_of(record: RangeRecord) -> int:
    """How long a range takes to be read, in entries."""
    return REQUEST_WEIGHT + record.count


def unpack(packed: bytes) -> Iterator[RangeRecord]:
    """The ranges of one task."""
    return _records(unpack_rows(packed))


def files_of(packed: bytes) -> Iterator[tuple[str, int]]:
    """Key and size in bytes, about, of each file that one task reads, in the order of its ranges."""
    for rows in unpack_rows(packed):
        keys = (METADATA_PREFIX + range_id for range_id in rows.column("id").to_pylist())
        yield from zip(keys, rows.column("estimated_size").to_pylist(), strict=True)


def unpack_rows(packed: bytes) -> Iterator[pa.RecordBatch]:
    """The ranges of one task as rows, with the columns that were packed."""
    with pa.ipc.open_stream(packed) as batches:
        yield from batches


def _pack(rows: pa.Table) -> bytes:
    # Pickled, a slice has all that it is a slice of.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as stream:
        stream.write_table(rows, max_chunksize=_AT_ONCE)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def records_of(batch: pa.RecordBatch) -> Iterator[RangeRecord]:
    """The ranges of a batch (RANGES, perhaps with further columns)."""
    for row in zip(*(batch.column(name).to_pylist() for name in RANGES.names), strict=True):
        yield RangeRecord(*row)


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[RangeRecord]:
    for batch in batches:
        yield from records_of(batch)

"""The hashes of the addresses that a range holds, noted when it is read, so that it need not be read again.

Whether an address is held is then told by its hash. That two addresses have the same one can only keep an object. A
note that is wrong may lose one: so a file is compared with its SHA-256, the entries of a range with what its metarange
counts, and in each run all that is noted of some ranges with what they hold.

Only ranges are noted that lie in sealed slices alone, or in none: nothing of them is listed by a run that builds on
this one, so that gaps in its listing can be found without them.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import Flags, Hashes, HashSet
from lakefs_gc_assets.collector.frame.slices import lie_in_sealed
from lakefs_gc_assets.collector.live import range_notes
from lakefs_gc_assets.collector.live.range_notes import Notes, NotesFile, NotesFolder, NotesKind
from lakefs_gc_assets.collector.stored.ids import IdSet
from lakefs_gc_assets.errors import CorruptFile, EngineFault
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectStore

RANGE_HASHES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("hashes", pa.list_(pa.int64()), nullable=False),
    ]
)
"""Ranges, how many entries each has, and the 64 bits of each address that it holds, in order."""
HASHES = NotesKind(
    "range_hashes",
    "hashes of addresses",
    1,
    RANGE_HASHES,
    ascending=("hashes.list.element",),
    join=range_notes.join_each_once,
)
SUMS = pa.schema(
    [
        pa.field("range_id", pa.string()),
        pa.field("entries", pa.int64()),
        pa.field("addresses", pa.int64()),
        pa.field("total", pa.int64()),
    ]
)
"""Ranges: how many entries and addresses each has, and the sum of the hashes of its addresses, modulo 2^64."""
LOOKED_UP = pa.schema([*SUMS, pa.field("met", pa.binary()), pa.field("damage", pa.string())])
"""What files note of ranges; in a row without `range_id`, what is wrong with a file, or else which of the hashes that
are looked for the ranges have that `entries` counts: a bit for each, since every version of a range may have them all.
"""


@dataclass(frozen=True, slots=True)
class HashesFolder:
    """Where an attempt notes hashes, and which slices are sealed after it."""

    folder: NotesFolder
    sealed: pa.StringArray

    def open(self) -> "RangeHashes":
        """What a task notes by."""
        return RangeHashes(self.folder.opener.open(), self.folder.key, self.sealed)


class RangeHashes(Notes):
    """Notes the hashes of ranges that a task reads."""

    def __init__(self, store: ObjectStore, folder: str, sealed: pa.StringArray) -> None:
        """Nothing is noted yet.

        Args:
            folder: where the files go, with a trailing slash.
            sealed: slices to which nothing is written any more.
        """
        super().__init__(HASHES, store, folder)
        self._sealed = sealed

    def note(self, record: RangeRecord, rows: pa.Table) -> None:
        """Notes a range that was read as its metarange states it, unless it lies in slices that are not sealed.

        Args:
            rows: its addresses (LIVE), each once.
        """
        if lie_in_sealed(rows, self._sealed):
            self.add(record.id, pa.array(np.sort(_hashes(rows))), record.count)


def look_up(
    store: ObjectStore, wanted: Set[str], hashes: HashSet, files: Iterable[NotesFile]
) -> Iterator[pa.RecordBatch]:
    """What files note of the wanted ranges, and which of some hashes these have (LOOKED_UP)."""
    met, ranges = np.zeros(len(hashes.ordered), np.bool_), 0
    for file in files:
        for batch in _look_up_in(store, wanted, hashes, file, met):
            ranges += len(batch.column("range_id").drop_null())
            yield batch
    yield pa.RecordBatch.from_pylist([{"entries": ranges, "met": np.packbits(met).tobytes()}], LOOKED_UP)


def tell_apart(told: pa.Table, hashes: HashSet) -> tuple[pa.Table, Hashes]:
    """What is told of ranges (SUMS), and those of the hashes that these have. Raises as `require_whole`.

    Args:
        told: what `look_up` gave of groups of files, without what is wrong with some.
    """
    about_hashes = pc.is_null(told.column("range_id"))
    ranges, marks = told.filter(pc.invert(about_hashes)), told.filter(about_hashes)
    require_whole(ranges, marks)
    met = np.zeros(len(hashes.ordered), np.bool_)
    for bits in marks.column("met").to_pylist():
        met |= np.unpackbits(np.frombuffer(bits, np.uint8), count=len(met)).view(np.bool_)
    return ranges.select(SUMS.names), hashes.ordered[met]


def require_whole(ranges: pa.Table, marks: pa.Table) -> None:
    """Raises EngineFault where which hashes ranges have is told of fewer ranges than there are, or of more."""
    counted = pc.sum(marks.column("entries")).as_py() or 0
    if counted != ranges.num_rows:
        raise EngineFault(
            f"addresses were looked up in notes of {ranges.num_rows:,} ranges, and it is told of {counted:,} which of "
            "them they have; run again"
        )


def _look_up_in(
    store: ObjectStore, wanted: Set[str], hashes: HashSet, file: NotesFile, met: Flags
) -> Iterator[pa.RecordBatch]:
    try:
        rows = range_notes.read(HASHES, store, file).combine_chunks()
    except CorruptFile as damage:
        yield pa.RecordBatch.from_pylist([{"damage": range_notes.describe(damage)}], LOOKED_UP)
        return
    lacks = [IdSet.of(wanted).lacks(batch.column("range_id")) for batch in rows.to_batches()]
    rows = rows.filter(pa.array(~np.concatenate([np.empty(0, np.bool_), *lacks]))).combine_chunks()
    if not rows.num_rows:
        return
    lists = rows.column("hashes").combine_chunks()
    values = pc.list_flatten(lists).to_numpy()
    lengths = pc.list_value_length(lists).to_numpy()
    hashes.mark(values.view(np.uint64), met)
    columns = [
        rows.column("range_id"),
        rows.column("entries"),
        lengths.astype(np.int64),
        _sum_by_list(values, lengths),
        pa.nulls(rows.num_rows, pa.binary()),
        pa.nulls(rows.num_rows, pa.string()),
    ]
    yield from pa.table(columns, schema=LOOKED_UP).to_batches()


def sum_up(record: RangeRecord, rows: pa.Table) -> pa.Table:
    """What is to be noted of a range that was read (SUMS).

    Args:
        rows: its addresses (LIVE), each once.
    """
    values = _hashes(rows)
    total = _sum_by_list(values, np.array([len(values)]))
    return pa.table([[record.id], [record.count], [len(values)], total], schema=SUMS)


def _hashes(rows: pa.Table) -> npt.NDArray[np.int64]:
    addresses = rows.column("address")
    column = addresses.combine_chunks() if isinstance(addresses, pa.ChunkedArray) else addresses
    return hashing.hashes(column).view(np.int64)


def _sum_by_list(values: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of each list, modulo 2^64; lists follow each other."""
    sums = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(lengths)
    each: npt.NDArray[np.int64] = sums[ends] - sums[ends - lengths]
    return each

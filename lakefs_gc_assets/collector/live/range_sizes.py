"""Which sizes the entries of a range have, noted when a range is read, so that it need not be read again for others.

A staged entry that the server does not list has the size of the committed entry at its path. So of the ranges of branch
heads only those are read for candidates that have an entry of a candidate's size. The id of a range is a hash of its
content, sizes included: what was noted once stays true, in every run and for every repository.

Notes are files in the run's folder, each complete by itself: whatever is not noted, or cannot be read, is taken for
unknown, and an unknown range is read. An optimized run takes over those of the run that it builds on. Their names say
the version of the format, and how many sizes a file has; files of another name are left alone.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener

RANGE_SIZES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("sizes", pa.list_(pa.int64()), nullable=False),
    ]
)
"""Ranges, and the distinct sizes of the entries of each, in order."""

NAME = "range_sizes"
"""Folder of the notes in the folder of a run."""

_FORMAT_VERSION = 1
_FILE = re.compile(rf"{_FORMAT_VERSION}-(?P<sizes>\d{{1,18}})-[0-9a-f]{{32}}\.parquet")
_SIZES_OF_A_FILE = 4_000_000
"""A task puts a file whenever it has noted so many; files that have as many are not merged."""
LOOKED_UP = pa.schema(
    [pa.field("range_id", pa.string()), pa.field("holds", pa.bool_()), pa.field("damage", pa.string())]
)
"""Ranges of a file and whether they hold one of the sizes; or else what is wrong with the file."""


@dataclass(frozen=True, slots=True)
class SizesFolder:
    """Where notes go: a folder, its key with a trailing slash, of the store that an opener opens."""

    opener: StoreOpener
    key: str


@dataclass(frozen=True, slots=True)
class SizesFile:
    """A file of notes.

    Attributes:
        sizes: how many it has, of all its ranges together.
    """

    key: str
    sizes: int


@dataclass(slots=True)
class RangeSizes:
    """Notes the sizes of ranges that a task reads, and puts them into files.

    Attributes:
        folder: where the files go, with a trailing slash.
    """

    store: ObjectStore
    folder: str
    _noted: dict[str, pa.Int64Array] = field(default_factory=dict)
    _sizes: int = 0

    def note(self, range_id: str, sizes: pa.Int64Array) -> None:
        """Notes the sizes of all entries of a range."""
        distinct = pa.array(np.unique(sizes.to_numpy()), pa.int64())
        self._noted[range_id] = distinct
        self._sizes += len(distinct)
        if self._sizes >= _SIZES_OF_A_FILE:
            self.put()

    def put(self) -> None:
        """Puts what was noted since the last time."""
        if self._noted:
            lengths = [0, *(len(sizes) for sizes in self._noted.values())]
            offsets = pa.array(np.cumsum(lengths), pa.int32())
            lists = pa.ListArray.from_arrays(offsets, pa.concat_arrays(self._noted.values()))
            put(self.store, self.folder, pa.table([list(self._noted), lists], schema=RANGE_SIZES))
        self._noted, self._sizes = {}, 0


def folder(run_id: str) -> str:
    """Where a run's notes are, with a trailing slash."""
    return run_folder.frame(run_id, NAME)


def files_of(store: ObjectStore, run_id: str) -> list[SizesFile]:
    """The files of a run's notes that this version can read."""
    found = (
        (each.key, _FILE.fullmatch(each.key.rpartition("/")[2])) for each in store.list_level(folder(run_id)).objects
    )
    return [SizesFile(key, int(match["sizes"])) for key, match in found if match is not None]


def put(store: ObjectStore, into: str, rows: pa.Table) -> SizesFile:
    """Stores notes (RANGE_SIZES) as one file. Of the same ranges it has the same name: they have the same sizes.

    Args:
        into: a folder, with a trailing slash.
    """
    ids = "\n".join(sorted(rows.column("range_id").to_pylist()))
    sizes = len(pc.list_flatten(rows.column("sizes")))
    digest = hashlib.sha256(ids.encode()).hexdigest()[:32]
    file = SizesFile(f"{into}{_FORMAT_VERSION}-{sizes}-{digest}.parquet", sizes)
    store.put(file.key, tables.encode(rows, ascending=("sizes.list.element",)))
    return file


def read(store: ObjectStore, file: SizesFile) -> pa.Table:
    """The notes of a file (RANGE_SIZES). Raises CorruptFile where it is missing, or is not what was written."""
    try:
        data = store.get(file.key)
    except ObjectNotFound:
        raise CorruptFile(file.key, "existence", "the file is missing from the object store") from None
    rows = tables.decode(RANGE_SIZES, data, file.key, "sizes of ranges")
    flat = pc.list_flatten(rows.column("sizes"))
    if flat.null_count or len(flat) != file.sizes:
        raise CorruptFile(
            file.key,
            "sizes of ranges",
            f"it has {len(flat):,} sizes, {flat.null_count:,} of them null; its name says {file.sizes:,}",
        )
    return rows


def describe(damage: CorruptFile) -> str:
    """What is wrong with a file, without the words of CorruptFile that the run ends: it goes on."""
    return f"{damage.file}: {damage.check}: {damage.detail}"


def choose_merged(files: Sequence[SizesFile]) -> list[SizesFile]:
    """The small files that become one: from the smallest on, until one is larger than all before it together.

    So there are few files, however many runs left some, and a size is seldom written again.
    """
    chosen: list[SizesFile] = []
    total = 0
    for file in sorted(files, key=lambda each: (each.sizes, each.key)):
        if file.sizes >= _SIZES_OF_A_FILE or (len(chosen) > 1 and file.sizes > total):
            break
        chosen.append(file)
        total += file.sizes
    return chosen if len(chosen) > 1 else []


def each_once(rows: pa.Table) -> pa.Table:
    """The first row of each range, of notes (RANGE_SIZES)."""
    places: dict[str, int] = {}
    for place, range_id in enumerate(rows.column("range_id").to_pylist()):
        places.setdefault(range_id, place)
    return rows.take(pa.array(places.values(), pa.int64()))


def look_up(
    store: ObjectStore, wanted: Collection[str], sizes: pa.Int64Array, file: SizesFile
) -> Iterator[pa.RecordBatch]:
    """Which of the wanted ranges a file tells of, and whether they hold one of the sizes (LOOKED_UP)."""
    try:
        rows = read(store, file)
    except CorruptFile as damage:
        yield pa.RecordBatch.from_pylist([{"damage": describe(damage)}], LOOKED_UP)
        return
    rows = rows.filter(pc.is_in(rows.column("range_id"), value_set=pa.array(wanted, pa.string())))
    lists = rows.column("sizes").combine_chunks()
    matches = pc.is_in(pc.list_flatten(lists), value_set=sizes)
    holding = pc.unique(pc.list_parent_indices(lists).filter(matches))
    holds = pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=holding.cast(pa.int64()))
    ids = rows.column("range_id")
    yield from pa.table([ids, holds, pa.nulls(len(ids), pa.string())], schema=LOOKED_UP).to_batches()

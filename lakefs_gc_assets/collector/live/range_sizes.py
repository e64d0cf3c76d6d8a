"""Which sizes the entries of a range have, noted when a range is read, so that it need not be read again for others.

A staged entry that the server does not list has the size of the committed entry at its path. So of the ranges of branch
heads only those are read for candidates that have an entry of a candidate's size. The id of a range is a hash of its
content, sizes included: what was noted once stays true, in every run and for every repository.

Notes are files in the run's folder, each complete by itself: whatever is not noted, or cannot be read, is taken for
unknown, and an unknown range is read. What tasks have noted is gathered into few files, with what the run noted that
this one builds on. Names say the version of the format, how many sizes a file has, how long its directory is, and the
digest of that; files of another name are left alone.

A file has sizes in order, in blocks, and at its end a directory: the ranges, and of each block its lowest size, its end
and its digest. So of a large file only the directory is read, and the blocks that a size can be in. Nothing is believed
that does not have its digest.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.hashing import distinct
from lakefs_gc_assets.collector.live import range_notes
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.storage.interface import ObjectStore, ReadsParts

NAME = "range_sizes"
"""Folder of the notes in the folder of a run."""

_GATHERED = "gathered/"
"""Folder in it of what was gathered: nothing beside it is looked at then."""
_FORMAT_VERSION = 2
_FILE = re.compile(
    rf"{_FORMAT_VERSION}-(?P<sizes>\d{{1,18}})-(?P<directory>\d{{1,18}})-(?P<digest>[0-9a-f]{{32}})\.sizes"
)
SIZES_OF_A_FILE = 8_000_000
"""A task puts a file whenever it has noted so many, and no more are gathered into one."""
_SIZES_OF_A_BLOCK = 4_096
_READ_WHOLE = 256 * 1024
"""Bytes of a file that is read at once: less than that is hardly saved by several requests."""
_REQUESTS_AT_ONCE = 8
_DIGEST_BYTES = 16
_BLOCK = pa.schema([pa.field("size", pa.int64(), nullable=False), pa.field("place", pa.int32(), nullable=False)])
"""Sizes in order, and the place among the file's ranges of one that has an entry of it."""
_DIRECTORY = pa.schema(
    [
        pa.field("range_ids", pa.list_(pa.string()), nullable=False),
        pa.field("lowest", pa.list_(pa.int64()), nullable=False),
        pa.field("ends", pa.list_(pa.int64()), nullable=False),
        pa.field("digests", pa.list_(pa.binary(_DIGEST_BYTES)), nullable=False),
    ]
)
"""One row: the ranges, and of each block the lowest size, where it ends in bytes, and its digest."""
LOOKED_UP = pa.schema(
    [pa.field("range_id", pa.string()), pa.field("holds", pa.bool_()), pa.field("damage", pa.string())]
)
"""Ranges of a file and whether they hold one of the sizes; or else what is wrong with the file."""
_Sizes = npt.NDArray[np.int64]
_Places = npt.NDArray[np.int32]
_Part = Callable[[int, int], bytes]
"""Gives the bytes of a file from a place on, up to another one."""


@dataclass(frozen=True, slots=True)
class SizesFile:
    """A file of notes.

    Attributes:
        length: bytes of the whole.
        sizes: how many it has, of all its ranges together.
        directory: bytes of the directory at its end.
        digest: of the directory.
    """

    key: str
    length: int
    sizes: int
    directory: int
    digest: str


@dataclass(frozen=True, slots=True)
class Notes:
    """The distinct sizes of the entries of ranges.

    Attributes:
        range_ids: the ranges, each once.
        sizes, places: sizes in order, and for each the place of a range that has an entry of it.
    """

    range_ids: tuple[str, ...]
    sizes: _Sizes
    places: _Places

    @classmethod
    def of(cls, noted: Mapping[str, pa.Int64Array]) -> "Notes":
        """The sizes of ranges, each once for each range."""
        lengths = [len(sizes) for sizes in noted.values()]
        sizes = np.concatenate([np.empty(0, np.int64), *(each.to_numpy() for each in noted.values())])
        return cls._ordered(tuple(noted), sizes, np.repeat(np.arange(len(noted), dtype=np.int32), lengths))

    @classmethod
    def joined(cls, parts: Iterable["Notes"]) -> "Notes":
        """All notes together; of a range that was noted twice the first ones, since the others say the same."""
        known: dict[str, int] = {}
        sizes, places = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for part in parts:
            fresh = [range_id not in known for range_id in part.range_ids]
            into = [known.setdefault(range_id, len(known)) for range_id in part.range_ids]
            kept = np.array(fresh, np.bool_)[part.places]
            sizes.append(part.sizes[kept])
            places.append(np.array(into, np.int32)[part.places[kept]])
        return cls._ordered(tuple(known), np.concatenate(sizes), np.concatenate(places))

    @classmethod
    def _ordered(cls, range_ids: tuple[str, ...], sizes: _Sizes, places: _Places) -> "Notes":
        order = np.argsort(sizes, kind="stable")
        return cls(range_ids, sizes[order], places[order])


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
        each = pa.array(distinct(sizes.to_numpy()), pa.int64())
        self._noted[range_id] = each
        self._sizes += len(each)
        if self._sizes >= SIZES_OF_A_FILE:
            self.put()

    def put(self) -> None:
        """Puts what was noted since the last time."""
        if self._noted:
            put(self.store, self.folder, Notes.of(self._noted))
        self._noted, self._sizes = {}, 0


def folder(run_id: str) -> str:
    """Where a run's notes are, with a trailing slash."""
    return run_folder.frame(run_id, NAME)


def gathered_folder(run_id: str) -> str:
    """Where a run's notes are once they are gathered, with a trailing slash."""
    return folder(run_id) + _GATHERED


def files_of(store: ObjectStore, run_id: str) -> list[SizesFile]:
    """The files of a run's notes that this version can read: those that were gathered, or else what tasks noted."""
    return files_in(store, gathered_folder(run_id)) or files_in(store, folder(run_id))


def files_in(store: ObjectStore, directly_in: str) -> list[SizesFile]:
    """The files directly in a folder that this version can read."""
    found = []
    for each in store.list_level(directly_in).objects:
        if match := _FILE.fullmatch(each.key.removeprefix(directly_in)):
            numbers = int(match["sizes"]), int(match["directory"])
            found.append(SizesFile(each.key, each.size, *numbers, match["digest"]))
    return found


def put(store: ObjectStore, into: str, notes: Notes) -> SizesFile:
    """Stores notes as one file. The same notes have the same name.

    Args:
        into: a folder, with a trailing slash.
    """
    blocks = [
        tables.encode(
            pa.table([notes.sizes[start:end], notes.places[start:end]], schema=_BLOCK), ascending=_BLOCK.names
        )
        for start in range(0, len(notes.sizes), _SIZES_OF_A_BLOCK)
        for end in [start + _SIZES_OF_A_BLOCK]
    ]
    lowest = notes.sizes[::_SIZES_OF_A_BLOCK].tolist()
    row = [[*notes.range_ids], lowest, np.cumsum([len(block) for block in blocks]).tolist(), [*map(_digest, blocks)]]
    directory = tables.encode(pa.table([[cell] for cell in row], schema=_DIRECTORY))
    digest, sizes = _digest(directory).hex(), len(notes.sizes)
    data = b"".join([*blocks, directory])
    key = f"{into}{_FORMAT_VERSION}-{sizes}-{len(directory)}-{digest}.sizes"
    store.put(key, data)
    return SizesFile(key, len(data), sizes, len(directory), digest)


def read(store: ObjectStore, file: SizesFile) -> Notes:
    """The notes of a file. Raises CorruptFile where it is missing, or is not what was written."""
    part = _whole(store, file)
    directory = _Directory.read(part, file)
    return directory.notes(part, range(len(directory.ends)))


def _whole(store: ObjectStore, file: SizesFile) -> _Part:
    data = tables.get(store, file.key)
    return lambda start, end: data[start:end]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class _Directory:
    """What the end of a file says."""

    file: SizesFile
    range_ids: tuple[str, ...]
    lowest: _Sizes
    ends: _Sizes
    digests: tuple[bytes, ...]

    @classmethod
    def read(cls, part: _Part, file: SizesFile) -> "_Directory":
        """Raises CorruptFile where it is not what was written."""
        data = part(file.length - file.directory, file.length)
        if _digest(data).hex() != file.digest:
            raise CorruptFile(file.key, "sizes of ranges", "the directory is not the one that the name tells")
        (row,) = tables.decode(_DIRECTORY, data, file.key, "sizes of ranges").to_pylist()
        lowest, ends = (np.array(row[name], np.int64) for name in ("lowest", "ends"))
        return cls(file, tuple(row["range_ids"]), lowest, ends, tuple(row["digests"]))

    def blocks(self, sizes: pa.Int64Array) -> list[int]:
        """The blocks in which one of some sizes can be."""
        chosen = np.zeros(len(self.ends), np.bool_)
        wanted = sizes.to_numpy()
        # Equal sizes may begin in the block before the first one that begins with them.
        first = np.maximum(np.searchsorted(self.lowest, wanted, "left") - 1, 0)
        for start, end in zip(first, np.searchsorted(self.lowest, wanted, "right"), strict=True):
            chosen[start:end] = True
        return [*map(int, np.flatnonzero(chosen))]

    def length(self, blocks: Collection[int]) -> int:
        """How many bytes some blocks have."""
        return sum(self._end(block) - self._end(block - 1) for block in blocks)

    def _end(self, block: int) -> int:
        return int(self.ends[block]) if block >= 0 else 0

    def notes(self, part: _Part, blocks: Iterable[int]) -> Notes:
        """What some blocks have, given in order; neighbours are read together. Raises CorruptFile."""
        runs: list[list[int]] = []
        for block in blocks:
            if runs and runs[-1][-1] == block - 1:
                runs[-1].append(block)
            else:
                runs.append([block])
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            read = [table for found in pool.map(partial(self._run, part), runs) for table in found]
        rows = pa.concat_tables([_BLOCK.empty_table(), *read])
        return Notes(self.range_ids, *(rows.column(name).to_numpy() for name in _BLOCK.names))

    def _run(self, part: _Part, blocks: Sequence[int]) -> list[pa.Table]:
        start = self._end(blocks[0] - 1)
        data = part(start, self._end(blocks[-1]))
        return [self._decode(data[self._end(block - 1) - start : self._end(block) - start], block) for block in blocks]

    def _decode(self, data: bytes, block: int) -> pa.Table:
        if _digest(data) != self.digests[block]:
            raise CorruptFile(self.file.key, "sizes of ranges", f"block {block} was changed after it was written")
        return tables.decode(_BLOCK, data, self.file.key, "sizes of ranges")


def look_up(
    store: ObjectStore, wanted: Collection[str], sizes: pa.Int64Array, file: SizesFile
) -> Iterator[pa.RecordBatch]:
    """Which of the wanted ranges a file tells of, and whether they hold one of the sizes (LOOKED_UP)."""
    try:
        told = _holding(store, sizes, file)
    except CorruptFile as damage:
        yield pa.RecordBatch.from_pylist([{"damage": range_notes.describe(damage)}], LOOKED_UP)
        return
    rows: list[dict[str, Any]] = [
        {"range_id": range_id, "holds": holds} for range_id, holds in told.items() if range_id in wanted
    ]
    yield pa.RecordBatch.from_pylist(rows, LOOKED_UP)


def _holding(store: ObjectStore, sizes: pa.Int64Array, file: SizesFile) -> dict[str, bool]:
    """The ranges that a file tells of, and whether they hold one of the sizes. Raises CorruptFile."""
    in_parts = _in_parts(store, file)
    part = in_parts or _whole(store, file)
    directory = _Directory.read(part, file)
    blocks = directory.blocks(sizes)
    if in_parts and 2 * directory.length(blocks) > file.length:
        part = _whole(store, file)
    notes = directory.notes(part, blocks)
    # `np.isin` sorts where sizes lie far apart, and takes five times as long.
    holds = pc.is_in(pa.array(notes.sizes), value_set=sizes).to_numpy(zero_copy_only=False)
    holding = set(notes.places[holds].tolist())
    return {range_id: place in holding for place, range_id in enumerate(notes.range_ids)}


def _in_parts(store: ObjectStore, file: SizesFile) -> _Part | None:
    """Reads parts of a file; None where it is to be read whole."""
    if file.length <= _READ_WHOLE or not isinstance(store, ReadsParts):
        return None

    def part(start: int, end: int) -> bytes:
        try:
            return store.get_part(file.key, start, end)
        except ObjectNotFound:
            raise CorruptFile.missing(file.key) from None

    return part

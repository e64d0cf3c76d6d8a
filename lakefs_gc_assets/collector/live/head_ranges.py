"""Which ranges the metaranges of branch heads name, noted so that a head which nobody moves is not read again.

For candidates a mark looks into every branch head. The id of a metarange is a hash of its content: what was noted once
stays true, in every run and for every repository, and of the heads only those are read that are new.

The notes are one file in the run's folder. A head that it does not name is read, and where the file is missing or
damaged that is every head. An optimized run finds it in the folder of the run that it builds on.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.stored import objects, run_folder, tables
from lakefs_gc_assets.errors import CorruptFile, LogLine, ObjectNotFound, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore

HEAD_RANGES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("metarange_ids", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
"""Ranges, each once, how many entries each has, and the metaranges that name it."""

NAME = "head_ranges"
"""Folder of the notes in the folder of a run."""

WORTH_NOTING = 5_000
"""Where heads name so many ranges, each head's counted, they are noted: some 100 bytes are read for each otherwise."""
_FORMAT_VERSION = 1
_Places = npt.NDArray[np.int64]


@dataclass(slots=True)
class HeadRanges:
    """The ranges of metaranges, as far as they are known; each range is kept once, however many name it."""

    _places: dict[str, int] = field(default_factory=dict)
    _ids: list[str] = field(default_factory=list)
    _entries: list[int] = field(default_factory=list)
    _named: dict[str, _Places] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: pa.Table) -> "HeadRanges":
        """What notes (HEAD_RANGES) say. Raises ValueError where they name a range twice."""
        found = cls(_ids=rows.column("range_id").to_pylist(), _entries=rows.column("entries").to_pylist())
        found._places = {range_id: place for place, range_id in enumerate(found._ids)}
        if len(found._places) != len(found._ids):
            raise ValueError("a range is named twice")
        lists = rows.column("metarange_ids").combine_chunks()
        names = pc.list_flatten(lists).dictionary_encode()
        places, numbers = pc.list_parent_indices(lists).to_numpy(), names.indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(names.dictionary) + 1))
        for number, metarange_id in enumerate(names.dictionary.to_pylist()):
            found._named[metarange_id] = places[order[bounds[number] : bounds[number + 1]]].astype(np.int64)
        return found

    def __contains__(self, metarange_id: str) -> bool:
        return metarange_id in self._named

    def add(self, metarange_id: str, ranges: Iterable[tuple[str, int]]) -> None:
        """Adds a metarange: the id of each of its ranges, and how many entries that has."""
        places: list[int] = []
        for range_id, entries in ranges:
            place = self._places.setdefault(range_id, len(self._ids))
            if place == len(self._ids):
                self._ids.append(range_id)
                self._entries.append(entries)
            places.append(place)
        self._named[metarange_id] = np.array(places, np.int64)

    def ranges(self, metarange_id: str) -> list[str]:
        """The ids of the ranges of a metarange that is known."""
        return [self._ids[place] for place in self._named[metarange_id].tolist()]

    def entries(self, range_id: str) -> int:
        """How many entries a range has that a known metarange names."""
        return self._entries[self._places[range_id]]

    def table(self, metarange_ids: Collection[str]) -> pa.Table:
        """Notes (HEAD_RANGES) of these metaranges, which are known; one that names no range is left out of them."""
        named = [self._named[metarange_id] for metarange_id in metarange_ids]
        places = np.concatenate([np.empty(0, np.int64), *named])
        order = np.argsort(places, kind="stable")
        distinct, counts = np.unique(places, return_counts=True)
        numbers = np.repeat(np.arange(len(named)), [len(each) for each in named])[order]
        names = pa.array(metarange_ids, pa.string()).take(pa.array(numbers, pa.int64()))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, names).cast(HEAD_RANGES.field("metarange_ids").type)
        chosen = pa.array(distinct, pa.int64())
        columns = [pa.array(self._ids, pa.string()).take(chosen), pa.array(self._entries, pa.int64()).take(chosen)]
        return pa.table([*columns, lists], schema=HEAD_RANGES)


@dataclass(frozen=True, slots=True)
class HeadNotes:
    """The notes that a run finds and leaves.

    Attributes:
        base_run: the run whose notes it finds; None where there is none.
        warn: is told what is wrong with them: without them more is read, and that is all.
    """

    store: ObjectStore
    run_id: str
    base_run: str | None
    warn: LogLine

    def read(self) -> HeadRanges:
        """What the base run noted; nothing where it noted nothing, or where that is not what was written."""
        if self.base_run is None:
            return HeadRanges()
        source = key(self.base_run)
        try:
            return HeadRanges.of(tables.decode(HEAD_RANGES, self.store.get(source), source, "ranges of heads"))
        except ObjectNotFound:
            return HeadRanges()
        except (CorruptFile, ValueError) as damage:
            self.warn(f"which ranges branch heads have is not known, and every head is read: {damage}")
            return HeadRanges()

    def write(self, known: HeadRanges, metarange_ids: Iterable[str]) -> None:
        """Notes what is known of these metaranges, where that is more than can as well be read again."""
        rows = known.table(sorted(set(metarange_ids)))
        if len(pc.list_flatten(rows.column("metarange_ids"))) < WORTH_NOTING:
            return
        try:
            self.store.put(key(self.run_id), tables.encode(rows))
        except StorageError as error:
            self.warn(f"which ranges branch heads have is not noted: {error}")

    def take_over(self) -> None:
        """Copies the notes of the base run, if there are any: for a run that has no use for them."""
        if self.base_run is None:
            return
        try:
            objects.copy(self.store, key(self.base_run), key(self.run_id))
        except ObjectNotFound:
            return
        except StorageError as error:
            self.warn(f"which ranges branch heads have was not taken over from run {self.base_run}: {error}")


def key(run_id: str) -> str:
    """Where a run's notes are."""
    return f"{run_folder.frame(run_id, NAME)}{_FORMAT_VERSION}.parquet"

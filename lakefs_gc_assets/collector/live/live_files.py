"""Reading the files that hold references: what a worker does with its share of them, and how ranges are shared out.

Each function of LiveFiles returns a plain table; what cannot be read raises CorruptFile, and nothing is ever skipped.

Records of ranges are kept in columns: of a million ranges 180 MB, with 32 MB of ids, where as many objects take 600 MB.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.work import cut_by_weight
from lakefs_gc_assets.collector.frame.frames import HEAD_ENTRIES, LISTED, LIVE, RANGES, TIME
from lakefs_gc_assets.collector.live.facts import FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import record_sizes
from lakefs_gc_assets.collector.live.uncommitted import read_addresses
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.formats.refs import Entity
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, Layout, WindowSize
from lakefs_gc_assets.storage.interface import GivesObjects, fetch

REQUEST_WEIGHT = 20_000
"""Cost of a request for a file, as a number of entries: even a file with few entries takes as long to fetch."""
_COVERING_ONE = 4
"""The maximum number of ranges that are read in place of one."""
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
    def of_rows(cls, rows: pa.Table) -> "RangeRecords":
        """Rows that have the columns of RANGES, in any order."""
        declared = rows.select(RANGES.names).cast(RANGES)
        return cls(declared.take(pc.sort_indices(declared, [("min_key", "ascending"), ("id", "ascending")])))

    def __len__(self) -> int:
        rows: int = self.rows.num_rows
        return rows

    def __iter__(self) -> Iterator[RangeRecord]:
        return chain.from_iterable(map(records_of, self.rows.to_batches(max_chunksize=_AT_ONCE)))

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


def each_once(rows: pa.Table) -> pa.Table:
    """Rows that have the columns of RANGES, each once; two counts for one id are two rows."""
    return rows.group_by(rows.column_names).aggregate([])


def pack(rows: pa.Table, tasks: int) -> list[bytes]:
    """Ranges in parts for tasks, at most this many; each part has about the same number of entries.

    Neighbours share a task, since ranges that follow each other hold many of the same addresses.

    Args:
        rows: RANGES, perhaps with further columns, in order of their keys.
    """
    weights = rows.column("count").to_numpy() + REQUEST_WEIGHT
    return [_pack(rows.slice(start, end - start)) for start, end in cut_by_weight(weights, tasks)]


def weight_of(record: RangeRecord) -> int:
    """How long a range takes to be read, in entries."""
    return REQUEST_WEIGHT + record.count


def unpack(packed: bytes) -> Iterator[RangeRecord]:
    """The ranges of one task."""
    return chain.from_iterable(map(records_of, unpack_rows(packed)))


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


_PLAIN_KEY = r"^data/[^/%?]+/[^/%?]+$"
_CERTAIN = pa.field("certain", pa.bool_())
HELD_ENTRIES = pa.schema([*(column.with_nullable(True) for column in LISTED), _CERTAIN])
"""Entries of ranges as objects. One that is not certain has only an address, which may mean another object."""
FOLDER = pa.field("folder", pa.string())
"""Where an entry is: the first components of its logical path, each with its slash; empty at the top."""
FOLDERS = pa.schema([pa.field("address", pa.string()), pa.field("folder", pa.binary())])
"""Addresses, each with the first folder of a path, its slash included; empty for what lies in no folder."""
PLACED = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("path", pa.binary()),
        pa.field("size", pa.int64()),
        pa.field("etag", pa.string()),
    ]
)
"""Entries of ranges, each with its whole path."""
_NO_OBJECTS = frozenset(get_args(Entity))
_READ_WHOLE = 128 * 1024
"""Bytes of a file that is read with one request, of whatever kind it is."""
_END_BYTES = 16 * 1024
"""Bytes at the end of a table, its properties among them: up to 2,400 bytes in recordings of real servers."""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """Reads references of one repository.

    Attributes:
        namespace: what addresses are relative to.
        window_size: how slices are grouped.
        size_facts: records the sizes of entries that are read; None where nobody asks for them.
    """

    store: GivesObjects
    namespace: Namespace
    window_size: WindowSize
    size_facts: FactWriter | None = None

    def metarange(self, metarange_id: str) -> pa.Table:
        """The ranges of a metarange (RANGES)."""
        key = METADATA_PREFIX + metarange_id
        columns = ranges.read_metarange_columns(fetch(self.store, key), key)
        return pa.table(
            [columns.ids, columns.min_keys, columns.max_keys, columns.counts, columns.estimated_sizes], schema=RANGES
        )

    def range(self, record: RangeRecord) -> pa.Table:
        """The addresses that a range references inside the namespace (LIVE), each once."""
        entries = self._entries(record)
        if self.size_facts is not None:
            record_sizes(self.size_facts, record.id, entries.sizes)
        return self._live(entries.addresses, entries.address_types)

    def sized(self, record: RangeRecord) -> tuple[pa.Table, int]:
        """Address, size and checksum (`etag`) of each entry of a range, and the number of entries that are left out.

        An entry is left out if its address may mean several keys, or may lie in another bucket.
        """
        entries = self._entries(record, ["etags"])
        places, keys = self._keys(entries.addresses, entries.address_types, only_certain=True)
        assert entries.etags is not None
        columns = {"address": keys, "size": entries.sizes.take(places), "etag": entries.etags.take(places)}
        return pa.table(columns), len(entries) - len(keys)

    def entries(self, record: RangeRecord) -> pa.Table:
        """References of a range inside the namespace, as objects (LISTED), one row for each entry.

        An address that may mean several keys, or may lie in another bucket, is left out: what it names stays.

        `last_modified` is the time in the name, else the entry's. The checksum of an entry is no ETag of the store: a
        copy keeps that of its source, which a client named. So there is none.
        """
        return self._objects(self._entries(record))[1]

    def held(self, record: RangeRecord, depth: int = 0) -> pa.Table:
        """References of a range inside the namespace (LISTED and `certain`).

        What `entries` gives is certain. Of every other address that it may mean, each once, nothing but the address is
        told: what has it stays.

        Args:
            depth: with so many components, rows have the column FOLDER, and an address a row for each entry.
        """
        entries = self._entries(record, ["keys"] if depth else [])
        if self.size_facts is not None:
            record_sizes(self.size_facts, record.id, entries.sizes)
        places, listed = self._objects(entries)
        certain = listed.append_column(_CERTAIN, pa.repeat(pa.scalar(True), listed.num_rows)).cast(HELD_ENTRIES)
        folders = _folders(entries, depth) if depth else None
        if folders is not None:
            certain = certain.append_column(FOLDER, folders.take(places))
        if listed.num_rows == len(entries):
            return certain
        others = self._uncertain(entries, places, listed, folders)
        return pa.concat_tables([certain, others]) if others.num_rows else certain

    def _uncertain(
        self, entries: ranges.RangeEntries, certain: pa.Int64Array, listed: pa.Table, folders: pa.StringArray | None
    ) -> pa.Table:
        """Rows of `held` for entries that are not certain."""
        places, keys = self._keys(entries.addresses, entries.address_types)
        if folders is None:
            keys = keys.filter(pc.invert(pc.is_in(keys, value_set=listed.column("address").combine_chunks()))).unique()
        else:
            others = pc.invert(pc.is_in(places, value_set=certain))
            places, keys = places.filter(others), keys.filter(others)
        columns = {name: pa.nulls(len(keys), HELD_ENTRIES.field(name).type) for name in HELD_ENTRIES.names}
        columns |= {"address": keys, _CERTAIN.name: pa.repeat(pa.scalar(False), len(keys))}
        table = pa.table(columns, schema=HELD_ENTRIES)
        return table if folders is None else table.append_column(FOLDER, folders.take(places))

    def _entries(self, record: RangeRecord, columns: Sequence[ranges.OptionalColumn] = ()) -> ranges.RangeEntries:
        key = METADATA_PREFIX + record.id
        return ranges.read_range(fetch(self.store, key), key, expected=record, columns=columns)

    def _objects(self, entries: ranges.RangeEntries) -> tuple[pa.Int64Array, pa.Table]:
        """Entries whose address is certain: their places, and what they are as objects (LISTED)."""
        places, keys = self._keys(entries.addresses, entries.address_types, only_certain=True)
        read = layout.read_names(keys, self.window_size)
        written = pc.multiply(entries.last_modified.take(places), 1_000_000).cast(TIME)
        listed = pa.table(
            [
                keys,
                read.slices,
                read.windows,
                read.layouts,
                read.issued_at,
                pc.coalesce(read.issued_at, written),
                entries.sizes.take(places),
                pa.nulls(len(keys), pa.string()),
                pa.nulls(len(keys), pa.string()),
            ],
            schema=LISTED,
        )
        usual = pc.not_equal(read.layouts, Layout.SPECIAL.value)
        return places.filter(usual), listed.filter(usual)

    def paths(self, record: RangeRecord, address: str) -> list[bytes]:
        """The logical paths at which a range may reference an address inside the namespace."""
        entries = self._entries(record, ["keys"])
        assert entries.keys is not None
        places, keys = self._keys(entries.addresses, entries.address_types)
        paths: list[bytes] = entries.keys.take(places.filter(pc.equal(keys, address)).unique()).to_pylist()
        return paths

    def folders(self, record: RangeRecord, whole_paths: bool = False) -> pa.Table:
        """Every address that a range may reference inside the namespace, with the first folder of its path (FOLDERS).

        Rows are in order of paths; an address has a row for each path.

        Args:
            whole_paths: give the path itself in place of its folder.
        """
        entries = self._entries(record, ["keys"])
        assert entries.keys is not None
        places, keys = self._keys(entries.addresses, entries.address_types)
        order = pc.sort_indices(places)
        folders = entries.keys if whole_paths else _first_components(entries.keys, 1)
        return pa.table([keys.take(order), folders.take(places.take(order))], schema=FOLDERS)

    def placed(self, record: RangeRecord, *, only_certain: bool = True) -> tuple[pa.Table, pa.Table]:
        """The entries of a range (PLACED), in order of paths, and those left out, with their addresses as stored.

        Args:
            only_certain: leave out entries whose addresses may mean several keys, or may lie outside of the namespace.
                Otherwise only those are left out that have no key inside of it.
        """
        entries = self._entries(record, ["keys", "etags"])
        assert entries.keys is not None and entries.etags is not None
        places, keys = self._keys(entries.addresses, entries.address_types, only_certain)
        every = pa.table([entries.addresses, entries.keys, entries.sizes, entries.etags], schema=PLACED)
        others = pc.invert(pc.is_in(pa.array(range(len(entries)), pa.int64()), value_set=places))
        order = pc.sort_indices(places)
        return every.take(places.take(order)).set_column(0, PLACED.field(0), keys.take(order)), every.filter(others)

    def metadata_file(self, name: str) -> pa.Table:
        """The addresses that a file of the metadata folder references inside the namespace (LIVE), each once.

        A metarange and a table of a refs dump have none.
        Raises CorruptFile where the file is of no known kind.
        """
        key = METADATA_PREFIX + name
        data = fetch(self.store, key)
        kind = ranges.table_kind(data, key)
        if kind.type == "metaranges" or kind.entity in _NO_OBJECTS:
            return LIVE.empty_table()
        entries = ranges.read_range(data, key)
        return self._live(entries.addresses, entries.address_types)

    def unnamed(self, file: tuple[str, int]) -> pa.Table:
        """The ranges of objects in a file that no commit names (RANGES, sizes left out).

        A metarange names its ranges, a range is one; a table of a refs dump names none, which the end of a large one
        tells. Raises CorruptFile where the file is of no known kind, or damaged.

        Args:
            file: its name, and how many bytes it has.
        """
        name, size = file
        key = METADATA_PREFIX + name
        if self._ends_as_dump_table(key, size):
            return RANGES.empty_table()
        try:
            return _ranges_of(name, fetch(self.store, key), key)
        except CorruptFile as corrupt:
            raise CorruptFile(
                key,
                corrupt.check,
                f"{corrupt.detail}; no commit of the repository names the file. Where such files are known to be "
                "orphans, and no other repository is on the storage namespace, set collection.keep_unnamed_ranges to "
                "false",
            ) from None

    def _ends_as_dump_table(self, key: str, size: int) -> bool:
        """True if the properties at the end of a large file say that it is a table of a refs dump.

        Where they cannot be read, the whole file decides. Raises StorageError.
        """
        if size <= _READ_WHOLE:
            return False
        try:
            end = self.store.get_part(key, size - _END_BYTES, size)
            return ranges.table_kind(bytes(size - len(end)) + end, key).entity in _NO_OBJECTS
        except (CorruptFile, ObjectNotFound):
            return False

    def uncommitted(self, file: str, only_certain: bool = False) -> pa.Table:
        """The addresses that a file of uncommitted data references inside the namespace (LIVE), each once.

        Args:
            only_certain: give only those that mean one key of this bucket for sure.
        """
        column = read_addresses(self.store, file)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        types = pa.repeat(pa.scalar(AddressType.BY_PREFIX_DEPRECATED.value, pa.uint8()), len(column))
        return self._live(column, types, only_certain)

    def head_entries(self, range_id: str, sizes: pa.Int64Array) -> pa.Table:
        """Entries of a branch head's range (HEAD_ENTRIES) that have one of these sizes."""
        key = METADATA_PREFIX + range_id
        entries = ranges.read_range(fetch(self.store, key), key, columns=("keys", "etags"))
        assert entries.keys is not None and entries.etags is not None
        rows = pc.indices_nonzero(pc.is_in(entries.sizes, value_set=sizes))
        places, keys = self._keys(entries.addresses.take(rows), entries.address_types.take(rows), only_certain=True)
        of_row = pc.index_in(pa.array(range(len(rows)), pa.int64()), value_set=places)
        return pa.table(
            [
                pa.repeat(pa.scalar(range_id), len(rows)),
                entries.keys.take(rows),
                entries.sizes.take(rows),
                entries.etags.take(rows),
                keys.take(of_row),
            ],
            schema=HEAD_ENTRIES,
        )

    def _live(self, addresses: pa.StringArray, types: pa.UInt8Array, only_certain: bool = False) -> pa.Table:
        """The canonical keys of references (LIVE), each once."""
        _, keys = self._keys(addresses, types, only_certain)
        return live_table(keys.unique(), self.window_size)

    def _keys(
        self, addresses: pa.StringArray, types: pa.UInt8Array, only_certain: bool = False
    ) -> tuple[pa.Int64Array, pa.StringArray]:
        """Keys that references may mean, and the place of the reference that each of them comes from.

        Args:
            only_certain: leave out references that may mean more than one key, or one in another bucket.
        """
        usual = pc.and_(
            pc.match_substring_regex(addresses, _PLAIN_KEY),
            pc.not_equal(types, pa.scalar(AddressType.FULL.value, pa.uint8())),
        )
        odd = pc.indices_nonzero(pc.invert(usual))
        others = [
            (place, key)
            for place, address, address_type in zip(
                odd.to_pylist(), addresses.take(odd).to_pylist(), types.take(odd).to_pylist(), strict=True
            )
            for keys in [self.namespace.live_keys(address, address_type)]
            if not only_certain or (len(keys) == 1 and not self.namespace.may_lie_elsewhere(address))
            for key in keys
        ]
        places = pa.concat_arrays(
            [pc.indices_nonzero(usual).cast(pa.int64()), pa.array([place for place, _ in others], pa.int64())]
        )
        keys = pa.concat_arrays([addresses.filter(usual), pa.array([key for _, key in others], pa.string())])
        return places, keys


def _first_components(paths: pa.BinaryArray, depth: int) -> pa.BinaryArray:
    """So many components of each path, each with its slash; what follows the last slash is none."""
    return pc.replace_substring_regex(paths, pattern=rf"(?s)^((?:[^/]*/){{0,{depth}}}).*$", replacement=r"\1")


def _folders(entries: ranges.RangeEntries, depth: int) -> pa.StringArray:
    """The folder (FOLDER) of each entry; what is no UTF-8 is written with escapes."""
    assert entries.keys is not None
    each = _first_components(entries.keys, depth).dictionary_encode()
    texts = pa.array([name.decode(errors="backslashreplace") for name in each.dictionary.to_pylist()], pa.string())
    return texts.take(each.indices)


def _ranges_of(name: str, data: bytes, key: str) -> pa.Table:
    kind = ranges.table_kind(data, key)
    if kind.entity in _NO_OBJECTS:
        return RANGES.empty_table()
    if kind.type == "metaranges":
        columns = ranges.read_metarange_columns(data, key)
        sizes = pa.repeat(pa.scalar(0, pa.int64()), len(columns.ids))
        return pa.table([columns.ids, columns.min_keys, columns.max_keys, columns.counts, sizes], schema=RANGES)
    table = ranges.read_checked(data, key, "ranges", None)
    return pa.table([[name], [table.first_key], [table.last_key], [len(table)], [0]], schema=RANGES)


def live_table(keys: pa.StringArray, window_size: WindowSize) -> pa.Table:
    """Slice and window of each key, as LIVE."""
    read = layout.read_names(keys, window_size)
    return pa.table([keys, read.slices, read.windows], schema=LIVE)

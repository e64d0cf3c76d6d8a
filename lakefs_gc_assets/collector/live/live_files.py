"""Readers of the files that hold references, as workers run them, and the split of ranges into tasks.

Each function of LiveFiles returns a plain table. A file that cannot be read raises CorruptFile; nothing is ever
skipped.

Records of ranges are kept in columns. A million ranges take 180 MB, including 32 MB of ids; as objects they would take
600 MB.
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
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.formats.refs import Entity
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, Layout, WindowSize
from lakefs_gc_assets.storage.interface import GivesObjects, fetch

REQUEST_WEIGHT = 20_000
"""Cost of a request for a file, in entries: even a file with few entries takes this long to fetch."""
_COVERING_ONE = 4
"""Maximum number of ranges that are read in place of another."""
_AT_ONCE = 8_192
"""Maximum records that exist as Python values at one time."""
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
        """Sorts rows that have the columns of RANGES, in any order."""
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
        """Number of entries in all ranges."""
        return pc.sum(self.rows.column("count")).as_py() or 0

    def without(self, known: Set[str]) -> "RangeRecords":
        """The ranges whose ids are not known."""
        of = IdSet.from_ids(known)
        lacks = [of.lacks(batch.column("id")) for batch in self.rows.to_batches(max_chunksize=_AT_ONCE)]
        unknown = np.concatenate([np.empty(0, np.bool_), *lacks])
        return self if unknown.all() else RangeRecords(self.rows.filter(pa.array(unknown)))

    def covering(self, others: "RangeRecords") -> "RangeRecords":
        """Some of these ranges, which together span the keys of each other range if a few suffice for it.

        Versions of a range have mostly the same keys, so any version will do. The result has about as many ranges as
        `others`.
        """
        least, greatest = self.rows.column("min_key"), self.rows.column("max_key")
        chosen: set[int] = set()
        for start, end in zip(*(others.rows.column(name) for name in ("min_key", "max_key")), strict=True):
            key, last = start.as_py(), end.as_py()
            for _ in range(_COVERING_ONE):
                after = bisect_right(range(len(self)), key, key=lambda place: least[place].as_py())
                place = after - 1
                if place < 0 or greatest[place].as_py() < key:
                    # The last range that begins at or before the key ends before it; an earlier one may reach the key.
                    place = after
                if place == len(self) or least[place].as_py() > last:
                    break
                chosen.add(place)
                key = greatest[place].as_py() + b"\0"
                if key > last:
                    break
        return RangeRecords(self.rows.take(pa.array(sorted(chosen), pa.int64())))


def each_once(rows: pa.Table) -> pa.Table:
    """Distinct rows that have the columns of RANGES; two counts for one id stay two rows."""
    return rows.group_by(rows.column_names).aggregate([])


def pack(rows: pa.Table, tasks: int) -> list[bytes]:
    """Splits ranges into parts for at most `tasks` tasks; each part has about the same number of entries.

    Consecutive ranges share a task, since they hold many of the same addresses.

    Args:
        rows: RANGES, perhaps with further columns, in order of their keys.
    """
    weights = rows.column("count").to_numpy() + REQUEST_WEIGHT
    return [_pack(rows.slice(start, end - start)) for start, end in cut_by_weight(weights, tasks)]


def weight_of(record: RangeRecord) -> int:
    """Cost of reading a range, in entries."""
    return REQUEST_WEIGHT + record.count


def unpack(packed: bytes) -> Iterator[RangeRecord]:
    """The ranges of a packed task."""
    return chain.from_iterable(map(records_of, unpack_rows(packed)))


def files_of(packed: bytes) -> Iterator[tuple[str, int]]:
    """Keys and approximate sizes in bytes of the files that a packed task reads, in the order of its ranges."""
    for rows in unpack_rows(packed):
        keys = (METADATA_PREFIX + range_id for range_id in rows.column("id").to_pylist())
        yield from zip(keys, rows.column("estimated_size").to_pylist(), strict=True)


def unpack_rows(packed: bytes) -> Iterator[pa.RecordBatch]:
    """The ranges of a packed task as rows, with the columns that were packed."""
    with pa.ipc.open_stream(packed) as batches:
        yield from batches


def _pack(rows: pa.Table) -> bytes:
    # A pickled slice includes the whole table that it was cut from.
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
"""Entries of ranges as objects. An uncertain row has only an address that its entry may mean."""
FOLDER = pa.field("folder", pa.string())
"""Folder of an entry: the first components of its logical path, each with its slash; empty at the top."""
FOLDERS = pa.schema([pa.field("address", pa.string()), pa.field("folder", pa.binary())])
"""Addresses, each with the first folder of a path, its slash included; empty for paths outside of any folder."""
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
"""Maximum bytes of a file that is read with one request, whichever kind the file is."""
_END_BYTES = 16 * 1024
"""Bytes at the end of a table, including its properties: up to 2,400 bytes in recordings of real servers."""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """Reads references of a repository.

    Attributes:
        namespace: the namespace that addresses are relative to.
        window_size: how slices are grouped.
        size_facts: records the sizes of entries that are read; None to record none.
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
        """Addresses, sizes and checksums (`etag`) of a range's entries, and the number of excluded entries.

        An entry is excluded if its address may mean several keys, or may lie in another bucket.
        """
        entries = self._entries(record, ["etags"])
        places, keys = self._keys(entries.addresses, entries.address_types, only_certain=True)
        assert entries.etags is not None
        columns = {"address": keys, "size": entries.sizes.take(places), "etag": entries.etags.take(places)}
        return pa.table(columns), len(entries) - len(keys)

    def entries(self, record: RangeRecord) -> pa.Table:
        """References of a range inside the namespace, as objects (LISTED), one row for each entry.

        An address that may mean several keys, or may lie in another bucket, is excluded: its objects stay.

        `last_modified` is the time in the name, or else the entry's time. `etag` is null, because an entry's checksum
        is no ETag of the store: a copy keeps the checksum of its source, which may have been chosen by a client.
        """
        return self._objects(self._entries(record))[1]

    def held(self, record: RangeRecord, depth: int = 0) -> pa.Table:
        """References of a range inside the namespace (LISTED and `certain`).

        The rows of `entries` are certain. Other addresses have uncertain rows: each key that they may mean, once, with
        all other columns null. An object with such a key stays.

        Args:
            depth: number of path components in the added column FOLDER; uncertain keys then have a row for each entry.
                0 adds no column.
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
        """Rows of `held` for uncertain entries."""
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
        """Places of the entries whose address is certain, and these entries as objects (LISTED)."""
        places, keys = self._keys(entries.addresses, entries.address_types, only_certain=True)
        read = layout.read_names(keys, self.window_size)
        written = pc.multiply(entries.last_modified.take(places), 1_000_000).cast(TIME)
        named = [keys, read.slices, read.windows, read.layouts, read.issued_at]
        unknown = pa.nulls(len(keys), pa.string())
        stated = [pc.coalesce(read.issued_at, written), entries.sizes.take(places), unknown, unknown]
        listed = pa.table([*named, *stated], schema=LISTED)
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
        """The entries of a range (PLACED), in order of paths, and the excluded entries with their addresses as stored.

        Args:
            only_certain: exclude entries whose addresses may mean several keys, or may lie outside of the namespace.
                If false, exclude only entries without a key inside the namespace.
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

        A metarange and a table of a refs dump reference none.
        Raises CorruptFile if the file is of no known kind.
        """
        key = METADATA_PREFIX + name
        data = fetch(self.store, key)
        kind = ranges.table_kind(data, key)
        if kind.type == "metaranges" or kind.entity in _NO_OBJECTS:
            return LIVE.empty_table()
        entries = ranges.read_range(data, key)
        return self._live(entries.addresses, entries.address_types)

    def unnamed(self, file: tuple[str, int]) -> pa.Table:
        """The ranges of objects in a file that no commit names (RANGES, sizes set to 0).

        A metarange gives the ranges that it names; a range gives itself. A table of a refs dump gives none: if it is
        large, only its end is read. Raises CorruptFile if the file is of no known kind, or damaged.

        Args:
            file: its name, and its size in bytes.
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
                f"{corrupt.detail}; no commit of the repository refers to the file. If such files are known to be "
                "orphans, and no other repository is on the storage namespace, set collection.keep_unnamed_ranges to "
                "false",
            ) from None

    def _ends_as_dump_table(self, key: str, size: int) -> bool:
        """True if the properties at the end of a large file say that it is a table of a refs dump.

        If they cannot be read, the result is false, and the caller reads the whole file. Raises StorageError.
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
            only_certain: include only addresses that certainly mean one key of this bucket.
        """
        column = read_addresses(self.store, file).combine_chunks()
        types = pa.repeat(pa.scalar(AddressType.BY_PREFIX_DEPRECATED.value, pa.uint8()), len(column))
        return self._live(column, types, only_certain)

    def head_entries(self, range_id: str, sizes: pa.Int64Array) -> pa.Table:
        """Entries of a branch head's range (HEAD_ENTRIES) whose size is among the given ones."""
        key = METADATA_PREFIX + range_id
        entries = ranges.read_range(fetch(self.store, key), key, columns=("keys", "etags"))
        assert entries.keys is not None and entries.etags is not None
        rows = pc.indices_nonzero(pc.is_in(entries.sizes, value_set=sizes))
        places, keys = self._keys(entries.addresses.take(rows), entries.address_types.take(rows), only_certain=True)
        of_row = pc.index_in(pa.array(range(len(rows)), pa.int64()), value_set=places)
        stated = [column.take(rows) for column in (entries.keys, entries.sizes, entries.etags)]
        columns = [pa.repeat(pa.scalar(range_id), len(rows)), *stated, keys.take(of_row)]
        return pa.table(columns, schema=HEAD_ENTRIES)

    def _live(self, addresses: pa.StringArray, types: pa.UInt8Array, only_certain: bool = False) -> pa.Table:
        """The canonical keys of references (LIVE), each once."""
        _, keys = self._keys(addresses, types, only_certain)
        return live_table(keys.unique(), self.window_size)

    def _keys(
        self, addresses: pa.StringArray, types: pa.UInt8Array, only_certain: bool = False
    ) -> tuple[pa.Int64Array, pa.StringArray]:
        """Keys that references may mean, and for each key the place of its reference.

        Args:
            only_certain: exclude references that may mean more than one key, or a key in another bucket.
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
    """The first `depth` components of all paths, each with its slash; text after the last slash is no component."""
    return pc.replace_substring_regex(paths, pattern=rf"(?s)^((?:[^/]*/){{0,{depth}}}).*$", replacement=r"\1")


def _folders(entries: ranges.RangeEntries, depth: int) -> pa.StringArray:
    """The folders (FOLDER) of entries; bytes that are not UTF-8 are written as escapes."""
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
    """Adds slice and window to each key (LIVE)."""
    read = layout.read_names(keys, window_size)
    return pa.table([keys, read.slices, read.windows], schema=LIVE)

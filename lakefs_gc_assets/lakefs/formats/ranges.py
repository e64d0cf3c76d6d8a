"""Ranges and metaranges of a commit: the files `_lakefs/<64 hexadecimal digits>` that list its objects.

A metarange lists ranges, a range lists entries: path, physical address, address type, size, ETag, time. Both are tables
(`sstables`). lakeFS states their type, number of records and bounds as properties (lakeFS `pkg/graveler/sstable`,
`pkg/graveler/committed`). Any mismatch raises CorruptFile: a missed entry could lead to deleting a live object.
Arrow columns are built from bytes of a buffer, without a Python object per value.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats import records
from lakefs_gc_assets.lakefs.formats.records import Array, gather_bytes
from lakefs_gc_assets.lakefs.formats.sstables import SSTable, TableLayout, raise_fault, read_layout, read_table

TableType = Literal["ranges", "metaranges"]
"""Property `type`: a range says `ranges`, a metarange `metaranges`."""
OptionalColumn = Literal["keys", "etags", "identities"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a table's records: `entity` is None for objects; commit, branch or tag in a refs dump."""

    type: TableType
    entity: str | None
    count: int


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """A range according to its metarange; keys are logical paths, `estimated_size` is in bytes."""

    id: str
    min_key: bytes
    max_key: bytes
    count: int
    estimated_size: int


@dataclass(frozen=True, slots=True)
class Metarange:
    """The ranges of a metarange in order of their keys, as columns without nulls.

    Attributes:
        ids: string, 64 hexadecimal digits.
        min_keys, max_keys: binary, logical paths.
        counts: int64, entries per range.
        estimated_sizes: int64, bytes.
    """

    ids: pa.StringArray
    min_keys: pa.BinaryArray
    max_keys: pa.BinaryArray
    counts: pa.Int64Array
    estimated_sizes: pa.Int64Array

    def records(self) -> list[RangeRecord]:
        """One record for each range."""
        columns = (self.ids, self.min_keys, self.max_keys, self.counts, self.estimated_sizes)
        return [RangeRecord(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


@dataclass(frozen=True, slots=True)
class RangeEntries:
    """The entries of a range in order of their keys, as columns without nulls.

    Attributes:
        addresses: string, as stored.
        address_types: uint8, see `addresses.AddressType`.
        sizes: int64, bytes.
        last_modified: int64, whole seconds since 1970-01-01 UTC.
        keys: binary, logical paths; if requested.
        etags: string; if requested.
        identities: binary; if requested.
    """

    addresses: pa.StringArray
    address_types: pa.UInt8Array
    sizes: pa.Int64Array
    last_modified: pa.Int64Array
    keys: pa.BinaryArray | None = None
    etags: pa.StringArray | None = None
    identities: pa.BinaryArray | None = None

    def __len__(self) -> int:
        return len(self.addresses)


def table_kind(data: bytes | memoryview, file: str) -> Kind:
    """Kind of a table, from its footer and properties alone; records are not checked. Raises CorruptFile."""
    return _kind(read_layout(data, file))


def _kind(layout: TableLayout) -> Kind:
    try:
        type_ = layout.properties[b"type"].decode()
        entity = layout.properties[b"entity"].decode() if b"entity" in layout.properties else None
    except (KeyError, UnicodeDecodeError):
        raise CorruptFile(layout.file, "type", "there is no readable property type or entity") from None
    count = layout.properties.get(b"count", b"")
    if not count.isdigit() or len(count) > 18:
        raise CorruptFile(layout.file, "count", f"the property is {count!r}")
    if type_ == "ranges":
        return Kind("ranges", entity, int(count))
    if type_ == "metaranges":
        return Kind("metaranges", entity, int(count))
    raise CorruptFile(layout.file, "type", f"{type_!r} is neither 'ranges' nor 'metaranges'")


def read_checked(
    data: bytes | memoryview, file: str, type_: TableType, entity: str | None, expected: RangeRecord | None = None
) -> SSTable:
    """Reads a table and compares it with its properties and its metarange's record. Raises CorruptFile."""
    table = read_table(data, file)
    kind = _kind(table.layout)
    if (kind.type, kind.entity) != (type_, entity):
        raise CorruptFile(
            file, "type", f"it holds {kind.type} of {kind.entity or 'objects'}, not {type_} of {entity or 'objects'}"
        )
    if kind.count != len(table):
        raise CorruptFile(file, "count", f"{len(table)} records, the property says {kind.count}")
    for name, key in (("min_key", table.first_key), ("max_key", table.last_key)):
        if table.layout.properties.get(name.encode()) != key:
            raise CorruptFile(file, name, f"{key!r}, the property says {table.layout.properties.get(name.encode())!r}")
    if expected is not None:
        actual = (len(table), table.first_key, table.last_key)
        stated = (expected.count, expected.min_key, expected.max_key)
        if actual != stated:
            raise CorruptFile(file, "metarange", f"count and bounds are {actual}, its metarange says {stated}")
    return table


def read_range(
    data: bytes | memoryview,
    file: str,
    *,
    expected: RangeRecord | None = None,
    columns: Collection[OptionalColumn] = (),
) -> RangeEntries:
    """Reads the entries of a range.

    Args:
        data: the whole file.
        file: name of the file, for messages.
        expected: the record in its metarange; count and bounds must match.
        columns: columns to fill in addition to addresses, types, sizes and times.

    Raises:
        CorruptFile: the file differs from the one lakeFS wrote, or is not a range of objects.
    """
    table = read_checked(data, file, "ranges", None, expected)
    count = len(table)
    spans = np.empty((2, count, 2), np.int64)
    types, sizes, modified = np.empty(count, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64)
    fault, entry = records.decode_entries(table.buffer, table.values, spans, types, sizes, modified)
    raise_fault(fault, file, f"entry {entry}")
    identities = table.values[:, records.IDENTITY_START : records.IDENTITY_END + 1]
    return RangeEntries(
        addresses=strings(table.buffer, spans[0], "address", file),
        address_types=pa.array(types),
        sizes=pa.array(sizes),
        last_modified=pa.array(modified),
        keys=binary_from(*table.keys()) if "keys" in columns else None,
        etags=strings(table.buffer, spans[1], "etag", file) if "etags" in columns else None,
        identities=binary(table.buffer, identities) if "identities" in columns else None,
    )


def read_metarange_columns(data: bytes | memoryview, file: str, *, entity: str | None = None) -> Metarange:
    """Reads a metarange as columns; see `read_metarange`."""
    table = read_checked(data, file, "metaranges", entity)
    count = len(table)
    offsets, keys = table.keys()
    least, numbers = np.empty((count, 2), np.int64), np.empty((2, count), np.int64)
    fault, entry = records.decode_range_data(table.buffer, table.values, keys, offsets, least, numbers)
    raise_fault(fault, file, f"record {entry}")
    return Metarange(
        ids=strings(table.buffer, table.values[:, records.IDENTITY_START : records.IDENTITY_END + 1], "range id", file),
        min_keys=binary(table.buffer, least),
        max_keys=binary_from(offsets, keys),
        counts=pa.array(numbers[0]),
        estimated_sizes=pa.array(numbers[1]),
    )


def read_metarange(data: bytes | memoryview, file: str, *, entity: str | None = None) -> list[RangeRecord]:
    """Reads the ranges of a metarange, in order of their keys.

    Args:
        data: the whole file.
        file: name of the file, for messages.
        entity: None for a commit's metarange; commit, branch or tag for a metarange of a refs dump.

    Raises:
        CorruptFile: the file differs from the one lakeFS wrote, or is not a metarange of this kind.
    """
    return read_metarange_columns(data, file, entity=entity).records()


def binary(buffer: Array, spans: Array) -> pa.BinaryArray:
    """A column of `buffer[start:end]` for each (start, end) in `spans`; at most 2 GiB in total."""
    offsets, joined = _joined(buffer, spans)
    return binary_from(offsets, joined)


def binary_from(offsets: Array, joined: Array) -> pa.BinaryArray:
    """A column of consecutive values; `offsets` (int32) is one longer than the column."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def strings(buffer: Array, spans: Array, what: str, file: str) -> pa.StringArray:
    """Like `binary`, as text. Raises CorruptFile with the check `what` if a value is not UTF-8."""
    offsets, joined = _joined(buffer, spans)
    column = pa.StringArray.from_buffers(len(spans), pa.py_buffer(offsets), pa.py_buffer(joined))
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFile(file, what, str(error)) from None
    return column


def _joined(buffer: Array, spans: Array) -> tuple[Array, Array]:
    spans = np.ascontiguousarray(spans)
    offsets = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(spans[:, 1] - spans[:, 0], out=offsets[1:])
    joined = np.empty(int(offsets[-1]), np.uint8)
    gather_bytes(buffer, spans, offsets, joined)
    return offsets, joined

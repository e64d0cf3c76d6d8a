"""RocksDB block-based tables, format version 2, as lakeFS writes its ranges and metaranges with Pebble.

A file is: data blocks, index blocks where the index has two levels, the (top) index, properties, metaindex, footer. All
of it is checked. Checksums cover every block; the footer, which none covers, has one spelling only; blocks must fill
the file in that order without gap, so that whatever differs from what was written is an error
(RocksDB `table/format.h`, `table/block_based/`; LevelDB `doc/table_format.md`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats import records
from lakefs_gc_assets.lakefs.formats.blocks import (
    TRAILER_BYTES,
    Blocks,
    Handle,
    handle,
    named_values,
    open_blocks,
    varint,
)

FOOTER_BYTES = 53
MAX_KEY_BYTES = 1 << 30
"""All keys of a table together, where they are asked for: shared beginnings make them longer than the file."""

_MAGIC = bytes.fromhex("f7cff485b741e288")
_VERSION = (2).to_bytes(4, "little")
_HANDLES_END = 41
_CRC32C = 1
_COMPARATOR = b"leveldb.BytewiseComparator"
_SINGLE_LEVEL, _TWO_LEVEL = 0, 2
_MIN_ENTRY_BYTES = 6  # three lengths, a byte that differs from the key before, two lengths of the value

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """What footer, metaindex and properties say.

    Attributes:
        properties: of RocksDB and of the writer, by name.
        index: handle of the (top) index.
        tail: handles of properties and metaindex, which lie behind the index in this order.
        end: where the footer begins.
    """

    file: str
    properties: Mapping[bytes, bytes]
    index: Handle
    tail: tuple[Handle, Handle]
    end: int

    def number(self, name: str, default: int | None = None) -> int:
        """A property that is a varint. Raises CorruptFile where it is malformed, or absent without a default."""
        value = self.properties.get(name.encode())
        if value is None:
            if default is not None:
                return default
            raise CorruptFile(self.file, "properties", f"there is no property {name}")
        try:
            number, end = varint(value, 0, len(value))
        except ValueError as error:
            raise CorruptFile(self.file, "properties", f"{name}: {error}") from None
        if end != len(value):
            raise CorruptFile(self.file, "properties", f"{name} is followed by other bytes")
        return number


@dataclass(frozen=True, slots=True)
class Table:
    """All records of a table, in order of their keys.

    Attributes:
        buffer: decompressed data blocks.
        entries: per record, the columns of `records.SHARED` and following.
        values: per record, the columns of `records.IDENTITY_START` and following.
        first_key, last_key: empty where there are no records.
        key_bytes: length of all keys together.
    """

    layout: Layout
    buffer: Array
    entries: Array
    values: Array
    first_key: bytes
    last_key: bytes
    key_bytes: int

    def __len__(self) -> int:
        return len(self.entries)

    def keys(self) -> tuple[Array, Array]:
        """Offsets (int32, one more than records) into all keys joined. Raises CorruptFile beyond MAX_KEY_BYTES."""
        if self.key_bytes > MAX_KEY_BYTES:
            raise CorruptFile(self.layout.file, "keys", f"together they have {self.key_bytes} bytes")
        offsets = np.zeros(len(self) + 1, np.int32)
        keys = np.empty(self.key_bytes, np.uint8)
        records.gather_keys(self.buffer, self.entries, np.empty(len(self.buffer), np.uint8), offsets, keys)
        return offsets, keys


def read_layout(data: bytes | memoryview, file: str) -> Layout:
    """Reads footer, metaindex and properties, and nothing else. Raises CorruptFile."""
    view = memoryview(data)
    end = len(view) - FOOTER_BYTES
    if end < 0:
        raise CorruptFile(file, "length", f"{len(view)} bytes are fewer than a footer's {FOOTER_BYTES}")
    metaindex, index = _footer(bytes(view[end:]), file)
    blocks = view[:end]
    names = named_values(open_blocks(blocks, [metaindex], file).buffer.tobytes(), "metaindex", file)
    if list(names) != [b"rocksdb.properties"]:
        raise CorruptFile(file, "metaindex", f"expected rocksdb.properties alone, found {sorted(names)}")
    value = names[b"rocksdb.properties"]
    try:
        properties, read = handle(value, 0, len(value))
    except ValueError as error:
        raise CorruptFile(file, "metaindex", str(error)) from None
    if read != len(value):
        raise CorruptFile(file, "metaindex", "the handle of the properties is followed by other bytes")
    layout = Layout(
        file=file,
        properties=named_values(open_blocks(blocks, [properties], file).buffer.tobytes(), "properties", file),
        index=index,
        tail=(properties, metaindex),
        end=end,
    )
    _check_format(layout)
    return layout


def _footer(footer: bytes, file: str) -> tuple[Handle, Handle]:
    """Handles of metaindex and index; only the one spelling that a writer gives them is accepted."""
    if footer[45:] != _MAGIC:
        raise CorruptFile(file, "magic", f"it ends with {footer[45:].hex()}: not a RocksDB table, or cut short")
    if footer[_HANDLES_END:45] != _VERSION:
        raise CorruptFile(file, "version", f"{footer[_HANDLES_END:45].hex()} instead of 2")
    if footer[0] != _CRC32C:
        raise CorruptFile(file, "checksum type", f"{footer[0]} instead of 1 (CRC32C)")
    try:
        metaindex, position = handle(footer, 1, _HANDLES_END)
        index, _ = handle(footer, position, _HANDLES_END)
    except ValueError as error:
        raise CorruptFile(file, "footer", str(error)) from None
    canonical = b"".join(_as_varint(number) for number in (*metaindex, *index))
    if footer[1:_HANDLES_END] != canonical.ljust(_HANDLES_END - 1, b"\0"):
        raise CorruptFile(file, "footer", "handles are not in their shortest form, or are followed by other bytes")
    return metaindex, index


def _as_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _check_format(layout: Layout) -> None:
    comparator = layout.properties.get(b"rocksdb.comparator")
    if comparator != _COMPARATOR:
        raise CorruptFile(layout.file, "comparator", f"{comparator!r} instead of {_COMPARATOR!r}")
    for name in (
        "rocksdb.deleted.keys",
        "rocksdb.merge.operands",
        "rocksdb.num.range-deletions",
        "rocksdb.index.key.is.user.key",
        "rocksdb.index.value.is.delta.encoded",
    ):
        if layout.number(name, default=0) != 0:
            raise CorruptFile(layout.file, "properties", f"{name} is not 0: such tables are not supported")


def read_table(data: bytes | memoryview, file: str) -> Table:
    """Reads and checks a whole table. Raises CorruptFile."""
    layout = read_layout(data, file)
    blocks = memoryview(data)[: layout.end]
    handles = _data_handles(blocks, layout)
    opened = open_blocks(blocks, handles, file)
    count = layout.number("rocksdb.num.entries")
    if count > len(opened.buffer) // _MIN_ENTRY_BYTES:
        raise CorruptFile(file, "number of entries", f"{count} do not fit {len(opened.buffer)} bytes")
    entries = np.empty((count, 4), np.int64)
    fault, block, found = records.walk_blocks(opened.buffer, opened.bounds, entries)
    raise_fault(fault, file, f"data block {block}")
    if found != count:
        raise CorruptFile(file, "number of entries", f"{found} instead of {count}")
    last_key = np.empty(int(np.diff(opened.bounds).max(initial=0)), np.uint8)
    fault, entry, last_length, key_bytes = records.check_keys(opened.buffer, entries, last_key)
    raise_fault(fault, file, f"entry {entry}")
    values = np.empty((count, 4), np.int64)
    fault, entry = records.unframe_values(opened.buffer, entries, values)
    raise_fault(fault, file, f"entry {entry}")
    _check_sums(layout, entries, key_bytes)
    first_key = b""
    if count:
        start, stop = entries[0, records.KEY_START], entries[0, records.KEY_END] - records.TRAILER
        first_key = opened.buffer[start:stop].tobytes()
    return Table(
        layout=layout,
        buffer=opened.buffer,
        entries=entries,
        values=values,
        first_key=first_key,
        last_key=last_key[:last_length].tobytes(),
        key_bytes=key_bytes,
    )


def _data_handles(blocks: memoryview, layout: Layout) -> list[Handle]:
    """Handles of the data blocks, in order, after checking that all blocks together fill the file."""
    kind = layout.properties.get(b"rocksdb.block.based.table.index.type", bytes(4))
    index_type = int.from_bytes(kind, "little")
    if len(kind) != 4 or index_type not in (_SINGLE_LEVEL, _TWO_LEVEL):
        raise CorruptFile(layout.file, "index type", f"{kind.hex()} is neither single (0) nor two-level (2)")
    begin = _begin([layout.index, *layout.tail], layout.end, layout)
    handles = _indexed(blocks, [layout.index], layout)
    if index_type == _TWO_LEVEL:
        begin = _begin(handles, begin, layout)
        handles = _indexed(blocks, handles, layout)
    begin = _begin(handles, begin, layout)
    if begin != 0:
        raise CorruptFile(layout.file, "order of blocks", f"the first data block lies at {begin}")
    stated = layout.number("rocksdb.num.data.blocks")
    if stated != len(handles):
        raise CorruptFile(layout.file, "number of blocks", f"{len(handles)} instead of {stated}")
    return handles


def _begin(handles: list[Handle], end: int, layout: Layout) -> int:
    """Where the first of these blocks begins, which must follow each other without gap up to `end`."""
    for offset, size in reversed(handles):
        if offset + size + TRAILER_BYTES != end:
            raise CorruptFile(
                layout.file, "order of blocks", f"a block of {size} bytes at {offset} does not end at {end}"
            )
        end = offset
    return end


def _indexed(blocks: memoryview, index: list[Handle], layout: Layout) -> list[Handle]:
    opened: Blocks = open_blocks(blocks, index, layout.file)
    entries = np.empty((layout.end // TRAILER_BYTES, 4), np.int64)
    fault, block, count = records.walk_blocks(opened.buffer, opened.bounds, entries)
    raise_fault(fault, layout.file, f"index block {block}")
    handles = np.empty((count, 2), np.int64)
    fault, entry = records.read_handles(opened.buffer, entries[:count], layout.end - TRAILER_BYTES, handles)
    raise_fault(fault, layout.file, f"index entry {entry}")
    return [(offset, size) for offset, size in handles.tolist()]


def _check_sums(layout: Layout, entries: Array, key_bytes: int) -> None:
    values = int((entries[:, records.VALUE_END] - entries[:, records.KEY_END]).sum())
    for name, found in (
        ("rocksdb.raw.key.size", key_bytes + records.TRAILER * len(entries)),
        ("rocksdb.raw.value.size", values),
    ):
        if layout.number(name) != found:
            raise CorruptFile(layout.file, name, f"{found} instead of {layout.number(name)}")


def raise_fault(fault: int, file: str, where: str) -> None:
    """Raises the CorruptFile that a compiled function found, if it found one (`records.FAULTS`)."""
    if fault:
        check, detail = records.FAULTS[fault]
        raise CorruptFile(file, check, f"{where}: {detail}")

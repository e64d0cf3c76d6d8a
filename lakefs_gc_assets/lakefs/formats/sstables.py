"""RocksDB block-based tables, format version 2, as lakeFS writes its ranges and metaranges with Pebble.

A file is: data blocks, index blocks if the index has two levels, the (top) index, properties, metaindex, footer. Any
change to a written file is detected: checksums cover every block; the footer, which has no checksum, must have its
canonical encoding; and blocks must fill the file in this order without gaps (RocksDB `table/format.h`,
`table/block_based/`; LevelDB `doc/table_format.md`).

A block at (offset, size) is `size` bytes and a trailer: one byte of type (0 plain, 1 snappy, 7 zstd), then the masked
CRC32C of the bytes and the type, little-endian. Reading properties alone needs no compiled code, so it is cheap.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct, unpack_from
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from cramjam import snappy

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats import records

TRAILER_BYTES = 5
MAX_BLOCK_BYTES = 64 << 20
"""Maximum bytes of a block, decompressed. A block holds 4 KiB, or one larger record, so a higher length is wrong."""
MAX_TABLE_BYTES = 1 << 30
"""Maximum bytes of all data blocks of a table, decompressed; lakeFS closes a range at 20 MiB."""

MAX_NAMES_BYTES = 1 << 20
"""Maximum bytes of a table's properties, which take a few kilobytes, including a schema."""
MAX_NAME_BYTES = 1 << 10

_PLAIN, _SNAPPY, _ZSTD = 0, 1, 7
_CRC_MASK_DELTA = 0xA282EAD8
_u32 = Struct("<I").unpack_from
_MAX_SNAPPY_GROWTH = 22  # an element of three bytes yields at most 64

Array = npt.NDArray[Any]
Handle = tuple[int, int]
"""Offset and size of a block, without its trailer."""


def varint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """An unsigned varint and the position after it. Raises ValueError if it runs past `end` or 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise ValueError("a varint runs past its end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position
    raise ValueError("a varint is longer than 64 bits")


def encode_varint(number: int) -> bytes:
    """An unsigned number as a varint, in its shortest form."""
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


VARINT, BYTES = 0, 2
_FIXED64, _FIXED32 = 1, 5
"""Wire types of protobuf."""


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of a protobuf message's fields, in order. Raises ValueError if it is malformed."""
    position, end = 0, len(message)
    while position < end:
        tag, position = varint(message, position, end)
        wire = tag & 7
        if tag < 8 or tag >> 32:
            raise ValueError(f"{tag} is no tag")
        if wire == VARINT:
            value, position = varint(message, position, end)
            yield tag >> 3, wire, value
            continue
        if wire == BYTES:
            length, position = varint(message, position, end)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not supported")
        if length > end - position:
            raise ValueError("a field runs out of its message")
        yield tag >> 3, wire, message[position : position + length]
        position += length


def handle(data: bytes | memoryview, position: int, end: int) -> tuple[Handle, int]:
    """A block handle and the position after it. Raises ValueError like `varint`."""
    offset, position = varint(data, position, end)
    size, position = varint(data, position, end)
    return (offset, size), position


def open_blocks(data: memoryview, handles: list[Handle], file: str) -> tuple[Array, Array]:
    """Checks and decompresses blocks; returns one buffer, and bounds: block `i` is `buffer[bounds[i]:bounds[i + 1]]`.

    Raises CorruptFile if a block lies outside the file, its checksum differs, its type is not plain or snappy, or its
    bytes cannot decompress to its declared length. So a wrong length never causes a huge allocation.
    """
    lengths = [_checked_length(data, offset, size, file) for offset, size in handles]
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.array(lengths, np.int64), out=bounds[1:])
    total = int(bounds[-1])
    if total > MAX_TABLE_BYTES:
        raise CorruptFile(file, "block length", f"its blocks claim {total} bytes, more than {MAX_TABLE_BYTES}")
    buffer = np.empty(total, np.uint8)
    target = buffer.data
    position = 0
    for (offset, size), length in zip(handles, lengths, strict=True):
        end = position + length
        if data[offset + size] == _PLAIN:
            target[position:end] = data[offset : offset + size]
        else:
            try:
                # Fails unless the result has the declared length.
                snappy.decompress_raw_into(data[offset : offset + size], target[position:end])
            except Exception as error:  # cramjam.DecompressionError derives from Exception alone
                raise CorruptFile(file, "block compression", f"snappy block at {offset}: {error}") from None
        position = end
    return buffer, bounds


def _checked_length(data: memoryview, offset: int, size: int, file: str) -> int:
    end = offset + size
    if end + TRAILER_BYTES > len(data):
        raise CorruptFile(file, "block handle", f"a block of {size} bytes at {offset} ends after byte {len(data)}")
    # google_crc32c takes no memoryview, and a block is small to copy.
    crc = google_crc32c.value(bytes(data[offset : end + 1]))
    rotated = crc >> 15 | (crc << 17) & 0xFFFF_FFFF
    if (rotated + _CRC_MASK_DELTA) & 0xFFFF_FFFF != _u32(data, end + 1)[0]:
        raise CorruptFile(file, "block checksum", f"the CRC32C of the block at {offset} differs from the stored one")
    kind = data[end]
    if kind == _SNAPPY:
        try:
            length = snappy.decompress_raw_len(data[offset:end])
        except Exception as error:  # as above
            raise CorruptFile(file, "block length", f"snappy block at {offset}: {error}") from None
        if length > size * _MAX_SNAPPY_GROWTH:
            raise CorruptFile(file, "block length", f"{size} bytes at {offset} cannot decompress to {length}")
    elif kind == _PLAIN:
        length = size
    else:
        name = "7 (zstd)" if kind == _ZSTD else str(kind)
        raise CorruptFile(file, "block compression", f"type {name} of the block at {offset} is not supported")
    if length > MAX_BLOCK_BYTES:
        raise CorruptFile(file, "block length", f"the block at {offset} claims {length} bytes")
    return length


@contextmanager
def parsing(file: str, check: str) -> Iterator[None]:
    """Context for parsing a part of a file: ValueError becomes CorruptFile(file, check, …)."""
    try:
        yield
    except ValueError as error:
        raise CorruptFile(file, check, str(error)) from None


def _named_values(data: memoryview, block_handle: Handle, file: str) -> dict[bytes, bytes]:
    """Names and values of a metaindex or properties block, whose names have no trailer.

    Raises CorruptFile like `open_blocks`, and ValueError if entries or restart points are malformed or names are not
    ascending.
    """
    block = open_blocks(data, [block_handle], file)[0].tobytes()
    if not 8 <= len(block) <= MAX_NAMES_BYTES:
        raise ValueError(f"a block of names cannot have {len(block)} bytes")
    (restarts,) = _u32(block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    if restarts == 0 or end < 0:
        raise ValueError(f"{restarts} restart points in a block of {len(block)} bytes")
    values: dict[bytes, bytes] = {}
    starts = set()
    position, name = 0, b""
    while position < end:
        start = position
        lengths = block[position : position + 3]
        if position + 3 <= end and max(lengths) < 0x80:  # nearly always three varints of one byte each
            shared, unshared, length = lengths
            position += 3
        else:
            shared, position = varint(block, position, end)
            unshared, position = varint(block, position, end)
            length, position = varint(block, position, end)
        if shared > len(name) or unshared > end - position or length > end - position - unshared:
            raise ValueError(f"the entry at {start} runs out of its block")
        if shared + unshared > MAX_NAME_BYTES:
            raise ValueError(f"a name cannot have {shared + unshared} bytes")
        if shared == 0:
            starts.add(start)
        previous, name = name, name[:shared] + block[position : position + unshared]
        position += unshared
        if values and name <= previous:
            raise ValueError(f"{name!r} comes after {previous!r}")
        values[name] = block[position : position + length]
        position += length
    offsets = unpack_from(f"<{restarts}I", block, end)
    if not values:
        starts.add(0)
    if offsets[0] != 0 or not starts.issuperset(offsets) or any(a >= b for a, b in pairwise(offsets)):
        raise ValueError("restart points are not where entries begin")
    return values


FOOTER_BYTES = 53
MAX_KEY_BYTES = 1 << 30
"""Maximum bytes of all keys of a table, if requested. Shared prefixes can make the keys longer than the file."""

_MAGIC = bytes.fromhex("f7cff485b741e288")
_VERSION = (2).to_bytes(4, "little")
_HANDLES_END = 41
_CRC32C = 1
_COMPARATOR = b"leveldb.BytewiseComparator"
_SINGLE_LEVEL, _TWO_LEVEL = 0, 2
_MIN_ENTRY_BYTES = 6  # three lengths, a byte that differs from the key before, two lengths of the value


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Footer, metaindex and properties of a table.

    Attributes:
        properties: properties of RocksDB and of the writer, by name.
        index: handle of the (top) index.
        tail: handles of properties and metaindex, which follow the index in this order.
        end: offset of the footer.
    """

    file: str
    properties: Mapping[bytes, bytes]
    index: Handle
    tail: tuple[Handle, Handle]
    end: int

    def number(self, name: str, default: int | None = None) -> int:
        """A property that is a varint. Raises CorruptFile if it is malformed, or absent without a default."""
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
class SSTable:
    """All records of a table, in order of their keys.

    Attributes:
        buffer: decompressed data blocks.
        entries: columns `records.SHARED` and following, per record.
        values: columns `records.IDENTITY_START` and following, per record.
        first_key, last_key: empty if there are no records.
        key_bytes: total bytes of all keys.
    """

    layout: TableLayout
    buffer: Array
    entries: Array
    values: Array
    first_key: bytes
    last_key: bytes
    key_bytes: int

    def __len__(self) -> int:
        return len(self.entries)

    def keys(self) -> tuple[Array, Array]:
        """Offsets (int32, one more than records), and all keys joined. Raises CorruptFile beyond MAX_KEY_BYTES."""
        if self.key_bytes > MAX_KEY_BYTES:
            raise CorruptFile(self.layout.file, "keys", f"together they have {self.key_bytes} bytes")
        offsets = np.zeros(len(self) + 1, np.int32)
        keys = np.empty(self.key_bytes, np.uint8)
        records.gather_keys(self.buffer, self.entries, np.empty(len(self.buffer), np.uint8), offsets, keys)
        return offsets, keys


def read_layout(data: bytes | memoryview, file: str) -> TableLayout:
    """Reads footer, metaindex and properties, and nothing else. Raises CorruptFile."""
    view = memoryview(data)
    end = len(view) - FOOTER_BYTES
    if end < 0:
        raise CorruptFile(file, "length", f"{len(view)} bytes are fewer than a footer's {FOOTER_BYTES}")
    metaindex, index = _footer(bytes(view[end:]), file)
    blocks = view[:end]
    with parsing(file, "metaindex"):
        names = _named_values(blocks, metaindex, file)
        if list(names) != [b"rocksdb.properties"]:
            raise ValueError(f"expected rocksdb.properties alone, found {sorted(names)}")
        value = names[b"rocksdb.properties"]
        at, read = handle(value, 0, len(value))
        if read != len(value):
            raise ValueError("the handle of the properties is followed by other bytes")
    with parsing(file, "properties"):
        properties = _named_values(blocks, at, file)
    layout = TableLayout(file=file, properties=properties, index=index, tail=(at, metaindex), end=end)
    _check_format(layout)
    return layout


def _footer(footer: bytes, file: str) -> tuple[Handle, Handle]:
    """Handles of metaindex and index; only the canonical encoding is accepted."""
    if footer[45:] != _MAGIC:
        raise CorruptFile(file, "magic", f"it ends with {footer[45:].hex()}: not a RocksDB table, or cut short")
    if footer[_HANDLES_END:45] != _VERSION:
        raise CorruptFile(file, "version", f"{footer[_HANDLES_END:45].hex()} instead of 2")
    if footer[0] != _CRC32C:
        raise CorruptFile(file, "checksum type", f"{footer[0]} instead of 1 (CRC32C)")
    with parsing(file, "footer"):
        metaindex, position = handle(footer, 1, _HANDLES_END)
        index, _ = handle(footer, position, _HANDLES_END)
    canonical = b"".join(encode_varint(number) for number in (*metaindex, *index))
    if footer[1:_HANDLES_END] != canonical.ljust(_HANDLES_END - 1, b"\0"):
        raise CorruptFile(file, "footer", "handles are not in their shortest form, or are followed by other bytes")
    return metaindex, index


def _check_format(layout: TableLayout) -> None:
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


def read_table(data: bytes | memoryview, file: str) -> SSTable:
    """Reads and checks a whole table. Raises CorruptFile."""
    layout = read_layout(data, file)
    blocks = memoryview(data)[: layout.end]
    handles = _data_handles(blocks, layout)
    buffer, bounds = open_blocks(blocks, handles, file)
    count = layout.number("rocksdb.num.entries")
    if count > len(buffer) // _MIN_ENTRY_BYTES:
        raise CorruptFile(file, "number of entries", f"{count} do not fit {len(buffer)} bytes")
    entries = np.empty((count, 4), np.int64)
    fault, block, entry_count = records.walk_blocks(buffer, bounds, entries)
    raise_fault(fault, file, f"data block {block}")
    if entry_count != count:
        raise CorruptFile(file, "number of entries", f"{entry_count} instead of {count}")
    last_key = np.empty(int(np.diff(bounds).max(initial=0)), np.uint8)
    fault, entry, last_length, key_bytes = records.check_keys(buffer, entries, last_key)
    raise_fault(fault, file, f"entry {entry}")
    values = np.empty((count, 4), np.int64)
    fault, entry = records.unframe_values(buffer, entries, values)
    raise_fault(fault, file, f"entry {entry}")
    _check_sums(layout, entries, key_bytes)
    first_key = b""
    if count:
        start, stop = entries[0, records.KEY_START], entries[0, records.KEY_END] - records.TRAILER
        first_key = buffer[start:stop].tobytes()
    return SSTable(
        layout=layout,
        buffer=buffer,
        entries=entries,
        values=values,
        first_key=first_key,
        last_key=last_key[:last_length].tobytes(),
        key_bytes=key_bytes,
    )


def _data_handles(blocks: memoryview, layout: TableLayout) -> list[Handle]:
    """Handles of the data blocks, in order; checks that all blocks together fill the file."""
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


def _begin(handles: list[Handle], end: int, layout: TableLayout) -> int:
    """The start of the first block; the blocks must be adjacent up to `end`."""
    for offset, size in reversed(handles):
        if offset + size + TRAILER_BYTES != end:
            raise CorruptFile(
                layout.file, "order of blocks", f"a block of {size} bytes at {offset} does not end at {end}"
            )
        end = offset
    return end


def _indexed(blocks: memoryview, index: list[Handle], layout: TableLayout) -> list[Handle]:
    buffer, bounds = open_blocks(blocks, index, layout.file)
    entries = np.empty((layout.end // TRAILER_BYTES, 4), np.int64)
    fault, block, count = records.walk_blocks(buffer, bounds, entries)
    raise_fault(fault, layout.file, f"index block {block}")
    handles = np.empty((count, 2), np.int64)
    fault, entry = records.read_handles(buffer, entries[:count], layout.end - TRAILER_BYTES, handles)
    raise_fault(fault, layout.file, f"index entry {entry}")
    return [(offset, size) for offset, size in handles.tolist()]


def _check_sums(layout: TableLayout, entries: Array, key_bytes: int) -> None:
    values = int((entries[:, records.VALUE_END] - entries[:, records.KEY_END]).sum())
    for name, actual in (
        ("rocksdb.raw.key.size", key_bytes + records.TRAILER * len(entries)),
        ("rocksdb.raw.value.size", values),
    ):
        if layout.number(name) != actual:
            raise CorruptFile(layout.file, name, f"{actual} instead of {layout.number(name)}")


def raise_fault(fault: int, file: str, where: str) -> None:
    """Raises CorruptFile for a fault of a compiled function (`records.FAULTS`), if it is not 0."""
    if fault:
        check, detail = records.FAULTS[fault]
        raise CorruptFile(file, check, f"{where}: {detail}")

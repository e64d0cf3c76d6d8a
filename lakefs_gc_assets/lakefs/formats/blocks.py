"""Blocks of a RocksDB table: checksum, compression, and the small blocks that hold names and values.

A block at (offset, size) is `size` bytes and a trailer: one byte of type (0 plain, 1 snappy, 7 zstd), then the masked
CRC32C of the bytes and the type, little-endian (LevelDB `doc/table_format.md`; RocksDB `table/format.h`).
Nothing here needs compiled code, so the properties of a table are cheap to read.
"""

from dataclasses import dataclass
from itertools import pairwise
from struct import Struct, unpack_from
from typing import Any

import numpy as np
import numpy.typing as npt
from cramjam import snappy
from crc32c import crc32c

from lakefs_gc_assets.errors import CorruptFile

TRAILER_BYTES = 5
MAX_BLOCK_BYTES = 64 << 20
"""A block holds 4 KiB, or one record where that is larger: more than this is a lie about its length."""
MAX_TABLE_BYTES = 1 << 30
"""All blocks of a table, decompressed; lakeFS closes a range at 20 MiB."""

MAX_NAMES_BYTES = 1 << 20
"""The properties of a table, a schema included, have a few kilobytes."""
MAX_NAME_BYTES = 1 << 10

_PLAIN, _SNAPPY, _ZSTD = 0, 1, 7
_CRC_MASK_DELTA = 0xA282EAD8
_u32 = Struct("<I").unpack_from
_MAX_SNAPPY_GROWTH = 22  # an element of three bytes yields at most 64

Handle = tuple[int, int]
"""Offset and size of a block, its trailer not counted."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Decompressed blocks in one buffer; block `i` lies at `buffer[bounds[i]:bounds[i + 1]]`."""

    buffer: npt.NDArray[Any]
    bounds: npt.NDArray[Any]


def varint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """An unsigned varint and the position after it. Raises ValueError where it runs past `end` or 64 bits."""
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


def handle(data: bytes | memoryview, position: int, end: int) -> tuple[Handle, int]:
    """A block handle and the position after it. Raises ValueError like `varint`."""
    offset, position = varint(data, position, end)
    size, position = varint(data, position, end)
    return (offset, size), position


def open_blocks(data: memoryview, handles: list[Handle], file: str) -> Blocks:
    """Checks and decompresses blocks, in the order given.

    Raises CorruptFile where a block lies outside the file, its checksum differs, its type is not plain or snappy, or
    its declared length is beyond what its bytes can yield: nothing is allocated on the word of the file alone.
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
            _decompress(data[offset : offset + size], target[position:end], offset, file)
        position = end
    return Blocks(buffer, bounds)


def _checked_length(data: memoryview, offset: int, size: int, file: str) -> int:
    end = offset + size
    if end + TRAILER_BYTES > len(data):
        raise CorruptFile(file, "block handle", f"a block of {size} bytes at {offset} ends after byte {len(data)}")
    crc = crc32c(data[offset : end + 1])
    rotated = crc >> 15 | (crc << 17) & 0xFFFF_FFFF
    if (rotated + _CRC_MASK_DELTA) & 0xFFFF_FFFF != _u32(data, end + 1)[0]:
        raise CorruptFile(file, "block checksum", f"the CRC32C of the block at {offset} differs from the stored one")
    kind = data[end]
    if kind == _SNAPPY:
        try:
            length = snappy.decompress_raw_len(data[offset:end])
        except Exception as error:  # cramjam.DecompressionError derives from Exception alone
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


def _decompress(compressed: memoryview, target: memoryview, offset: int, file: str) -> None:
    try:
        snappy.decompress_raw_into(compressed, target)  # fails unless it yields the declared length
    except Exception as error:  # as above
        raise CorruptFile(file, "block compression", f"snappy block at {offset}: {error}") from None


def named_values(block: bytes, what: str, file: str) -> dict[bytes, bytes]:
    """Names and values of a metaindex or properties block, in which names carry no trailer.

    Raises CorruptFile(file, what, …) where entries or restart points are malformed or names do not increase.
    """
    try:
        return _named_values(block)
    except ValueError as error:
        raise CorruptFile(file, what, str(error)) from None


def _named_values(block: bytes) -> dict[bytes, bytes]:
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
        if position + 3 <= end and max(lengths) < 0x80:  # three varints of one byte each: nearly always
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

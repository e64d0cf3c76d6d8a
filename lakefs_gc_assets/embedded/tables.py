"""Writes the table files that lakeFS keeps commits in: RocksDB's block-based format, version 2.

Layout: data blocks, index blocks, properties, metaindex, footer of 53 bytes. Each block is followed by its compression
type and a masked CRC32C. Above `INDEX_BLOCK_SIZE` the index has two levels. Checked against files of real servers.
"""

import struct
from collections.abc import Iterable, Mapping

import crc32c
from cramjam import snappy

BLOCK_SIZE = 4096
INDEX_BLOCK_SIZE = 4096
_DATA_RESTART_INTERVAL = 16
_MAGIC = bytes.fromhex("f7cff485b741e288")
_FORMAT_VERSION = 2
_CHECKSUM_CRC32C = 1
_FOOTER_HANDLES = 40
_UNCOMPRESSED, _SNAPPY = 0, 1
_SET_TRAILER = struct.pack("<Q", 1)
_SEPARATOR_TRAILER = struct.pack("<Q", 0xFFFF_FFFF_FFFF_FF00 | 17)
_NO_RESTART = 1 << 30
_SINGLE_LEVEL, _TWO_LEVEL = 0, 2


def varint(number: int) -> bytes:
    """An unsigned number, seven bits a byte, lowest first."""
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _Block:
    """Prefix-compressed entries, then the offsets of the entries that restart compression."""

    def __init__(self, restart_interval: int) -> None:
        self._interval = restart_interval
        self._buffer = bytearray()
        self._restarts: list[int] = []
        self._entries = 0
        self._previous = b""

    def __len__(self) -> int:
        return self._entries

    def size_with(self, key: bytes, value: bytes) -> int:
        """At most how many bytes the block has once this entry is in it."""
        return len(self._buffer) + len(key) + len(value) + 12 + 4 * len(self._restarts) + 8

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._entries % self._interval == 0:
            self._restarts.append(len(self._buffer))
        else:
            shared = _shared_prefix(self._previous, key)
        lengths = (shared, len(key) - shared, len(value))
        self._buffer += bytes(lengths) if max(lengths) < 0x80 else b"".join(map(varint, lengths))
        self._buffer += key[shared:] + value
        self._previous = key
        self._entries += 1

    def finish(self) -> bytes:
        restarts = self._restarts or [0]
        return bytes(self._buffer) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _shared_prefix(left: bytes, right: bytes) -> int:
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _separator(key: bytes, following: bytes | None) -> bytes:
    """A short index key, not before `key` and before `following`, with its trailer."""
    position = 0 if following is None else _shared_prefix(key, following)
    if position < len(key) and key[position] < 0xFF:
        bound = 0x100 if following is None or position >= len(following) else following[position]
        if key[position] + 1 < bound:
            return key[:position] + bytes((key[position] + 1,)) + _SEPARATOR_TRAILER
    return key + _SET_TRAILER


class _File:
    """The file's bytes so far; `append` returns the handle of a block."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def append(self, block: bytes, *, compress: bool) -> bytes:
        kind = _UNCOMPRESSED
        if compress:
            smaller = bytes(snappy.compress_raw(block))
            if len(smaller) < len(block) - len(block) // 8:
                block, kind = smaller, _SNAPPY
        offset = len(self.buffer)
        checksum = crc32c.crc32c(bytes((kind,)), crc32c.crc32c(block))
        masked = ((checksum >> 15 | checksum << 17) + 0xA282_EAD8) & 0xFFFF_FFFF
        self.buffer += block + bytes((kind,)) + struct.pack("<I", masked)
        return varint(offset) + varint(len(block))


def table(records: Iterable[tuple[bytes, bytes]], user_properties: Mapping[str, str]) -> bytes:
    """A whole table file.

    Args:
        records: keys and values, keys strictly increasing.
        user_properties: further properties, as ASCII strings (lakeFS: type, min_key, max_key, count, …).
    """
    file = _File()
    index: list[tuple[bytes, bytes]] = []
    block, last_key, entries, key_bytes, value_bytes = _Block(_DATA_RESTART_INTERVAL), b"", 0, 0, 0
    for key, value in records:
        if entries and key <= last_key:
            raise ValueError(f"keys of a table must increase: {key!r} after {last_key!r}")
        internal = key + _SET_TRAILER
        if len(block) and block.size_with(internal, value) > BLOCK_SIZE:
            index.append((_separator(last_key, key), file.append(block.finish(), compress=True)))
            block = _Block(_DATA_RESTART_INTERVAL)
        block.add(internal, value)
        last_key = key
        entries += 1
        key_bytes += len(internal)
        value_bytes += len(value)
    # A table without records still has one data block, as real servers write it.
    last_separator = _separator(last_key, None) if entries else b"\xff" + bytes(8)
    index.append((last_separator, file.append(block.finish(), compress=True)))
    data_size = len(file.buffer)
    index_handle, index_properties = _write_index(file, index)
    properties = _properties(data_size, entries, key_bytes, value_bytes, len(index)) | index_properties
    properties |= {name.encode(): value.encode("utf-8", "surrogateescape") for name, value in user_properties.items()}
    property_block = _Block(_NO_RESTART)
    for name in sorted(properties):
        property_block.add(name, properties[name])
    metaindex = _Block(1)
    metaindex.add(b"rocksdb.properties", file.append(property_block.finish(), compress=False))
    handles = file.append(metaindex.finish(), compress=False) + index_handle
    file.buffer += (
        bytes((_CHECKSUM_CRC32C,)) + handles.ljust(_FOOTER_HANDLES, b"\0") + struct.pack("<I", _FORMAT_VERSION) + _MAGIC
    )
    return bytes(file.buffer)


def _write_index(file: _File, index: list[tuple[bytes, bytes]]) -> tuple[bytes, dict[bytes, bytes]]:
    """Writes one index block, or several and one above them; returns the top block's handle and its properties."""
    start = len(file.buffer)
    partitions: list[tuple[bytes, _Block]] = []
    for separator, handle in index:
        if not partitions or partitions[-1][1].size_with(separator, handle) > INDEX_BLOCK_SIZE:
            partitions.append((separator, _Block(1)))
        partitions[-1][1].add(separator, handle)
        partitions[-1] = (separator, partitions[-1][1])
    if len(partitions) == 1:
        top_handle = file.append(partitions[0][1].finish(), compress=True)
        return top_handle, {
            b"rocksdb.block.based.table.index.type": struct.pack("<I", _SINGLE_LEVEL),
            b"rocksdb.index.size": varint(len(file.buffer) - start),
        }
    top = _Block(1)
    for separator, partition in partitions:
        top.add(separator, file.append(partition.finish(), compress=True))
    top_start = len(file.buffer)
    top_handle = file.append(top.finish(), compress=True)
    return top_handle, {
        b"rocksdb.block.based.table.index.type": struct.pack("<I", _TWO_LEVEL),
        b"rocksdb.index.partitions": varint(len(partitions)),
        b"rocksdb.index.size": varint(len(file.buffer) - start),
        b"rocksdb.top-level.index.size": varint(len(file.buffer) - top_start),
    }


def _properties(data_size: int, entries: int, key_bytes: int, value_bytes: int, blocks: int) -> dict[bytes, bytes]:
    return {
        b"rocksdb.block.based.table.prefix.filtering": b"0",
        b"rocksdb.block.based.table.whole.key.filtering": b"0",
        b"rocksdb.column.family.id": varint(0x7FFF_FFFF),
        b"rocksdb.comparator": b"leveldb.BytewiseComparator",
        b"rocksdb.compression": b"Snappy",
        b"rocksdb.creation.time": varint(0),
        b"rocksdb.data.size": varint(data_size),
        b"rocksdb.deleted.keys": varint(0),
        b"rocksdb.external_sst_file.global_seqno": struct.pack("<Q", 0),
        b"rocksdb.external_sst_file.version": struct.pack("<I", 2),
        b"rocksdb.filter.size": varint(0),
        b"rocksdb.fixed.key.length": varint(0),
        b"rocksdb.format.version": varint(0),
        b"rocksdb.index.key.is.user.key": varint(0),
        b"rocksdb.index.value.is.delta.encoded": varint(0),
        b"rocksdb.merge.operands": varint(0),
        b"rocksdb.merge.operator": b"pebble.concatenate",
        b"rocksdb.num.data.blocks": varint(blocks),
        b"rocksdb.num.entries": varint(entries),
        b"rocksdb.num.range-deletions": varint(0),
        b"rocksdb.oldest.key.time": varint(0),
        b"rocksdb.prefix.extractor.name": b"nullptr",
        b"rocksdb.raw.key.size": varint(key_bytes),
        b"rocksdb.raw.value.size": varint(value_bytes),
    }

"""The formats in which lakeFS stores commits: table files, identities of entries and commits, records in protobuf.

Tables are RocksDB's block-based format, version 2: data blocks, index blocks, properties, metaindex, and a footer of 53
bytes. Each block is followed by its compression type and a masked CRC32C. Above `INDEX_BLOCK_SIZE` the index has two
levels.

An identity is a SHA-256: lakeFS compares the content of two entries by it. Each field is hashed after a type byte and,
except for numbers, its length, so that different lists of fields cannot collide. An entry's identity excludes its
address: the same bytes uploaded twice are the same entry (lakeFS `pkg/ident`). All of this was checked against real
servers.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import google_crc32c
from cramjam import snappy

from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.formats.sstables import BYTES, VARINT, encode_varint, fields

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


class _Block:
    """Prefix-compressed entries, followed by the offsets of the restart points."""

    def __init__(self, restart_interval: int) -> None:
        self._interval = restart_interval
        self._buffer = bytearray()
        self._restarts: list[int] = []
        self._entries = 0
        self._previous = b""

    def __len__(self) -> int:
        return self._entries

    def size_with(self, key: bytes, value: bytes) -> int:
        """Upper bound of the block's size in bytes with this entry added."""
        return len(self._buffer) + len(key) + len(value) + 12 + 4 * len(self._restarts) + 8

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._entries % self._interval == 0:
            self._restarts.append(len(self._buffer))
        else:
            shared = _shared_prefix(self._previous, key)
        lengths = (shared, len(key) - shared, len(value))
        self._buffer += bytes(lengths) if max(lengths) < 0x80 else b"".join(map(encode_varint, lengths))
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
    """A short index key with its trailer, at or after `key` and before `following`."""
    position = 0 if following is None else _shared_prefix(key, following)
    if position < len(key) and key[position] < 0xFF:
        bound = 0x100 if following is None or position >= len(following) else following[position]
        if key[position] + 1 < bound:
            return key[:position] + bytes((key[position] + 1,)) + _SEPARATOR_TRAILER
    return key + _SET_TRAILER


class _File:
    """The bytes of the file so far; `append` returns the handle of a block."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def append(self, block: bytes, *, compress: bool) -> bytes:
        kind = _UNCOMPRESSED
        if compress:
            smaller = bytes(snappy.compress_raw(block))
            if len(smaller) < len(block) - len(block) // 8:
                block, kind = smaller, _SNAPPY
        offset = len(self.buffer)
        checksum = google_crc32c.value(block + bytes((kind,)))
        masked = ((checksum >> 15 | checksum << 17) + 0xA282_EAD8) & 0xFFFF_FFFF
        self.buffer += block + bytes((kind,)) + struct.pack("<I", masked)
        return encode_varint(offset) + encode_varint(len(block))


def table(records: Iterable[tuple[bytes, bytes]], user_properties: Mapping[str, str]) -> bytes:
    """A complete table file.

    Args:
        records: keys and values, with strictly increasing keys.
        user_properties: additional properties, such as lakeFS's type, min_key, max_key and count.
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
    # Real servers, too, write one data block into a table without records.
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
    """Writes one index block, or several and a top-level one; returns the top block's handle and index properties."""
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
            b"rocksdb.index.size": encode_varint(len(file.buffer) - start),
        }
    top = _Block(1)
    for separator, partition in partitions:
        top.add(separator, file.append(partition.finish(), compress=True))
    top_start = len(file.buffer)
    top_handle = file.append(top.finish(), compress=True)
    return top_handle, {
        b"rocksdb.block.based.table.index.type": struct.pack("<I", _TWO_LEVEL),
        b"rocksdb.index.partitions": encode_varint(len(partitions)),
        b"rocksdb.index.size": encode_varint(len(file.buffer) - start),
        b"rocksdb.top-level.index.size": encode_varint(len(file.buffer) - top_start),
    }


def _properties(data_size: int, entries: int, key_bytes: int, value_bytes: int, blocks: int) -> dict[bytes, bytes]:
    return {
        b"rocksdb.block.based.table.prefix.filtering": b"0",
        b"rocksdb.block.based.table.whole.key.filtering": b"0",
        b"rocksdb.column.family.id": encode_varint(0x7FFF_FFFF),
        b"rocksdb.comparator": b"leveldb.BytewiseComparator",
        b"rocksdb.compression": b"Snappy",
        b"rocksdb.creation.time": encode_varint(0),
        b"rocksdb.data.size": encode_varint(data_size),
        b"rocksdb.deleted.keys": encode_varint(0),
        b"rocksdb.external_sst_file.global_seqno": struct.pack("<Q", 0),
        b"rocksdb.external_sst_file.version": struct.pack("<I", 2),
        b"rocksdb.filter.size": encode_varint(0),
        b"rocksdb.fixed.key.length": encode_varint(0),
        b"rocksdb.format.version": encode_varint(0),
        b"rocksdb.index.key.is.user.key": encode_varint(0),
        b"rocksdb.index.value.is.delta.encoded": encode_varint(0),
        b"rocksdb.merge.operands": encode_varint(0),
        b"rocksdb.merge.operator": b"pebble.concatenate",
        b"rocksdb.num.data.blocks": encode_varint(blocks),
        b"rocksdb.num.entries": encode_varint(entries),
        b"rocksdb.num.range-deletions": encode_varint(0),
        b"rocksdb.oldest.key.time": encode_varint(0),
        b"rocksdb.prefix.extractor.name": b"nullptr",
        b"rocksdb.raw.key.size": encode_varint(key_bytes),
        b"rocksdb.raw.value.size": encode_varint(value_bytes),
    }


_BYTES, _STRING, _INT64, _STRING_LIST, _STRING_MAP = b"\x00", b"\x01", b"\x02\x08", b"\x03", b"\x04"
_IDENTIFIABLE = b"\x05"


def _hashed_number(value: int) -> bytes:
    return _INT64 + struct.pack(">q", value)


def _hashed_text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogateescape")
    return _STRING + _hashed_number(len(encoded)) + encoded


def _hashed_texts(values: Iterable[str]) -> bytes:
    encoded = [_hashed_text(value) for value in values]
    return _STRING_LIST + _hashed_number(len(encoded)) + b"".join(encoded)


def _hashed_map(values: Mapping[str, str]) -> bytes:
    pairs = b"".join(_hashed_text(key) + _hashed_text(values[key]) for key in sorted(values))
    return _STRING_MAP + _hashed_number(len(values)) + pairs


def entry_identity(size: int, etag: str, metadata: Mapping[str, str], content_type: str) -> bytes:
    """32 bytes that are equal if size, ETag, metadata and content type are; an empty content type is not hashed."""
    type_field = _hashed_text(content_type) if content_type else b""
    return hashlib.sha256(_hashed_number(size) + _hashed_text(etag) + _hashed_map(metadata) + type_field).digest()


def commit_id(
    committer: str,
    message: str,
    metarange_id: str,
    creation_date: int,
    metadata: Mapping[str, str],
    parents: Iterable[str],
) -> str:
    """64 hexadecimal digits: lakeFS's hash over all fields of a commit except version and generation.

    A real server accepts a refs dump only if its commits have these ids. Source: `Commit.Identity` in lakeFS's
    `pkg/graveler/graveler.go`.
    """
    hashed_parents = hashlib.sha256(_hashed_texts(parents)).digest()
    fields = (
        _hashed_text("commit:v1"),
        _hashed_text(committer),
        _hashed_text(message),
        _hashed_text(metarange_id),
        _hashed_number(creation_date),
        _hashed_map(metadata),
        _IDENTIFIABLE + _BYTES + _hashed_number(len(hashed_parents)) + hashed_parents,
    )
    return hashlib.sha256(b"".join(fields)).hexdigest()


def number_field(tag: int, value: int) -> bytes:
    """An integer field of a protobuf message; empty for zero."""
    return encode_varint(tag << 3 | VARINT) + encode_varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def _bytes(tag: int, value: bytes, *, always: bool = False) -> bytes:
    return encode_varint(tag << 3 | BYTES) + encode_varint(len(value)) + value if value or always else b""


def text_field(tag: int, value: str, *, always: bool = False) -> bytes:
    """A string field of a protobuf message; nothing for an empty text unless `always` is set."""
    return _bytes(tag, value.encode("utf-8", "surrogateescape"), always=always)


def map_field(tag: int, values: Mapping[str, str]) -> bytes:
    """A map field of a protobuf message, with pairs in order of key."""
    return b"".join(_bytes(tag, text_field(1, key) + text_field(2, values[key]), always=True) for key in sorted(values))


def time_field(tag: int, seconds: int) -> bytes:
    """A timestamp field of a protobuf message; seconds since 1970 UTC."""
    return _bytes(tag, number_field(1, seconds), always=True)


def _signed(number: int) -> int:
    """An int64 from its two's complement."""
    return number - (1 << 64) if number >> 63 else number


def _as_text(value: int | bytes) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True)
class Entry:
    """The object at a path of a branch or commit.

    Attributes:
        address: relative to the storage namespace, or in full if `address_type` is FULL.
        last_modified: seconds since 1970 UTC.
    """

    address: str
    address_type: AddressType
    size: int
    etag: str
    last_modified: int
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> bytes:
        """Equal for equal content, regardless of the address."""
        return entry_identity(self.size, self.etag, self.metadata, self.content_type)

    def encode(self) -> bytes:
        """The record in lakeFS's format."""
        return (
            text_field(1, self.address)
            + time_field(2, self.last_modified)
            + number_field(3, self.size)
            + text_field(4, self.etag)
            + map_field(5, self.metadata)
            + number_field(6, self.address_type)
            + text_field(7, self.content_type)
        )

    def with_metadata(self, metadata: Mapping[str, str]) -> "Entry":
        """This entry with other user metadata and the same object."""
        return replace(self, metadata=dict(metadata))


def decode_entry(message: bytes) -> Entry:
    """Decodes the output of `Entry.encode`. Raises ValueError for a broken message."""
    address, seconds, size, etag, kind, content_type = "", 0, 0, "", 0, ""
    metadata: dict[str, str] = {}
    for tag, _, value in fields(message):
        if isinstance(value, int):
            if tag == 3:
                size = _signed(value)
            elif tag == 6:
                kind = value
        elif tag == 1:
            address = _as_text(value)
        elif tag == 2:
            parts = (part for number, _, part in fields(value) if number == 1 and isinstance(part, int))
            seconds = _signed(next(parts, 0))
        elif tag == 4:
            etag = _as_text(value)
        elif tag == 5:
            pair = {number: _as_text(part) for number, _, part in fields(value)}
            metadata[pair.get(1, "")] = pair.get(2, "")
        elif tag == 7:
            content_type = _as_text(value)
    return Entry(address, AddressType(kind), size, etag, seconds, content_type, metadata)


def range_data(min_key: bytes, max_key: bytes, estimated_size: int, count: int) -> bytes:
    """A metarange's record of one range."""
    return _bytes(1, min_key) + _bytes(2, max_key) + number_field(3, estimated_size) + number_field(4, count)


def branch_data(branch_id: str, commit_id: str) -> bytes:
    """A branch in a refs dump. lakeFS leaves the message's other fields empty in a dump."""
    return text_field(1, branch_id) + text_field(2, commit_id)


_BRANCH_FIELDS = ("id", "commit_id", "staging_token", "sealed_tokens", "hidden", "compacted_base_meta_range_id")


def branch_schema() -> str:
    """The fields of `branch_data` as stated in a dump: the message's descriptor in protobuf's JSON form."""
    fields = [
        {
            "name": name,
            "number": number,
            "label": "LABEL_REPEATED" if name == "sealed_tokens" else "LABEL_OPTIONAL",
            "type": "TYPE_BOOL" if name == "hidden" else "TYPE_STRING",
        }
        for number, name in enumerate(_BRANCH_FIELDS, 1)
    ]
    return json.dumps({"name": "BranchData", "field": fields})


def tag_data(tag_id: str, commit_id: str) -> bytes:
    """A tag in a refs dump."""
    return text_field(1, tag_id) + text_field(2, commit_id)


def retention_rules(default_days: int, branches: Mapping[str, int]) -> bytes:
    """The rules file; empty if nothing is set."""
    return number_field(1, default_days) + b"".join(
        _bytes(2, text_field(1, branch) + number_field(2, days), always=True) for branch, days in branches.items()
    )

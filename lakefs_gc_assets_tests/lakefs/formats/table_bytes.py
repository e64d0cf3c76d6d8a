"""Writes valid or invalid tables byte by byte, and reads them slowly, independently of the code under test."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import google_crc32c
from cramjam import snappy
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

SET = b"\x01" + bytes(7)
SEPARATOR = b"\x11" + b"\xff" * 7
FOOTER_BYTES = 53
Record = tuple[bytes, bytes]


def varint(number: int) -> bytes:
    """A varint of 64 bits; negative numbers as two's complement."""
    number &= (1 << 64) - 1
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def framed(identity: bytes, data: bytes) -> bytes:
    """A value in lakeFS's framing."""
    return varint(2 * len(identity)) + identity + varint(2 * len(data)) + data


def text(number: int, content: str | bytes) -> bytes:
    """A protobuf field of bytes, text or a message."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def integer(number: int, value: int) -> bytes:
    """A protobuf field of a number."""
    return varint(number << 3) + varint(value)


def block(entries: Sequence[Record], interval: int = 16) -> bytes:
    """A block of keys (trailers included) and values, not yet sealed."""
    out = bytearray()
    restarts = []
    previous = b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(previous), len(key)) and previous[shared] == key[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def sealed(content: bytes, kind: int) -> bytes:
    """A block as stored, followed by its type and checksum."""
    crc = google_crc32c.value(content + bytes((kind,)))
    return content + bytes((kind,)) + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


Change = Callable[[str, bytes], bytes]


@dataclass
class TableBytes:
    """A table to build: `change` may alter blocks (data, index, top, properties, metaindex) before they are sealed.

    `stored` may alter a block again after compression.
    """

    records: Sequence[Record]
    properties: Mapping[str, bytes | None] = field(default_factory=dict)
    records_per_block: int = 20
    interval: int = 16
    compressed: Callable[[int], bool] = lambda index: index % 2 == 0
    blocks_per_index: int | None = None
    change: Change = lambda name, content: content
    stored: Change = lambda name, content: content

    def build(self) -> bytes:
        """The whole file."""
        out = bytearray()

        def put(name: str, content: bytes, compress: bool = False) -> bytes:
            content = self.change(name, content)
            stored = self.stored(name, bytes(snappy.compress_raw(content)) if compress else content)
            handle = varint(len(out)) + varint(len(stored))
            out.extend(sealed(stored, int(compress)))
            return handle

        size = self.records_per_block
        groups = [self.records[start : start + size] for start in range(0, len(self.records), size)] or [()]
        index = []
        for number, group in enumerate(groups):
            content = block([(key + SET, value) for key, value in group], self.interval)
            last = group[-1][0] if group else b"\xff"
            index.append((last + SEPARATOR, put("data", content, self.compressed(number))))
        data_blocks = len(index)
        two_level = self.blocks_per_index is not None
        if self.blocks_per_index is not None:
            step = self.blocks_per_index
            parts = [index[start : start + step] for start in range(0, len(index), step)]
            index = [(part[-1][0], put("index", block(part, 1), True)) for part in parts]
        top = put("top", block(index, 1), two_level)
        properties = put("properties", block(self._properties(data_blocks, two_level), 1 << 30))
        metaindex = put("metaindex", block([(b"rocksdb.properties", properties)], 1))
        footer = (b"\x01" + metaindex + top).ljust(41, b"\0") + struct.pack("<I", 2)
        return bytes(out + footer + bytes.fromhex("f7cff485b741e288"))

    def _properties(self, data_blocks: int, two_level: bool) -> list[Record]:
        keys = [key for key, _ in self.records]
        stated: dict[str, bytes | None] = {
            "count": str(len(keys)).encode(),
            "max_key": keys[-1] if keys else b"",
            "min_key": keys[0] if keys else b"",
            "rocksdb.block.based.table.index.type": struct.pack("<I", 2 if two_level else 0),
            "rocksdb.comparator": b"leveldb.BytewiseComparator",
            "rocksdb.deleted.keys": varint(0),
            "rocksdb.num.data.blocks": varint(data_blocks),
            "rocksdb.num.entries": varint(len(keys)),
            "rocksdb.raw.key.size": varint(sum(len(key) + 8 for key in keys)),
            "rocksdb.raw.value.size": varint(sum(len(value) for _, value in self.records)),
            "type": b"ranges",
        }
        stated.update(self.properties)
        return sorted((name.encode(), value) for name, value in stated.items() if value is not None)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def read_block(file: bytes, handle: bytes, position: int = 0) -> bytes:
    """The decompressed block of a handle."""
    offset, position = read_varint(handle, position)
    size, _ = read_varint(handle, position)
    content = file[offset : offset + size]
    return bytes(snappy.decompress_raw(content)) if file[offset + size] else content


def read_entries(content: bytes) -> list[Record]:
    """Keys (trailers included) and values of a block."""
    end = len(content) - 4 - 4 * struct.unpack("<I", content[-4:])[0]
    entries = []
    position, key = 0, b""
    while position < end:
        shared, position = read_varint(content, position)
        unshared, position = read_varint(content, position)
        length, position = read_varint(content, position)
        key = key[:shared] + content[position : position + unshared]
        position += unshared
        entries.append((key, content[position : position + length]))
        position += length
    return entries


def read_records(file: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Key, identity and data of each record."""
    footer = file[-FOOTER_BYTES:]
    position = 1
    for _ in range(2):
        _, position = read_varint(footer, position)
    blocks = [value for _, value in read_entries(read_block(file, footer, position))]
    properties = dict(read_entries(read_block(file, read_entries(read_block(file, footer, 1))[0][1])))
    if properties.get(b"rocksdb.block.based.table.index.type", b"\0")[0] == 2:
        blocks = [value for part in blocks for _, value in read_entries(read_block(file, part))]
    records = []
    for handle in blocks:
        for key, value in read_entries(read_block(file, handle)):
            records.append((key[:-8], *unframed(value)))
    return records


def unframed(value: bytes) -> tuple[bytes, bytes]:
    """Identity and data of a value."""
    length, position = read_varint(value, 0)
    identity = value[position : position + length // 2]
    size, position = read_varint(value, position + length // 2)
    return identity, value[position : position + size // 2]


def _message(name: str, fields: Mapping[str, tuple[int, int]]) -> descriptor_pb2.DescriptorProto:
    descriptor = descriptor_pb2.DescriptorProto(name=name)
    for field_name, (number, kind) in fields.items():
        label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        added = descriptor.field.add(name=field_name, number=number, label=label)
        added.type = kind  # type: ignore[assignment]
        if kind == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
            added.type_name = ".recorded.Timestamp"
    return descriptor


def _entry_class() -> type[Message]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="recorded.proto", package="recorded", syntax="proto3")
    file.message_type.append(_message("Timestamp", {"seconds": (1, kinds.TYPE_INT64), "nanos": (2, kinds.TYPE_INT32)}))
    entry = {
        "address": (1, kinds.TYPE_BYTES),
        "last_modified": (2, kinds.TYPE_MESSAGE),
        "size": (3, kinds.TYPE_INT64),
        "e_tag": (4, kinds.TYPE_BYTES),
        "metadata": (5, kinds.TYPE_BYTES),
        "address_type": (6, kinds.TYPE_INT64),
        "content_type": (7, kinds.TYPE_BYTES),
    }
    file.message_type.append(_message("Entry", entry))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("recorded.Entry"))


Entry = _entry_class()
"""lakeFS's message for google.protobuf; texts are declared as bytes, because the reader checks only the texts it
returns.
"""

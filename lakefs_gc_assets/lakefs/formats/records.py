"""Compiled parsers of decompressed table blocks: entries, keys, block handles, and lakeFS's values with their protobuf.

An entry is: varint shared, varint unshared, varint value length, `unshared` bytes of key, value. Blocks end with the
offsets of their restart points (u32le each) and their number (u32le). Keys of data blocks end with eight bytes: kind
SET and sequence number 0 (RocksDB block-based table, format version 2).

Every function checks bounds before it reads: checksums of the input were verified, but may cover malformed data.
Functions return a fault of FAULTS (0 is none) and its position. They share this file because the compiler inlines them
into their callers (`compilation`).
"""

from typing import Any

import numpy.typing as npt
from numpy import uintp as at  # numba tests each signed index for being negative, but not unsigned ones

from lakefs_gc_assets.lakefs.formats.compilation import compiled, inlined

Array = npt.NDArray[Any]

FAULTS: dict[int, tuple[str, str]] = {
    1: ("restart points", "the number of restart points does not fit the block"),
    2: ("restart points", "restart points are not where entries begin"),
    3: ("block entry", "an entry runs out of its block"),
    4: ("number of entries", "there are more entries than the table says"),
    5: ("key trailer", "a key is not a plain SET with sequence number 0"),
    6: ("key order", "a key is not greater than the one before"),
    7: ("block handle", "an index entry holds no handle of a block inside the file"),
    8: ("value", "identity or data run out of their value"),
    9: ("protobuf", "a field is malformed or runs out of its message"),
    10: ("protobuf", "a field has the wrong wire type"),
    11: ("protobuf", "a number is out of the range it can have"),
    12: ("range id", "an identity is not 64 lower-case hexadecimal digits"),
    13: ("range bounds", "the greatest key of a range is not the record's key, or is less than its least key"),
    14: ("commit id", "the id in a commit is not the record's key"),
    15: ("metarange id", "a commit names a metarange that is not 64 lower-case hexadecimal digits"),
}

SHARED, KEY_START, KEY_END, VALUE_END = 0, 1, 2, 3
"""Columns of an entry: bytes shared with the previous key, then positions in the buffer."""
IDENTITY_START, IDENTITY_END, DATA_START, DATA_END = 0, 1, 2, 3
"""Columns of a value: positions in the buffer."""

TRAILER = 8

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
RANGE_ID_DIGITS = 64


@inlined
def read_varint(buffer: Array, position: int, end: int) -> tuple[int, int]:
    """The 64 bits of an unsigned varint as a signed number, and the position after it; -1 if it is malformed."""
    value = 0
    shift = 0
    while position < end and shift < 70:
        byte = buffer[at(position)] & 0xFF
        position += 1
        if shift == 63 and byte > 1:
            return 0, -1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, -1


@compiled
def _u32(buffer: Array, position: int) -> int:
    """Four bytes, little-endian; the caller has checked the bounds."""
    low = (buffer[at(position)] & 0xFF) | (buffer[at(position + 1)] & 0xFF) << 8
    return low | (buffer[at(position + 2)] & 0xFF) << 16 | (buffer[at(position + 3)] & 0xFF) << 24  # type: ignore[no-any-return]


@compiled
def walk_blocks(buffer: Array, bounds: Array, entries: Array) -> tuple[int, int, int]:
    """Fills `entries` (SHARED, KEY_START, KEY_END, VALUE_END) from all blocks; returns fault, block, number of entries.

    Restart points must be at starts of entries that share no bytes, the first at the start of the block.
    """
    count = 0
    for block in range(len(bounds) - 1):
        start = bounds[block]
        stop = bounds[block + 1]
        if stop - start < 8:
            return 1, block, count
        restarts = _u32(buffer, stop - 4)
        if restarts == 0 or 4 * restarts + 4 > stop - start:
            return 1, block, count
        end = stop - 4 - 4 * restarts
        restart_at = end
        restart = start + _u32(buffer, restart_at)
        if restart != start or (start == end and restarts > 1):
            return 2, block, count
        position = start
        key_length = 0
        while position < end:
            here = position
            shared, position = read_varint(buffer, position, end)
            if position < 0:
                return 3, block, count
            unshared, position = read_varint(buffer, position, end)
            if position < 0:
                return 3, block, count
            value_length, position = read_varint(buffer, position, end)
            if position < 0 or shared < 0 or shared > key_length or unshared < 0:
                return 3, block, count
            if value_length < 0 or value_length > end - position - unshared:
                return 3, block, count
            if here >= restart:
                if here > restart or shared > 0:
                    return 2, block, count
                restart_at += 4
                restart = start + _u32(buffer, restart_at) if restart_at < stop - 4 else stop
            if count >= len(entries):
                return 4, block, count
            key_length = shared + unshared
            entries[count, SHARED] = shared
            entries[count, KEY_START] = position
            entries[count, KEY_END] = position + unshared
            position += unshared + value_length
            entries[count, VALUE_END] = position
            count += 1
        if start < end and restart_at != stop - 4:
            return 2, block, count
    return 0, 0, count


@compiled
def read_handles(buffer: Array, entries: Array, limit: int, handles: Array) -> tuple[int, int]:
    """Fills `handles` (offset, size) from the values of index entries; blocks must end before `limit`.

    Separator keys are not checked, because the keys of the blocks themselves are.
    """
    for index in range(len(entries)):
        end = entries[index, VALUE_END]
        offset, position = read_varint(buffer, entries[index, KEY_END], end)
        if position < 0:
            return 7, index
        size, position = read_varint(buffer, position, end)
        if position != end or offset < 0 or size < 0 or offset > limit or size > limit - offset:
            return 7, index
        handles[index, 0] = offset
        handles[index, 1] = size
    return 0, 0


@compiled
def check_keys(buffer: Array, entries: Array, previous: Array) -> tuple[int, int, int, int]:
    """Checks trailers and strict order; returns fault, entry, length of the last key, length of all keys (no trailers).

    `previous` must have room for the longest block; on return it holds the last key.
    """
    previous_length = -1
    total = 0
    for index in range(len(entries)):
        shared = entries[index, SHARED]
        key_start = entries[index, KEY_START]
        key_length = shared + entries[index, KEY_END] - key_start
        if key_length < TRAILER or key_length > len(previous):
            return 5, index, 0, 0
        length = key_length - TRAILER
        if index > 0:
            position = min(shared, previous_length, length)
            common = min(previous_length, length)
            while position < common and previous[at(position)] == buffer[at(key_start + position - shared)]:
                position += 1
            if position == common:
                if length <= previous_length:
                    return 6, index, 0, 0
            elif buffer[at(key_start + position - shared)] < previous[at(position)]:
                return 6, index, 0, 0
        for position in range(shared, key_length):
            previous[at(position)] = buffer[at(key_start + position - shared)]
        if previous[at(length)] != 1:
            return 5, index, 0, 0
        for position in range(length + 1, key_length):
            if previous[at(position)] != 0:
                return 5, index, 0, 0
        previous_length = length
        total += length
    return 0, 0, max(previous_length, 0), total


@compiled
def gather_keys(buffer: Array, entries: Array, previous: Array, offsets: Array, keys: Array) -> None:
    """Concatenates all keys without trailers; only for entries that `check_keys` has accepted."""
    written = 0
    for index in range(len(entries)):
        shared = entries[index, SHARED]
        key_start = entries[index, KEY_START]
        key_length = shared + entries[index, KEY_END] - key_start
        for position in range(shared, key_length):
            previous[at(position)] = buffer[at(key_start + position - shared)]
        for position in range(key_length - TRAILER):
            keys[at(written + position)] = previous[at(position)]
        written += key_length - TRAILER
        offsets[index + 1] = written


@inlined
def _framed(buffer: Array, position: int, end: int) -> tuple[int, int]:
    """Start and end of bytes that follow their length, a zigzag varint; -1 if they run past `end`."""
    length, position = read_varint(buffer, position, end)
    if position < 0 or length & 1 or length < 0 or length >> 1 > end - position:
        return -1, -1
    return position, position + (length >> 1)


@compiled
def unframe_values(buffer: Array, entries: Array, values: Array) -> tuple[int, int]:
    """Fills `values` (IDENTITY_START, IDENTITY_END, DATA_START, DATA_END); bytes after the data are ignored.

    lakeFS frames a value as identity and data, each after its length as Go's signed varint. The data is the message
    `Entry` in a range, `RangeData` in a metarange, `CommitData` in a table of commits (lakeFS
    `pkg/catalog/catalog.proto`, `pkg/graveler/committed/committed.proto`, `pkg/graveler/graveler.proto`).
    """
    for index in range(len(entries)):
        end = entries[index, VALUE_END]
        start, stop = _framed(buffer, entries[index, KEY_END], end)
        if start < 0:
            return 8, index
        values[index, IDENTITY_START] = start
        values[index, IDENTITY_END] = stop
        start, stop = _framed(buffer, stop, end)
        if start < 0:
            return 8, index
        values[index, DATA_START] = start
        values[index, DATA_END] = stop
    return 0, 0


@compiled
def gather_bytes(buffer: Array, spans: Array, offsets: Array, target: Array) -> None:
    """Copies `buffer[spans[i, 0]:spans[i, 1]]` to `target[offsets[i]:]` for every i."""
    for index in range(len(spans)):
        start = spans[index, 0]
        written = offsets[index]
        for position in range(spans[index, 1] - start):
            target[at(written + position)] = buffer[at(start + position)]


@compiled
def field_end(tag: int, value: int, start: int, end: int) -> int:
    """The end of a protobuf field whose content starts at `start`; -1 if tag or length are malformed or run past `end`.

    In proto3, absent fields are zero, the last value of a repeated scalar counts, and unknown fields are skipped. A
    known field with another wire type is a fault, as are groups, which lakeFS never writes.

    `value` is the varint after the tag, if the wire type has one. The arguments are only numbers: passing arrays for
    every field would count references to them, which takes four times as long.
    """
    if start < 0 or tag < 8 or tag > 0xFFFF_FFFF:
        return -1
    wire = tag & 7
    if wire == VARINT:
        return start
    length = -1
    if wire == LENGTH:
        length = value
    elif wire == FIXED64:
        length = 8
    elif wire == FIXED32:
        length = 4
    if length < 0 or length > end - start:
        return -1
    return start + length


@compiled
def _moment(buffer: Array, position: int, end: int, seconds: int, nanos: int) -> tuple[int, int, int]:
    """A fault, and `seconds` and `nanos` of a Timestamp; absent fields keep the given values."""
    while position < end:
        tag, start = read_varint(buffer, position, end)
        value = 0
        if start > 0 and (tag & 7 == VARINT or tag & 7 == LENGTH):
            value, start = read_varint(buffer, start, end)
        position = field_end(tag, value, start, end)
        if position < 0:
            return 9, 0, 0
        if tag >> 3 <= 2 and tag & 7 != VARINT:
            return 10, 0, 0
        if tag >> 3 == 1:
            seconds = value
        elif tag >> 3 == 2:
            nanos = value
    return 0, seconds, nanos


@compiled
def decode_entries(
    buffer: Array, values: Array, spans: Array, types: Array, sizes: Array, modified: Array
) -> tuple[int, int]:
    """Fills, for each Entry, spans of address and ETag, address type, size, and seconds of last_modified.

    The shape of `spans` is (2, entries, 2). A size below zero and an address type above 255 are faults.
    """
    for index in range(len(values)):
        position = values[index, DATA_START]
        end = values[index, DATA_END]
        address_start, address_end, etag_start, etag_end = end, end, end, end
        size, address_type, seconds, nanos = 0, 0, 0, 0
        while position < end:
            tag, start = read_varint(buffer, position, end)
            value = 0
            if start > 0 and (tag & 7 == VARINT or tag & 7 == LENGTH):
                value, start = read_varint(buffer, start, end)
            position = field_end(tag, value, start, end)
            if position < 0:
                return 9, index
            number = tag >> 3
            if number > 7:
                continue
            if tag & 7 != (VARINT if number == 3 or number == 6 else LENGTH):
                return 10, index
            if number == 1:
                address_start, address_end = start, position
            elif number == 2:
                fault, seconds, nanos = _moment(buffer, start, position, seconds, nanos)
                if fault:
                    return fault, index
            elif number == 3:
                size = value
            elif number == 4:
                etag_start, etag_end = start, position
            elif number == 6:
                address_type = value
        if size < 0 or address_type < 0 or address_type > 255:
            return 11, index
        spans[0, index, 0] = address_start
        spans[0, index, 1] = address_end
        spans[1, index, 0] = etag_start
        spans[1, index, 1] = etag_end
        types[index] = address_type
        sizes[index] = size
        modified[index] = seconds
    return 0, 0


@compiled
def _compare(left: Array, left_start: int, left_end: int, right: Array, right_start: int, right_end: int) -> int:
    """Negative, zero or positive if the left bytes sort before, equal or after the right ones."""
    left_length = left_end - left_start
    right_length = right_end - right_start
    for position in range(min(left_length, right_length)):
        difference = (left[at(left_start + position)] & 0xFF) - (right[at(right_start + position)] & 0xFF)
        if difference:
            return difference  # type: ignore[no-any-return]
    return left_length - right_length


@compiled
def _is_range_id(buffer: Array, start: int, end: int) -> bool:
    if end - start != RANGE_ID_DIGITS:
        return False
    for position in range(start, end):
        byte = buffer[at(position)]
        if not (48 <= byte <= 57 or 97 <= byte <= 102):
            return False
    return True


@compiled
def decode_range_data(
    buffer: Array, values: Array, keys: Array, key_offsets: Array, least: Array, numbers: Array
) -> tuple[int, int]:
    """Fills the span of the least key, the number of entries and the estimated size of each RangeData.

    The shape of `numbers` is (2, records). The greatest key must be the record's key and not less than the least key.
    The identity must be a range id.
    """
    for index in range(len(values)):
        if not _is_range_id(buffer, values[index, IDENTITY_START], values[index, IDENTITY_END]):
            return 12, index
        position = values[index, DATA_START]
        end = values[index, DATA_END]
        least_start, least_end, greatest_start, greatest_end = end, end, end, end
        size, count = 0, 0
        while position < end:
            tag, start = read_varint(buffer, position, end)
            value = 0
            if start > 0 and (tag & 7 == VARINT or tag & 7 == LENGTH):
                value, start = read_varint(buffer, start, end)
            position = field_end(tag, value, start, end)
            if position < 0:
                return 9, index
            number = tag >> 3
            if number > 4:
                continue
            if tag & 7 != (LENGTH if number < 3 else VARINT):
                return 10, index
            if number == 1:
                least_start, least_end = start, position
            elif number == 2:
                greatest_start, greatest_end = start, position
            elif number == 3:
                size = value
            else:
                count = value
        if size < 0 or count < 0:
            return 11, index
        if _compare(keys, key_offsets[index], key_offsets[index + 1], buffer, greatest_start, greatest_end) != 0:
            return 13, index
        if _compare(buffer, least_start, least_end, buffer, greatest_start, greatest_end) > 0:
            return 13, index
        least[index, 0] = least_start
        least[index, 1] = least_end
        numbers[0, index] = count
        numbers[1, index] = size
    return 0, 0


@compiled
def decode_commits(
    buffer: Array, values: Array, keys: tuple[Array, Array], fields: Array, parent_offsets: Array, parents: Array
) -> tuple[int, int, int]:
    """Fills the fields of each CommitData; returns fault, record and total number of parents.

    `fields` has the shape (commits, 5): start and end of the metarange id, seconds, nanos, version. `keys` are the
    offsets and bytes of the records' keys.

    The parents of commit `i` are the spans from `parent_offsets[i]` to `parent_offsets[i + 1]`. If `parents` is too
    short, the rest is only counted.
    """
    key_offsets, key_bytes = keys
    parent_count = 0
    parent_offsets[0] = 0
    for index in range(len(values)):
        position = values[index, DATA_START]
        end = values[index, DATA_END]
        id_start, id_end, metarange_start, metarange_end = end, end, end, end
        seconds, nanos, version = 0, 0, 0
        while position < end:
            tag, start = read_varint(buffer, position, end)
            value = 0
            if start > 0 and (tag & 7 == VARINT or tag & 7 == LENGTH):
                value, start = read_varint(buffer, start, end)
            position = field_end(tag, value, start, end)
            if position < 0:
                return 9, index, parent_count
            number = tag >> 3
            if number > 9:
                continue
            if tag & 7 != (VARINT if number >= 8 else LENGTH):
                return 10, index, parent_count
            if number == 1:
                id_start, id_end = start, position
            elif number == 4:
                fault, seconds, nanos = _moment(buffer, start, position, seconds, nanos)
                if fault:
                    return fault, index, parent_count
            elif number == 5:
                metarange_start, metarange_end = start, position
            elif number == 7:
                if parent_count < len(parents):
                    parents[parent_count, 0] = start
                    parents[parent_count, 1] = position
                parent_count += 1
            elif number == 8:
                version = value
        if _compare(key_bytes, key_offsets[index], key_offsets[index + 1], buffer, id_start, id_end) != 0:
            return 14, index, parent_count
        if metarange_start < metarange_end and not _is_range_id(buffer, metarange_start, metarange_end):
            return 15, index, parent_count
        fields[index, 0] = metarange_start
        fields[index, 1] = metarange_end
        fields[index, 2] = seconds
        fields[index, 3] = nanos
        fields[index, 4] = version
        parent_offsets[index + 1] = parent_count
    return 0, 0, parent_count

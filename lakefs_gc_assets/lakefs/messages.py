"""Compiled protobuf of lakeFS's records: `Entry` of a range, `RangeData` of a metarange.

Field numbers are those of lakeFS's `pkg/catalog/catalog.proto` and `pkg/graveler/committed/committed.proto`. As in any
proto3 reader, absent fields are zero, the last of a repeated scalar counts and unknown fields are passed over; a known
field with another wire type is a fault, as are groups, which lakeFS never writes. Faults are those of `records.FAULTS`.
"""

from numpy import uintp as at

from lakefs_gc_assets.lakefs.compilation import compiled
from lakefs_gc_assets.lakefs.records import (
    DATA_END,
    DATA_START,
    IDENTITY_END,
    IDENTITY_START,
    Array,
    read_varint,
)

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
RANGE_ID_DIGITS = 64


@compiled
def field_end(tag: int, value: int, start: int, end: int) -> int:
    """Where a field ends whose content starts at `start`; -1 where tag or length are malformed or run past `end`.

    `value` is the varint after the tag, if the wire type has one. Only numbers pass this call: a compiled function that
    hands its arrays on for every field counts references to them, and takes four times as long.
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
def _seconds(buffer: Array, position: int, end: int, seconds: int) -> tuple[int, int]:
    """A fault, and `seconds` of a Timestamp; as given where the message has none."""
    while position < end:
        tag, start = read_varint(buffer, position, end)
        value = 0
        if start > 0 and (tag & 7 == VARINT or tag & 7 == LENGTH):
            value, start = read_varint(buffer, start, end)
        position = field_end(tag, value, start, end)
        if position < 0:
            return 9, 0
        if tag >> 3 <= 2 and tag & 7 != VARINT:
            return 10, 0
        if tag >> 3 == 1:
            seconds = value
    return 0, seconds


@compiled
def decode_entries(
    buffer: Array, values: Array, addresses: Array, etags: Array, types: Array, sizes: Array, modified: Array
) -> tuple[int, int]:
    """Fills, for each Entry, spans of address and ETag, address type, size, and seconds of last_modified.

    A size below zero and an address type above 255 are faults.
    """
    for index in range(len(values)):
        position = values[index, DATA_START]
        end = values[index, DATA_END]
        address_start, address_end, etag_start, etag_end = end, end, end, end
        size, address_type, seconds = 0, 0, 0
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
                fault, seconds = _seconds(buffer, start, position, seconds)
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
        addresses[index, 0] = address_start
        addresses[index, 1] = address_end
        etags[index, 0] = etag_start
        etags[index, 1] = etag_end
        types[index] = address_type
        sizes[index] = size
        modified[index] = seconds
    return 0, 0


@compiled
def _compare(left: Array, left_start: int, left_end: int, right: Array, right_start: int, right_end: int) -> int:
    """Less than, equal to or greater than zero, as the left bytes sort before, like or after the right ones."""
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
    buffer: Array, values: Array, keys: Array, key_offsets: Array, least: Array, counts: Array, sizes: Array
) -> tuple[int, int]:
    """Fills, for each RangeData, the span of its least key, its number of entries and estimated size.

    The greatest key must be the record's key and not less than the least one; the identity must be a range id.
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
        counts[index] = count
        sizes[index] = size
    return 0, 0

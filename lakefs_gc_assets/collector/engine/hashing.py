"""Sets of addresses as hashes in plain arrays, which tasks compare frames with at the speed of memory.

Hashes are xxHash64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), equal to Spark's function of that
name for the same strings. A function that compares only 64 bits takes addresses with the same hash for equal.
"""

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakefs_gc_assets.lakefs.formats.compilation import compiled

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
_Array = npt.NDArray[Any]
_Strings = tuple[_Array, _Array]
"""Bytes of strings, and the offsets at which they start; the last offset is the end of the last string."""
Values = TypeVar("Values", bound=npt.NDArray[Any])

SEED = 42
"""Seed of Spark's function."""
OTHER_SEED = 1
"""Seed of 64 further bits, where 64 are not enough to distinguish addresses."""

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
_SLOTS_FOR_EACH = 2
"""Minimum slots for each hash in a table of hashes, so that a search ends after few steps."""


def hashes(addresses: pa.StringArray, seed: int = SEED) -> Hashes:
    """The 64-bit hashes of addresses. Raises ValueError if one is null."""
    if addresses.null_count:
        raise ValueError("an address is null")
    values = np.empty(len(addresses), np.uint64)
    if len(addresses):
        data, bounds = _bytes_and_bounds(addresses)
        _hash_each(data, bounds, np.uint64(seed), values)
    return values


def parts(hashed: Hashes, count: int) -> npt.NDArray[np.int64]:
    """Number of the part that each hash belongs to, by its upper bits, which a table of hashes does not use."""
    return ((hashed >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def among(wanted: Hashes, others: Hashes) -> Flags:
    """True for each hash that is among the others; for a set that is used once."""
    size = _slots(len(others))
    flags = np.empty(len(wanted), np.bool_)
    _find(np.empty(size, np.uint64), np.zeros(size, np.bool_), others, wanted, flags)
    return flags


def first_of_each(addresses: pa.StringArray, hashed: Hashes) -> Flags:
    """True for each address that has no equal before it, compared as strings.

    Args:
        hashed: their hashes.
    """
    flags = np.zeros(len(addresses), np.bool_)
    if len(addresses):
        data, bounds = _bytes_and_bounds(addresses)
        _find_first(data, bounds, hashed, np.zeros(_slots(len(hashed)), np.int64), flags)
    return flags


@dataclass(frozen=True)
class HashSet:
    """A set of hashes that serves several lookups or tasks, in some ten bytes for each hash.

    Attributes:
        ordered: distinct hashes in ascending order.
        starts: for each span of hashes, the place in `ordered` of its first hash; then the end of the last span. Spans
            have the same width, and the first one begins with the first hash.
        shift: the binary logarithm of the width of a span.
    """

    ordered: Hashes
    starts: npt.NDArray[np.int32]
    shift: np.uint64

    @classmethod
    def from_hashes(cls, hashed: Hashes) -> "HashSet":
        """The set of the given hashes, which may repeat."""
        ordered = distinct(hashed)
        if not len(ordered):
            return cls(ordered, np.zeros(1, np.int32), np.uint64(0))
        width = int(ordered[-1] - ordered[0])
        # On average, each span has one to four hashes.
        shift = np.uint64(max(0, width.bit_length() - len(ordered).bit_length() + 1))
        starts = np.empty((width >> int(shift)) + 2, np.int32)
        _find_starts(ordered, shift, starts)
        return cls(ordered, starts, shift)

    def has(self, hashed: Hashes) -> Flags:
        """True for each hash that is in the set."""
        has: Flags = self._places(hashed) >= 0
        return has

    def mark(self, hashed: Hashes, met: Flags) -> None:
        """Flags the set's hashes that are among the given ones.

        Args:
            met: true for each hash found so far, in the order of `ordered`; this call sets more flags.
        """
        places = self._places(hashed)
        met[places[places >= 0]] = True

    def _places(self, hashed: Hashes) -> npt.NDArray[np.int32]:
        """Places of the given hashes in `ordered`; -1 for a hash that is not in the set."""
        places = np.full(len(hashed), -1, np.int32)
        if len(self.ordered):
            _find_in_spans(self.ordered, self.starts, self.shift, hashed, places)
        return places


def has_hash_among(others: HashSet, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row whose address has a hash among the others."""
    return pa.array(others.has(hashes(rows.column("address"))))


def count_by_sets(one: Hashes, other: Hashes, bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Number of addresses by the sets that hold them: the index in the result is the union of an address's bits.

    Args:
        one: 64 bits for each address.
        other: 64 further bits for each address.
        bits: for each address, the bit of the set that it comes from.
    """
    size = _slots(len(one))
    counts = np.zeros(256, np.int64)
    _count(one, other, bits, np.empty((size, 2), np.uint64), np.zeros(size, np.uint8), counts)
    return counts


def _slots(count: int) -> int:
    return 1 << max(4, (_SLOTS_FOR_EACH * count - 1).bit_length())


def _bytes_and_bounds(addresses: pa.StringArray) -> _Strings:
    """The bytes of strings and the offsets of their bounds, without a copy for strings of the usual type."""
    # Spark can be set to hand over `large_string`, whose offsets are wider: read as int32 they would give wrong hashes.
    addresses = addresses.cast(pa.string())
    _, bounds, data = addresses.buffers()
    offsets = np.frombuffer(bounds, np.int32)[addresses.offset : addresses.offset + len(addresses) + 1]
    return np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), offsets


@compiled
def _turned(value: np.uint64, by: np.uint64) -> np.uint64:
    return (value << by) | (value >> (np.uint64(64) - by))


@compiled
def _eight(data: _Array, at: Any) -> np.uint64:
    """Eight bytes as a number, little-endian."""
    value = np.uint64(0)
    for place in range(8):
        value |= np.uint64(data[np.uintp(at + place)]) << np.uint64(8 * place)
    return value


@compiled
def _round(so_far: np.uint64, value: np.uint64) -> np.uint64:
    return _turned(so_far + value * _PRIME_2, np.uint64(31)) * _PRIME_1


@compiled
def _merged(so_far: np.uint64, lane: np.uint64) -> np.uint64:
    return (so_far ^ _round(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4


@compiled
def _hash_each(data: _Array, bounds: _Array, seed: np.uint64, found: _Array) -> None:
    for row in range(len(found)):
        at = np.int64(bounds[row])
        end = np.int64(bounds[row + 1])
        length = np.uint64(end - at)
        if end - at >= 32:
            one = seed + _PRIME_1 + _PRIME_2
            two = seed + _PRIME_2
            three = seed
            four = seed - _PRIME_1
            while at + 32 <= end:
                one = _round(one, _eight(data, at))
                two = _round(two, _eight(data, at + 8))
                three = _round(three, _eight(data, at + 16))
                four = _round(four, _eight(data, at + 24))
                at += 32
            value = _turned(one, np.uint64(1)) + _turned(two, np.uint64(7))
            value += _turned(three, np.uint64(12)) + _turned(four, np.uint64(18))
            value = _merged(_merged(_merged(_merged(value, one), two), three), four)
        else:
            value = seed + _PRIME_5
        value += length
        while at + 8 <= end:
            value ^= _round(np.uint64(0), _eight(data, at))
            value = _turned(value, np.uint64(27)) * _PRIME_1 + _PRIME_4
            at += 8
        if at + 4 <= end:
            four_bytes = np.uint64(0)
            for place in range(4):
                four_bytes |= np.uint64(data[np.uintp(at + place)]) << np.uint64(8 * place)
            value ^= four_bytes * _PRIME_1
            value = _turned(value, np.uint64(23)) * _PRIME_2 + _PRIME_3
            at += 4
        while at < end:
            value ^= np.uint64(data[np.uintp(at)]) * _PRIME_5
            value = _turned(value, np.uint64(11)) * _PRIME_1
            at += 1
        value ^= value >> np.uint64(33)
        value *= _PRIME_2
        value ^= value >> np.uint64(29)
        value *= _PRIME_3
        value ^= value >> np.uint64(32)
        found[row] = value


@compiled
def _find(slots: _Array, taken: _Array, others: _Array, wanted: _Array, found: _Array) -> None:
    last = np.uint64(len(slots) - 1)
    for value in others:
        slot = value & last
        while taken[slot] and slots[slot] != value:
            slot = (slot + np.uint64(1)) & last
        slots[slot] = value
        taken[slot] = True
    for row in range(len(wanted)):
        value = wanted[row]
        slot = value & last
        while taken[slot] and slots[slot] != value:
            slot = (slot + np.uint64(1)) & last
        found[row] = taken[slot]


@compiled
def _find_starts(ordered: _Array, shift: np.uint64, starts: _Array) -> None:
    span = 0
    for place in range(len(ordered)):
        while span <= np.int64((ordered[place] - ordered[0]) >> shift):
            starts[span] = place
            span += 1
    starts[span] = len(ordered)


@compiled
def _find_in_spans(ordered: _Array, starts: _Array, shift: np.uint64, wanted: _Array, places: _Array) -> None:
    first, last = ordered[0], ordered[-1]
    for row in range(len(wanted)):
        value = wanted[row]
        if value < first or value > last:
            continue
        span = np.int64((value - first) >> shift)
        place, end = starts[span], starts[span + 1]
        # Binary search: even if a client chose names whose hashes all fall into one span, lookups stay fast.
        while end - place > 8:
            middle = (place + end) // 2
            if ordered[middle] > value:
                end = middle
            else:
                place = middle
        while place < end:
            if ordered[place] == value:
                places[row] = place
                break
            place += 1


@compiled
def _find_first(data: _Array, bounds: _Array, of: _Array, slots: _Array, found: _Array) -> None:
    """Each slot holds the row of an address, counted from 1; 0 is free."""
    last = np.uint64(len(slots) - 1)
    for row in range(len(of)):
        slot = of[row] & last
        while True:
            other = slots[slot] - 1
            if other < 0:
                slots[slot] = row + 1
                found[row] = True
                break
            if of[other] == of[row] and _equal(data, bounds, row, other):
                break
            slot = (slot + np.uint64(1)) & last


@compiled
def _equal(data: _Array, bounds: _Array, row: int, other: int) -> bool:
    start = np.int64(bounds[row])
    length = np.int64(bounds[row + 1]) - start
    begin = np.int64(bounds[other])
    if np.int64(bounds[other + 1]) - begin != length:
        return False
    for place in range(length):  # noqa: SIM110 numba compiles no generators
        if data[np.uintp(start + place)] != data[np.uintp(begin + place)]:
            return False
    return True


@compiled
def _count(one: _Array, other: _Array, bits: _Array, seen: _Array, sets: _Array, counts: _Array) -> None:
    """Counts addresses by sets. A slot is free if its set is empty."""
    last = np.uint64(len(sets) - 1)
    for row in range(len(one)):
        slot = one[row] & last
        while sets[slot] and (seen[slot, 0] != one[row] or seen[slot, 1] != other[row]):
            slot = (slot + np.uint64(1)) & last
        seen[slot, 0] = one[row]
        seen[slot, 1] = other[row]
        sets[slot] |= bits[row]
    for found in sets:
        if found:
            counts[found] += 1


def distinct(values: Values) -> Values:
    """Distinct values in ascending order.

    `np.unique` puts integers into a table of hashes, which takes 6 ms for 50,000 sizes and 9 s for 8 million hashes.
    Sorting takes 0.3 ms and 0.1 s.
    """
    if bool(np.all(values[:-1] < values[1:])):
        return values
    ordered = np.sort(values)
    is_first: npt.NDArray[np.bool_] = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    return cast(Values, ordered[is_first])

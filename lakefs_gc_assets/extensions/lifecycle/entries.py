"""Entries of ranges with their times, and the partitions that their paths are in."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.extensions.lifecycle.rules import as_flags
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.ranges import RangeEntries, RangeRecord
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

Integers = npt.NDArray[np.int64]
UNKNOWN = np.iinfo(np.int64).min
"""Replaces a time that no entry states, and the order of a partition whose value is no date or number."""
_READ_AT_ONCE = 4
_MOST_CACHED = 3_000_000
"""Maximum entries that stay in memory for a second use: about 500 MB."""


@dataclass
class EntryReader:
    """Reads the entries of ranges; keeps some for a second use."""

    store: ObjectStore
    _cached: dict[str, RangeEntries] = field(default_factory=dict)
    _entries: int = 0

    def read(self, record: RangeRecord) -> RangeEntries | CorruptFile:
        """The entries of a range with their paths, or its damage. Raises StorageError."""
        if record.id in self._cached:
            return self._cached[record.id]
        key = METADATA_PREFIX + record.id
        try:
            entries = ranges.read_range(fetch(self.store, key), key, expected=record, columns=["keys"])
        except CorruptFile as damage:
            return damage
        # Several threads read; the limit may be exceeded by the ranges that they hold.
        if self._entries < _MOST_CACHED:
            self._entries += len(entries)
            self._cached[record.id] = entries
        return entries

    def read_all(self, records: Iterable[RangeRecord]) -> Iterator[RangeEntries | CorruptFile]:
        """Yields the entries of each range, or its damage. Raises StorageError."""
        return work_ahead(self.read, records, _READ_AT_ONCE)


def inside(addresses: pa.StringArray, namespace: Namespace) -> pa.StringArray:
    """Addresses relative to the storage namespace; null for those outside, and for unusual spellings."""
    relative = pc.if_else(
        pc.starts_with(addresses, namespace.uri),
        pc.utf8_slice_codeunits(addresses, len(namespace.uri)),
        addresses,
    )
    return pc.if_else(pc.match_substring(relative, "://"), pa.scalar(None, pa.string()), relative)


def known_times(entries: RangeEntries, namespace: Namespace) -> Integers:
    """The later of each entry's own time and the time at which its address was issued, in seconds since 1970.

    A client may state any time, but lakeFS issues the addresses. UNKNOWN for an entry without a time of its own.
    """
    times: Integers = entries.last_modified.to_numpy().copy()
    unknown = times <= 0
    relative = inside(entries.addresses, namespace)
    at = pc.indices_nonzero(pc.fill_null(pc.starts_with(relative, DATA_PREFIX), False))
    issued = layout.read_names(relative.take(at), "month").issued_at.cast(pa.int64())
    places = at.to_numpy().astype(np.int64)
    times[places] = np.maximum(times[places], pc.fill_null(issued, 0).to_numpy(zero_copy_only=False) // 1_000_000)
    times[unknown] = UNKNOWN
    return times


_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_MONTH = re.compile(r"(\d{4})-(\d\d)", re.ASCII)
_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T _-](\d\d)(?:[:-]?(\d\d)(?:[:-]?(\d\d))?)?)?Z?", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartitionValue:
    """The value of a partition.

    Attributes:
        form: 0 for numbers, 1 for months, 2 for days and times. Values of different forms cannot be compared.
        order: the number, or seconds since 1970.
    """

    form: int
    order: int

    @classmethod
    @lru_cache(maxsize=65_536)
    def parse(cls, text: bytes) -> "PartitionValue | None":
        """The value of a whole number, or of a date or time in ISO 8601, which may be percent-encoded; else None."""
        try:
            value = unquote(text.decode(), errors="strict")
            if _NUMBER.fullmatch(value):
                return cls(0, int(value))
            if match := _MONTH.fullmatch(value):
                return cls(1, _seconds(*map(int, match.groups()), 1))
            if match := _MOMENT.fullmatch(value):
                return cls(2, _seconds(*(int(part or 0) for part in match.groups())))
        except ValueError:
            pass
        return None


def _seconds(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp())  # type: ignore[arg-type, misc]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Entries by folder, in an order in which the newest come last.

    Attributes:
        folders: folder of each entry, with a slash at its end; of a partition's folder the one that has it.
        forms: as in PartitionValue; 0 for objects.
        orders: UNKNOWN for an entry that stays and does not count.
    """

    folders: pa.BinaryArray
    forms: Integers
    orders: Integers


def order_by_partition(paths: pa.BinaryArray, key: str, now: int) -> Ordered:
    """Orders entries by the value of their first folder with this key. `now`: seconds since 1970.

    Partitions of the future, such as 9999-12-31, do not count.
    """
    parts = pc.extract_regex(paths, rf"(?s)\A(?P<folder>(?:[^/]*/)*?){re.escape(key)}=(?P<value>[^/]*)/")
    values = parts.field("value").dictionary_encode()
    parsed = [PartitionValue.parse(value) for value in values.dictionary.to_pylist()]
    forms = np.array([0 if value is None else value.form for value in parsed], np.int64)
    orders = np.array(
        [UNKNOWN if value is None or (value.form and value.order > now) else value.order for value in parsed], np.int64
    )
    has_value = as_flags(parts.is_valid())
    codes = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
    nothing = np.zeros(len(paths), np.int64)
    return Ordered(
        pc.fill_null(parts.field("folder"), b""),
        np.where(has_value, forms[codes], 0) if len(parsed) else nothing,
        np.where(has_value, orders[codes], UNKNOWN) if len(parsed) else nothing + UNKNOWN,
    )


def order_by_time(paths: pa.BinaryArray, times: Integers, now: int) -> Ordered:
    """Orders entries of each folder by their times; unknown ones, and times in the future, do not count."""
    folders = pc.replace_substring_regex(paths, pattern=r"(?s)[^/]*\z", replacement="", max_replacements=1)
    return Ordered(folders, np.zeros(len(paths), np.int64), np.where(times > now, UNKNOWN, times))

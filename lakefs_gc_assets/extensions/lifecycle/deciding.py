"""Decides which entries of branch heads expire.

Heads share most of their ranges. So each range is read once for all of them, and its entries are assigned to rules.
Entries of rules by age are then decided, except that the history of a path takes the commits. Rules that count need the
newest partitions or objects of whole folders, which may span ranges. Of their entries, only the order is kept in
memory: ranges with entries that expire are then read a second time, unless they are still in memory.

Whatever is in doubt stays: entries without a time, paths that no request can name, and everything below a damaged file.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.live.live_files import LiveFiles, records_of
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention.active_commits import Graph
from lakefs_gc_assets.errors import CorruptFile, LogLine, counted
from lakefs_gc_assets.extensions.lifecycle.entries import (
    UNKNOWN,
    EntryReader,
    Integers,
    Ordered,
    known_times,
    order_by_partition,
    order_by_time,
)
from lakefs_gc_assets.extensions.lifecycle.history import PathHistory
from lakefs_gc_assets.extensions.lifecycle.listing import ENTRIES
from lakefs_gc_assets.extensions.lifecycle.rules import Flags, LifecycleRule, Rules, Unit, assign, may_match
from lakefs_gc_assets.lakefs.formats.ranges import RangeEntries, RangeRecord

MOST_ENTRIES = 5_000_000
"""Maximum entries that a listing has for each branch and rule: the first ones in order of paths. The next listing has
the others."""
MOST_FOLDERS = 20_000_000
"""Maximum partitions, or objects that may be among the newest of their folder, of a branch and rule."""
PLACED = pa.schema([*ENTRIES, pa.field("place", pa.int64(), nullable=False)])
"""Expired entries with the number of the range and of the entry in it, see `place_of`."""
_ORDERED = pa.schema([("folder", pa.binary()), ("form", pa.int64()), ("order", pa.int64())])
_SELECTED = pa.schema(
    [
        pa.field("path", pa.binary()),
        ENTRIES.field("address"),
        ENTRIES.field("size"),
        pa.field("modified", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("place", pa.int64()),
    ]
)
"""Entries of a rule in a range. `time` is the known time, in seconds since 1970."""


class Doubt(StrEnum):
    """Reasons for which single entries stay."""

    PATH = "their path is no text"
    TIME = "their time is unknown or in the future"
    PARTITION = "they are in no partition whose value is a number or a past date"


def place_of(number: int, rows: Integers) -> Integers:
    """The places of a range's entries, which no other range has."""
    return rows + (number << 32)


@dataclass
class _Part:
    """The entries of a range by number of the rule that decides about them.

    Attributes:
        rows: entries that expire by their age, or may do so by their history (PLACED).
        ordered: folders and orders of the newest entries, and of the oldest one (_ORDERED).
        doubts: number of entries that stay, by rule and reason.
    """

    rows: dict[int, pa.Table] = field(default_factory=dict)
    ordered: dict[int, pa.Table] = field(default_factory=dict)
    doubts: Counter[tuple[int, Doubt]] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Head:
    """Branches on one commit to which the same rules apply."""

    commit_id: str
    metarange_id: str
    rules: Rules


@dataclass
class ExpiredEntries:
    """Entries of a head that expire, by rule (PLACED), and reasons to keep others."""

    by_rule: dict[str, pa.Table] = field(default_factory=dict)
    kept: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class RangeNumbers:
    """Numbers of ranges; a range of several heads has one."""

    by_id: dict[str, int] = field(default_factory=dict)
    records: list[RangeRecord] = field(default_factory=list)

    def add(self, ranges: pa.Table) -> list[int]:
        """The numbers of ranges (RANGES)."""
        numbers = []
        for batch in ranges.to_batches():
            for range_id, record in zip(batch.column("id").to_pylist(), records_of(batch), strict=True):
                number = self.by_id.setdefault(range_id, len(self.records))
                if number == len(self.records):
                    self.records.append(record)
                numbers.append(number)
        return numbers


@dataclass
class Deciding:
    """Decides about heads at a moment.

    Attributes:
        now: UTC.
        graph: returns the commits, with the latest known dates.
    """

    repository: OpenRepository
    now: datetime
    graph: Callable[[], Graph]
    note: LogLine
    numbers: RangeNumbers = field(default_factory=RangeNumbers)
    ranges_of: dict[Head, list[int]] = field(default_factory=dict)
    _parts: dict[tuple[int, Rules], _Part] = field(default_factory=dict)
    _damaged: dict[int, CorruptFile] = field(default_factory=dict)
    _stored: Counter[tuple[Rules, int]] = field(default_factory=Counter)
    _counted: dict[tuple[int, Rules, int, bytes], pa.Table] = field(default_factory=dict)

    @cached_property
    def files(self) -> LiveFiles:
        """Reads metaranges."""
        return LiveFiles(self.repository.store, self.repository.namespace, self.repository.settings.slice_window)

    @cached_property
    def reader(self) -> EntryReader:
        """Reads ranges."""
        return EntryReader(self.repository.store)

    @cached_property
    def _seconds(self) -> int:
        return int(self.now.timestamp())

    @cached_property
    def _history(self) -> PathHistory:
        return PathHistory(self.files, self.reader, self.graph(), self.now, self.note)

    def decide(self, heads: Iterable[Head]) -> Mapping[Head, ExpiredEntries]:
        """The expired entries of each head.

        Raises:
            LakeFSError, StorageError: the server or the store fails.
        """
        expired: dict[Head, ExpiredEntries] = {}
        for head in heads:
            try:
                self.ranges_of[head] = self._matching_ranges(head)
            except CorruptFile as damage:
                expired[head] = _kept_whole(head, damage)
        self._read_parts()
        for head, numbers in self.ranges_of.items():
            unreadable = next((self._damaged[number] for number in numbers if number in self._damaged), None)
            expired[head] = self._decide_one(head, numbers) if unreadable is None else _kept_whole(head, unreadable)
        return expired

    def _matching_ranges(self, head: Head) -> list[int]:
        """Numbers of the head's ranges that may have a path of its rules, in order of paths."""
        if not head.metarange_id:
            return []
        ranges = self.files.metarange(head.metarange_id)
        bounds = zip(*(ranges.column(name).to_pylist() for name in ("min_key", "max_key")), strict=True)
        return self.numbers.add(ranges.filter(pa.array([may_match(head.rules, *each) for each in bounds], pa.bool_())))

    def _read_parts(self) -> None:
        rules_of: dict[int, dict[Rules, None]] = {}
        for head, numbers in self.ranges_of.items():
            for number in numbers:
                rules_of.setdefault(number, {})[head.rules] = None
        records = self.numbers.records
        ordered = sorted(rules_of, key=lambda number: (records[number].min_key, number))
        entries_in_all = sum(records[number].count for number in ordered)
        self.note(f"reading {counted(len(ordered), 'ranges')} of branch heads with {entries_in_all:,} entries")
        for number, entries in zip(ordered, self.reader.read_all(records[each] for each in ordered), strict=True):
            if isinstance(entries, CorruptFile):
                self._damaged[number] = entries
                continue
            for rules in rules_of[number]:
                self._parts[number, rules] = self._examine(number, entries, rules)

    def _examine(self, number: int, entries: RangeEntries, rules: Rules) -> _Part:
        part = _Part()
        for place, selected in self._select(number, entries, rules):
            rule = rules[place]
            text = _are_text(selected.column("path").combine_chunks())
            part.doubts[place, Doubt.PATH] = int((~text).sum())
            selected = selected.filter(pa.array(text))
            times = selected.column("time").to_numpy()
            if rule.keep_newest is not None:
                ordered = self._order(rule, selected)
                doubt = Doubt.PARTITION if rule.partition else Doubt.TIME
                part.doubts[place, doubt] = int((ordered.orders == UNKNOWN).sum())
                part.ordered[place] = _newest(ordered, rule.keep_newest, distinct=rule.of is Unit.PARTITIONS)
                continue
            assert rule.period is not None
            is_known = (times != UNKNOWN) & (times <= self._seconds)
            part.doubts[place, Doubt.TIME] = int((~is_known).sum())
            old = is_known & (times < self._seconds - int(rule.period.total_seconds()))
            # Ranges are read in order of paths, so a listing has the first entries.
            if self._stored[rules, place] <= MOST_ENTRIES:
                part.rows[place] = _as_placed(selected.filter(pa.array(old)))
            self._stored[rules, place] += int(old.sum())
        return part

    def _select(self, number: int, entries: RangeEntries, rules: Rules) -> Iterator[tuple[int, pa.Table]]:
        """Yields each rule that decides about entries of a range with these entries (_SELECTED)."""
        assert entries.keys is not None
        chosen = assign(rules, entries.keys)
        if not (chosen >= 0).any():
            return
        times = known_times(entries, self.repository.namespace)
        for place in np.unique(chosen[chosen >= 0]).tolist():
            rows = np.flatnonzero(chosen == place)
            at = pa.array(rows)
            columns = [entries.keys, entries.addresses, entries.sizes, entries.last_modified]
            selected = [*(column.take(at) for column in columns), times[rows], place_of(number, rows)]
            yield place, pa.table(selected, schema=_SELECTED)

    def _order(self, rule: LifecycleRule, selected: pa.Table) -> Ordered:
        paths = selected.column("path").combine_chunks()
        if rule.of is Unit.PARTITIONS:
            return order_by_partition(paths, rule.partition, self._seconds)
        return order_by_time(paths, selected.column("time").to_numpy(), self._seconds)

    def _decide_one(self, head: Head, numbers: Sequence[int]) -> ExpiredEntries:
        result = ExpiredEntries()
        parts = [(number, self._parts[number, head.rules]) for number in numbers]
        doubts = Counter[tuple[int, Doubt]]()
        for _, part in parts:
            doubts.update(part.doubts)
        for place, rule in enumerate(head.rules):
            kept = [f"{count:,} entries stay: {doubt}" for doubt in Doubt if (count := doubts[place, doubt])]
            try:
                if rule.keep_newest is None:
                    tables = [part.rows[place] for _, part in parts if place in part.rows]
                else:
                    tables = [*self._expired_by_count(head, place, parts, kept)]
                rows = pa.concat_tables([PLACED.empty_table(), *tables])
                if rule.unchanged_for and rows.num_rows:
                    rows = rows.filter(pa.array(self._history.are_older(head.commit_id, rows, rule.unchanged_for)))
                if rows.num_rows > MOST_ENTRIES or self._stored[head.rules, place] > MOST_ENTRIES:
                    rows = rows.slice(0, MOST_ENTRIES)
                    kept.append(f"a listing has at most {MOST_ENTRIES:,} entries: list again after these")
                if rows.num_rows:
                    result.by_rule[rule.name] = rows
            except CorruptFile as damage:
                kept.append(str(damage))
            result.kept[rule.name] = kept
        return result

    def _expired_by_count(
        self, head: Head, place: int, parts: Sequence[tuple[int, _Part]], kept: list[str]
    ) -> Iterator[pa.Table]:
        """Yields the entries (PLACED) that a rule that counts does not keep."""
        ordered = [(number, part.ordered[place]) for number, part in parts if place in part.ordered]
        if not ordered:
            return
        rule = head.rules[place]
        lengths = [table.num_rows for _, table in ordered]
        if sum(lengths) > MOST_FOLDERS:
            kept.append(f"there are more than {MOST_FOLDERS:,} partitions or objects to compare: name fewer paths")
            return
        rows = pa.concat_tables([table for _, table in ordered]).combine_chunks()
        folders = rows.column("folder").combine_chunks().dictionary_encode()
        codes = folders.indices.to_numpy().astype(np.int64)
        orders, forms = rows.column("order").to_numpy(), rows.column("form").to_numpy()
        limits = _limits(codes, orders, rule, len(folders.dictionary))
        is_mixed = np.zeros(len(limits), np.bool_)
        if len(codes):
            first_forms = np.empty(len(limits), np.int64)
            first_forms[codes] = forms
            is_mixed[codes[first_forms[codes] != forms]] = True
            limits[is_mixed] = UNKNOWN
        if is_mixed.any():
            kept.append(f"the partitions of {is_mixed.sum():,} folders stay: their values have different forms")
        for (number, _), end, length in zip(ordered, np.cumsum(lengths).tolist(), lengths, strict=True):
            own = codes[end - length : end]
            if (orders[end - length : end] < limits[own]).any():
                yield self._below_limits(head.rules, place, number, np.unique(own), folders.dictionary, limits)

    def _below_limits(
        self, rules: Rules, place: int, number: int, codes: Integers, folders: pa.BinaryArray, limits: Integers
    ) -> pa.Table:
        """The entries of a range (PLACED) whose order is below the limit of their folder."""
        names = folders.take(pa.array(codes))
        key = number, rules, place, b"".join((*names.to_pylist(), limits[codes].tobytes()))
        if key not in self._counted:
            entries = self.reader.read(self.numbers.records[number])
            if isinstance(entries, CorruptFile):
                raise entries
            (selected,) = (rows for of_rule, rows in self._select(number, entries, rules) if of_rule == place)
            selected = selected.filter(pa.array(_are_text(selected.column("path").combine_chunks())))
            ordered = self._order(rules[place], selected)
            at = pc.index_in(ordered.folders, value_set=names)
            limit = np.append(limits[codes], UNKNOWN)[pc.fill_null(at, len(codes)).to_numpy()]
            self._counted[key] = _as_placed(
                selected.filter(pa.array((ordered.orders != UNKNOWN) & (ordered.orders < limit)))
            )
        return self._counted[key]


def _kept_whole(head: Head, damage: CorruptFile) -> ExpiredEntries:
    return ExpiredEntries(kept={rule.name: [str(damage)] for rule in head.rules})


def _as_placed(selected: pa.Table) -> pa.Table:
    modified = pc.multiply(selected.column("modified"), 1_000_000).cast(ENTRIES.field("last_modified").type)
    columns = [selected.column("path").cast(pa.string()), *(selected.column(name) for name in ("address", "size"))]
    return pa.table([*columns, modified, selected.column("place")], schema=PLACED)


def _are_text(paths: pa.BinaryArray) -> Flags:
    try:
        paths.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_text(path) for path in paths.to_pylist()], np.bool_)
    return np.ones(len(paths), np.bool_)


def _is_text(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _newest(ordered: Ordered, count: int, *, distinct: bool) -> pa.Table:
    """The newest orders of each folder and its oldest one (_ORDERED); for partitions all values, each once."""
    counting = ordered.orders != UNKNOWN
    columns = [ordered.folders.filter(pa.array(counting)), ordered.forms[counting], ordered.orders[counting]]
    rows = pa.table(columns, schema=_ORDERED)
    if distinct:
        return rows.group_by(rows.column_names).aggregate([]).select(_ORDERED.names)
    codes = rows.column("folder").combine_chunks().dictionary_encode().indices.to_numpy()
    at, ranks = _ranked(codes, rows.column("order").to_numpy())
    is_last = np.append(ranks[1:] == 0, True)[: len(ranks)]
    return rows.take(pa.array(at[(ranks < count) | is_last]))


def _ranked(codes: Integers, orders: Integers) -> tuple[Integers, Integers]:
    """Rows by folder, newest first, and the rank of each in its folder, from 0."""
    at = np.lexsort((-orders, codes))
    in_order = codes[at]
    starts = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1])) if len(at) else np.empty(0, np.int64)
    return at, np.arange(len(at)) - np.repeat(starts, np.diff(np.append(starts, len(at))))


def _limits(codes: Integers, orders: Integers, rule: LifecycleRule, folders: int) -> Integers:
    """For each folder the order of the last entry that counts as one of the newest; UNKNOWN if there are too few."""
    assert rule.keep_newest is not None
    if rule.of is Unit.PARTITIONS:
        pairs = np.unique(np.stack([codes, orders]), axis=1)
        codes, orders = pairs[0], pairs[1]
    at, ranks = _ranked(codes, orders)
    last = at[ranks == rule.keep_newest - 1]
    limits = np.full(folders, UNKNOWN, np.int64)
    limits[codes[last]] = orders[last]
    return limits

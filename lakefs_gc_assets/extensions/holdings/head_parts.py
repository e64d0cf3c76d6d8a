"""Addresses of branch heads, read in parts: sums by the ranges that hold them, which stay true as long as ranges exist.

Logical paths are cut into intervals. The ranges of all heads that begin in one interval are a part. The id of a range
is a hash of its content, so the sums of a part depend on nothing but the ids of its ranges, and a day reads only parts
whose ranges changed. Branches come in later: a set of ranges that hold an address gives the set of branches.

An address may be in several parts, since a client can put one object at several paths. Such addresses are *spread*, and
are kept one by one. Only an address that is new in a part can become spread. So it is searched for in other parts
with an object in the same slice.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import HashSet
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import spread_by_weight
from lakefs_gc_assets.collector.live.live_files import FOLDER, HELD_ENTRIES, LiveFiles
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX, as_datetime, created_at, is_xid
from lakefs_gc_assets.storage.interface import read_ahead

_Numbers = npt.NDArray[np.int64]
_WORD = 64
ENTRIES_OF_PART = 200_000
"""Entries from which on a part ends at the next gap between ranges: all entries of a part are in memory at once."""
_WITHOUT_GAP = 8
"""A part without a gap has at most so many times these entries, unless its ranges begin at one path."""
NO_COMMIT = np.iinfo(np.int32).max
"""Place of a commit for addresses that no new commit brought."""
_ELSEWHERE = "elsewhere/"
_LEFT, _CAME, _STAYED, _SEARCHED = 2, 1, 0, -1
"""Values of `objects` in rows about single addresses."""


class RowKind(StrEnum):
    """Kind of a row that a task reads."""

    SUM = "sum"
    SLICE = "slice"
    UNCERTAIN = "uncertain"
    ADDRESS = "address"
    SPREAD = "spread"
    NEW = "new"
    HERE = "here"


ROWS = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("part", pa.string()),
        pa.field("address", pa.string()),
        pa.field("pattern", pa.binary()),
        pa.field("folder", pa.string()),
        pa.field("month", pa.int32()),
        pa.field("slice", pa.string()),
        pa.field("objects", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("commit", pa.int32()),
    ]
)
"""Rows that tasks read. `kind` says which columns apply.

- `sum`: objects and bytes by pattern, either by folder or by month and slice. A pattern has a bit for each range
  of the part, in order of ids, that holds the objects. An object in several folders counts in each.
- `slice`: a slice of the part (`address`); `objects` is 1 if an address in it was there before.
- `uncertain`: number of addresses that may mean several objects; they are in no sum.
- `address`, `spread`: one address and folder. In `address`, `objects` is 1 if the address is new in the part, 0 if it
  was there before, -1 if it was only searched for. It is 2, and the part null, if the address has left a part.
- `new`, `here`: an address that a new commit brought and no part had before, or one that some part had.

`month` counts from January 1970. `slice` is null for slices that the run may have listed. `commit` is
the place of the first new commit that has the address.
"""
SUMS = pa.schema([ROWS.field(name) for name in ("part", "pattern", "folder", "month", "slice", "objects", "bytes")])
SPREAD = pa.schema([ROWS.field(name) for name in ("part", "address", "pattern", "folder", "month", "bytes")])


@dataclass(frozen=True)
class HeadPart:
    """Ranges of heads that begin in one interval of paths.

    Attributes:
        interval: number of the interval.
        ranges: in order of ids.
    """

    interval: int
    ranges: tuple[RangeRecord, ...]

    @property
    def id(self) -> str:
        """Digest of the interval and the ranges."""
        ids = "\n".join(record.id for record in self.ranges)
        return f"{self.interval}-{hashlib.sha256(ids.encode()).hexdigest()[:32]}"

    @property
    def entries(self) -> int:
        """Number of entries in all ranges."""
        return sum(record.count for record in self.ranges)


def find_cuts(ranges: Iterable[RangeRecord], fixed: Set[bytes] = frozenset()) -> Iterator[bytes]:
    """First paths of intervals, in order, so that no part grows with the number of ranges.

    Old branches may have many ranges that the widest head no longer has, such as old partitions. At a gap, all earlier
    ranges have ended, so an object there moves to another interval only if its path changes.

    Args:
        ranges: distinct ranges of all heads, in the span of paths to be cut.
        fixed: first paths of ranges that begin an interval in any case.
    """
    entries, begin, end = 0, b"", b""
    for record in sorted(ranges, key=lambda each: each.min_key):
        is_full = entries >= ENTRIES_OF_PART * (1 if record.min_key > end else _WITHOUT_GAP)
        if record.min_key > begin and (record.min_key in fixed or is_full):
            yield record.min_key
            entries = 0
        entries += record.count
        begin, end = record.min_key, max(end, record.max_key)


def cut_into_parts(ranges: Iterable[RangeRecord], cuts: Sequence[bytes]) -> dict[str, HeadPart]:
    """The parts of heads by id.

    Args:
        ranges: distinct ranges of all heads.
        cuts: first paths of the intervals, in order; the first interval also has everything before it.
    """
    by_interval: dict[int, list[RangeRecord]] = {}
    for record in ranges:
        by_interval.setdefault(max(bisect_right(cuts, record.min_key) - 1, 0), []).append(record)
    parts = (
        HeadPart(interval, tuple(sorted(records, key=lambda record: record.id)))
        for interval, records in by_interval.items()
    )
    return {part.id: part for part in parts}


@dataclass(frozen=True)
class PartTask:
    """A part to read.

    Attributes:
        before: ranges of the interval that heads had before and no longer have.
        known: ids of ranges of the part that heads had before.
        commits: place of the first new commit that names a range, by range id.
        passing: ranges of new commits alone that may have addresses of the part.
    """

    id: str
    ranges: tuple[RangeRecord, ...]
    before: tuple[RangeRecord, ...] = ()
    known: frozenset[str] = frozenset()
    commits: Mapping[str, int] = field(default_factory=dict)
    passing: tuple[RangeRecord, ...] = ()

    @property
    def all_ranges(self) -> tuple[RangeRecord, ...]:
        """The ranges to read, in the order of reading."""
        return (*self.ranges, *self.before, *self.passing)


class _Addresses:
    """The distinct certain addresses of some ranges, as columns with one value for each address."""

    def __init__(self, files: LiveFiles, ranges: Sequence[RangeRecord], depth: int) -> None:
        columns = ["address", "size", "last_modified", FOLDER.name]
        tables = [files.held(record, depth) for record in ranges]
        empty = pa.schema([*HELD_ENTRIES, FOLDER]).empty_table().select(columns)
        rows = pa.concat_tables([empty, *(table.filter(table.column("certain")).select(columns) for table in tables)])
        uncertain = [table.filter(pc.invert(table.column("certain"))).column("address") for table in tables]
        named = rows.column("address").combine_chunks().dictionary_encode()
        self.names: pa.StringArray = named.dictionary
        self.of_row: _Numbers = named.indices.to_numpy().astype(np.int64)
        self.uncertain = len(
            pc.unique(pa.chunked_array([chunk for each in uncertain for chunk in each.chunks], pa.string()))
        )
        self.hashed = hashing.hashes(self.names)
        self.folders = rows.column(FOLDER.name).combine_chunks().dictionary_encode()
        counts = [int(pc.sum(table.column("certain")).as_py() or 0) for table in tables]
        self.of_range = np.split(self.of_row, np.cumsum(counts)[:-1])[: len(ranges)]
        count = len(self.names)
        self.sizes = np.zeros(count, np.int64)
        np.maximum.at(self.sizes, self.of_row, rows.column("size").to_numpy())
        months = rows.column("last_modified").to_numpy().astype("datetime64[M]").astype(np.int64)
        self.months = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(self.months, self.of_row, months)
        bits = np.zeros((count, -(-len(ranges) // _WORD) or 1), np.uint64)
        for number, places in enumerate(self.of_range):
            bits[places, number // _WORD] |= np.uint64(1 << number % _WORD)
        single = np.ascontiguousarray(bits).view(np.dtype((np.void, bits.shape[1] * 8))).ravel()
        patterns, of_address = np.unique(single, return_inverse=True)
        self.patterns = pa.array([pattern.tobytes() for pattern in patterns], pa.binary())
        self.of_address: _Numbers = of_address.ravel()
        self.slices = slices_of(self.names)

    def in_folders(self) -> tuple[_Numbers, pa.StringArray]:
        """Each address with each of its folders: places of addresses, and folders."""
        rows = pa.table({"address": self.of_row, "folder": self.folders.indices}).group_by(["address", "folder"])
        pairs = rows.aggregate([])
        folders = self.folders.dictionary.take(pairs.column("folder").combine_chunks())
        return pairs.column("address").to_numpy(), folders

    def sums(self, part: str, cutoff: datetime) -> pa.Table:
        """Sums by pattern, month and unlisted slice, and by pattern and folder (ROWS).

        Args:
            cutoff: as for `unlisted_slices`.
        """
        places, folders = self.in_folders()
        unlisted = unlisted_slices(self.slices, cutoff)
        by_month = {"pattern": self.of_address, "month": pa.array(self.months, pa.int32()), "slice": unlisted}
        by_folder = {"pattern": self.of_address[places], "folder": folders}
        tables = []
        for keys, sizes in ((by_month, self.sizes), (by_folder, self.sizes[places])):
            rows = pa.table({**keys, "bytes": sizes})
            added = rows.group_by([*keys]).aggregate([("bytes", "count"), ("bytes", "sum")])
            columns = {name: added.column(name) for name in keys}
            columns["pattern"] = self.patterns.take(added.column("pattern").combine_chunks())
            amounts = {"objects": added.column("bytes_count"), "bytes": added.column("bytes_sum")}
            tables.append(_rows(RowKind.SUM, part, added.num_rows, **columns, **amounts))
        return pa.concat_tables(tables)

    def rows(self, part: str, chosen: npt.NDArray[np.bool_], origin: Any, commits: _Numbers | None = None) -> pa.Table:
        """The chosen addresses with each folder (ROWS).

        Args:
            origin: value of `objects`, the same for all addresses or one for each.
            commits: place of the first new commit for each address.
        """
        places, folders = self.in_folders()
        kept = chosen[places]
        places = places[kept]
        of_each = np.broadcast_to(np.asarray(origin, np.int64), len(self.names))
        first = np.full(len(self.names), NO_COMMIT) if commits is None else commits
        return _rows(
            RowKind.ADDRESS,
            part,
            len(places),
            address=self.names.take(pa.array(places)),
            pattern=self.patterns.take(pa.array(self.of_address[places])),
            folder=folders.filter(pa.array(kept)),
            month=pa.array(self.months[places]).cast(pa.int32()),
            objects=of_each[places],
            bytes=self.sizes[places],
            commit=pa.array(first[places]).cast(pa.int32()),
        )


def _rows(kind: RowKind, part: str, count: int, **columns: Any) -> pa.Table:
    """Rows (ROWS) of one kind and part; absent columns are null."""
    columns |= {"kind": pa.repeat(kind.value, count), "part": pa.repeat(part, count)}
    return pa.table([columns.get(each.name, pa.nulls(count, each.type)) for each in ROWS], schema=ROWS)


def read_part(cutoff: datetime, wanted: HashSet, depth: int, files: LiveFiles, task: PartTask) -> pa.Table:
    """Reads a part (ROWS): its sums and slices, and the addresses that are new in it or wanted.

    Args:
        cutoff: as for `unlisted_slices`.
        wanted: hashes of addresses to return in any case.
        depth: number of leading path components that make up a folder.
    """
    read = _Addresses(files, task.ranges, depth)
    count = len(read.names)
    before = [read.of_range[place] for place, record in enumerate(task.ranges) if record.id in task.known]
    stayed = np.zeros(count, np.bool_)
    stayed[np.concatenate([np.empty(0, np.int64), *before])] = True
    left: list[pa.Table] = []
    for record in task.before:
        earlier = _certain_addresses(files, record)
        hashed = hashing.hashes(earlier)
        stayed |= hashing.among(read.hashed, hashed)
        left.append(_left(earlier.filter(pa.array(~hashing.among(hashed, read.hashed)))))
    commits = np.full(count, NO_COMMIT, np.int64)
    for record, places in zip(task.ranges, read.of_range, strict=True):
        commits[places] = np.minimum(commits[places], task.commits.get(record.id, NO_COMMIT))
    if not stayed.all():
        for record in task.passing:
            has = hashing.among(read.hashed, hashing.hashes(_certain_addresses(files, record)))
            commits[has] = np.minimum(commits[has], task.commits[record.id])
    came, is_wanted = ~stayed, wanted.has(read.hashed)
    slices = pa.table({"slice": read.slices, "stayed": stayed.astype(np.int64)}).group_by("slice")
    of_slices = slices.aggregate([("stayed", "max")])
    return pa.concat_tables(
        [
            read.sums(task.id, cutoff),
            _rows(
                RowKind.SLICE,
                task.id,
                of_slices.num_rows,
                address=of_slices.column("slice"),
                objects=of_slices.column("stayed_max"),
            ),
            _rows(RowKind.UNCERTAIN, task.id, 1, objects=[read.uncertain]),
            # Wanted addresses were in some part before, and all of their places are returned.
            read.rows(task.id, came | is_wanted, np.where(came & ~is_wanted, _CAME, _STAYED), commits),
            *left,
        ]
    )


def _left(addresses: pa.StringArray) -> pa.Table:
    count = len(addresses)
    rows = _rows(
        RowKind.ADDRESS, "", count, address=addresses, objects=np.full(count, _LEFT), commit=np.full(count, NO_COMMIT)
    )
    return rows.set_column(1, ROWS.field("part"), pa.nulls(count, pa.string()))


def _certain_addresses(files: LiveFiles, record: RangeRecord) -> pa.StringArray:
    """The addresses of a range that mean one object."""
    rows = files.held(record)
    return rows.filter(rows.column("certain")).column("address").combine_chunks()


def search_part(slices: pa.StringArray, depth: int, files: LiveFiles, task: PartTask) -> pa.Table:
    """The addresses of a part that lie in some slices (ROWS)."""
    read = _Addresses(files, task.ranges, depth)
    return read.rows(task.id, pc.is_in(read.slices, value_set=slices).to_numpy(zero_copy_only=False), _SEARCHED)


def classify_addresses(rows: pa.Table) -> pa.Table:
    """Classifies addresses (ROWS): spread, brought by a new commit, or in some part before.

    Args:
        rows: all rows of each address, of kind `address`.
    """
    # If a part is also searched, its new addresses appear a second time.
    columns = ["address", "part", "objects", "bytes", "commit"]
    of_parts = rows.group_by(["address", "part"]).aggregate([("objects", "max"), ("bytes", "max"), ("commit", "min")])
    of_parts = of_parts.select(["address", "part", "objects_max", "bytes_max", "commit_min"]).rename_columns(columns)
    of_each = (
        of_parts.append_column("stayed", pc.equal(of_parts.column("objects"), _STAYED))
        .group_by("address")
        .aggregate(
            [
                ("part", "count_distinct"),
                ("part", "min"),
                ("bytes", "max"),
                ("commit", "min"),
                ("objects", "min"),
                ("objects", "max"),
                ("stayed", "max"),
            ]
        )
    )
    in_several = of_each.filter(pc.greater(of_each.column("part_count_distinct"), 1)).column("address")
    is_spread = pc.is_in(rows.column("address"), value_set=in_several.combine_chunks())
    spread = rows.filter(pc.and_(is_spread, pc.is_valid(rows.column("part"))))
    once = spread.select(SPREAD.names).group_by(SPREAD.names).aggregate([])
    once = once.append_column("kind", pa.repeat(RowKind.SPREAD.value, once.num_rows))
    came = pc.and_(*(pc.equal(of_each.column(name), _CAME) for name in ("objects_min", "objects_max")))
    is_new = pc.and_(came, pc.not_equal(of_each.column("commit_min"), NO_COMMIT))
    kinds = pc.if_else(is_new, RowKind.NEW.value, RowKind.HERE.value)
    seen = of_each.append_column("kind", kinds).filter(pc.or_(is_new, of_each.column("stayed_max")))
    renamed = {"kind": "kind", "part_min": "part", "address": "address", "bytes_max": "bytes", "commit_min": "commit"}
    return pa.concat_tables([_as_rows(once), _as_rows(seen.select([*renamed]).rename_columns([*renamed.values()]))])


def _as_rows(rows: pa.Table) -> pa.Table:
    there = rows.column_names
    columns = [rows.column(each.name) if each.name in there else pa.nulls(rows.num_rows, each.type) for each in ROWS]
    return pa.table(columns, schema=pa.schema([each.with_nullable(True) for each in ROWS]))


@dataclass(frozen=True)
class ReadParts:
    """Results of reading the parts that changed.

    Attributes:
        sums: SUMS.
        slices: slices by part.
        uncertain: number of uncertain addresses by part.
        spread: addresses in several parts (SPREAD), of changed and unchanged parts.
        new, here: addresses that new commits brought, and others that were somewhere before (ROWS).
    """

    sums: pa.Table
    slices: Mapping[str, frozenset[str]]
    uncertain: dict[str, int]
    spread: pa.Table
    new: pa.Table
    here: pa.Table


def read_parts(
    engine: Engine[R],
    references: References[R],
    tasks: Sequence[PartTask],
    unchanged: Sequence[PartTask],
    slices: Mapping[str, frozenset[str]],
    spread: pa.Table,
    wanted: HashSet,
    depth: int,
    cutoff: datetime,
) -> ReadParts:
    """Reads changed parts, and unchanged ones as far as they may have an address that is new in a changed one.

    Args:
        tasks: changed parts.
        unchanged: other parts; they need only their ranges.
        slices: slices of the unchanged parts.
        spread: known addresses in several parts, rows of unchanged parts alone (SPREAD).
        wanted: hashes of addresses whose place may have changed: spread ones among them.
        depth, cutoff: as for `read_part`.
    """
    entries = sum(record.count for task in tasks for record in task.ranges)
    with engine.cached(
        _read(engine, references, tasks, partial(read_part, cutoff, wanted, depth)), 2 * entries
    ) as rows:
        facts = (RowKind.SUM.value, RowKind.SLICE.value, RowKind.UNCERTAIN.value)
        small = engine.collect(engine.where_among(rows, "kind", facts))
        addresses = engine.where_among(rows, "kind", (RowKind.ADDRESS.value,))
        of_kind = {kind: small.filter(pc.equal(small.column("kind"), kind)) for kind in facts}
        read_slices, stayed_slices = _slices_by_part(of_kind[RowKind.SLICE.value])
        came = engine.where(addresses, _has_come)
        # Without earlier parts, all addresses are among the rows already.
        searches = bool(unchanged or stayed_slices)
        came_slices = _distinct_slices(engine, came) if searches else frozenset[str]()
        searched = [task for task in unchanged if slices[task.id] & came_slices]
        searched += [task for task in tasks if stayed_slices.get(task.id, frozenset()) & came_slices]
        search = partial(search_part, pa.array(sorted(came_slices), pa.string()), depth)
        known = _as_rows(spread.append_column("kind", pa.repeat(RowKind.ADDRESS.value, spread.num_rows)))
        known = known.set_column(7, "objects", pa.repeat(pa.scalar(_STAYED, pa.int64()), known.num_rows))
        known = known.set_column(9, "commit", pa.repeat(pa.scalar(NO_COMMIT, pa.int32()), known.num_rows))
        every = engine.union(addresses, engine.table(known), _read(engine, references, searched, search))
        united = engine.collect(engine.map_by_address(every, classify_addresses, ROWS, entries))
    by_kind = {kind: united.filter(pc.equal(united.column("kind"), kind.value)) for kind in _UNITED}
    uncertain = of_kind[RowKind.UNCERTAIN.value]
    return ReadParts(
        of_kind[RowKind.SUM.value].select(SUMS.names),
        read_slices,
        dict(zip(uncertain.column("part").to_pylist(), uncertain.column("objects").to_pylist(), strict=True)),
        by_kind[RowKind.SPREAD].select(SPREAD.names),
        by_kind[RowKind.NEW],
        by_kind[RowKind.HERE],
    )


_UNITED = (RowKind.SPREAD, RowKind.NEW, RowKind.HERE)


def _has_come(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pc.equal(batch.column("objects"), _CAME)


def _slices_by_part(rows: pa.Table) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """All slices of each part, and the slices of addresses that were there before."""
    both: tuple[dict[str, set[str]], dict[str, set[str]]] = ({}, {})
    for row in rows.select(["part", "address", "objects"]).to_pylist():
        both[0].setdefault(row["part"], set()).add(row["address"])
        if row["objects"]:
            both[1].setdefault(row["part"], set()).add(row["address"])
    every, stayed = ({part: frozenset(slices) for part, slices in each.items()} for each in both)
    return every, stayed


_SLICE = pa.schema([pa.field("slice", pa.string())])


def slices_of(addresses: pa.StringArray) -> pa.StringArray:
    """The slice of each address, as everything up to its last slash: it also tells staging tokens apart."""
    return pc.replace_substring_regex(addresses, pattern="[^/]*$", replacement="", max_replacements=1)


def unlisted_slices(slices: pa.StringArray, cutoff: datetime) -> pa.StringArray:
    """The slices that a run with this cutoff (UTC) does not list; null for others, and for objects at the root.

    A run lists no folder at the root but `data/`: all others count as one slice.
    """
    each = slices.dictionary_encode()
    unlisted = [
        (_ELSEWHERE if not name.startswith(DATA_PREFIX) else name if _is_young(name, cutoff) else None)
        if name
        else None
        for name in each.dictionary.to_pylist()
    ]
    return pa.array(unlisted, pa.string()).take(each.indices)


def _is_young(slice_folder: str, cutoff: datetime) -> bool:
    name = slice_folder.removeprefix(DATA_PREFIX).removesuffix("/")
    return is_xid(name) and as_datetime(created_at(name)) >= cutoff


def _distinct_slices(engine: Engine[R], rows: R) -> frozenset[str]:
    def slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([slices_of(batch.column("address")).unique()], schema=_SLICE)

    collected = engine.collect(engine.distinct(engine.map_batches(rows, slices, _SLICE)))
    return frozenset(collected.column("slice").to_pylist())


def _read(
    engine: Engine[R],
    references: References[R],
    tasks: Sequence[PartTask],
    read: Callable[[LiveFiles, PartTask], pa.Table],
) -> R:
    """Rows (ROWS) that a function reads from parts, in tasks of about equal weight."""
    opener, namespace, window_size = references.opener, references.namespace, references.window_size

    def read_task(task: PartTask) -> Iterator[pa.RecordBatch]:
        coming = [(METADATA_PREFIX + record.id, record.estimated_size) for record in task.all_ranges]
        with read_ahead(opener.open(), coming) as store:
            yield from read(LiveFiles(store, namespace, window_size), task).to_batches()

    groups = spread_by_weight(tasks, references.tasks, lambda task: sum(each.count for each in task.all_ranges))
    return engine.read(groups, read_task, ROWS)

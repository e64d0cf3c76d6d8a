"""Counts of garbage: by age, size, reason and month, its largest objects, and by last holder.

Tasks count their own candidates, and one process adds up the counts: a few dozen rows per task for any number of
objects. The sums are stored beside the candidates, so that all pages and charts share them.

Garbage of a run by retention rules is also counted by branch, rule and folder of the newest expired commit that holds
the object. Its branch and rule are those by which it would have stayed longest. The folder is the first one of the
object's path in that commit; if there are several paths, the first counts.

Garbage that no commit held is counted by the newest earlier run that saw it staged. Uncommitted data names only
addresses, so branch and path are known only for the few entries of each branch that runs look up.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError

from lakefs_gc_assets.collector.engine.port import LOCAL_ROWS, Engine, R
from lakefs_gc_assets.collector.engine.work import gather, runs_by_weight, work_ahead
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    UNCOMMITTED_DF,
    CandidateFigures,
    F,
    Frame,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.live.live_files import REQUEST_WEIGHT, LiveFiles, weight_of
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, Amount
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.interface import GivesObjects, ObjectStore, OpensStore, get_if_there

_log = logging.getLogger(__name__)

WITH_A_RUN = 20_000_000
"""Maximum entries and candidates to read when a run ends: about ten seconds. `lakefs-gc report` has no limit."""

WITH_A_PREVIEW = 2_000_000
"""Maximum entries to read for the few candidates of a preview: about a second."""

LAST_HELD = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("holder", pa.int64()),
        pa.field("folder", pa.binary()),
    ]
)
"""Candidates with the position of their holder in LAST_HOLDERS and the first folder of their path there.

The folder includes its slash, and is empty for a path without a folder. If only some candidates were passed in, it is
the whole path. Both are null if no expired commit holds the candidate.
"""

_READERS = 8
_ENTRIES_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class LastHolder:
    """Garbage by branch, rule and folder.

    Attributes:
        branch: the branch whose rule let it expire; None for commits that no branch leads to.
        rule: text of that rule, with its origin.
        folder: first folder of the path, its slash included; empty for paths without a folder.
    """

    branch: str | None
    rule: str
    folder: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LastHeld:
    """Garbage by the commit that held it last, groups with the most bytes first.

    Attributes:
        not_committed_objects, not_committed_bytes: garbage that no expired commit holds.
    """

    held: tuple[LastHolder, ...]
    not_committed_objects: int = 0
    not_committed_bytes: int = 0


def find_last_held(
    live_files: LiveFiles,
    holders: pa.Table,
    live: Collection[str],
    candidates: Manifest[CandidateFigures] | pa.Table,
    most: int | None = None,
) -> pa.Table | None:
    """Finds the commit that held each candidate last (LAST_HELD); this process holds all candidates in memory.

    It reads the run's facts about expired commits, and the files of those commits. Live commits hold no garbage, so it
    skips the ranges that the run has read as live.

    Args:
        candidates: all candidates, or a table of some (at least address and size), for which it finds whole paths.
        holders: the newest commits of metaranges that only expired commits have (LAST_HOLDERS), in order.
        live: ids of ranges of live commits, which hold no candidate; some may be missing.
        most: maximum entries and candidates to read; None for no limit.
    Returns:
        None if more would have to be read.
    Raises:
        CorruptFile: a file cannot be read, or is gone.
    """
    count = candidates.rows if isinstance(candidates, Manifest) else candidates.num_rows
    weight = count + holders.num_rows * REQUEST_WEIGHT
    if most is not None and weight > most:
        return None
    reading = list(_ranges(live_files, holders.column("metarange_id").to_pylist(), live))
    if most is not None and weight + sum(weight_of(record) for _, record in reading) > most:
        return None
    rows = _read(live_files.store, candidates) if isinstance(candidates, Manifest) else candidates
    return _attribute(partial(live_files.folders, whole_paths=rows is candidates), reading, rows)


def _read(store: GivesObjects, candidates: Manifest[CandidateFigures]) -> pa.Table:
    schema = pa.schema([LAST_HELD.field(name) for name in ("address", "size")])
    read = (
        files.read_file(store, file, CANDIDATES_DF.schema, schema.names, CANDIDATES_DF.added)
        for file in candidates.files
    )
    return pa.concat_tables([schema.empty_table(), *read])


def _ranges(
    live_files: LiveFiles, metarange_ids: Sequence[str], live: Collection[str]
) -> Iterator[tuple[int, RangeRecord]]:
    """Yields each range once, in order of metaranges and paths, with the position of its first metarange."""
    seen = set(live)
    for place, table in enumerate(work_ahead(live_files.metarange, metarange_ids, _READERS)):
        for row in table.to_pylist():
            if row["id"] not in seen:
                seen.add(row["id"])
                yield place, RangeRecord(**row)


def _attribute(
    folders: Callable[[RangeRecord], pa.Table], reading: Sequence[tuple[int, RangeRecord]], rows: pa.Table
) -> pa.Table:
    """Adds to each candidate the position of the first metarange that has it, and its folder there (LAST_HELD)."""
    addresses = rows.column("address")
    held_by = np.full(rows.num_rows, -1, np.int64)
    chosen = [pa.table({"at": pa.array([], pa.int64()), "folder": pa.array([], pa.binary())})]
    parts = sum(record.count for _, record in reading) // max(_ENTRIES_AT_ONCE, rows.num_rows) + 1
    for group in runs_by_weight(reading, parts, lambda item: item[1].count):
        # Ranges differ in size: threads do not wait for a large one before they request the next.
        with ThreadPoolExecutor(_READERS) as pool:
            tables = [*pool.map(folders, [record for _, record in group])]
        by = np.repeat([place for place, _ in group], [table.num_rows for table in tables])
        entries = pa.concat_tables(tables)
        matches = pc.index_in(entries.column("address"), value_set=addresses)
        matched = pc.indices_nonzero(matches.is_valid()).to_numpy()
        # Entries come in order of precedence, so the first row of an address counts.
        at, first = np.unique(matches.take(pa.array(matched)).to_numpy().astype(np.int64), return_index=True)
        new = held_by[at] < 0
        at, places = at[new], matched[first[new]]
        held_by[at] = by[places]
        chosen.append(pa.table({"at": at, "folder": entries.column("folder").take(pa.array(places))}))
    together = pa.concat_tables(chosen)
    of_row = pc.index_in(pa.array(np.arange(rows.num_rows)), value_set=together.column("at"))
    holders = pa.array(held_by, mask=held_by < 0)
    columns = [addresses, rows.column("size"), holders, together.column("folder").take(of_row)]
    return pa.table(columns, schema=LAST_HELD)


def count_last_held(rows: pa.Table, holders: pa.Table) -> LastHeld:
    """Counts candidates by last holder, from the result of `find_last_held`."""
    held = rows.filter(pc.is_valid(rows.column("holder")))
    not_committed = rows.column("size").filter(pc.is_null(rows.column("holder")))
    at = held.column("holder")
    of_holder = {name: holders.column(name).take(at) for name in ("branch", "rule")}
    named = pa.table({**of_holder, "folder": held.column("folder"), "size": held.column("size")})
    counted = named.group_by(["branch", "rule", "folder"]).aggregate([("size", "count"), ("size", "sum")])
    kinds = [
        LastHolder(
            row["branch"], row["rule"], row["folder"].decode("utf-8", "replace"), row["size_count"], row["size_sum"]
        )
        for row in counted.to_pylist()
    ]
    kinds.sort(key=lambda kind: (-kind.bytes, -kind.objects, kind.branch or "", kind.rule, kind.folder))
    return LastHeld(tuple(kinds), len(not_committed), pc.sum(not_committed).as_py() or 0)


@dataclass(frozen=True, slots=True)
class StagedEntry:
    """A candidate with the place where an earlier run saw it staged.

    Attributes:
        seen_at: start of that run.
    """

    branch: str
    path: str
    size: int
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class LastStaged:
    """Garbage by the newest earlier run that saw it staged.

    Attributes:
        until: objects and bytes by the start of that run, newest first.
        unseen: garbage that no run saw staged.
        since: start of the oldest run.
        entries: candidates whose branch and path the runs recorded.
    """

    until: Mapping[datetime, Amount]
    unseen: Amount
    since: datetime
    entries: tuple[StagedEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class PastRun:
    """Uncommitted data of an earlier run."""

    began: datetime
    staged: Manifest[UncommittedFigures]


@dataclass(frozen=True)
class FrameReader(Generic[R]):
    """Reads frames as rows of an engine."""

    engine: Engine[R]
    opener: OpensStore

    def rows(self, frame: Frame[F], manifest: Manifest[F], *columns: str) -> R:
        """Some columns of a frame. Unreadable files are skipped and logged."""
        stored = StoredFrame(frame, manifest, self.opener)
        return stored.rows(self.engine, *columns, damaged_files=_warn_of_damage)


def _warn_of_damage(damage: CorruptFile) -> None:
    _log.warning("the page of the run counts garbage without a file of a frame: %s", damage)


def count_last_staged(
    reader: FrameReader[R], rows: R, total: Amount, past: Sequence[PastRun], most: int | None = None
) -> LastStaged | None:
    """Counts candidates by the newest earlier run that saw them staged.

    Args:
        rows: the candidates (`address`, `size`).
        total: objects and bytes of all candidates.
        past: earlier runs, newest first. Each is compared with the candidates that no newer run saw.
        most: maximum rows to read; None for no limit. Runs beyond it are skipped.
    Returns:
        None if every run was skipped.
    """
    unseen = total
    until: dict[datetime, Amount] = {}
    entries: list[StagedEntry] = []
    since: datetime | None = None
    for seen in _staged_rows(reader, rows, total, past, most):
        since = seen.began
        if seen.amount.objects:
            until[since] = seen.amount
            entries += _entries(reader.engine, seen.rows, seen.noted, since)
            unseen -= seen.amount
    return None if since is None else LastStaged(until, unseen, since, tuple(entries))


LAST_STAGED = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("seen_at", pa.timestamp("us", "UTC")),
        pa.field("branch", pa.string()),
        pa.field("path", pa.string()),
    ]
)
"""Candidates with the start of the newest earlier run that saw them staged, and the place if that run recorded it."""


def find_last_staged(
    reader: FrameReader[R], rows: R, total: Amount, past: Sequence[PastRun], most: int | None = None
) -> pa.Table:
    """Finds the candidates that earlier runs saw staged (LAST_STAGED); arguments as for `count_last_staged`."""
    tables = [LAST_STAGED.empty_table()]
    for seen in _staged_rows(reader, rows, total, past, most):
        if not seen.amount.objects:
            continue
        addresses = reader.engine.collect(seen.rows).column("address")
        places = seen.noted.take(pc.index_in(addresses, value_set=seen.noted.column("address")))
        began = pa.repeat(pa.scalar(seen.began, LAST_STAGED.field("seen_at").type), len(addresses))
        tables.append(pa.table([addresses, began, places["branch"], places["path"]], schema=LAST_STAGED))
    return pa.concat_tables(tables)


@dataclass(frozen=True)
class _StagedRows(Generic[R]):
    """Candidates that an earlier run saw staged, and no newer one did.

    Attributes:
        rows: undefined if the amount is zero.
        noted: the few entries whose place the run recorded (STAGED).
    """

    began: datetime
    rows: R
    amount: Amount
    noted: pa.Table


def _staged_rows(
    reader: FrameReader[R], rows: R, total: Amount, past: Sequence[PastRun], most: int | None
) -> Iterator[_StagedRows[R]]:
    """Yields the candidates that each run saw staged, newest run first, until the limit is reached."""
    engine, unseen, read = reader.engine, total, total.objects
    for run in past:
        read += run.staged.rows
        if not unseen.objects or (most is not None and read > most):
            return
        if not run.staged.rows:
            yield _StagedRows(run.began, rows, Amount(), uncommitted.STAGED.empty_table())
            continue
        noted, count = _noted(reader, run), unseen.objects + run.staged.rows
        # A few entries that were reset while the server wrote its uncommitted data may only be in this record.
        addresses = engine.union(
            reader.rows(UNCOMMITTED_DF, run.staged, "address"), engine.table(noted.select(["address"]))
        )
        seen = engine.among_exactly(rows, addresses, count)
        amount = _amount(engine, seen)
        yield _StagedRows(run.began, seen, amount, noted)
        if amount.objects:
            unseen -= amount
            rows = engine.hold(engine.without_exactly(rows, addresses, count), unseen.objects)


def _amount(engine: Engine[R], rows: R) -> Amount:
    counted = engine.collect(engine.map_batches(rows, _add_up, _AMOUNT))
    return Amount.total(Amount(**row) for row in counted.to_pylist()) if counted.num_rows else Amount()


def _add_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        total = pc.sum(batch.column("size")).as_py() or 0
        yield pa.RecordBatch.from_pylist([{"objects": batch.num_rows, "bytes": total}], _AMOUNT)


_AMOUNT = pa.schema([("objects", pa.int64()), ("bytes", pa.int64())])


def _noted(reader: FrameReader[Any], run: PastRun) -> pa.Table:
    """The few entries per branch that a run recorded (STAGED); none if they cannot be read."""
    span = run.staged.span
    try:
        return uncommitted.read_samples(reader.opener.open(), span.run_id, span.attempt)
    except CorruptFile as damage:
        _warn_of_damage(damage)
        return uncommitted.STAGED.empty_table()


def _entries(engine: Engine[R], rows: R, noted: pa.Table, seen_at: datetime) -> Iterator[StagedEntry]:
    """Candidates among the entries that a run recorded."""
    if not noted.num_rows:
        return
    garbage = engine.collect(engine.among_exactly(rows, engine.table(noted.select(["address"]))))
    places = pc.index_in(garbage.column("address"), value_set=noted.column("address"))
    for entry, size in zip(noted.take(places).to_pylist(), garbage.column("size").to_pylist(), strict=True):
        yield StagedEntry(entry["branch"], entry["path"], size, seen_at)


_WRITERS = {
    rf"{layout.LEFTOVER}$": "upload in parts that has not ended",
    r",[^/,]{43}$|:": "client, at an address that lakeFS issued",
    "": "upload or copy by lakeFS",
}
"""The writer of an object, by the first pattern that its address matches."""


def written_by(rows: pa.Table) -> pa.Array:
    """The writers of some candidates, as far as their addresses and ETags show."""
    addresses = rows.column("address").combine_chunks()
    in_parts = pc.fill_null(pc.match_substring_regex(rows.column("etag").combine_chunks(), MULTIPART_ETAG), False)
    known = [pc.match_substring_regex(addresses, pattern) for pattern in _WRITERS]
    return pc.case_when(pc.make_struct(in_parts, *known), "upload in parts", *_WRITERS.values())


_DAY = timedelta(days=1)
AGES: Mapping[str, timedelta] = {
    "< 2 days": timedelta(),
    "2 to 7 days": 2 * _DAY,
    "8 to 30 days": 8 * _DAY,
    "31 to 90 days": 31 * _DAY,
    "91 to 365 days": 91 * _DAY,
    "over a year": 366 * _DAY,
}
"""Minimum age by group."""

_MIB = 2**20
SIZES: Mapping[str, int] = {
    "< 64 KiB": 0,
    "64 KiB to 1 MiB": 2**16,
    "1 to 16 MiB": _MIB,
    "16 to 256 MiB": 16 * _MIB,
    "256 MiB to 4 GiB": 256 * _MIB,
    "> 4 GiB": 4096 * _MIB,
}
"""Minimum size by group, in bytes."""

LARGEST = 20
"""Maximum number of largest objects that are listed."""

_BATCH_ROWS = 100_000
_COLUMNS = ("address", "last_modified", "size", "why")
_AGE, _SIZE, _WHY, _LARGEST = "age", "size", "why", "largest"
UNKNOWN_WHY = "not noted by an earlier version of the program"

_COUNTED = pa.schema(
    [
        pa.field("by", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("oldest", pa.timestamp("us", "UTC")),
    ]
)
"""Objects and bytes of a group by age, size or reason; each of the largest objects is a group under its own address."""


@dataclass(frozen=True, slots=True)
class LargeObject:
    """One of the largest objects."""

    address: str
    size: int
    last_modified: datetime


@dataclass(frozen=True)
class Garbage:
    """Counts of the candidates.

    Attributes:
        by_age, by_size, by_why: objects and bytes by group; empty groups are absent.
        oldest: last modification of the oldest candidate, UTC; None if there is none.
        largest: the largest candidates in descending order of size, then by address.
    """

    by_age: Mapping[str, Amount]
    by_size: Mapping[str, Amount]
    oldest: datetime | None
    largest: tuple[LargeObject, ...] = ()
    by_why: Mapping[str, Amount] = field(default_factory=dict)

    @classmethod
    def from_counts(cls, counts: Iterable[pa.RecordBatch]) -> "Garbage":
        """Adds up the counts of `count_batches`."""
        sums = {by: defaultdict[str, Amount](Amount) for by in (_AGE, _SIZE, _WHY)}
        oldest: datetime | None = None
        large: list[LargeObject] = []
        for row in (row for batch in counts for row in batch.to_pylist()):
            if row["by"] == _LARGEST:
                large.append(LargeObject(row["group"], row["bytes"], row["oldest"]))
                continue
            of_kind = sums[row["by"]]
            of_kind[row["group"]] = of_kind[row["group"]].plus(row["objects"], row["bytes"])
            oldest = min(filter(None, (oldest, row["oldest"])), default=None)
        large.sort(key=lambda large_object: (-large_object.size, large_object.address))
        by_age, by_size, by_why = (dict(sums[by]) for by in (_AGE, _SIZE, _WHY))
        return cls(by_age, by_size, oldest, tuple(large[:LARGEST]), by_why)

    @property
    def amount(self) -> Amount:
        """Total objects and bytes."""
        return Amount.total(self.by_size.values())


def count_candidates(
    store: ObjectStore, frame: StoredFrame[CandidateFigures], engine: Callable[[], Engine[R]], now: datetime
) -> Garbage:
    """Counts candidates: in this process, or in the tasks of an engine if there are many.

    Args:
        now: the time from which ages count back, UTC.
    """
    return count_here(store, frame.manifest, now) if frame.count <= LOCAL_ROWS else count_by_tasks(frame, engine(), now)


def count_by_tasks(frame: StoredFrame[CandidateFigures], engine: Engine[R], now: datetime) -> Garbage:
    """Counts candidates in the tasks of an engine.

    Args:
        now: the time from which ages count back, UTC.
    """
    rows = engine.map_batches(frame.rows(engine, *_COLUMNS), partial(count_batches, now=now), _COUNTED)
    return Garbage.from_counts(engine.collect(rows).to_batches())


def count_here(store: ObjectStore, manifest: Manifest[CandidateFigures], now: datetime) -> Garbage:
    """Counts candidates in this process, one file of the frame (about 32 MiB as stored) at a time.

    Args:
        now: the time from which ages count back, UTC.
    Raises:
        CorruptFile: a file cannot be read, or was removed.
    """
    batches = (
        batch
        for file in manifest.files
        for batch in files.read_file(store, file, CANDIDATES_DF.schema, _COLUMNS, CANDIDATES_DF.added).to_batches()
    )
    return Garbage.from_counts(count_batches(batches, now))


def count_batches(batches: Iterable[pa.RecordBatch], now: datetime) -> Iterator[pa.RecordBatch]:
    """Counts the rows of all batches by age, size and reason, and picks the largest (_COUNTED)."""
    counts: defaultdict[tuple[str, str], Amount] = defaultdict(Amount)
    oldest: datetime | None = None
    large: pa.Table | None = None
    least_ages = [int(age / timedelta(microseconds=1)) for age in AGES.values()]
    for batch in gather(batches, _BATCH_ROWS):
        written, sizes = batch.column("last_modified"), batch.column("size")
        ages = pc.subtract(pa.scalar(now, written.type), written).cast(pa.int64())
        for by, groups in (
            (_AGE, _grouped([*AGES], least_ages, ages)),
            (_SIZE, _grouped([*SIZES], [*SIZES.values()], sizes)),
            (_WHY, pc.fill_null(batch.column("why"), UNKNOWN_WHY)),
        ):
            rows = pa.table({"group": groups, "size": sizes}).group_by("group")
            for row in rows.aggregate([("size", "count"), ("size", "sum")]).to_pylist():
                counts[by, row["group"]] = counts[by, row["group"]].plus(row["size_count"], row["size_sum"])
        oldest = min(filter(None, (oldest, pc.min(written).as_py())), default=None)
        table = pa.Table.from_batches([batch]).select(_COLUMNS)
        rows = table if large is None else pa.concat_tables([large, table])
        order = [("size", "descending"), ("address", "ascending")]
        large = rows.take(pc.select_k_unstable(rows, LARGEST, order)).combine_chunks()
    if large is not None:
        counted = [(by, group, *amount, oldest) for (by, group), amount in counts.items()]
        counted += [(_LARGEST, row["address"], 1, row["size"], row["last_modified"]) for row in large.to_pylist()]
        yield pa.RecordBatch.from_pylist([dict(zip(_COUNTED.names, row, strict=True)) for row in counted], _COUNTED)


def _grouped(names: Sequence[str], least: Sequence[int], values: pa.Array) -> pa.Array:
    """The groups of values: a group reaches from its minimum up to the next group's minimum.

    Values below every minimum belong to the first group, since a clock may be behind.
    """
    places = np.searchsorted(least[1:], values.to_numpy(), side="right")
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(names))


def count_by_month(manifest: Manifest[CandidateFigures], window_size: WindowSize) -> dict[str, Amount]:
    """Candidates by the month of their slice, such as 2026-11, oldest first; those outside of slices come last.

    Args:
        window_size: grouping of slices into windows in this run.
    """
    months: defaultdict[str, Amount] = defaultdict(Amount)
    for file in manifest.files:
        month = _month(file.slice_window, window_size)
        months[month] = months[month].plus(file.rows, file.object_bytes)
    return dict(sorted(months.items()))


def _month(window: str, window_size: WindowSize) -> str:
    if window_size == "slice" and layout.is_xid(window):
        return f"{layout.as_datetime(layout.created_at(window)):%Y-%m}"
    return window[: len("2026-11")]


_GARBAGE = TypeAdapter(Garbage)


def keep_counts(store: ObjectStore, candidates: Manifest[CandidateFigures], garbage: Garbage) -> None:
    """Stores the counts of candidates. Raises StorageError."""
    content = {"candidates": candidates.digest, "garbage": _GARBAGE.dump_python(garbage, mode="json")}
    store.put(_key(candidates), json.dumps(content).encode())


def find_counts(store: ObjectStore, candidates: Manifest[CandidateFigures]) -> Garbage | None:
    """The stored counts of exactly these candidates; None if there are none, or they cannot be read."""
    data = get_if_there(store, _key(candidates))
    if data is None:
        return None
    try:
        content = json.loads(data)
        return _GARBAGE.validate_python(content["garbage"]) if content["candidates"] == candidates.digest else None
    except (ValidationError, ValueError, KeyError, TypeError):
        return None


def _key(candidates: Manifest[CandidateFigures]) -> str:
    return f"{run_folder.frame(candidates.span.run_id, CANDIDATES_DF.name)}counted.json"

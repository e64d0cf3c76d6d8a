"""Garbage of a run by retention rules, by branch, rule and folder of the commit that held it last.

That commit is the newest expired commit that holds the object. Its branch and rule are those by which it would have
stayed longest. The folder is the first one of the object's path there; of several paths, the first path counts. All of
this is read from the run's facts about expired commits, and from their files. No commit that stays holds garbage, so
ranges that the run has read as live are not read again.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.range_records import REQUEST_WEIGHT, weight_of
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import GivesObjects

WITH_A_RUN = 20_000_000
"""Maximum entries and candidates to read when a run ends: about ten seconds. `lakefs-gc report` has no limit."""

LAST_HELD = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("holder", pa.int64()),
        pa.field("folder", pa.binary()),
    ]
)
"""Candidates with the position of their holder in LAST_HOLDERS and the first folder of their path there.

The folder includes its slash, and is empty for a path without a folder. Both are null if no expired commit holds it."""

_READERS = 8
_METARANGES_AT_ONCE = 64
_ENTRIES_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class LastHolder:
    """Garbage of one branch, rule and folder.

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
    """Garbage by the commit that held it last, kinds with the most bytes first.

    Attributes:
        not_committed_objects, not_committed_bytes: garbage that no expired commit holds.
    """

    held: tuple[LastHolder, ...]
    not_committed_objects: int = 0
    not_committed_bytes: int = 0


def count_last_held(
    live_files: LiveFiles,
    holders: pa.Table,
    live: Collection[str],
    candidates: Manifest[CandidateFigures],
    most: int | None = None,
) -> LastHeld | None:
    """Counts candidates by the commit that held them last, see `find_last_held`."""
    rows = find_last_held(live_files, holders, live, candidates, most)
    return None if rows is None else _count(rows, holders)


def find_last_held(
    live_files: LiveFiles,
    holders: pa.Table,
    live: Collection[str],
    candidates: Manifest[CandidateFigures],
    most: int | None = None,
) -> pa.Table | None:
    """Finds the commit that held each candidate last (LAST_HELD); this process holds all candidates in memory.

    Args:
        holders: the newest commit of each metarange that only expired commits have (LAST_HOLDERS), in order.
        live: ids of ranges of live commits, which hold no candidate; some may be missing.
        most: maximum entries and candidates to read; None for no limit.
    Returns:
        None if more would have to be read.
    Raises:
        CorruptFile: a file cannot be read, or is gone.
    """
    weight = candidates.rows + holders.num_rows * REQUEST_WEIGHT
    if most is not None and weight > most:
        return None
    with ThreadPoolExecutor(_READERS) as pool:
        reading = list(_ranges(live_files, pool, holders.column("metarange_id").to_pylist(), live))
        if most is not None and weight + sum(weight_of(record) for _, record in reading) > most:
            return None
        rows = _read(live_files.store, candidates)
        return _attribute(live_files, pool, reading, rows)


def _read(store: GivesObjects, candidates: Manifest[CandidateFigures]) -> pa.Table:
    schema = pa.schema([LAST_HELD.field(name) for name in ("address", "size")])
    read = (
        files.read_file(store, file, CANDIDATES_DF.schema, schema.names, CANDIDATES_DF.added)
        for file in candidates.files
    )
    return pa.concat_tables([schema.empty_table(), *read])


def _ranges(
    live_files: LiveFiles, pool: ThreadPoolExecutor, metarange_ids: Sequence[str], live: Collection[str]
) -> Iterator[tuple[int, RangeRecord]]:
    """Yields each range once, in order of metaranges and paths, with the position of its first metarange."""
    seen = set(live)
    for start in range(0, len(metarange_ids), _METARANGES_AT_ONCE):
        some = metarange_ids[start : start + _METARANGES_AT_ONCE]
        for place, table in enumerate(pool.map(live_files.metarange, some), start):
            for row in table.to_pylist():
                if row["id"] not in seen:
                    seen.add(row["id"])
                    yield place, RangeRecord(**row)


def _attribute(
    live_files: LiveFiles, pool: ThreadPoolExecutor, reading: Sequence[tuple[int, RangeRecord]], rows: pa.Table
) -> pa.Table:
    """Adds to each candidate the position of the first metarange that has it, and its folder there (LAST_HELD)."""
    addresses = rows.column("address")
    held_by = np.full(rows.num_rows, -1, np.int64)
    chosen = [pa.table({"at": pa.array([], pa.int64()), "folder": pa.array([], pa.binary())})]
    for group in _groups(reading, max(_ENTRIES_AT_ONCE, rows.num_rows)):
        tables = [*pool.map(live_files.folders, [record for _, record in group])]
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


def _groups(reading: Sequence[tuple[int, RangeRecord]], entries: int) -> Iterator[Sequence[tuple[int, RangeRecord]]]:
    """Groups of ranges that are read together, with about this many entries each."""
    group: list[tuple[int, RangeRecord]] = []
    count = 0
    for place, record in reading:
        group.append((place, record))
        count += record.count
        if count >= entries:
            yield group
            group, count = [], 0
    if group:
        yield group


def _count(rows: pa.Table, holders: pa.Table) -> LastHeld:
    held = rows.filter(pc.is_valid(rows.column("holder")))
    not_committed = rows.column("size").filter(pc.is_null(rows.column("holder")))
    at = held.column("holder")
    named = pa.table(
        {
            "branch": holders.column("branch").take(at),
            "rule": holders.column("rule").take(at),
            "folder": held.column("folder"),
            "size": held.column("size"),
        }
    )
    counted = named.group_by(["branch", "rule", "folder"]).aggregate([("size", "count"), ("size", "sum")])
    kinds = [
        LastHolder(
            row["branch"], row["rule"], row["folder"].decode("utf-8", "replace"), row["size_count"], row["size_sum"]
        )
        for row in counted.to_pylist()
    ]
    kinds.sort(key=lambda kind: (-kind.bytes, -kind.objects, kind.branch or "", kind.rule, kind.folder))
    return LastHeld(tuple(kinds), len(not_committed), pc.sum(not_committed).as_py() or 0)

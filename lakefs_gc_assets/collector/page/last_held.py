"""By branch, rule and folder of the commit that held it last: what the garbage of a run by retention rules is.

An object counts where the newest of the expired commits that hold it has it: by the branch and the rule by which that
commit would have stayed longest, and by the first folder of the path; of several paths there, of the first. All of it
is read from what the run noted of expired commits, and from their files. No commit that stays holds garbage, so ranges
that the run has read as live are not read for this.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.range_records import REQUEST_WEIGHT, weight_of
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import GivesObjects

WITH_A_RUN = 20_000_000
"""So much is read when a run ends, in entries and candidates: some ten seconds. `lakefs-gc report` reads any amount."""

LAST_HELD = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("holder", pa.int64()),
        pa.field("folder", pa.binary()),
    ]
)
"""Candidates, each with the place of its holder among LAST_HOLDERS and the first folder of its path there, the slash
included, which is empty for a path without one; both null where no expired commit holds it."""

_READERS = 8
_METARANGES_AT_ONCE = 64
_ENTRIES_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """Garbage of one kind.

    Attributes:
        branch: whose rule let it go; None for commits that no branch leads to.
        rule: what that rule says, and who asks for it.
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
        unheld_objects, unheld_bytes: what no expired commit holds.
    """

    held: tuple[Held, ...]
    unheld_objects: int = 0
    unheld_bytes: int = 0


def count_last_held(
    live_files: LiveFiles,
    holders: pa.Table,
    live: Collection[str],
    candidates: Manifest[CandidateFigures],
    most: int | None = None,
) -> LastHeld | None:
    """Counts candidates by the commit that held them last, see `find_last_held`."""
    found = find_last_held(live_files, holders, live, candidates, most)
    return None if found is None else _count(found, holders)


def find_last_held(
    live_files: LiveFiles,
    holders: pa.Table,
    live: Collection[str],
    candidates: Manifest[CandidateFigures],
    most: int | None = None,
) -> pa.Table | None:
    """Finds which commit held each candidate last (LAST_HELD), in this process, which holds all of them.

    Args:
        holders: the newest commit of each metarange that only expired commits have (LAST_HOLDERS), in order.
        live: ids of ranges that live commits have, which hold no candidate; they need not be all.
        most: how much may be read, in entries and candidates; None for any amount.
    Returns:
        None where more would have to be read.
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
    """Each range where it comes first, in order of metaranges and paths, with the place of its metarange."""
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
    """Adds to candidates the place of the metarange that has each of them first, and its folder there (LAST_HELD)."""
    addresses = rows.column("address")
    held_by = np.full(rows.num_rows, -1, np.int64)
    chosen = [pa.table({"at": pa.array([], pa.int64()), "folder": pa.array([], pa.binary())})]
    for group in _groups(reading, max(_ENTRIES_AT_ONCE, rows.num_rows)):
        tables = [*pool.map(live_files.folders, [record for _, record in group])]
        by = np.repeat([place for place, _ in group], [table.num_rows for table in tables])
        entries = pa.concat_tables(tables)
        found = pc.index_in(entries.column("address"), value_set=addresses)
        there = pc.indices_nonzero(found.is_valid()).to_numpy()
        # Entries come in the order in which they count, so the first row of an address is the one.
        at, first = np.unique(found.take(pa.array(there)).to_numpy().astype(np.int64), return_index=True)
        new = held_by[at] < 0
        at, places = at[new], there[first[new]]
        held_by[at] = by[places]
        chosen.append(pa.table({"at": at, "folder": entries.column("folder").take(pa.array(places))}))
    together = pa.concat_tables(chosen)
    of_row = pc.index_in(pa.array(np.arange(rows.num_rows)), value_set=together.column("at"))
    holders = pa.array(held_by, mask=held_by < 0)
    columns = [addresses, rows.column("size"), holders, together.column("folder").take(of_row)]
    return pa.table(columns, schema=LAST_HELD)


def _groups(reading: Sequence[tuple[int, RangeRecord]], entries: int) -> Iterator[Sequence[tuple[int, RangeRecord]]]:
    """Ranges that are read together, of about so many entries."""
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
    unheld = rows.column("size").filter(pc.is_null(rows.column("holder")))
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
    found = [
        Held(row["branch"], row["rule"], row["folder"].decode("utf-8", "replace"), row["size_count"], row["size_sum"])
        for row in counted.to_pylist()
    ]
    found.sort(key=lambda each: (-each.bytes, -each.objects, each.branch or "", each.rule, each.folder))
    return LastHeld(tuple(found), len(unheld), pc.sum(unheld).as_py() or 0)

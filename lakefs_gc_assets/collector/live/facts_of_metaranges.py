"""The ranges of metaranges, recorded as facts.

Commits that follow each other name mostly the same ranges. So a file has its metaranges in a row, by the dates of their
commits, and says of each range from which place of the row to which it is named: of 30,000 commits that name 280 ranges
each and replace four of them, that are 120,000 rows in place of 8.4 million.

A fact that lacked a range would lose what it holds. So the rows about each metarange are compared with what was
recorded of it alone: the number of its ranges, and the sum of hashes of their ids.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.live import facts
from lakefs_gc_assets.collector.live.facts import FactFile, FactKind
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore

_PLACES = (pa.field("first", pa.int64(), nullable=False), pa.field("last", pa.int64(), nullable=False))
_RANGES = (*(column.with_nullable(column.name.endswith("_key")) for column in RANGES),)
NAMED_RANGES = pa.schema([*_RANGES, *_PLACES])
"""Ranges as metaranges state them, and the first and the last place of metaranges in a row that name one; a range has a
row for each such run of places.

A row whose keys are null is a metarange: the places are its own, more than one where it was recorded again, `count` is
the number of its ranges, and `estimated_size` the sum of the hashes of their ids, modulo 2^64.
"""
LOOKED_UP = pa.schema([column.with_nullable(True) for column in _RANGES] + [pa.field("damage", pa.string())])
"""The ranges of metaranges that are looked for, and those of these metaranges that a file has, whose keys are null; or
else what is wrong with the file."""
_WHAT = "ranges of metaranges"
_Numbers = npt.NDArray[np.int64]
_Value = TypeVar("_Value", bound=np.generic)


def name_ranges(metarange_id: str, place: int, ranges: pa.Table) -> pa.Table:
    """The ranges that a metarange at a place of the row names (NAMED_RANGES), and a row for itself.

    Args:
        ranges: RANGES.
    """
    total = _hashes(ranges.column("id")).sum(dtype=np.int64)
    itself = pa.table([[metarange_id], [None], [None], [ranges.num_rows], [total]], schema=pa.schema(_RANGES))
    rows = pa.concat_tables([itself, ranges.cast(pa.schema(_RANGES))])
    places = pa.repeat(pa.scalar(place, pa.int64()), rows.num_rows)
    return pa.table([*rows.columns, places, places], schema=NAMED_RANGES)


def join_runs(rows: pa.Table) -> pa.Table:
    """The same, in fewer rows (NAMED_RANGES), by their first places: runs of places that follow each other are one."""
    each = rows.group_by(RANGES.names, use_threads=False).aggregate([("first", "list"), ("last", "list")])
    firsts = each.column("first_list").combine_chunks()
    of, first, last = (
        column.to_numpy()
        for column in (
            pc.list_parent_indices(firsts),
            pc.list_flatten(firsts),
            pc.list_flatten(each.column("last_list").combine_chunks()),
        )
    )
    order = np.lexsort((first, of))
    of, first, last = of[order], first[order], last[order]
    follows = (of[1:] == of[:-1]) & (first[1:] <= last[:-1] + 1)
    begins = np.flatnonzero(np.concatenate([np.ones(min(1, len(of)), np.bool_), ~follows]))
    ends = np.concatenate([begins[1:], [len(of)]])[: len(begins)] - 1
    ranges = each.select(RANGES.names).take(pa.array(of[begins]))
    return pa.table([*ranges.columns, first[begins], last[ends]], schema=NAMED_RANGES).sort_by("first")


def select_ranges(rows: pa.Table) -> pa.Table:
    """The ranges (RANGES) among rows that have these columns; those of metaranges are left out."""
    return rows.select(RANGES.names).filter(pc.is_valid(rows.column("min_key"))).cast(RANGES)


def _join(files: Sequence[pa.Table]) -> pa.Table:
    """The rows of several files as those of one, in which the metaranges of each follow those of the one before."""
    moved, places = [], 0
    for rows in files:
        columns = [pc.add(rows.column(each.name), places) for each in _PLACES]
        moved.append(pa.table([*rows.columns[: len(_RANGES)], *columns], schema=NAMED_RANGES))
        places += pc.max(rows.column("last")).as_py() + 1 if rows.num_rows else 0
    return join_runs(pa.concat_tables(moved))


METARANGES = FactKind("metarange_ranges", _WHAT, 1, NAMED_RANGES, ascending=("first",), join=_join)


def put(store: ObjectStore, folder: str, rows: pa.Table) -> str:
    """Writes what `join_runs` gives as one file; returns its key. The folder has a trailing slash.

    Raises CorruptFile where rows do not say of each metarange what was recorded of it alone.
    """
    require_whole(rows, folder)
    return facts.put(METARANGES, store, folder, rows)


def read(store: ObjectStore, file: FactFile) -> pa.Table:
    """The rows (NAMED_RANGES) of a file. Raises CorruptFile where they are not what was written, or as `put` does."""
    rows = facts.read(METARANGES, store, file)
    require_whole(rows, file.key)
    return rows


def look_up(store: ObjectStore, wanted: Set[str], files: Iterable[FactFile]) -> Iterator[pa.RecordBatch]:
    """The wanted metaranges that files are about, and every range that one of them names (LOOKED_UP)."""

    def look_up_in(file: FactFile) -> Iterator[pa.RecordBatch]:
        ranges_of_wanted = select_wanted(read(store, file), wanted).select(RANGES.names)
        yield from (
            ranges_of_wanted.append_column("damage", pa.nulls(ranges_of_wanted.num_rows, pa.string()))
            .cast(LOOKED_UP)
            .to_batches()
        )

    return facts.each_readable(look_up_in, files, LOOKED_UP)


def select_wanted(rows: pa.Table, wanted: Set[str]) -> pa.Table:
    """The wanted metaranges among rows (NAMED_RANGES), and every range that one of them names."""
    metaranges = rows.filter(pc.is_null(rows.column("min_key")))
    is_wanted = _at_places(metaranges, ~IdSet.from_ids(wanted).lacks(metaranges.column("id").combine_chunks()))
    return rows.filter(pa.array(is_named(is_wanted, *_places(rows))))


def find_naming(rows: pa.Table, range_ids: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each metarange among rows (NAMED_RANGES) that names one of some ranges, and that range, in order of its keys."""
    is_metarange = pc.is_null(rows.column("min_key"))
    metaranges = rows.filter(is_metarange)
    at = dict(zip(metaranges.column("first").to_pylist(), metaranges.column("id").to_pylist(), strict=True))
    is_wanted = pc.is_in(rows.column("id"), value_set=pa.array(range_ids, pa.string()))
    for row in rows.filter(pc.and_not(is_wanted, is_metarange)).sort_by("min_key").to_pylist():
        yield from ((at[place], row["id"]) for place in range(row["first"], row["last"] + 1) if place in at)


def split_by_metarange(rows: pa.Table, wanted: Set[str]) -> Iterator[tuple[str, pa.Table]]:
    """The wanted metaranges among rows (NAMED_RANGES), each with its ranges (RANGES)."""
    is_metarange = pc.is_null(rows.column("min_key"))
    metaranges, ranges = rows.filter(is_metarange), rows.filter(pc.invert(is_metarange))
    first, last = _places(ranges)
    places = dict(zip(metaranges.column("id").to_pylist(), metaranges.column("first").to_pylist(), strict=True))
    for metarange_id in sorted(places.keys() & wanted):
        place = places[metarange_id]
        yield metarange_id, select_ranges(ranges.filter(pa.array((first <= place) & (place <= last))))


def is_named(is_wanted: npt.NDArray[np.bool_], first: _Numbers, last: _Numbers) -> npt.NDArray[np.bool_]:
    """Whether a wanted place is among those of each run.

    Args:
        is_wanted: of each place, whether it is.
    """
    before = np.concatenate([[0], np.cumsum(is_wanted)])
    named: npt.NDArray[np.bool_] = before[last + 1] > before[first]
    return named


def require_whole(rows: pa.Table, file: str) -> None:
    """Raises CorruptFile where rows, in order of places, do not say of each metarange what was recorded of it alone."""
    is_metarange = pc.is_null(rows.column("min_key"))
    metaranges, ranges = rows.filter(is_metarange), rows.filter(pc.invert(is_metarange))
    (begins, ends), (first, last) = _places(metaranges), _places(ranges)
    places = int(ends[-1]) + 1 if len(ends) else 0
    in_row = bool((begins == np.concatenate([[0], ends + 1])[:-1]).all() and (begins <= ends).all())
    if not (in_row and (first >= 0).all() and (first <= last).all() and (last < places).all()):
        raise CorruptFile(file, _WHAT, "its places are not those of its metaranges")
    counted, total = (
        _sum_at_places(values, first, last, places)
        for values in (np.ones(len(first), np.int64), _hashes(ranges.column("id")))
    )
    recorded = (_at_places(metaranges, metaranges.column(name).to_numpy()) for name in ("count", "estimated_size"))
    if not all((expected == actual).all() for expected, actual in zip(recorded, (counted, total), strict=True)):
        raise CorruptFile(file, _WHAT, "its metaranges do not name what they named when they were read")


def _places(rows: pa.Table) -> tuple[_Numbers, _Numbers]:
    """The first and the last place of each row."""
    first, last = (rows.column(each.name).to_numpy() for each in _PLACES)
    return first, last


def _at_places(metaranges: pa.Table, each: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
    """Facts of each metarange, at all of its places; metaranges are in order of these."""
    first, last = _places(metaranges)
    return np.repeat(each, last - first + 1)


def _sum_at_places(values: _Numbers, first: _Numbers, last: _Numbers, places: int) -> _Numbers:
    """Sum of the values at each place, modulo 2^64, where each counts from its first place to its last."""
    changes = np.zeros(places + 1, np.int64)
    np.add.at(changes, first, values)
    np.add.at(changes, last + 1, -values)
    sums: _Numbers = np.cumsum(changes)[:-1]
    return sums


def _hashes(ids: pa.ChunkedArray) -> _Numbers:
    return hashing.hashes(ids.combine_chunks()).view(np.int64)

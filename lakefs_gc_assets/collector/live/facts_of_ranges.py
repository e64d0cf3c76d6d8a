"""Facts recorded about ranges and metaranges: sizes of entries, hashes of addresses, and ranges of metaranges.

Facts save reading, and a wrong one must not lose an object. So the entries of a range are compared with the count in
its metarange. In each run, all facts about some ranges are compared with the ranges themselves.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import Flags, Hashes, HashSet, distinct
from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.frame.slices import are_sealed, slices_of
from lakefs_gc_assets.collector.live import facts
from lakefs_gc_assets.collector.live.facts import FactFile, FactKind, FactWriter, StoredFacts
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.errors import CorruptFile, EngineFault
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectStore

_Numbers = npt.NDArray[np.int64]
RANGE_SIZES = pa.schema([pa.field("size", pa.int64(), nullable=False), pa.field("place", pa.int32(), nullable=False)])
"""Sizes in ascending order, each with the place of a range that has an entry of this size.

A place is an index in the list of the file's ranges, which is in the metadata of the schema.
"""
_RANGE_IDS = b"range_ids"
HAS_SIZES = pa.schema(
    [pa.field("range_id", pa.string()), pa.field("holds", pa.bool_()), pa.field("damage", pa.string())]
)
"""Ranges of a file, each with true in `holds` if it has an entry of a wanted size; or else the damage of the file."""
RANGE_HASHES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("slices", pa.list_(pa.string()), nullable=False),
        pa.field("hashes", pa.list_(pa.int64()), nullable=False),
    ]
)
"""Ranges: the URI of the namespace that addresses are relative to, the number of entries, the slices of the addresses,
and their 64-bit hashes, in ascending order.

An address counts as held if a range has its hash: a collision can only keep an object.

A fact is used only if the reader has sealed all slices of its range, so that gaps in the reader's listing can be found
without it. The newest slice alone would not do: a slice may appear late, between others that are sealed.

The namespace is spelled as the server spelled it: under another spelling, the same full address may count as outside.
Repositories of several servers may share a folder under different spellings, and folders are copied.
"""
SUMS = pa.schema(
    [
        pa.field("range_id", pa.string()),
        pa.field("entries", pa.int64()),
        pa.field("addresses", pa.int64()),
        pa.field("total", pa.int64()),
    ]
)
"""Ranges: the number of their entries and addresses, and the sum of the hashes of their addresses, modulo 2^64."""
HOLDS_ADDRESS = pa.schema([pa.field("entries", pa.int64()), *HAS_SIZES])
"""Ranges of a file, each with its number of entries and true in `holds` if it holds an address; or else the damage of
the file.
"""
HASHES_LOOKED_UP = pa.schema([*SUMS, pa.field("met", pa.binary()), pa.field("damage", pa.string())])
"""Facts of ranges. A row without `range_id` has the damage of a file, or else hits of the wanted hashes: `met` has one
bit for each wanted hash that any range has, and `entries` counts these ranges. Bits keep the rows few, since every
version of a range may have all wanted hashes.
"""


def size_facts(range_ids: Iterable[str], sizes: _Numbers, places: npt.NDArray[np.int32]) -> pa.Table:
    """Facts (RANGE_SIZES) about ranges; `places` refers to `range_ids`, and rows are put in order of sizes."""
    order = np.argsort(sizes, kind="stable")
    names = zlib.compress("\n".join(range_ids).encode())
    return pa.table([sizes[order], places[order]], schema=RANGE_SIZES.with_metadata({_RANGE_IDS: names}))


def range_ids_of(metadata: dict[bytes, bytes]) -> list[str]:
    """The ranges of a file of sizes, from the metadata of its schema."""
    names = zlib.decompress(metadata[_RANGE_IDS]).decode()
    return names.split("\n") if names else []


def _join_sizes(parts: Sequence[pa.Table]) -> pa.Table:
    """Joins facts. If several parts have a range, the first one's facts are taken, since the others are equal."""
    known: dict[str, int] = {}
    sizes, places = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for part in parts:
        range_ids = range_ids_of(part.schema.metadata)
        is_new = np.array([range_id not in known for range_id in range_ids], np.bool_)
        into = np.array([known.setdefault(range_id, len(known)) for range_id in range_ids], np.int32)
        of_range = part.column("place").to_numpy()
        kept = is_new[of_range]
        sizes.append(part.column("size").to_numpy()[kept])
        places.append(into[of_range[kept]])
    return size_facts(known, np.concatenate(sizes), np.concatenate(places))


def _join_hashes(parts: Sequence[pa.Table]) -> pa.Table:
    """Joins facts. For each range and namespace the first ones are taken, since the others are equal."""
    rows = pa.concat_tables(parts)
    places: dict[tuple[str, str], int] = {}
    keys = zip(*(rows.column(name).to_pylist() for name in ("range_id", "namespace")), strict=True)
    for place, key in enumerate(keys):
        places.setdefault(key, place)
    return rows.take(pa.array(places.values(), pa.int64())) if len(places) < rows.num_rows else rows


SIZES = FactKind(
    "range_sizes", "sizes of ranges", 3, RANGE_SIZES, ascending=("size", "place"), join=_join_sizes, rows_of_group=4_096
)
HASHES = FactKind(
    "range_hashes",
    "hashes of addresses",
    4,
    RANGE_HASHES,
    ascending=("hashes.list.element",),
    join=_join_hashes,
)


def record_sizes(writer: FactWriter, range_id: str, sizes: pa.Int64Array) -> None:
    """Records the sizes of all entries of a range."""
    each = distinct(sizes.to_numpy())
    writer.add(size_facts([range_id], each, np.zeros(len(each), np.int32)))


def look_up_sizes(
    store: ObjectStore, wanted: Set[str], sizes: pa.Int64Array, files: Iterable[FactFile]
) -> Iterator[pa.RecordBatch]:
    """The wanted ranges in files, each with true in `holds` if it has an entry of a wanted size (HAS_SIZES)."""

    def look_up(file: FactFile) -> Iterator[pa.RecordBatch]:
        stored = StoredFacts(SIZES, store, file, in_parts=True)
        rows = stored.read(stored.groups_of(sizes))
        # `np.isin` sorts if sizes lie far apart, and takes five times as long.
        holding = {*rows.filter(pc.is_in(rows.column("size"), value_set=sizes)).column("place").to_pylist()}
        about = [
            {"range_id": range_id, "holds": place in holding}
            for place, range_id in enumerate(range_ids_of(stored.metadata))
            if range_id in wanted
        ]
        yield pa.RecordBatch.from_pylist(about, HAS_SIZES)

    return facts.each_readable(look_up, files, HAS_SIZES)


def record_hashes(writer: FactWriter, record: RangeRecord, rows: pa.Table, namespace: str) -> None:
    """Records the addresses of a range that was read and has the entries that its metarange states.

    Args:
        rows: its addresses (LIVE), each once.
        namespace: URI that the addresses are relative to.
    """
    columns = [[record.id], [namespace], [record.count], [slices_of(rows)], [np.sort(_hashes(rows.column("address")))]]
    writer.add(pa.table(columns, schema=RANGE_HASHES))


def look_up_hashes(
    store: ObjectStore,
    namespace: str,
    wanted: Set[str],
    sealed: pa.StringArray,
    hashes: HashSet,
    files: Iterable[FactFile],
) -> Iterator[pa.RecordBatch]:
    """Facts (HASHES_LOOKED_UP) about wanted ranges whose slices are all sealed, and the hits among the wanted hashes.

    Args:
        namespace: the reader's URI. Facts under any other spelling are ignored.
    """
    met, ranges = np.zeros(len(hashes.ordered), np.bool_), 0

    def look_up(file: FactFile) -> Iterator[pa.RecordBatch]:
        rows = _select_usable(facts.read(HASHES, store, file), namespace, wanted, sealed)
        if rows.num_rows:
            yield from _sum_and_mark(rows, hashes, met).to_batches()

    for batch in facts.each_readable(look_up, files, HASHES_LOOKED_UP):
        ranges += len(batch.column("range_id").drop_null())
        yield batch
    yield pa.RecordBatch.from_pylist([{"entries": ranges, "met": np.packbits(met).tobytes()}], HASHES_LOOKED_UP)


def look_up_address(
    store: ObjectStore, namespace: str, address: str, files: Iterable[FactFile]
) -> Iterator[pa.RecordBatch]:
    """The ranges in files, each with true in `holds` if it may hold an address (HOLDS_ADDRESS).

    Args:
        namespace: the reader's URI. Facts under any other spelling are ignored.
    """
    wanted = hashing.hashes(pa.array([address], pa.string())).view(np.int64)[0]

    def look_up(file: FactFile) -> Iterator[pa.RecordBatch]:
        rows = facts.read(HASHES, store, file)
        rows = rows.filter(pc.equal(rows.column("namespace"), namespace)).combine_chunks()
        lists = rows.column("hashes").combine_chunks()
        holds = np.zeros(rows.num_rows, np.bool_)
        holds[pc.list_parent_indices(lists).to_numpy()[pc.list_flatten(lists).to_numpy() == wanted]] = True
        columns = [rows.column("entries"), rows.column("range_id"), holds, pa.nulls(rows.num_rows, pa.string())]
        yield from pa.table(columns, schema=HOLDS_ADDRESS).to_batches()

    return facts.each_readable(look_up, files, HOLDS_ADDRESS)


def _select_usable(rows: pa.Table, namespace: str, wanted: Set[str], sealed: pa.StringArray) -> pa.Table:
    """The facts (RANGE_HASHES) of a namespace about wanted ranges whose slices are all sealed."""
    rows = rows.filter(pc.equal(rows.column("namespace"), namespace))
    lacks = [IdSet.from_ids(wanted).lacks(batch.column("range_id")) for batch in rows.to_batches()]
    rows = rows.filter(pa.array(~np.concatenate([np.empty(0, np.bool_), *lacks]))).combine_chunks()
    return rows.filter(are_sealed(rows.column("slices").combine_chunks(), sealed)).combine_chunks()


def _sum_and_mark(rows: pa.Table, hashes: HashSet, met: Flags) -> pa.Table:
    """The sums (HASHES_LOOKED_UP) of ranges (RANGE_HASHES); sets the flags in `met` of the hashes that they have."""
    lists = rows.column("hashes").combine_chunks()
    values = pc.list_flatten(lists).to_numpy()
    lengths = pc.list_value_length(lists).to_numpy()
    hashes.mark(values.view(np.uint64), met)
    sums = [rows.column("range_id"), rows.column("entries"), lengths.astype(np.int64), _sum_by_list(values, lengths)]
    nulls = [pa.nulls(rows.num_rows, HASHES_LOOKED_UP.field(name).type) for name in ("met", "damage")]
    return pa.table([*sums, *nulls], schema=HASHES_LOOKED_UP)


def split_sums_and_hits(looked_up: pa.Table, hashes: HashSet) -> tuple[pa.Table, Hashes]:
    """The sums of ranges (SUMS), and the wanted hashes that they have. Raises as `require_all_looked_up`.

    Args:
        looked_up: rows of `look_up_hashes` from groups of files, without rows about damage.
    """
    about_hashes = pc.is_null(looked_up.column("range_id"))
    ranges, marks = looked_up.filter(pc.invert(about_hashes)), looked_up.filter(about_hashes)
    require_all_looked_up(ranges, marks)
    met = np.zeros(len(hashes.ordered), np.bool_)
    for bits in marks.column("met").to_pylist():
        met |= np.unpackbits(np.frombuffer(bits, np.uint8), count=len(met)).view(np.bool_)
    return ranges.select(SUMS.names), hashes.ordered[met]


def require_all_looked_up(ranges: pa.Table, marks: pa.Table) -> None:
    """Raises EngineFault unless the hits cover exactly the ranges that were looked up."""
    counted = pc.sum(marks.column("entries")).as_py() or 0
    if counted != ranges.num_rows:
        raise EngineFault(
            f"addresses were looked up in facts of {ranges.num_rows:,} ranges, but the hits are of {counted:,} "
            "ranges; run again"
        )


def sum_up(record: RangeRecord, rows: pa.Table) -> pa.Table:
    """The sums (SUMS) of a range that was read.

    Args:
        rows: its addresses (LIVE), each once.
    """
    values = _hashes(rows.column("address"))
    total = _sum_by_list(values, np.array([len(values)]))
    return pa.table([[record.id], [record.count], [len(values)], total], schema=SUMS)


def _hashes(texts: pa.StringArray | pa.ChunkedArray) -> _Numbers:
    column = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    return hashing.hashes(column).view(np.int64)


def _sum_by_list(values: _Numbers, lengths: _Numbers) -> _Numbers:
    """The sums of lists, modulo 2^64; the lists follow each other in `values`."""
    sums = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(lengths)
    each: _Numbers = sums[ends] - sums[ends - lengths]
    return each


_PLACES = (pa.field("first", pa.int64(), nullable=False), pa.field("last", pa.int64(), nullable=False))
_RANGES = (*(column.with_nullable(column.name.endswith("_key")) for column in RANGES),)
NAMED_RANGES = pa.schema([*_RANGES, *_PLACES])
"""Ranges as metaranges state them. The metaranges of a file have places, in order of the dates of their commits. A
range has one row for each run of consecutive places whose metaranges name it, with the first and the last place.
Consecutive commits name mostly the same ranges: if 30,000 commits name 280 ranges each and replace four, 120,000 rows
take the place of 8.4 million.

A row whose keys are null is a metarange with its own places, several if it was recorded again. Its `count` is the
number of its ranges, and its `estimated_size` the sum of the hashes of their ids, modulo 2^64. A fact that lacked a
range would lose objects, so the rows about each metarange are compared with these two figures.
"""
METARANGES_LOOKED_UP = pa.schema([column.with_nullable(True) for column in _RANGES] + [pa.field("damage", pa.string())])
"""The ranges of wanted metaranges, and the wanted metaranges that a file has, with null keys; or else the damage of the
file.
"""
_RANGES_NAMED = "ranges of metaranges"
_Value = TypeVar("_Value", bound=np.generic)


def name_ranges(metarange_id: str, place: int, ranges: pa.Table) -> pa.Table:
    """The ranges that a metarange names (NAMED_RANGES), and a row for the metarange itself.

    Args:
        place: place of the metarange in the file.
        ranges: RANGES.
    """
    total = _hashes(ranges.column("id")).sum(dtype=np.int64)
    itself = pa.table([[metarange_id], [None], [None], [ranges.num_rows], [total]], schema=pa.schema(_RANGES))
    rows = pa.concat_tables([itself, ranges.cast(pa.schema(_RANGES))])
    places = pa.repeat(pa.scalar(place, pa.int64()), rows.num_rows)
    return pa.table([*rows.columns, places, places], schema=NAMED_RANGES)


def join_runs(rows: pa.Table) -> pa.Table:
    """Merges rows (NAMED_RANGES) whose runs of places touch or overlap; the result is in order of first places."""
    each = rows.group_by(RANGES.names, use_threads=False).aggregate([("first", "list"), ("last", "list")])
    firsts, lasts = (each.column(name).combine_chunks() for name in ("first_list", "last_list"))
    of = pc.list_parent_indices(firsts).to_numpy()
    first, last = (pc.list_flatten(lists).to_numpy() for lists in (firsts, lasts))
    order = np.lexsort((first, of))
    of, first, last = of[order], first[order], last[order]
    follows = (of[1:] == of[:-1]) & (first[1:] <= last[:-1] + 1)
    begins = np.flatnonzero(np.concatenate([np.ones(min(1, len(of)), np.bool_), ~follows]))
    ends = np.concatenate([begins[1:], [len(of)]])[: len(begins)] - 1
    ranges = each.select(RANGES.names).take(pa.array(of[begins]))
    return pa.table([*ranges.columns, first[begins], last[ends]], schema=NAMED_RANGES).sort_by("first")


def select_ranges(rows: pa.Table) -> pa.Table:
    """The ranges (RANGES) among rows that have these columns; rows of metaranges are excluded."""
    return rows.select(RANGES.names).filter(pc.is_valid(rows.column("min_key"))).cast(RANGES)


def _join_metaranges(files: Sequence[pa.Table]) -> pa.Table:
    """Concatenates the rows of files: metaranges get the places after the metaranges of the file before."""
    moved, places = [], 0
    for rows in files:
        columns = [pc.add(rows.column(each.name), places) for each in _PLACES]
        moved.append(pa.table([*rows.columns[: len(_RANGES)], *columns], schema=NAMED_RANGES))
        places += pc.max(rows.column("last")).as_py() + 1 if rows.num_rows else 0
    return join_runs(pa.concat_tables(moved))


METARANGES = FactKind("metarange_ranges", _RANGES_NAMED, 1, NAMED_RANGES, ascending=("first",), join=_join_metaranges)


def put_metaranges(store: ObjectStore, folder: str, rows: pa.Table) -> str:
    """Writes rows of `join_runs` as one file; returns its key. The folder has a trailing slash.

    Raises CorruptFile if the ranges of a metarange do not match the figures in its own row.
    """
    require_metaranges_whole(rows, folder)
    return facts.put(METARANGES, store, folder, rows)


def read_metaranges(store: ObjectStore, file: FactFile) -> pa.Table:
    """The rows (NAMED_RANGES) of a file. Raises CorruptFile if they were changed, or a metarange lacks ranges."""
    rows = facts.read(METARANGES, store, file)
    require_metaranges_whole(rows, file.key)
    return rows


def look_up_metaranges(store: ObjectStore, wanted: Set[str], files: Iterable[FactFile]) -> Iterator[pa.RecordBatch]:
    """The wanted metaranges in files, and every range that they name (METARANGES_LOOKED_UP)."""

    def look_up_in(file: FactFile) -> Iterator[pa.RecordBatch]:
        rows = select_wanted(read_metaranges(store, file), wanted).select(RANGES.names)
        rows = rows.append_column("damage", pa.nulls(rows.num_rows, pa.string()))
        yield from rows.cast(METARANGES_LOOKED_UP).to_batches()

    return facts.each_readable(look_up_in, files, METARANGES_LOOKED_UP)


def select_wanted(rows: pa.Table, wanted: Set[str]) -> pa.Table:
    """The wanted metaranges among rows (NAMED_RANGES), and every range that they name."""
    metaranges = rows.filter(pc.is_null(rows.column("min_key")))
    is_wanted = _at_places(metaranges, ~IdSet.from_ids(wanted).lacks(metaranges.column("id").combine_chunks()))
    return rows.filter(pa.array(is_named(is_wanted, *_places(rows))))


def find_naming(rows: pa.Table, range_ids: Collection[str]) -> Iterator[tuple[str, str]]:
    """Pairs of a metarange among rows (NAMED_RANGES) and a wanted range that it names, in order of the ranges' keys."""
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
    """True for each run of places that includes a wanted place.

    Args:
        is_wanted: true for each wanted place.
    """
    before = np.concatenate([[0], np.cumsum(is_wanted)])
    named: npt.NDArray[np.bool_] = before[last + 1] > before[first]
    return named


def require_metaranges_whole(rows: pa.Table, file: str) -> None:
    """Raises CorruptFile unless the ranges of all metaranges match their own rows; rows are in order of places."""
    is_metarange = pc.is_null(rows.column("min_key"))
    metaranges, ranges = rows.filter(is_metarange), rows.filter(pc.invert(is_metarange))
    (begins, ends), (first, last) = _places(metaranges), _places(ranges)
    places = int(ends[-1]) + 1 if len(ends) else 0
    in_row = bool((begins == np.concatenate([[0], ends + 1])[:-1]).all() and (begins <= ends).all())
    if not (in_row and (first >= 0).all() and (first <= last).all() and (last < places).all()):
        raise CorruptFile(file, _RANGES_NAMED, "its positions do not match its metaranges")
    counted, total = (
        _sum_at_places(values, first, last, places)
        for values in (np.ones(len(first), np.int64), _hashes(ranges.column("id")))
    )
    recorded = (_at_places(metaranges, metaranges.column(name).to_numpy()) for name in ("count", "estimated_size"))
    if not all((expected == actual).all() for expected, actual in zip(recorded, (counted, total), strict=True)):
        raise CorruptFile(file, _RANGES_NAMED, "its metaranges list other ranges than when they were read")


def _places(rows: pa.Table) -> tuple[_Numbers, _Numbers]:
    """The first and the last places of all rows, as two arrays."""
    first, last = (rows.column(each.name).to_numpy() for each in _PLACES)
    return first, last


def _at_places(metaranges: pa.Table, each: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
    """Repeats each metarange's fact for all its places; metaranges are in order of places."""
    first, last = _places(metaranges)
    return np.repeat(each, last - first + 1)


def _sum_at_places(values: _Numbers, first: _Numbers, last: _Numbers, places: int) -> _Numbers:
    """Sum of the values at each place, modulo 2^64; each value counts from its first place to its last."""
    changes = np.zeros(places + 1, np.int64)
    np.add.at(changes, first, values)
    np.add.at(changes, last + 1, -values)
    sums: _Numbers = np.cumsum(changes)[:-1]
    return sums

"""Marks for many scenarios at once: the scenarios that keep each object, and the objects a run would delete in each.

Bit k of a set says that scenario k keeps an item, or that holder k has it. A set consists of whole 64-bit words; the
first bit is the lowest bit of the first byte. Bits pass from commits to metaranges, to ranges, and to addresses. A
range has the union of the bits of the metaranges that name it, an address that of the ranges that hold it. So each
range is read once, however many scenarios there are.

Everything else is code of the run: other live data, the subtraction, and the choice of candidates. The universe is that
of flow `committed`, which lists nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.hashing import distinct
from lakefs_gc_assets.collector.engine.port import ChangePart, R
from lakefs_gc_assets.collector.engine.work import gather, merge, sum_in_task, work_ahead
from lakefs_gc_assets.collector.frame.frames import LISTED, RANGES, SIGHTINGS
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before
from lakefs_gc_assets.collector.live import live_files
from lakefs_gc_assets.collector.live.current import Uncommitted, Unread, find_committed
from lakefs_gc_assets.collector.live.facts import FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.live.hidden import Cleared, clear_hidden
from lakefs_gc_assets.collector.live.live_files import FOLDER, HELD_ENTRIES, LiveFiles, RangeRecords
from lakefs_gc_assets.collector.live.references import FILES_AHEAD, ROWS_MERGED, References, facts_folder
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.universe.subtraction import choose_candidates, subtract
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.forecast.scenarios import WORD, Questions

Words = npt.NDArray[np.uint64]

_ASKED_OF_CANDIDATES = ("slice", "slice_window", "layout", "issued_at")
_AT_ONCE = 262_144
"""Rows that a task merges at once."""
_HELD = pa.field("held", pa.binary())
HELD = pa.schema([*HELD_ENTRIES, _HELD])
"""Addresses that commits hold, as objects, with their bits. For an uncertain address only `certain` is meaningful."""
HELD_IN = pa.schema([*HELD_ENTRIES, FOLDER, _HELD])
"""The same for each folder of an address, with the bits by which it is held there."""
PLACED = pa.schema([*HELD, FOLDER, pa.field("held_there", pa.binary()), pa.field("first", pa.bool_())])
"""HELD with a row for each folder, and the bits by which the object is held there. One row per object is `first`."""
SETTLED = pa.schema([*HELD, pa.field("objects", pa.int64())])
"""One row for each object that some scenario releases, as far as commits tell.

Objects that stay in all scenarios are summed by bits: such a row has no address, and `size` is their total."""
SUMS = pa.schema([_HELD, pa.field("objects", pa.int64()), pa.field("bytes", pa.int64())])
"""Number and size of objects with the same bits."""
HELD_RANGES = pa.schema([*RANGES, _HELD])
"""Ranges with the bits of the metaranges that name them."""


def as_bytes(bits: int, width: int) -> bytes:
    """A set of bits as bytes of the given width."""
    return bits.to_bytes(width, "little")


def read_ranges(step: Step[R], metaranges: Mapping[str, int], width: int) -> pa.Table:
    """The distinct ranges of metaranges (HELD_RANGES), with the bits of all metaranges that name each, by key.

    Two counts for one id yield two records, and reading that range fails. A task reads neighbouring metaranges, and
    returns their shared ranges once.

    Args:
        metaranges: bits by metarange.
        width: bytes of a set of bits.
    """
    items = [(metarange_id, as_bytes(bits, width)) for metarange_id, bits in metaranges.items()]
    rows = References.from_step(step).of_groups(items, _read_with_bits, HELD_RANGES)
    return unite_ranges(step.engine.collect(rows)).sort_by([("min_key", "ascending"), ("id", "ascending")])


def _read_with_bits(files: LiveFiles, metaranges: Sequence[tuple[str, bytes]]) -> pa.Table:
    tables = work_ahead(lambda item: _with_bits(files.metarange(item[0]), item[1]), metaranges, FILES_AHEAD)
    return merge(tables, unite_ranges, ROWS_MERGED)


def unite_ranges(rows: pa.Table) -> pa.Table:
    """One row (HELD_RANGES) for each range, with the bits of all its rows; two counts for one id are two ranges."""
    if not rows.num_rows:
        return rows.cast(HELD_RANGES)
    numbered = rows.select(RANGES.names).append_column("row", pa.array(np.arange(rows.num_rows)))
    grouped = numbered.group_by(RANGES.names).aggregate([("row", "list")])
    lengths = pc.list_value_length(grouped.column("row_list")).to_numpy()
    order = pc.list_flatten(grouped.column("row_list")).to_numpy()
    bits = np.bitwise_or.reduceat(words_of(rows.column("held"))[order], np.cumsum(lengths) - lengths, axis=0)
    return grouped.select(RANGES.names).append_column(_HELD, binary_of(bits)).cast(HELD_RANGES)


def add_bits_where(ranges: pa.Table, ids: pa.ChunkedArray, bits: bytes) -> pa.Table:
    """Adds bits to some ranges (HELD_RANGES), and returns all ranges.

    Args:
        ids: ids of the ranges to change; unknown ids are ignored.
    """
    among = pc.is_in(ranges.column("id"), value_set=ids.combine_chunks()).to_numpy()
    held = words_of(ranges.column("held"))
    held = np.where(among[:, np.newaxis], held | np.frombuffer(bits, np.uint64), held)
    return ranges.set_column(ranges.schema.get_field_index("held"), _HELD, binary_of(held))


def entries_of(ranges: pa.Table) -> int:
    """The number of entries of ranges (HELD_RANGES)."""
    return pc.sum(ranges.column("count")).as_py() or 0


def read_addresses(step: Step[R], ranges: pa.Table, every: int, width: int, depth: int = 0) -> R:
    """The distinct objects of ranges (SETTLED); records the sizes of entries.

    Args:
        ranges: HELD_RANGES, in order of their keys.
        every: the bits of all scenarios.
        width: bytes of a set of bits.
        depth: number of leading path components of a folder. If set, rows are PLACED: one for each folder.
    """
    engine, united, stays = step.engine, unite_in_folders if depth else unite, as_bytes(every, width)

    def read(files: LiveFiles, packed: bytes, _: FactWriter | None) -> Iterator[pa.Table]:
        tables = (
            _with_bits(_needed(files.held(record, depth), stays, held), held)
            for batch in live_files.unpack_rows(packed)
            for record, held in zip(live_files.records_of(batch), batch.column("held").to_pylist(), strict=True)
        )
        return _united(tables, united)

    sizes_into = [facts_folder(step, SIZES)]
    rows = References.from_step(step).of_parts(ranges, read, HELD_IN if depth else HELD, sizes_into)
    count = entries_of(ranges)
    if depth:
        return engine.map_by_address(rows, place, PLACED, count)
    return engine.map_by_address(rows, lambda rows: settle(stays, unite(rows)), SETTLED, count)


def _needed(table: pa.Table, every: bytes, held: bytes) -> pa.Table:
    """Clears columns that only candidates need, if the range stays in all scenarios: its objects stay, too."""
    wanted = np.frombuffer(every, np.uint64)
    if ((np.frombuffer(held, np.uint64) & wanted) != wanted).any():
        return table
    for column in _ASKED_OF_CANDIDATES:
        place = table.schema.get_field_index(column)
        table = table.set_column(place, table.field(place), pa.nulls(table.num_rows, table.field(place).type))
    return table


def settle(every: bytes, rows: pa.Table) -> pa.Table:
    """Addresses (HELD) as SETTLED, without uncertain ones: these stay in every scenario, and have no holder.

    Args:
        every: the bits of all scenarios.
    """
    certain = rows.filter(rows.column("certain"))
    goes = lacks_some(every, certain)
    going, staying = certain.filter(goes), certain.filter(pc.invert(goes))
    sums = staying.group_by("held").aggregate([("size", "count"), ("size", "sum")])
    columns = {name: pa.nulls(sums.num_rows, SETTLED.field(name).type) for name in SETTLED.names}
    columns |= {"certain": pa.repeat(pa.scalar(True), sums.num_rows), "held": sums.column("held")}
    columns |= {"size": sums.column("size_sum"), "objects": sums.column("size_count")}
    each = going.append_column(SETTLED.field("objects"), pa.repeat(pa.scalar(1, pa.int64()), going.num_rows))
    return pa.concat_tables([each.cast(SETTLED), pa.table(columns, schema=SETTLED)])


def _with_bits(table: pa.Table, held: bytes) -> pa.Table:
    return table.append_column(_HELD, pa.repeat(pa.scalar(held, pa.binary()), table.num_rows))


def _united(tables: Iterable[pa.Table], united: ChangePart) -> Iterator[pa.Table]:
    """Merges rows of the same address within a batch: neighbouring ranges share many addresses."""
    for batch in gather((batch for table in tables for batch in table.to_batches()), _AT_ONCE):
        yield united(pa.Table.from_batches([batch]))


def unite(rows: pa.Table) -> pa.Table:
    """One row (HELD) for each address, with the bits of all its rows and the facts of its youngest certain row."""
    return _unite(rows, *_numbered(rows, "address")).cast(HELD)


def unite_in_folders(rows: pa.Table) -> pa.Table:
    """One row (HELD_IN) for each folder of an address."""
    addresses, _ = _numbered(rows, "address")
    folders, count = _numbered(rows, "folder")
    pairs = addresses.astype(np.int64) * count + folders
    return _unite(rows, pairs, len(distinct(pairs))).cast(HELD_IN)


def place(rows: pa.Table) -> pa.Table:
    """The rows of addresses (HELD_IN) as PLACED: every row has the object's facts across all of its folders."""
    there = unite_in_folders(rows)
    whole = unite(there.select(HELD.names))
    of_row = pc.index_in(there.column("address"), value_set=whole.column("address").combine_chunks())
    first = np.zeros(there.num_rows, np.bool_)
    first[np.unique(of_row.to_numpy(), return_index=True)[1]] = True
    columns = [*whole.take(of_row).columns, there.column("folder"), there.column("held"), pa.array(first)]
    return pa.table(columns, schema=PLACED)


def _numbered(rows: pa.Table, column: str) -> tuple[npt.NDArray[Any], int]:
    """The index of each row's text among the column's distinct texts, and the number of distinct texts."""
    named = rows.column(column).combine_chunks().dictionary_encode()
    return named.indices.to_numpy(), len(named.dictionary)


def _unite(rows: pa.Table, groups: npt.NDArray[Any], count: int) -> pa.Table:
    """One row for each group of rows, with the bits of the whole group.

    Args:
        count: number of groups.
    """
    if count == rows.num_rows:
        return rows
    certain = rows.column("certain").to_numpy()
    order = np.lexsort((_numbers(rows, "size"), _numbers(rows, "last_modified"), certain, groups))
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    bits = np.bitwise_or.reduceat(words_of(rows.column("held"))[order], starts, axis=0)
    chosen = rows.take(pa.array(order[np.append(starts[1:], len(order)) - 1]))
    return chosen.set_column(rows.schema.get_field_index("held"), _HELD, binary_of(bits))


def _numbers(rows: pa.Table, column: str) -> npt.NDArray[np.int64]:
    """A column of integers or times; null sorts first."""
    numbers: npt.NDArray[np.int64] = rows.column(column).cast(pa.int64()).fill_null(np.iinfo(np.int64).min).to_numpy()
    return numbers


def words_of(column: pa.ChunkedArray | pa.BinaryArray) -> Words:
    """The bits of each row as words, one array row each. Raises ArrowInvalid if rows differ in width."""
    bits = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not len(bits):
        return np.empty((0, 1), np.uint64)
    width = len(bits[0].as_py())
    fixed = bits.cast(pa.binary(width))
    data = np.frombuffer(fixed.buffers()[1], np.uint8)[fixed.offset * width : (fixed.offset + len(fixed)) * width]
    return data.view(np.uint64).reshape(len(fixed), width // WORD)


def binary_of(words: Words) -> pa.BinaryArray:
    """The inverse of `words_of`: each row's words as bytes."""
    data = pa.py_buffer(np.ascontiguousarray(words))
    kind = pa.binary(words.shape[1] * WORD)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(words), [None, data]).cast(pa.binary())


def lacks_some(bits: bytes, rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
    """True for rows that lack any of the given bits."""
    wanted = np.frombuffer(bits, np.uint64)
    return pa.array(((words_of(rows.column("held")) & wanted) != wanted).any(axis=1))


def add_bits(bits: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with these bits added."""
    added = np.frombuffer(bits, np.uint64)
    for batch in batches:
        if batch.num_rows:
            place = batch.schema.get_field_index("held")
            yield batch.set_column(place, batch.schema.field(place), binary_of(words_of(batch.column(place)) | added))


def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The objects of a task by their bits (SUMS). Rows have `held` and `size`; rows with `objects` are sums."""
    tables = (pa.table([batch.column("held"), _objects(batch), batch.column("size")], schema=SUMS) for batch in batches)
    return sum_in_task(tables, ("held",), SUMS)


def _objects(rows: pa.RecordBatch) -> pa.Array:
    if "objects" in rows.schema.names:
        return rows.column("objects")
    return pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)


MARKED = pa.schema([*(column.with_nullable(True) for column in LISTED), HELD.field("held")])
"""Objects that some scenario would mark, namely every scenario whose bit is not set in the row."""


@dataclass(frozen=True)
class Marked(Generic[R]):
    """Objects that scenarios would mark.

    Attributes:
        objects: objects that commits hold (SETTLED), with the bits of scenarios and holders.
        placed: every address that commits hold, for each of its folders (PLACED); None unless requested.
        entries: number of entries in the ranges.
        unreferenced: objects that no live commit holds in some scenario, and nothing else references (MARKED).
        candidates: MARKED. If not every path could be checked, an object may occur once for each scenario.
        ranges: number of ranges read.
        undecided: True if objects count as staying when branches and tags are deleted, because there are more entries
            to check than `hidden_suspect_limit`.
    """

    objects: R
    placed: R | None
    entries: int
    unreferenced: R
    candidates: R
    ranges: int
    undecided: bool


@contextmanager
def mark(step: Step[R], questions: Questions, uncommitted: Uncommitted[R], depth: int = 0) -> Iterator[Marked[R]]:
    """Reads each range once and subtracts live addresses. The result is valid until the exit.

    Args:
        uncommitted: prepared before the commits were read.
        depth: number of leading path components that make up a folder; 0 for no folders.
    Raises:
        CollectionError: a file cannot be read, or the server fails.
    """
    engine, width = step.engine, questions.width
    every = as_bytes(questions.every_scenario, width)
    ranges = read_ranges(step, questions.metaranges, width)
    known = RangeRecords(ranges.select(RANGES.names)).ids
    kept_ids, beside = _find_kept_by_any_rules(step, questions, known, uncommitted.ended_at)
    ranges = add_bits_where(ranges, kept_ids, every)
    step.log(
        f"{counted(len(questions.metaranges), 'metaranges have')} {counted(ranges.num_rows, 'ranges')}, each is read "
        "once"
    )
    promised = entries_of(ranges)
    live = [*uncommitted.addresses, *(each.addresses(step) for each in beside)]
    count = promised + uncommitted.count + sum(each.count for each in beside)
    with ExitStack() as stack:
        read = read_addresses(step, ranges, questions.every_scenario, width, depth)
        cached = stack.enter_context(engine.cached(read, promised))
        objects = engine.map_batches(cached, partial(_settle_first, every), SETTLED) if depth else cached
        expiring = engine.where(objects, partial(lacks_some, every))
        universe = engine.without_exactly(engine.select(expiring, *MARKED.names), deleted_before(step))
        # Nothing was listed, so no object is known to be a multipart upload: sightings do not matter.
        rows = subtract(step, universe, live, engine.table(SIGHTINGS.empty_table()), count)
        clear = partial(_clear, step, questions)
        unreferenced, _, cleared = stack.enter_context(choose_candidates(engine, rows, promised, MARKED, clear))
        placed = cached if depth else None
        undecided = bool(cleared.unasked)
        yield Marked(objects, placed, promised, unreferenced, cleared.candidates, ranges.num_rows, undecided)


def _settle_first(every: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The objects of addresses with a row for each folder (PLACED), as SETTLED."""
    for batch in batches:
        first = pa.Table.from_batches([batch.filter(batch.column("first"))]).select(HELD.names)
        if first.num_rows:
            yield from settle(every, first).to_batches()


def _find_kept_by_any_rules(
    step: Step[R], questions: Questions, known: IdSet, prepared_until: datetime
) -> tuple[pa.ChunkedArray, list[Unread]]:
    """Finds live data that does not depend on this repository's rules, as a run does; its own commits are excluded.

    Args:
        known: ids of the ranges of this repository's commits.
    Returns:
        Ids of this repository's ranges that stay in every scenario, and data to read beside the known ranges.
    """
    no_commit = replace(questions.definition.live, metarange_ids=())
    committed = find_committed(
        step, no_commit, prepared_until, frozenset(), lambda: known | IdSet(questions.metaranges)
    )
    own, others = list[Unread](), list[Unread]()
    for each in (*committed.everything, *committed.provisional):
        (own if each.repository is step.repository else others).append(each)
    kept_ids = pa.concat_tables(each.records.rows for each in own).column("id")
    return kept_ids, [*(each.without(known) for each in own), *others]


@contextmanager
def _clear(step: Step[R], questions: Questions, eligible: R) -> Iterator[Cleared[R]]:
    """Excludes objects that are staged with the content of a committed object.

    All scenarios share one set of requests. Objects that only the deletion of a branch releases need no request: that
    branch's head may hold them, at every path that would be requested.

    If there are too many paths, each scenario by rules makes its own requests, as its run would. Candidates (MARKED)
    that only deletions would free are then kept.
    """
    engine, width, heads = step.engine, questions.width, questions.definition.live.heads
    all_heads = as_bytes(questions.with_all_heads, width)
    asked = engine.where(eligible, partial(lacks_some, all_heads))
    unasked = engine.where(eligible, lambda rows: pc.invert(lacks_some(all_heads, rows)))
    if not engine.count(asked):
        yield Cleared(unasked)
        return
    with ExitStack() as stack:

        def clear(rows: R) -> Cleared[R]:
            return stack.enter_context(clear_hidden(step, rows, heads, MARKED))

        together = clear(asked)
        if not together.unasked:
            yield Cleared(engine.union(together.candidates, unasked))
            return
        step.log(f"{counted(together.unasked, 'paths')} too many to ask for: each of the rules is asked for by itself")
        apart = []
        for number, scenario in enumerate(questions.scenarios):
            if scenario.kind.by_rules:
                own = 1 << number
                rows = engine.where(eligible, partial(lacks_some, as_bytes(own, width)))
                if engine.count(rows):
                    others = as_bytes(questions.every_scenario & ~own, width)
                    apart.append(engine.map_batches(clear(rows).candidates, partial(add_bits, others), MARKED))
        rules = as_bytes(questions.by_rules, width)
        deletions = engine.map_batches(together.candidates, partial(add_bits, rules), MARKED)
        yield Cleared(engine.union(unasked, deletions, *apart), unasked=together.unasked)

"""The subtraction of a run by retention rules that lists nothing, for many scenarios at once.

What a scenario would mark is what only expired commits hold then, without what is staged, young, deleted already, held
by another repository or by a range that no commit names: exactly what `run.mark` leaves of the universe of flow
`committed`.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic

import pyarrow as pa

from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.forecast.holding import (
    HELD,
    SETTLED,
    add_bits,
    add_bits_where,
    as_bytes,
    entries_of,
    has_all,
    lacks_some,
    read_addresses,
    read_ranges,
    settle,
)
from lakefs_gc_assets.collector.forecast.scenarios import Questions
from lakefs_gc_assets.collector.frame.schemas import LISTED, RANGES, SIGHTINGS
from lakefs_gc_assets.collector.history import deleted_before
from lakefs_gc_assets.collector.live import noted_sizes
from lakefs_gc_assets.collector.live.current import Uncommitted, Unread, read_every_commit
from lakefs_gc_assets.collector.live.hidden_staged import Cleared, clear_hidden
from lakefs_gc_assets.collector.live.noted_metaranges import find_ranges
from lakefs_gc_assets.collector.live.range_records import RangeRecords, each_once
from lakefs_gc_assets.collector.live.unnamed import find_unnamed
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.ids import IdSet

MARKED = pa.schema([*(column.with_nullable(True) for column in LISTED), HELD.field("held")])
"""Objects that some scenario would mark: each scenario whose bit is not set would, by this row."""


@dataclass(frozen=True)
class Marked(Generic[R]):
    """What scenarios would mark.

    Attributes:
        objects: what commits hold (SETTLED), with the bits of scenarios and holders.
        placed: every address that commits hold, for each of its folders (PLACED); None where nobody asks.
        entries: how many entries ranges have.
        candidates: MARKED. Where not everything could be asked, an object may be there once for each scenario.
        ranges: how many ranges were read.
        undecided: for deletions of branches and tags, whether objects count as staying because there is more to ask
            than `hidden_suspect_limit`.
    """

    objects: R
    placed: R | None
    entries: int
    candidates: R
    ranges: int
    undecided: bool


@dataclass(frozen=True)
class _Elsewhere:
    """What keeps objects whatever the rules of this repository say.

    Attributes:
        unread: of each other repository that counts, what all its commits and compacted bases hold.
        unnamed: ranges that no commit names, or that what no commit names names as well: compacted bases of this
            repository's branches, too.
    """

    unread: tuple[Unread, ...]
    unnamed: RangeRecords


@contextmanager
def mark(
    step: Step[R], questions: Questions, uncommitted: Uncommitted[R], tables: tuple[str, ...], depth: int = 0
) -> Iterator[Marked[R]]:
    """Reads each range once, and subtracts; what it yields is of use until the exit.

    Args:
        uncommitted: prepared before the commits were read.
        tables: ids of the files of the refs dump.
        depth: how many components of paths make the folders that objects are told by; 0 where nobody asks.
    Raises:
        CollectionError: a file cannot be read, or the server fails.
    """
    engine, width = step.engine, questions.width
    ranges = read_ranges(step, questions.metaranges, width)
    known = RangeRecords(ranges.select(RANGES.names)).ids
    elsewhere = _find_elsewhere(step, questions, known, uncommitted, tables)
    every = questions.every_scenario
    beside = elsewhere.unnamed.without(known)
    ranges = add_bits_where(ranges, elsewhere.unnamed.rows.column("id"), as_bytes(every, width))
    others = [each.addresses(step) for each in elsewhere.unread]
    step.log(f"{len(questions.metaranges):,} metaranges have {ranges.num_rows:,} ranges, each is read once")
    promised = entries_of(ranges)
    live = [*uncommitted.addresses, *others, step.references().committed(beside)]
    live_count = uncommitted.count + sum(each.count for each in elsewhere.unread) + beside.entries
    with ExitStack() as stack:
        read = read_addresses(step, ranges, every, width, noted_sizes.folder_of(step), depth)
        cached = stack.enter_context(engine.cached(read, promised))
        objects = _settled(engine, cached, as_bytes(every, width)) if depth else cached
        expiring = engine.where(objects, partial(lacks_some, as_bytes(every, width)))
        universe = engine.without_exactly(engine.select(expiring, *MARKED.names), deleted_before(step))
        unreferenced = engine.without(
            universe, *(engine.select(rows, "address") for rows in live), count=promised + live_count
        )
        # Nothing was listed, so no object is known to be uploaded in parts: sightings do not matter.
        sighted = engine.table(SIGHTINGS.empty_table())
        told = engine.kept_because(unreferenced, step.plan.cutoff, step.plan.windows, sighted)
        unkept = engine.select(engine.where_among(told, "kept", (None,)), *MARKED.names)
        eligible = stack.enter_context(engine.cached(unkept, promised))
        candidates, undecided = _clear(step, stack, questions, eligible)
        yield Marked(objects, cached if depth else None, promised, candidates, ranges.num_rows, undecided)


def _settled(engine: Engine[R], placed: R, every: bytes) -> R:
    """The objects of addresses that are told for each folder (PLACED), as SETTLED."""
    return engine.map_batches(placed, partial(_settle_first, every), SETTLED)


def _settle_first(every: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        first = pa.Table.from_batches([batch.filter(batch.column("first"))]).select(HELD.names)
        if first.num_rows:
            yield from settle(every, first).to_batches()


def _find_elsewhere(
    step: Step[R],
    questions: Questions,
    ranges: IdSet,
    uncommitted: Uncommitted[R],
    tables: tuple[str, ...],
) -> _Elsewhere:
    others, settings = step.repository.others, step.repository.settings
    unread = tuple(found for each in others for found in read_every_commit(step, each, uncommitted.ended_at))
    compacted = tuple(questions.definition.live.compacted)
    bases = find_ranges(step, step.repository, compacted)
    if not settings.keep_unnamed_ranges:
        return _Elsewhere(unread, bases)
    read = frozenset(tables).union(*(each.ids for each in unread))
    named = ranges | IdSet(questions.metaranges) | IdSet(compacted)
    since = None if settings.keep_old_unnamed_ranges else step.plan.cutoff
    unnamed = find_unnamed(step.repository.store, step.references(), read, named, since)
    rows = pa.concat_tables([unnamed.records.rows, bases.rows])
    return _Elsewhere(unread, RangeRecords.of_rows(each_once(rows)))


def _clear(step: Step[R], stack: ExitStack, questions: Questions, eligible: R) -> tuple[R, bool]:
    """Leaves out what is staged with the content of a committed object, asked for once for all scenarios.

    What only the deletion of a branch lets go may be in that branch's head, which has it at every path that would be
    asked for: nothing is asked of it. Where there is more to ask for than may be, rules are asked for one after the
    other, as their runs would.

    Returns:
        The candidates (MARKED), and whether some of them could not be decided about for deletions.
    """
    engine, width = step.engine, questions.width

    def clear(rows: R) -> Cleared[R]:
        heads = questions.definition.live.heads
        return stack.enter_context(clear_hidden(step, rows, heads, MARKED))

    all_heads = as_bytes(questions.with_all_heads, width)
    asked = engine.where(eligible, partial(lacks_some, all_heads))
    unasked = engine.where(eligible, partial(has_all, all_heads))
    if not engine.count(asked):
        return unasked, False
    together = clear(asked)
    if not together.unasked:
        return engine.union(together.candidates, unasked), False
    step.log(f"{together.unasked:,} paths too many to ask for: each of the rules is asked for by itself")
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
    return engine.union(unasked, deletions, *apart), True

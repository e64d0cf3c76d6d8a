"""Counts what branch heads and staging hold and the listing lacks: where that is too much, nothing may be deleted.

Live addresses that are not listed are a sign that references and objects are spelled differently or do not belong
together, so that the subtraction would miss what is live.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.frame.kinds import CommittedFigures, StoredFigures, UncommittedFigures
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.history import deleted_before
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.base_checkpoint import open_base_checkpoint
from lakefs_gc_assets.collector.named_again import select_expired
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.id_set import IdSet, lacking
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX

_EXAMPLES = 3
_COLUMNS = ("address", "slice")
_LISTED = 1
"""In what `count_by_sets` tells: that an address is listed."""
_ID_AT = len(DATA_PREFIX) + xids.LENGTH + len("/")
"""Where the id begins in the name of an object that has a slice."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Addresses that the listing lacks, of those that it should have.

    Attributes:
        missing: those that no run of ours deleted.
        expected: how many it should have.
        examples: a few of the missing ones.
        lost: those that earlier runs of ours deleted, and a branch head or staging holds all the same.
        lost_examples: a few of them.
        named_again: those that had expired by rule when earlier runs deleted them, and are referenced again.
        named_again_examples: a few of them.
    """

    missing: int
    expected: int
    examples: tuple[str, ...] = ()
    lost: int = 0
    lost_examples: tuple[str, ...] = ()
    named_again: int = 0
    named_again_examples: tuple[str, ...] = ()


def find_gap(
    step: Step[R],
    listed: StoredFrame[StoredFigures],
    uncommitted: StoredFrame[UncommittedFigures],
    committed: StoredFrame[CommittedFigures],
) -> Gap:
    """Compares the listing with every live address first, which costs one aggregation and usually finds nothing.

    Only what is missing there is looked for among branch heads and staging: of old commits, objects may have been
    collected by lakeFS's own retention.
    """
    engine = step.engine
    slices = checkpoint.read_listed_slices(step.repository.store, step.plan.run_id, step.plan.attempt)
    if not slices:
        return Gap(0, 0)
    expected = partial(select_expected, engine, slices=slices, cutoff=step.plan.cutoff)
    staged, held = (expected(live.rows(engine, *_COLUMNS)) for live in (uncommitted, committed))
    there = listed.rows(engine, "address")
    count = listed.count + uncommitted.count + committed.count
    counts = engine.count_by_sets(there, staged, held, count=count)
    if all(sets & _LISTED for sets in counts):
        return Gap(0, sum(objects for sets, objects in counts.items() if sets != _LISTED))
    of_heads = engine.select(expected(_of_heads(step, committed)), *_COLUMNS)
    heads = engine.distinct(engine.union(staged, of_heads))
    missing = engine.select(engine.without(heads, there, count=count), "address")
    with (
        engine.cached(missing, at_most=count) as lacking,
        engine.cached(engine.among_exactly(lacking, deleted_before(step)), at_most=count) as gone,
    ):
        unexplained = engine.without_exactly(lacking, gone)
        gap = Gap(engine.count(unexplained), engine.count(heads), _examples(engine, unexplained))
        return _with_gone(step, gap, gone)


def _with_gone(step: Step[R], gap: Gap, gone: R) -> Gap:
    """The gap with what earlier runs deleted: lost, or expired by rule then and referenced again."""
    engine, count = step.engine, step.engine.count(gone)
    if not count:
        return gap
    again = engine.hold(select_expired(step, gone, count), count)
    lost = engine.without_exactly(gone, again)
    return replace(
        gap,
        lost=engine.count(lost),
        lost_examples=_examples(engine, lost),
        named_again=engine.count(again),
        named_again_examples=_examples(engine, again),
    )


def _examples(engine: Engine[R], rows: R) -> tuple[str, ...]:
    return tuple(sorted(engine.collect(rows, limit=_EXAMPLES).column("address").to_pylist()))


def select_expected(engine: Engine[R], live: R, slices: Iterable[str], cutoff: datetime) -> R:
    """Live addresses (`address`, `slice`) that a listing of the slices must have: those named before the cutoff.

    Ids sort by the time in them, so the cutoff is compared as the id that it would begin.
    """
    listed = pa.array(sorted(slices), pa.string())
    limit = xids.encode(int(cutoff.timestamp()).to_bytes(4) + bytes(8))

    def in_time(rows: pa.RecordBatch) -> pa.BooleanArray:
        ids = pc.utf8_slice_codeunits(rows.column("address"), _ID_AT, _ID_AT + xids.LENGTH)
        return pc.and_(pc.is_in(rows.column("slice"), value_set=listed), pc.less(ids, limit))

    return engine.where(live, in_time)


def _of_heads(step: Step[R], committed: StoredFrame[CommittedFigures]) -> R:
    """Addresses that branch heads hold, in a run that builds on another one only through the ranges that it read.

    Of a metarange that was read before so was every range.
    """
    before = open_base_checkpoint(step)
    known, references = before.read_ids if before else IdSet(), step.references()
    heads = lacking(known, sorted(set(committed.figures.heads.values())))
    return references.committed(references.range_records(heads).without(known))

"""Counts what branch heads and staging hold and the listing lacks: where that is too much, nothing may be deleted.

Live addresses that are not listed are a sign that references and objects are spelled differently or do not belong
together, so that the subtraction would miss what is live.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.frame.kinds import (
    LOST_DF,
    CommittedFigures,
    NoFigures,
    StoredFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.frame.schemas import LIVE
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.history import deleted_before
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.base_checkpoint import open_base_checkpoint
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.named_again import select_expired
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.ids import IdSet, lacking
from lakefs_gc_assets.collector.work import work_ahead
from lakefs_gc_assets.lakefs import names, xids
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, WindowSize
from lakefs_gc_assets.storage.interface import head_if_there
from lakefs_gc_assets.storage.opening import StoreOpener

_EXAMPLES = 3
_AT_ONCE = 16
"""Objects that a task asks the store for at once."""
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
    collected by lakeFS's own retention. A run that does not list everything looks for losses among what it read anew,
    what is staged, and what its base run found lost.
    """
    engine, before = step.engine, open_base_checkpoint(step)
    lists_all = before is None and step.plan.flow is not Flow.COMMITTED
    slices = checkpoint.read_listed_slices(step.repository.store, step.plan.run_id, step.plan.attempt)
    expected = partial(select_expected, engine, slices=slices, cutoff=step.plan.cutoff)
    # A slice whose objects were all deleted is no longer listed, and what is lost of it must be found all the same.
    compared = partial(select_old, engine, cutoff=step.plan.cutoff) if lists_all else expected
    live = [frame.rows(engine, *_COLUMNS) for frame in (uncommitted, committed)]
    there = listed.rows(engine, "address")
    count = listed.count + uncommitted.count + committed.count
    counts = engine.count_by_sets(there, *map(compared, live), count=count) if slices or lists_all else {}
    all_listed = all(sets & _LISTED for sets in counts)
    complete = Gap(0, sum(objects for sets, objects in counts.items() if sets != _LISTED))
    if lists_all and all_listed:
        return complete
    lost_before = before.lost(step) if before else None
    is_anything_new = uncommitted.count or committed.figures.ranges_read or lost_before is not None
    if all_listed and not is_anything_new:
        return complete
    if lists_all:
        suspects = engine.without(engine.union(*map(compared, live)), there, count=count)
    else:
        suspects = engine.union(*live, *([] if lost_before is None else [engine.select(lost_before, *_COLUMNS)]))
    deleted = engine.among_exactly(engine.select(suspects, "address"), deleted_before(step))
    with engine.cached(engine.distinct(deleted), at_most=count) as gone_from_store:
        if all_listed and not engine.count(gone_from_store):
            return complete
        known = before.read_ids if before and lost_before is None else IdSet()
        of_heads = engine.select(_of_heads(step, committed, known), *_COLUMNS)
        heads = engine.distinct(engine.union(live[0], of_heads))
        lost = engine.among_exactly(gone_from_store, heads)
        if not lists_all:
            lost = engine.where(lost, partial(_is_not_there, step.repository.opener))
        lacking = engine.select(engine.without(expected(heads), there, count=count), "address")
        with engine.cached(lacking, at_most=count) as missing, engine.cached(lost, at_most=count) as gone:
            unexplained = engine.without_exactly(missing, gone)
            gap = Gap(engine.count(unexplained), engine.count(expected(heads)), _examples(engine, unexplained))
            return _with_gone(step, gap, gone)


def _with_gone(step: Step[R], gap: Gap, gone: R) -> Gap:
    """The gap with what earlier runs deleted: lost, or expired by rule then and referenced again.

    Both are stored as the frame `lost`, since the run that builds on this one reads their ranges no more.
    """
    engine, count = step.engine, step.engine.count(gone)
    if not count:
        return gap
    place = partial(_place, window_size=step.plan.slice_window)
    step.complete(LOST_DF, NoFigures(), step.write(LOST_DF, gone, place))
    again = engine.hold(select_expired(step, gone, count), count)
    lost = engine.without_exactly(gone, again)
    return replace(
        gap,
        lost=engine.count(lost),
        lost_examples=_examples(engine, lost),
        named_again=engine.count(again),
        named_again_examples=_examples(engine, again),
    )


def _place(batch: pa.RecordBatch, window_size: WindowSize) -> pa.RecordBatch:
    """Adds to addresses the columns of LIVE."""
    found = names.read(batch.column("address"), window_size)
    return pa.record_batch([batch.column("address"), found.slices, found.windows], schema=LIVE)


def _is_not_there(opener: StoreOpener, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for addresses without an object: somebody may have put one back by other means than `restore`."""
    store = opener.open()
    facts = work_ahead(partial(head_if_there, store), rows.column("address").to_pylist(), _AT_ONCE)
    return pa.array([each is None for each in facts], pa.bool_())


def _examples(engine: Engine[R], rows: R) -> tuple[str, ...]:
    return tuple(sorted(engine.collect(rows, limit=_EXAMPLES).column("address").to_pylist()))


def select_old(engine: Engine[R], live: R, cutoff: datetime) -> R:
    """Live addresses (`address`, `slice`) that are named before the cutoff, or whose names state no time."""
    limit = _first_id(cutoff)

    def is_old(rows: pa.RecordBatch) -> pa.BooleanArray:
        ids = pc.utf8_slice_codeunits(rows.column("address"), _ID_AT, _ID_AT + xids.LENGTH)
        return pc.or_(pc.is_null(rows.column("slice")), pc.less(ids, limit))

    return engine.where(live, is_old)


def select_expected(engine: Engine[R], live: R, slices: Iterable[str], cutoff: datetime) -> R:
    """Live addresses (`address`, `slice`) that a listing of the slices must have: those named before the cutoff.

    Ids sort by the time in them, so the cutoff is compared as the id that it would begin.
    """
    listed = pa.array(sorted(slices), pa.string())
    limit = _first_id(cutoff)

    def in_time(rows: pa.RecordBatch) -> pa.BooleanArray:
        ids = pc.utf8_slice_codeunits(rows.column("address"), _ID_AT, _ID_AT + xids.LENGTH)
        return pc.and_(pc.is_in(rows.column("slice"), value_set=listed), pc.less(ids, limit))

    return engine.where(live, in_time)


def _first_id(moment: datetime) -> str:
    """The first id that can be issued in the second of a moment."""
    return xids.encode(int(moment.timestamp()).to_bytes(4) + bytes(8))


def _of_heads(step: Step[R], committed: StoredFrame[CommittedFigures], known: Set[str]) -> R:
    """Addresses that branch heads hold.

    Args:
        known: ids of metaranges and ranges that are left out, where a run builds on another one. Of a metarange that
            was read before so was every range.
    """
    references = References.from_step(step)
    heads = lacking(known, sorted(set(committed.figures.heads.values())))
    return references.committed(references.range_records(heads).without(known))

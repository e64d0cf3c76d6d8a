"""Counts live addresses of branch heads and staging that the listing lacks: if there are too many, nothing is deleted.

Live addresses that are not listed suggest that references and objects are spelled differently or do not belong
together, so that the subtraction would miss live objects.

Some missing objects are no losses. A branch can be made on an expired commit, and an expired commit can be merged or
cherry-picked. Its objects may have been deleted long before, as the retention rules say. An object counts as lost
unless it is proved that the run which deleted it knew a commit that held it, and took that commit to be expired.

A clean run also counts its candidates that an optimized run would not have found (`count_late_arrivals`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from datetime import datetime
from functools import cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.engine.port import Engine, Holds, R
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    COMMITTED_DF,
    LIVE,
    LOST_DF,
    RANGES,
    STORE_DF,
    CandidateFigures,
    CommittedFigures,
    NoFigures,
    StoredFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.frame.slices import UnsealedSlices, read_names_in_shards
from lakefs_gc_assets.collector.incremental import checkpoint, planning
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint, open_base_checkpoint
from lakefs_gc_assets.collector.incremental.earlier_runs import (
    DELETIONS,
    EarlierRuns,
    are_gone,
    deleted_before,
    deletions,
)
from lakefs_gc_assets.collector.incremental.planning import NoBaseRun
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.references import References, find_ranges
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.tables import IdSet, lacking
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError, CorruptFile, OrderViolation, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, WindowSize

Expired = Mapping[str, frozenset[str]]
"""For the attempt of each deleting run, the metaranges that only expired commits had then."""


def select_expired(step: Step[R], missing_rows: R, count: int, find_read: Callable[[], Set[str]]) -> R:
    """Selects the addresses (`address`) deleted by earlier runs that had expired by the rules of that time.

    Usually a branch was made on an expired commit, so its metarange is live again and is read first. The ranges of all
    other expired commits are read only if that leaves addresses unexplained.

    Args:
        missing_rows: addresses (`address`) that earlier runs deleted and that were not restored.
        count: number of these addresses.
        find_read: returns the ids of metaranges that this step or an earlier one read.
    """
    engine = step.engine
    rows = engine.hold(engine.among_exactly(deletions(step), missing_rows), count)
    try:
        expired = find_expired_then(step, rows)
        read = find_read()
        again = {
            attempt: frozenset(metarange_id for metarange_id in ids if metarange_id in read)
            for attempt, ids in expired.items()
        }
        explained = _select_held(step, rows, again)
        if engine.count(engine.without_matching(rows, explained, ("address", "attempt"))):
            rest = {attempt: ids - again[attempt] for attempt, ids in expired.items()}
            explained = engine.union(explained, _select_held(step, rows, rest))
        explained = engine.hold(explained, count)
    except CollectionError as error:
        step.warn(f"missing objects count as lost, since the expired commits cannot be read: {error}")
        return engine.select(engine.table(DELETIONS.empty_table()), "address")
    unexplained = engine.without_matching(rows, explained, ("address", "attempt"))
    return engine.without_exactly(
        engine.distinct(engine.select(rows, "address")), engine.select(unexplained, "address")
    )


def find_expired_then(step: Step[R], rows: R) -> Expired:
    """Finds the metaranges that were expired when some attempts deleted; excludes runs without retention rules.

    Args:
        rows: deletions, whose column `attempt` names the attempts.

    Raises:
        CollectionError: the refs dump is not available, and is needed because a run's own list was removed.
    """
    engine = step.engine
    attempts = set(engine.collect(engine.distinct(engine.select(rows, "attempt"))).column("attempt").to_pylist())
    expired: dict[str, frozenset[str]] = {}
    undated: list[Plan] = []
    for plan in _plans_of_attempts(step, attempts):
        holders = active_commits.read_last_holders(step.repository.store, plan.run_id, plan.attempt)
        if holders is None:
            undated.append(plan)
        else:
            expired[plan.attempt] = frozenset(holders.column("metarange_id").to_pylist())
    return {**expired, **(_metaranges_made_before(step, undated) if undated else {})}


def _plans_of_attempts(step: Step[R], attempts: Iterable[str | None]) -> Iterator[Plan]:
    """The plans of the runs by retention rules that some attempts belong to."""
    unread = {*attempts}.difference([None])
    runs = EarlierRuns(step.repository.store)
    for run_id in runs.newest_first():
        if not unread:
            return
        settled = runs.settled(run_id)
        if settled is not None and not settled.deleted:
            continue
        try:
            plan = plans.read(step.repository.store, run_id)
        except CorruptFile as corrupt:
            step.warn(f"referenced objects that run {run_id} deleted count as lost: {corrupt}")
            continue
        if plan.attempt in unread:
            unread.remove(plan.attempt)
            if plan.flow.by_retention:
                yield plan


def _metaranges_made_before(step: Step[R], runs: Iterable[Plan]) -> Expired:
    """The metaranges of all commits that were made before each run, by the dates of the commits.

    The frames of these runs were removed, and the lists of expired commits with them. If a commit held an object then,
    and a run by retention rules deleted it, the commit had expired.
    """
    repository = step.repository.dumping_at_once()
    dump = commits.complete_dump(repository, repository.clock.now(), step.log)
    made_before: dict[str, frozenset[str]] = {}
    for plan in runs:
        are_older = dump.commits.seconds < int(plan.started_at.timestamp())
        made_before[plan.attempt] = frozenset(commits.distinct_metaranges(dump.commits, are_older).to_pylist())
    return made_before


def _select_held(step: Step[R], rows: R, expired: Expired) -> R:
    """Selects the deletions whose address is held by a metarange that had expired for their attempt.

    Metaranges that had expired for the same attempts are read together, each only once.
    """
    engine = step.engine
    attempts_of: dict[str, set[str]] = {}
    for attempt, metarange_ids in expired.items():
        for metarange_id in metarange_ids:
            attempts_of.setdefault(metarange_id, set()).add(attempt)
    alike: dict[frozenset[str], list[str]] = {}
    for metarange_id, attempts in sorted(attempts_of.items()):
        alike.setdefault(frozenset(attempts), []).append(metarange_id)
    selected = [engine.table(DELETIONS.empty_table())]
    for group, ids in alike.items():
        records = find_ranges(step, step.repository, ids)
        step.log(
            f"reading {counted(len(records), 'ranges')} of {counted(len(ids), 'expired commits')}: they may contain "
            "referenced objects that are gone"
        )
        of_group = engine.where_among(rows, "attempt", sorted(group))
        selected.append(engine.among_exactly(of_group, References.from_step(step).committed(records)))
    return engine.union(*selected)


_EXAMPLES = 3
_COLUMNS = ("address", "slice")
_LISTED = 1
"""Bit of `count_by_sets` for addresses that are listed."""
_ID_AT = len(DATA_PREFIX) + layout.XID_LENGTH + len("/")
"""Position of the id in the name of an object inside of a slice."""


def find_gap(
    step: Step[R],
    listed: StoredFrame[StoredFigures],
    uncommitted: StoredFrame[UncommittedFigures],
    committed: StoredFrame[CommittedFigures],
) -> CandidateFigures:
    """Compares the listing with every live address first, which costs one aggregation and usually finds no gap.

    Only missing addresses are then looked up in branch heads and staging, since lakeFS's own retention may have
    collected objects of old commits. A run that does not list everything looks for losses among addresses that it read
    anew, that are staged, that branch heads newly hold since its base run, or that its base run found lost.

    Returns only the figures and examples about missing, lost and re-referenced addresses.
    """
    engine, base = step.engine, open_base_checkpoint(step)
    lists_all = lists_everything(step.plan, listed.manifest.figures)
    slices = cache(partial(_find_listed_slices, step, listed, base))

    def expected(rows: R) -> R:
        return select_expected(engine, rows, slices(), step.plan.cutoff)

    # A slice whose objects were all deleted is no longer listed, and its losses must be found all the same.
    compared = partial(select_old, engine, cutoff=step.plan.cutoff) if lists_all else expected
    live = [frame.rows(engine, *_COLUMNS) for frame in (uncommitted, committed)]
    there = listed.rows(engine, "address")
    count = listed.count + uncommitted.count + committed.count
    counts = engine.count_by_sets(there, *map(compared, live), count=count) if lists_all or slices() else {}
    all_listed = all(sets & _LISTED for sets in counts)
    expected_count = sum(objects for sets, objects in counts.items() if sets != _LISTED)
    complete = CandidateFigures({}, (), missing=0, expected=expected_count, lost=0, named_again=0)
    if lists_all and all_listed:
        return complete
    lost_before = base.lost(step) if base else None
    new_heads = RangeRecords(RANGES.empty_table()) if base is None else find_new_ranges(step, base, committed)
    read = base is None or committed.figures.ranges_read or len(new_heads)
    is_anything_new = uncommitted.count or read or lost_before is not None
    if all_listed and not is_anything_new:
        return complete
    if lists_all:
        suspects = engine.without(engine.union(*map(compared, live)), there, count=count)
    else:
        more = [References.from_step(step).committed(new_heads), *([] if lost_before is None else [lost_before])]
        suspects = engine.union(*live, *(engine.select(rows, *_COLUMNS) for rows in more))
    deleted = engine.among_exactly(engine.select(suspects, "address"), deleted_before(step))
    with engine.cached(engine.distinct(deleted), at_most=count) as gone_from_store:
        if all_listed and not engine.count(gone_from_store):
            return complete
        read_before = base.read_ids if base and lost_before is None else IdSet()
        of_heads = engine.select(_of_heads(step, committed, read_before, new_heads), *_COLUMNS)
        heads = engine.distinct(engine.union(live[0], of_heads))
        lost = engine.among_exactly(gone_from_store, heads)
        if not lists_all:
            lost = engine.where(lost, partial(are_gone, step.repository.opener))
        lacking = engine.select(engine.without(expected(heads), there, count=count), "address")
        with engine.cached(lacking, at_most=count) as missing, engine.cached(lost, at_most=count) as lost_rows:
            unexplained = engine.without_exactly(missing, lost_rows)
            gap = replace(
                complete,
                missing=engine.count(unexplained),
                expected=engine.count(expected(heads)),
                missing_examples=_examples(engine, unexplained),
            )
            return _with_gone(step, gap, lost_rows)


def _find_listed_slices(
    step: Step[R], listed: StoredFrame[StoredFigures], base: BaseCheckpoint | None
) -> frozenset[str]:
    """The slices that this run listed, in shards as well."""
    slices = checkpoint.read_listed_slices(step.repository.store, step.plan.run_id, step.plan.attempt)
    if step.plan.flow is Flow.COMMITTED or not (in_shards := checkpoint.find_slices_in_shards(step, listed)):
        return slices
    # Slices of pending objects are sealed, and were not listed.
    return slices | (in_shards - (base.sealed if base else frozenset()))


def lists_everything(plan: Plan, figures: StoredFigures) -> bool:
    """True if a live address that the run did not list must be gone."""
    return plan.base_run is None and plan.flow is not Flow.COMMITTED and not figures.limited_to


def _with_gone(step: Step[R], gap: CandidateFigures, lost_rows: R) -> CandidateFigures:
    """Adds addresses that earlier runs deleted: lost ones, and ones that had expired and are referenced again.

    Both are stored as the frame `lost`, since a run that builds on this one does not read their ranges again.
    """
    engine, count = step.engine, step.engine.count(lost_rows)
    if not count:
        return gap
    place = partial(_add_places, window_size=step.plan.slice_window)
    step.complete(LOST_DF, NoFigures(), step.write(LOST_DF, lost_rows, place))
    again = engine.hold(select_expired(step, lost_rows, count, partial(_read_all_ids, step)), count)
    lost = engine.without_exactly(lost_rows, again)
    return replace(
        gap,
        lost=engine.count(lost),
        lost_examples=_examples(engine, lost),
        named_again=engine.count(again),
        named_again_examples=_examples(engine, again),
    )


def _read_all_ids(step: Step[R]) -> Set[str]:
    """Ids of the metaranges and ranges that this run and its base runs have read."""
    digest = step.stored(COMMITTED_DF).figures.read_sha256
    return tables.read_run_ids(step.repository.store, step.plan.run_id, step.plan.attempt, digest)


def _add_places(batch: pa.RecordBatch, window_size: WindowSize) -> pa.RecordBatch:
    """Adds the columns of LIVE to addresses."""
    places = layout.read_names(batch.column("address"), window_size)
    return pa.record_batch([batch.column("address"), places.slices, places.windows], schema=LIVE)


def _examples(engine: Engine[R], rows: R) -> tuple[str, ...]:
    return tuple(sorted(engine.collect(rows, limit=_EXAMPLES).column("address").to_pylist()))


def select_old(engine: Engine[R], live: R, cutoff: datetime) -> R:
    """Live addresses (`address`, `slice`) that are named before the cutoff, or whose names state no time."""
    is_earlier = _earlier_than(cutoff)
    return engine.where(live, lambda rows: pc.or_(pc.is_null(rows.column("slice")), is_earlier(rows)))


def select_expected(engine: Engine[R], live: R, slices: Iterable[str], cutoff: datetime) -> R:
    """Live addresses (`address`, `slice`) in the given slices, named before the cutoff: a listing must have them."""
    listed, limit = pa.array(sorted(slices), pa.string()), _first_id(cutoff)
    is_earlier = _earlier_than(cutoff)

    def is_expected(rows: pa.RecordBatch) -> pa.BooleanArray:
        outside_of_shards = pc.and_(pc.is_in(rows.column("slice"), value_set=listed), is_earlier(rows))
        if not rows.column("slice").null_count:
            return outside_of_shards
        in_shards, ids = read_names_in_shards(rows.column("address"))
        expected = pc.and_(pc.is_in(in_shards, value_set=listed), pc.fill_null(pc.less(ids, limit), False))
        return pc.or_(outside_of_shards, expected)

    return engine.where(live, is_expected)


def _earlier_than(moment: datetime) -> Holds:
    """A condition on addresses in slices outside of shards: true if their time is before the second of a moment."""
    limit = _first_id(moment)

    def is_earlier(rows: pa.RecordBatch) -> pa.BooleanArray:
        ids = pc.utf8_slice_codeunits(rows.column("address"), _ID_AT, _ID_AT + layout.XID_LENGTH)
        return pc.less(ids, limit)

    return is_earlier


def _first_id(moment: datetime) -> str:
    """The first id that can be issued in the second of a moment: earlier ids are smaller."""
    return layout.encode_xid(int(moment.timestamp()).to_bytes(4) + bytes(8))


def find_new_ranges(step: Step[R], base: BaseCheckpoint, committed: StoredFrame[CommittedFigures]) -> RangeRecords:
    """Ranges of branch heads that are new since the base run, without ranges that a head had at that time.

    A branch that was made on an old commit has ranges whose addresses are known. So they are not read, but their
    objects may be gone. If the base run's heads cannot be read, no range is excluded for them.
    """
    references, heads_before, known = References.from_step(step), set[str](), IdSet()
    try:
        heads_before = base.heads(step)
        if not heads_before.issuperset(committed.figures.heads.values()):
            known = references.range_records(sorted(heads_before)).ids
    except (OrderViolation, CorruptFile) as error:
        # The metarange of a branch that was deleted since may be gone.
        step.warn(f"reading more ranges, since the branch heads of run {base.run_id} cannot be read: {error}")
    return references.range_records(sorted({*committed.figures.heads.values()} - heads_before)).without(known)


def _of_heads(step: Step[R], committed: StoredFrame[CommittedFigures], read_before: Set[str], new: RangeRecords) -> R:
    """Addresses that branch heads hold.

    Args:
        read_before: ids of metaranges and ranges to exclude, in a run with a base run. If a metarange was read before,
            all of its ranges were read too.
        new: ranges of heads that count even if they were read before.
    """
    references = References.from_step(step)
    heads = lacking(read_before, sorted(set(committed.figures.heads.values())))
    ranges = references.range_records(heads).without(read_before).without(new.ids)
    return step.engine.union(references.committed(ranges), references.committed(new))


def count_late_arrivals(step: Step[R], candidates: StoredFrame[CandidateFigures]) -> int:
    """Counts the candidates of a clean run that came into a slice after an earlier run had sealed it.

    An optimized run would not find them. 0 for other flows, and without an earlier run to build on.
    """
    if step.plan.flow is not Flow.CLEAN or not candidates.count:
        return 0
    try:
        base = planning.find_base_run(step.repository, step.plan)
        planning.require_files(step.repository.store, base)
    except NoBaseRun:
        return 0
    return step.engine.count(
        select_late(step, candidates, base.sealed, BaseCheckpoint(step.repository.store, base.run_id))
    )


def select_late(
    step: Step[R], candidates: StoredFrame[CandidateFigures], sealed: frozenset[str], base: BaseCheckpoint
) -> R:
    """The candidates of a clean run that lie where a run with the base run lists nothing, and were not pending then."""
    engine = step.engine
    listed = checkpoint.read_listed_slices(step.repository.store, step.plan.run_id, step.plan.attempt)
    unsealed = UnsealedSlices.from_sealed(sealed, listed - sealed)
    elsewhere = engine.where(
        candidates.rows(engine, *STORE_DF.schema.names), lambda rows: pc.invert(unsealed.contains(rows["address"]))
    )
    return engine.without_exactly(elsewhere, engine.select(base.pending_objects(step), "address"))

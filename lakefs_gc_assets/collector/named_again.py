"""Tells objects that expired by rule, were deleted, and are referenced again from losses.

A branch can be made on an expired commit, and an expired commit can be merged or cherry-picked. What it holds may have
been deleted long before, as the retention rules say. That is no loss. An object was lost if nothing proves that the
run which deleted it knew a commit that held it, and took that commit to be expired.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.frame.kinds import COMMITTED_DF
from lakefs_gc_assets.collector.history import DELETIONS, deletions
from lakefs_gc_assets.collector.incremental import ranges_read
from lakefs_gc_assets.collector.live.noted_metaranges import find_ranges
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.retention import last_holders
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError, CorruptFile

Expired = Mapping[str, frozenset[str]]
"""By the attempt of a run that deleted something: the metaranges that only expired commits had then."""


def select_expired(step: Step[R], gone: R, count: int) -> R:
    """Selects from addresses that earlier runs deleted those that had expired by the rules of that time (`address`).

    Usually a branch was made on an expired commit, so its metarange is live again and is read first. The ranges of all
    other expired commits are read only if that leaves addresses unexplained.

    Args:
        gone: addresses (`address`) that earlier runs deleted and nobody restored.
        count: how many there are.
    """
    engine = step.engine
    rows = engine.hold(engine.among_exactly(deletions(step), gone), count)
    try:
        expired = find_expired_then(step, rows)
        read = ranges_read.read(
            step.repository.store,
            step.plan.run_id,
            step.plan.attempt,
            step.stored(COMMITTED_DF).figures.read_sha256,
        )
        again = {attempt: frozenset(each for each in ids if each in read) for attempt, ids in expired.items()}
        explained = _select_held(step, rows, again)
        if engine.count(engine.without_matching(rows, explained, ("address", "attempt"))):
            rest = {attempt: ids - again[attempt] for attempt, ids in expired.items()}
            explained = engine.union(explained, _select_held(step, rows, rest))
        explained = engine.hold(explained, count)
    except CollectionError as error:
        step.warn(f"whether objects that are gone had expired by rule cannot be told, so they count as lost: {error}")
        return engine.select(engine.table(DELETIONS.empty_table()), "address")
    unexplained = engine.without_matching(rows, explained, ("address", "attempt"))
    return engine.without_exactly(
        engine.distinct(engine.select(rows, "address")), engine.select(unexplained, "address")
    )


def find_expired_then(step: Step[R], rows: R) -> Expired:
    """Finds what was expired when each of some attempts deleted; runs without retention rules are left out.

    Args:
        rows: deletions, by their column `attempt`.
    Raises:
        CollectionError: the refs dump cannot be had, which is needed where a run's own list was removed since.
    """
    engine = step.engine
    attempts = set(engine.collect(engine.distinct(engine.select(rows, "attempt"))).column("attempt").to_pylist())
    found: dict[str, frozenset[str]] = {}
    undated: list[Plan] = []
    for plan in _plans(step, attempts):
        holders = last_holders.read(step.repository.store, plan.run_id, plan.attempt)
        if holders is None:
            undated.append(plan)
        else:
            found[plan.attempt] = frozenset(holders.column("metarange_id").to_pylist())
    return {**found, **(_made_before(step, undated) if undated else {})}


def _plans(step: Step[R], attempts: Iterable[str | None]) -> Iterator[Plan]:
    """The plans of the runs by retention rules that some attempts belong to."""
    left = {*attempts}.difference([None])
    runs = EarlierRuns(step.repository.store)
    for run_id in runs.newest_first():
        if not left:
            return
        settled = runs.settled(run_id)
        if settled is not None and not settled.deleted:
            continue
        try:
            plan = plans.read(step.repository.store, run_id)
        except CorruptFile as corrupt:
            step.warn(f"what run {run_id} deleted counts as lost where it is referenced: {corrupt}")
            continue
        if plan.attempt in left:
            left.remove(plan.attempt)
            if plan.flow.by_retention:
                yield plan


def _made_before(step: Step[R], runs: Iterable[Plan]) -> Expired:
    """The metaranges of all commits that were made before each run, by what the commits say.

    The frames of these runs were removed, and the lists of expired commits with them. What a commit held then and a run
    by retention rules deleted had expired.
    """
    settings = step.repository.settings.model_copy(update={"wait_before_dump_seconds": 0})
    repository = replace(step.repository, settings=settings)
    dump = commits.complete_dump(repository, repository.clock.now(), step.log)
    return {
        plan.attempt: frozenset(
            commits.distinct_metaranges(
                dump.commits, dump.commits.seconds < int(plan.started_at.timestamp())
            ).to_pylist()
        )
        for plan in runs
    }


def _select_held(step: Step[R], rows: R, expired: Expired) -> R:
    """Selects the deletions whose address a metarange holds that had expired for their attempt.

    Each metarange is read once, with those that had expired for the same attempts.
    """
    engine = step.engine
    attempts_of: dict[str, set[str]] = {}
    for attempt, metarange_ids in expired.items():
        for metarange_id in metarange_ids:
            attempts_of.setdefault(metarange_id, set()).add(attempt)
    alike: dict[frozenset[str], list[str]] = {}
    for metarange_id, attempts in sorted(attempts_of.items()):
        alike.setdefault(frozenset(attempts), []).append(metarange_id)
    found = [engine.table(DELETIONS.empty_table())]
    for group, asked in alike.items():
        records = find_ranges(step, step.repository, asked)
        step.log(
            f"reading {len(records):,} ranges of {len(asked):,} expired commits: they may have held objects that are "
            "gone and are referenced"
        )
        of_group = engine.where_among(rows, "attempt", sorted(group))
        found.append(engine.among_exactly(of_group, References.from_step(step).committed(records)))
    return engine.union(*found)

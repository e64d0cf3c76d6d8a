"""Purging the quarantine: what the command line and the job of the UI do."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lakefs_gc_assets.collector import cutoff
from lakefs_gc_assets.collector.cutoff import Clocks
from lakefs_gc_assets.collector.lock import Lock
from lakefs_gc_assets.collector.quarantine import purge as quarantine_purge
from lakefs_gc_assets.collector.quarantine.check import LiveCheck
from lakefs_gc_assets.collector.quarantine.purge import Check, Fate, Moved, Purged
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.sizes import size
from lakefs_gc_assets.collector.step import Step, locked, require_own_plan
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError, OrderViolation
from lakefs_gc_assets.saying import Say
from lakefs_gc_assets.spark.errors import from_worker


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What is in quarantine, run by run.

    Attributes:
        due: runs whose objects have been there for long enough to be purged, the newest run first.
        waiting: the other runs, in the same order.
        unreadable: why the copies of a run stay that this program cannot judge, by run: its plan is gone or damaged, or
            of another repository.
        after: for how long objects stay in quarantine.
    """

    due: tuple[Moved, ...]
    waiting: tuple[Moved, ...]
    after: timedelta
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def describe_unreadable(self) -> Iterator[str]:
        """A line for each run whose copies stay."""
        for run_id, why in self.unreadable.items():
            yield (
                f"quarantine: what run {run_id} moved stays: {why}; `lakefs-gc restore --run-id {run_id}` restores it"
            )

    def due_at(self, moved: Moved) -> datetime:
        """When the objects of a run may be purged, UTC."""
        return moved.since + self.after

    def described(self) -> list[dict[str, object]]:
        """What of each run is in quarantine, for programs; what is due first, what cannot be judged last."""
        judged: list[dict[str, object]] = [
            {
                "run_id": moved.run_id,
                "objects": moved.copies.num_rows,
                "bytes": moved.size,
                "due_at": self.due_at(moved),
                "due": is_due,
            }
            for is_due, group in ((True, self.due), (False, self.waiting))
            for moved in group
        ]
        return [*judged, *({"run_id": run_id, "error": why, "due": False} for run_id, why in self.unreadable.items())]


def plan_purge(repository: OpenRepository, run_id: str | None, lock: Lock | None = None) -> PurgePlan:
    """What `purge` would look at.

    Args:
        run_id: the only run to look at; None for all.
        lock: the repository's lock, which was just written: its time in the store is one of the clocks that must agree.
            None to go by this machine's clock alone, to show what is due.
    Raises:
        GuardTripped: the clocks disagree.
        CollectionError: the run has nothing in quarantine, or it is the only one asked for and its plan cannot be read.
    """
    now = repository.clock.now()
    if lock is not None:
        clocks = Clocks.read(now, repository.api.server_clocks, lock.store_clock)
        cutoff.require_agreement(clocks, repository.skew)
        now = clocks.earliest
    after = timedelta(days=repository.settings.quarantine_days)
    unreadable: dict[str, str] = {}
    due, waiting = quarantine_purge.due(_judged(repository, run_id, unreadable), now, after)
    if run_id and not due and not waiting:
        raise CollectionError(unreadable.get(run_id, f"run {run_id} has nothing in quarantine"))
    return PurgePlan(tuple(due), tuple(waiting), after, unreadable)


def _judged(repository: OpenRepository, run_id: str | None, unreadable: dict[str, str]) -> Iterator[Moved]:
    """What runs of this repository have in quarantine; adds to `unreadable` why others are left out."""

    def exclude(excluded: str, error: CollectionError) -> None:
        unreadable[excluded] = str(error)

    for moved in quarantine_purge.in_quarantine(repository.store, [run_id] if run_id else [], exclude):
        try:
            require_own_plan(moved.plan, repository)
        except OrderViolation as error:
            exclude(moved.run_id, error)
        else:
            yield moved


def purge(collector: Collector, run_id: str | None, owner: str, note: Say, warn: Say) -> Iterator[Purged]:
    """Purges what has been in quarantine for long enough, under the lock, as somebody iterates.

    Yields what became of each copy. Objects that are live by then are restored. Nothing is deleted where it cannot be
    found out what is live.

    Args:
        run_id: as for `plan_purge`.
        owner: who takes the lock.
        note: is called with each line for the log.
        warn: is called with each warning, such as that the lock could not be renewed.
    Raises:
        LockHeld: another owner holds the lock.
        CollectionError: see `plan_purge`, `purge_by` and `quarantine.purge.purge`.
    """
    repository = collector.open()

    def check(plan: Plan, lock: Lock) -> Check:
        step = Step(note, warn, repository, collector.engine(repository.settings), plan, lock)
        return LiveCheck(step, from_worker)

    yield from purge_by(repository, run_id, owner, check, warn)


def purge_by(
    repository: OpenRepository, run_id: str | None, owner: str, check: Callable[[Plan, Lock], Check], warn: Say
) -> Iterator[Purged]:
    """Purges what has been in quarantine for long enough, by any check of what is live, as somebody iterates.

    Args:
        check: makes a check of what counts as live in a run of this plan.
    Raises:
        CollectionError: the quarantine of the run that is asked for may not be purged yet; or see `purge`.
    """
    with locked(repository, "purge", owner, warn) as lock:
        found = plan_purge(repository, run_id, lock)
        if run_id and not found.due:
            (waiting,) = found.waiting
            raise CollectionError(
                f"what run {run_id} moved to quarantine may go at {found.due_at(waiting):%F %T}Z: lower "
                "collection.quarantine_days for an earlier time"
            )
        for excluded, why in found.unreadable.items():
            yield quarantine_purge.left_out(excluded, why)
        for by_retention in (False, True):
            group = [each for each in found.due if each.plan.flow.by_retention is by_retention]
            if not group:
                continue
            # Retention counts ages back from the moment of the newest of these runs.
            live = check(group[0].plan, lock)
            valid = timedelta(minutes=repository.settings.recheck_valid_minutes)
            yield from quarantine_purge.purge(repository.store, group, live, lock.token, repository.clock, valid)


@dataclass(slots=True)
class Totals:
    """What a purge did, added up."""

    counts: Counter[Fate] = field(default_factory=Counter)
    freed: int = 0

    @property
    def well(self) -> bool:
        """Whether everything that was due is purged or restored."""
        return not (self.counts[Fate.FAILED] or self.counts[Fate.KEPT])

    def counted(self, each: Iterable[Purged]) -> Iterator[Purged]:
        """Counts copies, and hands on those of which there is something to tell."""
        for purged in each:
            self.counts[purged.fate] += 1
            if purged.fate is Fate.PURGED:
                self.freed += purged.size
            else:
                yield purged

    def __str__(self) -> str:
        others = (f", {count:,} {fate.value}" for fate, count in sorted(self.counts.items()) if fate is not Fate.PURGED)
        return f"{self.counts[Fate.PURGED]:,} purged, {size(self.freed)} freed{''.join(others)}"

"""The recheck: finds objects that became live since the mark, by the whole live definition, right before deletions.

A sweep relies on a recheck for a limited span. The span begins right before the recheck's first request, by the clock
of the store, which all machines share. Samples of staged entries are taken before that: they only show that a later
answer is complete, and with many branches they can take longer than the span. A task that deletes also asks the store
for the time, once and right before its first batch, however late it begins. From then on it counts seconds by itself.
So a wrong clock of its machine cannot extend the span. It can only shorten it: after the machine was suspended, or if
its clock was set forward.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, UNCOMMITTED_DF
from lakefs_gc_assets.collector.incremental.earlier_runs import without_deleted
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.current import (
    Committed,
    Samples,
    Uncommitted,
    ask_committed,
    prepare_uncommitted,
    read_reasons,
)
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import Clock, Moment
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile, OrderViolation, StorageError, counted
from lakefs_gc_assets.storage.interface import ObjectStore

RESOLUTION = timedelta(seconds=1)
"""Stores give times in whole seconds, with the fraction cut off."""


def store_time(store: ObjectStore, run_id: str) -> datetime:
    """The current time by the store's clock, UTC, cut to whole seconds on some stores; takes three small calls.

    A small object is written into the run's folder and removed again. If it cannot be removed, it does no harm there.

    Raises StorageError if it cannot be written or its metadata cannot be read.
    """
    key = f"{run_folder.folder(run_id)}clock/{uuid.uuid4().hex}"
    store.put(key, b"")
    written_at = store.head(key).last_modified
    with suppress(StorageError):
        store.delete([key])
    return written_at


@dataclass(frozen=True, slots=True)
class Validity:
    """The span for which a recheck is valid; can be pickled.

    Attributes:
        as_of: start of the span by the store's clock, UTC.
    """

    as_of: datetime
    span: timedelta

    @classmethod
    def begin(cls, store: ObjectStore, run_id: str, span: timedelta) -> "Validity":
        """The span that begins now; to be called before any request about live objects. Raises StorageError."""
        return cls(store_time(store, run_id), span)

    def countdown(self, store: ObjectStore, run_id: str, clock: Clock) -> "Countdown":
        """The rest of the span, for the task that makes this call. Raises StorageError."""
        # Read before the store is asked, so that the time of its answer counts.
        began = Moment.now(clock)
        remaining = self.as_of + self.span - store_time(store, run_id) - RESOLUTION
        return Countdown(clock, remaining, began)


class Countdown:
    """Counts down the rest of a span, in the process that began the countdown."""

    def __init__(self, clock: Clock, remaining: timedelta, began: Moment) -> None:
        """For `Validity.countdown` only."""
        self._clock = clock
        self._left = remaining
        self._began = began
        self._over = False

    def is_over(self) -> bool:
        """True once the span is over; stays true, even if clocks are set back."""
        self._over = self._over or self._began.passed(self._clock) >= self._left
        return self._over


def require_not_overtaken(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation if a newer run has swept or begun to, or may have; the repository's lock is held.

    A run that a newer one has overtaken no longer fits the store. The newer sweep deleted some of the same objects, and
    stored frames that the next run builds on. If the older run were then resumed or approved, it would delete behind
    these frames' back.

    A report shows that a sweep came to its end, receipts show that one began. A newer run that only marked, or failed
    before its first receipt, overtakes no run. If a newer run has no receipts and its report cannot be read, it may
    have swept.

    Raises:
        StorageError: the store cannot be asked.
    """
    for newer in takewhile(lambda other: other < run_id, run_folder.newest_runs(store)):
        try:
            swept = _swept(store, newer)
        except CorruptFile as corrupt:
            raise OrderViolation(
                f"it is unknown whether run {newer}, which is newer than run {run_id}, has swept: {corrupt} "
                "Open a new run"
            ) from corrupt
        if swept:
            raise OrderViolation(
                f"run {newer}, which is newer than run {run_id}, has swept or begun to: a run that a newer one has "
                "overtaken must not sweep. Open a new run"
            )


def _swept(store: ObjectStore, run_id: str) -> bool:
    if receipts.keys(store, run_id):
        return True
    report = reports.read(store, run_id)
    return report is not None and not report.dry_run and report.ending is not Ending.FAILED


def find_live_again(step: Step[R], samples: Samples) -> R:
    """Finds the addresses (LIVE) that may have become live since the mark.

    These are all uncommitted addresses, prepared anew, and the addresses of live ranges that the mark did not read.

    Args:
        samples: result of `sample_staged`, called right before.

    Raises:
        GuardTripped: another repository shares the storage namespace by now, or may; or the figures differ from the
            mark's in a way that looks like a mistake.
        OrderViolation: the commits come from another source than at the mark.
        LakeFSError, CorruptFile: the answers are not complete.
    """
    marked, repository = step.stored(COMMITTED_DF).figures, step.repository
    run_id, attempt = step.plan.run_id, step.plan.attempt
    read_known = partial(tables.read_run_ids, repository.store, run_id, attempt, marked.read_sha256)
    # The ids are the mark's, so it does not matter when they are read. Reasons are read before uncommitted data.
    with step.engine.in_background(read_known) as known_ids:
        require_own_namespace(step)
        before = read_reasons(step)
        prepared = prepare_uncommitted(step, samples=samples)
        known = known_ids()
    current = ask_committed(_without_known_lines(step, marked.retention_differences), prepared.ended_at, known, before)
    step.waited += current.waited
    files.require_same_source(current.source, marked.commit_source)
    require_retention_holds(current)
    heads = current.own.heads
    # Branches that were deleted as stale since the mark are not missed.
    branches = without_deleted(repository.store, run_id, step.plan.repository, len(marked.heads), heads, step.warn)
    guards.require_branches(len(heads), branches, repository.settings)
    live = step.engine.union(*prepared.addresses, *current.addresses(step), *current.provisional_addresses(step))
    require_uncommitted_kept(step, live, prepared, current)
    step.log(
        f"recheck: {counted(prepared.files, 'files')} of uncommitted data, {counted(current.own.commits, 'commits')}"
    )
    return live


def require_own_namespace(step: Step[R]) -> None:
    """Raises GuardTripped if another repository lies in, around or on the storage namespace, or may."""
    repository = step.repository
    others = other_repositories.find(repository)
    guards.require_own_namespace(others.nested, others.refusal, repository.settings)


def _without_known_lines(step: Step[R], logged: str) -> Step[R]:
    """A copy of the step whose log drops the lines of a text that was logged before."""
    lines, log = frozenset(logged.splitlines()), step.log

    def note(line: str) -> None:
        if line not in lines:
            log(line)

    return replace(step, log=note)


def require_retention_holds(current: Committed) -> None:
    """Raises GuardTripped if the retention rules, read anew, trip a guard."""
    for guard in current.definition.guards if current.definition else ():
        raise guard


def require_uncommitted_kept(step: Step[R], live: R, prepared: Uncommitted[R], current: Committed) -> None:
    """Raises GuardTripped if too many of the mark's uncommitted addresses are neither uncommitted nor committed now."""
    engine, marked, committed = step.engine, step.stored(UNCOMMITTED_DF), step.stored(COMMITTED_DF)
    if not marked.count:
        return
    count = marked.count + prepared.count + current.count
    no_longer_live = engine.without(marked.rows(engine, "address"), live, count=count)
    with engine.name_work("recheck uncommitted addresses"), engine.cached(no_longer_live, at_most=marked.count) as left:
        lost = engine.count(left)
        # Usually all addresses are still uncommitted, so the mark's committed addresses need not be read.
        if lost:
            lost = engine.count(engine.without(left, committed.rows(engine, "address"), count=lost + committed.count))
    guards.require_uncommitted_kept(lost, marked.count, step.repository.settings)

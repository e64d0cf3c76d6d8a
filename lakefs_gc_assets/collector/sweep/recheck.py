"""The recheck: finds what became live since the mark, by the whole live definition, right before deletions.

A sweep believes what was found to be live for a span that no clock of an executor can stretch. The span begins right
before the recheck asks its first question, by the clock of the store, which all machines share. Samples of what is
staged are asked for before that: they only show that a later answer is complete, and of many branches they can take
longer than the span. A task that deletes asks the store for the time as well, once and right before its first batch,
however late it begins. From then on it counts seconds by itself. The clock of its machine can only shorten the span:
after the machine stood still, or when somebody put its clock forward.

What a run marked no longer fits the store once a newer run has overtaken it. A newer run that swept has deleted some of
the same objects, and left what the next run builds on. An older run that went on afterwards, resumed or approved late,
would delete behind its back.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.earlier_runs import without_deleted
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, UNCOMMITTED_DF
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
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import Clock, Moment
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.errors import (
    CorruptFile,
    OrderViolation,
    StorageError,
    counted,
)
from lakefs_gc_assets.storage.interface import ObjectStore

RESOLUTION = timedelta(seconds=1)
"""Stores tell times in whole seconds, the fraction cut off."""


def store_time(store: ObjectStore, run_id: str) -> datetime:
    """The present by the store's clock, UTC, cut to whole seconds on some stores: three small calls.

    A small object is written into the run's folder and removed again; one that cannot be removed does no harm there.

    Raises StorageError where it cannot be written or looked at.
    """
    key = f"{run_folder.folder(run_id)}clock/{uuid.uuid4().hex}"
    store.put(key, b"")
    written_at = store.head(key).last_modified
    with suppress(StorageError):
        store.delete([key])
    return written_at


@dataclass(frozen=True, slots=True)
class Validity:
    """A span for which a recheck is believed; may be pickled.

    Attributes:
        as_of: when it began, by the store's clock, UTC.
    """

    as_of: datetime
    span: timedelta

    @classmethod
    def begin(cls, store: ObjectStore, run_id: str, span: timedelta) -> "Validity":
        """The span that begins now: to be called before anything is asked about what is live. Raises StorageError."""
        return cls(store_time(store, run_id), span)

    def countdown(self, store: ObjectStore, run_id: str, clock: Clock) -> "Countdown":
        """The rest of the span, for the task that calls this. Raises StorageError."""
        # Noted before the store is asked, so that the time it takes to answer counts.
        began = Moment.now(clock)
        remaining = self.as_of + self.span - store_time(store, run_id) - RESOLUTION
        return Countdown(clock, remaining, began)


class Countdown:
    """Counts what is left of a span, in the process that began it."""

    def __init__(self, clock: Clock, remaining: timedelta, began: Moment) -> None:
        """For `Validity.countdown` only."""
        self._clock = clock
        self._left = remaining
        self._began = began
        self._over = False

    def is_over(self) -> bool:
        """True once the span is over; it stays over, whatever the clocks say."""
        self._over = self._over or self._began.passed(self._clock) >= self._left
        return self._over


def require_not_overtaken(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation where a newer run has swept or begun to, or may have; the repository's lock is held.

    A report tells that a sweep came to its end, receipts tell that one began. A newer run that only marked, or failed
    before its first receipt, overtakes no run.

    Where the report of a newer run cannot be read, and it has no receipts, it may have swept.

    Raises:
        StorageError: the store cannot be asked.
    """
    for newer in takewhile(lambda other: other < run_id, run_folder.newest_runs(store)):
        try:
            swept = _swept(store, newer)
        except CorruptFile as corrupt:
            raise OrderViolation(
                f"it is not known whether run {newer} has swept, which is newer than run {run_id}: {corrupt} "
                "Open a new run"
            ) from corrupt
        if swept:
            raise OrderViolation(
                f"run {newer} has swept, or begun to, and is newer than run {run_id}: a run that a newer one has "
                "overtaken does not sweep. Open a new run"
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
        samples: what `sample_staged` returned right before.
    Raises:
        GuardTripped: another repository shares the storage namespace by now, or may; or the figures differ from those
            of the mark in a way that looks like a mistake.
        OrderViolation: the commits come from another source than at the mark.
        LakeFSError, CorruptFile: the answers are not complete.
    """
    marked, repository = step.stored(COMMITTED_DF).figures, step.repository
    require_own_namespace(step)
    before = read_reasons(step)
    prepared = prepare_uncommitted(step, samples=samples)
    known = tables.read_run_ids(repository.store, step.plan.run_id, step.plan.attempt, marked.read_sha256)
    current = ask_committed(_without(step, marked.retention_differences), prepared.ended_at, known, before)
    step.waited += current.waited
    files.require_same_source(current.source, marked.commit_source)
    require_retention_holds(current)
    heads, run = current.own.heads, step.plan.run_id
    # Those that were deleted as stale since the mark are not missed.
    branches = without_deleted(repository.store, run, step.plan.repository, len(marked.heads), heads, step.warn)
    guards.require_branches(len(heads), branches, repository.settings)
    live = step.engine.union(*prepared.addresses, *current.addresses(step), *current.provisional_addresses(step))
    require_uncommitted_kept(step, live, prepared, current)
    step.log(
        f"recheck: {counted(prepared.files, 'files')} of uncommitted data, {counted(current.own.commits, 'commits')}"
    )
    return live


def require_own_namespace(step: Step[R]) -> None:
    """Raises GuardTripped where another repository lies in, around or on the storage namespace, or may."""
    repository = step.repository
    around = other_repositories.find(repository)
    guards.require_own_namespace(around.nested, around.refusal, repository.settings)


def _without(step: Step[R], logged: str) -> Step[R]:
    """The step with a log that leaves out lines which a text has already."""
    lines, log = frozenset(logged.splitlines()), step.log

    def note(line: str) -> None:
        if line not in lines:
            log(line)

    return replace(step, log=note)


def require_retention_holds(current: Committed) -> None:
    """Raises GuardTripped where the retention rules, read anew, trip a guard of theirs."""
    for guard in current.definition.guards if current.definition else ():
        raise guard


def require_uncommitted_kept(step: Step[R], live: R, prepared: Uncommitted[R], current: Committed) -> None:
    """Raises GuardTripped where too much of what was uncommitted at the mark is neither uncommitted nor committed."""
    engine, marked, committed = step.engine, step.stored(UNCOMMITTED_DF), step.stored(COMMITTED_DF)
    if not marked.count:
        return
    count = marked.count + prepared.count + current.count
    no_longer_live = engine.without(marked.rows(engine, "address"), live, count=count)
    with engine.cached(no_longer_live, at_most=marked.count) as left:
        lost = engine.count(left)
        # Mostly all is uncommitted still, and what the mark knew to be committed need not be read.
        if lost:
            lost = engine.count(engine.without(left, committed.rows(engine, "address"), count=lost + committed.count))
    guards.require_uncommitted_kept(lost, marked.count, step.repository.settings)

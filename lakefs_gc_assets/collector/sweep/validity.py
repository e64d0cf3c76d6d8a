"""For how long a sweep believes what was found to be live: a span that no clock of an executor can stretch.

The span begins right before the recheck asks its first question, by the clock of the store, which all machines share. A
task that deletes asks the store for the time as well, once and right before its first batch, however late it begins.
From then on it counts seconds by itself. The clock of its machine can only shorten the span: after the machine stood
still, or when somebody put its clock forward.

What a run marked no longer fits the store once a newer run has overtaken it. A newer run that swept has deleted some of
the same objects, and left what the next run builds on. An older run that went on afterwards, resumed or approved late,
would delete behind its back.
"""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository import Clock, Moment
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CorruptFile, OrderViolation, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore

_RESOLUTION = timedelta(seconds=1)
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
        remaining = self.as_of + self.span - store_time(store, run_id) - _RESOLUTION
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


def newer_runs(store: ObjectStore, run_id: str) -> Iterator[str]:
    """The ids of runs that were opened after this one, newest first."""
    return takewhile(lambda other: other < run_id, run_folder.newest_runs(store))


def require_not_overtaken(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation where a newer run has swept or begun to, or may have; the repository's lock is held.

    A report tells that a sweep came to its end, receipts tell that one began. A newer run that only marked, or failed
    before its first receipt, overtakes no run.

    Where the report of a newer run cannot be read, and it has no receipts, it may have swept.

    Raises:
        StorageError: the store cannot be asked.
    """
    for newer in newer_runs(store, run_id):
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

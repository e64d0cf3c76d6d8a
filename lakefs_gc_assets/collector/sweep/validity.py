"""For how long a sweep believes what was found to be live: a span that no clock of an executor can stretch.

The span begins right before the recheck asks its first question, by the clock of the store, which all machines share.
A task that deletes asks the store for the time as well, once and right before its first batch, however late it begins.
From then on it counts seconds by itself. The clock of its machine can only shorten the span: after the machine stood
still, or when somebody put its clock forward.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakefs_gc_assets.collector.clock import Clock, Moment
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import StorageError
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
        """What is left of the span, for the task that calls this. Raises StorageError."""
        # Noted before the store is asked, so that the time it takes to answer counts.
        began = Moment.now(clock)
        left = self.as_of + self.span - store_time(store, run_id) - _RESOLUTION
        return Countdown(clock, left, began)


class Countdown:
    """Counts what is left of a span, in the process that began it."""

    def __init__(self, clock: Clock, left: timedelta, began: Moment) -> None:
        """For `Validity.countdown` only."""
        self._clock = clock
        self._left = left
        self._began = began
        self._over = False

    def is_over(self) -> bool:
        """Whether the span is over; once it is, it stays over, whatever the clocks say."""
        self._over = self._over or self._began.passed(self._clock) >= self._left
        return self._over

"""Time as the collector sees it, behind a port, so that a simulation can take it over."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> datetime:
        """The present, aware, UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


@runtime_checkable
class Stopwatch(Protocol):
    """A clock that also has a monotonic counter of seconds, which setting the time does not move."""

    def monotonic(self) -> float:
        """Seconds since some moment."""
        ...


def monotonic(clock: Clock) -> float:
    """Seconds since some moment, only to be compared with each other in one process.

    By the stopwatch where the clock is one; otherwise by its time.
    """
    return clock.monotonic() if isinstance(clock, Stopwatch) else clock.now().timestamp()


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment from which a process counts: setting its clock back does not make less of what has passed.

    Attributes:
        at: UTC.
        counter: what `monotonic` gave then.
    """

    at: datetime
    counter: float

    @classmethod
    def now(cls, clock: Clock) -> "Moment":
        """The present by a clock."""
        return cls(clock.now(), monotonic(clock))

    def passed(self, clock: Clock) -> timedelta:
        """The time since the moment: by the clock's time or by its counter, whichever is longer."""
        return max(timedelta(seconds=monotonic(clock) - self.counter), clock.now() - self.at)


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """See Clock.now."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See Clock.sleep."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """See Stopwatch.monotonic."""
        return time.monotonic()

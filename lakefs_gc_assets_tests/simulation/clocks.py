"""Time in the simulated world: it moves only when the world moves it; every machine's clock is off by a little."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


def moment(seconds: float) -> datetime:
    """Seconds since 1970 as a time, UTC."""
    return datetime.fromtimestamp(seconds, UTC)


@dataclass
class TrueTime:
    """The world's own time, in seconds since 1970; nobody in the world can see it."""

    now: float


@dataclass
class MachineClock:
    """What one machine takes for the time; somebody may set it anew.

    Attributes:
        skew: seconds ahead of the true time.
    """

    time: TrueTime
    skew: float

    def seconds(self) -> float:
        return self.time.now + self.skew


@dataclass(frozen=True)
class CollectorClock:
    """The collector's `Clock`; sleeping hands over to the rest of the world."""

    machine: MachineClock
    wait: Callable[[float], None]

    def now(self) -> datetime:
        return moment(self.machine.seconds())

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def monotonic(self) -> float:
        return self.now().timestamp()

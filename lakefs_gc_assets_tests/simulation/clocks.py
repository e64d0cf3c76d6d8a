"""Time in the simulated world. Only the world moves it; each machine's clock is off by a little."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


def moment(seconds: float) -> datetime:
    """Converts seconds since 1970 to a UTC time."""
    return datetime.fromtimestamp(seconds, UTC)


@dataclass
class TrueTime:
    """The world's own time, in seconds since 1970. No machine in the world can read it."""

    now: float


@dataclass
class MachineClock:
    """The clock of one machine, which can be set anew.

    Attributes:
        skew: seconds ahead of the true time.
    """

    time: TrueTime
    skew: float

    def seconds(self) -> float:
        return self.time.now + self.skew


@dataclass(frozen=True)
class CollectorClock:
    """The collector's `Clock`. While it sleeps, the rest of the world goes on."""

    machine: MachineClock
    wait: Callable[[float], None]

    def now(self) -> datetime:
        return moment(self.machine.seconds())

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def monotonic(self) -> float:
        return self.now().timestamp()

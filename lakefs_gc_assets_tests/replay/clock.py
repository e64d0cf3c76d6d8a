"""Clocks for replays: time stands where it is told to, and waiting takes none."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class StoppedClock:
    """Always the same moment."""

    moment: datetime

    def now(self) -> datetime:
        """The moment."""
        return self.moment

    def sleep(self, seconds: float) -> None:
        """No time passes."""

    def monotonic(self) -> float:
        """The moment, in seconds."""
        return self.now().timestamp()


@dataclass
class SetClock:
    """The moment that it was last set to."""

    moment: datetime

    def now(self) -> datetime:
        """The moment."""
        return self.moment

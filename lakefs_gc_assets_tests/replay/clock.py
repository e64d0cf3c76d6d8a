"""Clocks for replays: time stands still until it is set, and waiting takes none."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class StoppedClock:
    """A clock that always shows the same moment."""

    moment: datetime

    def now(self) -> datetime:
        """See Clock.now."""
        return self.moment

    def sleep(self, seconds: float) -> None:
        """Returns at once."""

    def monotonic(self) -> float:
        """The moment, in seconds."""
        return self.now().timestamp()


@dataclass
class SetClock:
    """A clock that shows the moment that was last set."""

    moment: datetime

    def now(self) -> datetime:
        """See Clock.now."""
        return self.moment

"""A clock for tests, in a module that Python workers import cheaply."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class MovingClock:
    """A clock that stands still until a test or a wait moves it."""

    moment: datetime

    def now(self) -> datetime:
        """See Clock.now."""
        return self.moment

    def sleep(self, seconds: float) -> None:
        """Moves the clock at once, without waiting."""
        self.moment += timedelta(seconds=seconds)

    def monotonic(self) -> float:
        """The moment, in seconds."""
        return self.now().timestamp()

"""A clock for tests, in a module that costs Python workers nothing to import."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass
class MovingClock:
    """Stands still until a test or a wait moves it."""

    moment: datetime

    def now(self) -> datetime:
        """The moment."""
        return self.moment

    def sleep(self, seconds: float) -> None:
        """Waiting takes no time, and still it passes."""
        self.moment += timedelta(seconds=seconds)

    def monotonic(self) -> float:
        """The moment, in seconds."""
        return self.now().timestamp()

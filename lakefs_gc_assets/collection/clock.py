"""Time as the collector sees it, behind a port, so that a simulation can take it over."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> datetime:
        """The present, aware, UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """See Clock.now."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See Clock.sleep."""
        time.sleep(seconds)

"""The server's clock: real time, moved by as much as a test or a demonstration wants."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta


class Clock:
    """Runs at the speed of real time. Safe to use from several threads."""

    def __init__(self, now: datetime | None = None) -> None:
        self._offset = timedelta()
        self._lock = threading.Lock()
        if now is not None:
            self.set(now)

    def now(self) -> datetime:
        """The moment it shows, in UTC."""
        with self._lock:
            return datetime.now(UTC) + self._offset

    def seconds(self) -> int:
        """The moment it shows, in whole seconds since 1970 UTC."""
        return int(self.now().timestamp())

    def set(self, now: datetime) -> None:
        """Makes it show this moment; time zone required."""
        with self._lock:
            self._offset = now - datetime.now(UTC)

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Shows another time for a while, then what it would show without."""
        with self._lock:
            before, self._offset = self._offset, moment - datetime.now(UTC)
        try:
            yield
        finally:
            with self._lock:
                self._offset = before

    def advance(self, by: timedelta) -> None:
        """Moves it, back where negative. Raises OverflowError where no calendar goes so far."""
        with self._lock:
            now = datetime.now(UTC)
            self._offset = now + self._offset + by - now

    @property
    def moved(self) -> bool:
        """Whether it differs from real time by more than a second."""
        with self._lock:
            return abs(self._offset) > timedelta(seconds=1)

"""Names of new objects: `data/<slice>/<xid>`, slices by time and size, each written by one writer.

As lakeFS's `pkg/upload/path_provider.go`: a slice ends an hour after it began or with its 50,000th name.
"""

import threading
from datetime import datetime, timedelta

from lakefs_gc_assets.embedded.clock import Clock
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, SLICE_SPAN_SECONDS

MAX_SLICE_SIZE = 50_000
_CLOCK_STEP = timedelta(minutes=1)


class Writer:
    """One lakeFS server process: its own slices, its own machine bytes, a clock that may be off."""

    def __init__(
        self,
        clock: Clock,
        *,
        machine: bytes | None = None,
        clock_offset: timedelta = timedelta(),
        max_slice_size: int = MAX_SLICE_SIZE,
    ) -> None:
        self._clock = clock
        self._offset = clock_offset
        self._max_slice_size = max_slice_size
        self._ids = xids.Generator(machine)
        self._lock = threading.Lock()
        self._slice = ""
        self._slice_began: datetime | None = None
        self._names_in_slice = 0

    def now(self) -> datetime:
        """This writer's idea of the time."""
        return self._clock.now() + self._offset

    def new_address(self) -> str:
        """A relative address that no object has yet."""
        with self._lock:
            now = self.now()
            began = self._slice_began
            # A clock set back also opens a new slice, so that a slice holds no names much older than itself.
            if (
                began is None
                or not -_CLOCK_STEP <= now - began <= timedelta(seconds=SLICE_SPAN_SECONDS)
                or self._names_in_slice >= self._max_slice_size
            ):
                self._slice = self._ids.descending(now)
                self._slice_began, self._names_in_slice = now, 0
            self._names_in_slice += 1
            return f"{DATA_PREFIX}{self._slice}/{self._ids.ascending(now)}"

    def new_run_id(self) -> str:
        """A descending id, the newest first."""
        return self._ids.descending(self.now())

    def new_file_id(self) -> str:
        """An ascending id."""
        return self._ids.ascending(self.now())

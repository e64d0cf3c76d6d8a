"""Lets whoever looks at a run see that it waits for a service, such as the store or lakeFS."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

SHOWN_AFTER = 10.0
"""Seconds after which a call that has no result yet is shown, and between two such lines."""


class Waits:
    """Warns of calls of a service that last: at most one line in ten seconds.

    No client tells all of it: obstore says nothing of its retries, and no hook is called while a service stays silent.
    A thread watches the calls, and ends when there are none.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._forget()
        # A process that was forked has no thread that watches.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[float, str]] = {}
        self._watcher: threading.Thread | None = None

    def begin(self, action: str) -> None:
        """This thread begins a call."""
        with self._lock:
            self._calls[threading.get_ident()] = time.monotonic(), action
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name=f"waits for {self._service}", daemon=True)
                self._watcher.start()

    def end(self) -> None:
        """The call of this thread has ended."""
        self._calls.pop(threading.get_ident(), None)

    @contextmanager
    def shown(self, action: str) -> Iterator[None]:
        """Around one call: it is shown if it lasts."""
        self.begin(action)
        try:
            yield
        finally:
            self.end()

    def _watch(self) -> None:
        shown = time.monotonic() - SHOWN_AFTER
        # Not time.sleep, which may be taken out for a while, as tests do: without rest this thread takes a whole core.
        rest = threading.Event()
        while True:
            rest.wait(SHOWN_AFTER / 5)
            with self._lock:
                # Copied at once: calls end without the lock.
                calls = list(self._calls.values())
                if not calls:
                    self._watcher = None
                    return
            begun, action = min(calls)
            now = time.monotonic()
            if now - max(begun, shown) >= SHOWN_AFTER:
                shown = now
                _log.warning("waiting for %s: no result for %.0f s (%s)", self._service, now - begun, action)

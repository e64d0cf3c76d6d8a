"""Log lines for users that a run waits for a service, such as the store or lakeFS."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

SHOWN_AFTER = 10.0
"""Seconds after which a call without a result is logged, and minimum seconds between two such lines."""


class Waits:
    """Logs slow calls of a service, at most one line in ten seconds.

    The clients cannot do this: obstore does not log its retries, and no hook is called while a service does not answer.
    A thread watches the calls, and ends when there are none.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._forget()
        # The watching thread does not exist in a forked process.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[float, str]] = {}
        self._watcher: threading.Thread | None = None

    def begin(self, action: str) -> None:
        """Records that this thread begins a call."""
        with self._lock:
            self._calls[threading.get_ident()] = time.monotonic(), action
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name=f"waits for {self._service}", daemon=True)
                self._watcher.start()

    def end(self) -> None:
        """Records that this thread's call has ended."""
        self._calls.pop(threading.get_ident(), None)

    @contextmanager
    def shown(self, action: str) -> Iterator[None]:
        """Context for one call, which is logged if it is slow."""
        self.begin(action)
        try:
            yield
        finally:
            self.end()

    def _watch(self) -> None:
        shown = time.monotonic() - SHOWN_AFTER
        # Not time.sleep, which tests replace: without pauses this thread would use a whole core.
        rest = threading.Event()
        while True:
            rest.wait(SHOWN_AFTER / 5)
            with self._lock:
                # A copy, because calls end without the lock.
                calls = list(self._calls.values())
                if not calls:
                    self._watcher = None
                    return
            begun, action = min(calls)
            now = time.monotonic()
            if now - max(begun, shown) >= SHOWN_AFTER:
                shown = now
                _log.warning("waiting for %s: no result for %.0f s (%s)", self._service, now - begun, action)

"""Waiting for services such as the store or lakeFS: log lines for users, and a limit for the time of each answer."""

import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from io import BufferedReader, RawIOBase
from typing import Any

_log = logging.getLogger(__name__)

SHOWN_AFTER = 10.0
"""Seconds after which a call without a result is logged, and minimum seconds between two such lines."""

_LEAST_RATE = 1024
"""Minimum bytes per second of an answer that lasts longer than its limit."""
_LONG_WRITE = 600.0
"""Minimum limit in seconds for answers to writes: S3 sends spaces while it copies, or completes an upload."""


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


class _LimitedReader(RawIOBase):
    """Bytes of one answer. Raises TimeoutError if they arrive at less than the minimum rate.

    An answer may be late by `seconds`, as counted from its first byte: clients limit the silence before.
    """

    def __init__(self, raw: RawIOBase, seconds: float) -> None:
        self._raw, self._seconds, self._until = raw, seconds, math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self._until:
            raise TimeoutError
        size = self._raw.readinto(buffer)
        self._until = min(self._until, time.monotonic() + self._seconds) + (size or 0) / _LEAST_RATE
        return size

    def close(self) -> None:
        super().close()
        self._raw.close()


class _LimitedAnswer(HTTPResponse):
    """An answer that may be late by as much as the connection may be silent; see `_LimitedReader`."""

    def __init__(self, sock: Any, debuglevel: int = 0, method: str | None = None, url: str | None = None) -> None:
        super().__init__(sock, debuglevel, method, url)
        seconds = max(sock.gettimeout() or math.inf, 0 if method in ("GET", "HEAD") else _LONG_WRITE)
        self.fp = BufferedReader(_LimitedReader(self.fp.detach(), seconds))


def limit_answers(pool: Any) -> Any:
    """Makes new connections of a pool of urllib3, or of a class of pools, limit the time of each answer.

    The clients' own timeouts are for each part of an answer: a byte a minute would keep them waiting for ever.
    """
    connection = pool.ConnectionCls
    if not issubclass(connection.response_class, _LimitedAnswer):
        pool.ConnectionCls = type(connection.__name__, (connection,), {"response_class": _LimitedAnswer})
    return pool

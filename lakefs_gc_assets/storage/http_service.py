"""Requests to a store over HTTP, repeated with growing pauses while the service is busy or out of reach."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import uniform
from urllib.parse import quote

import urllib3
from urllib3.exceptions import HTTPError

ATTEMPTS = 10
"""How often a request is tried where it is answered 408, 429 or 5xx, times out or loses its connection."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 20.0
"""Seconds; a pause doubles from attempt to attempt, and between half and all of it is waited."""
CONNECT_TIMEOUT = timedelta(seconds=10)
READ_TIMEOUT = timedelta(minutes=2)
CONNECTIONS = 32
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of a service that could not answer now, and may be asked again."""


class Unreachable(Exception):
    """No connection, or it broke or timed out, each time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service answered; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpService:
    """Connections to services, safe to use from several threads."""

    def __init__(self, ca_bundle: str = "", connect_timeout: timedelta = CONNECT_TIMEOUT) -> None:
        """Trusts a PEM file of certificates, or the usual ones. Raises OSError where the file cannot be read."""
        require_certificates(ca_bundle)
        self._pool = urllib3.PoolManager(maxsize=CONNECTIONS, retries=False, ca_certs=ca_bundle or None)
        self._connect_timeout = connect_timeout

    def ask(
        self, method: str, signed: Callable[[], tuple[str, Mapping[str, str]]], body: bytes = b"", attempts: int = 0
    ) -> Answer:
        """The answer, also where it is an error; the last one where the service stays busy. Raises Unreachable.

        Args:
            signed: makes URL and headers before each attempt, since signatures hold the time.
        """
        attempts = attempts or ATTEMPTS
        for tried in range(1, attempts + 1):
            answer = self._once(method, *signed(), body)
            if answer is not None and (answer.status not in BUSY or tried == attempts):
                return answer
            if tried < attempts:
                time.sleep(pause_after(tried))
        raise Unreachable

    def _once(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        timeout = urllib3.Timeout(self._connect_timeout.total_seconds(), READ_TIMEOUT.total_seconds())
        try:
            response = self._pool.request(method, url, body=body, headers=dict(headers), timeout=timeout)
        except HTTPError:
            return None
        return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, response.data)


def pause_after(failed: int) -> float:
    """Seconds to wait after so many attempts, one at least, have failed."""
    longest: float = min(FIRST_PAUSE * 2.0 ** (failed - 1), LONGEST_PAUSE)
    return uniform(longest / 2, longest)  # noqa: S311


def require_certificates(ca_bundle: str) -> None:
    """Raises OSError where a file of certificates is named and cannot be read: libraries look when they connect."""
    if ca_bundle:
        with Path(ca_bundle).open("rb"):
            pass


def quoted(key: str) -> str:
    """A key as one segment of a path: no part of it can be taken for a folder above."""
    return quote(key, safe="~")

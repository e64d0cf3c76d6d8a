"""How patient the clients of Google and Azure are, and what a service answered.

They repeat what they ask by policies of their own, with growing pauses, while the service is busy or out of reach.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import uniform

ATTEMPTS = 10
"""How often a request is tried where it is answered 408, 429 or 5xx, times out or loses its connection."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 20.0
"""Seconds; a pause doubles from attempt to attempt, and a random part of it is waited."""
RETRY_FOR = timedelta(minutes=3)
"""How long Google's client begins attempts, which counts none."""
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


def pause_after(failed: int) -> float:
    """Seconds to wait after so many attempts, one at least, have failed."""
    longest: float = min(FIRST_PAUSE * 2.0 ** (failed - 1), LONGEST_PAUSE)
    return uniform(longest / 2, longest)  # noqa: S311


def require_certificates(ca_bundle: str) -> None:
    """Raises OSError where a file of certificates is named and cannot be read: libraries look when they connect."""
    if ca_bundle:
        with Path(ca_bundle).open("rb"):
            pass

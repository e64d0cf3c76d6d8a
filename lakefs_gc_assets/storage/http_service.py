"""How patient the clients of every cloud are, and what a service answered.

They repeat what they ask by policies of their own, with growing pauses, while the service is busy or out of reach.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import uniform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, RetryConfig

ATTEMPTS = 10
"""How often a request is tried where it is answered 408, 429 or 5xx, times out or loses its connection."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 20.0
"""Seconds; a pause doubles from attempt to attempt, and a random part of it is waited."""
RETRY_FOR = timedelta(minutes=3)
"""How long Google's client and obstore begin attempts."""
CONNECT_TIMEOUT = timedelta(seconds=10)
READ_TIMEOUT = timedelta(minutes=1)
"""How long nothing may arrive."""
REQUEST_TIMEOUT = timedelta(minutes=10)
"""How long one answer may take that obstore reads."""
CONNECTIONS = 32
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of a service that could not answer now, and may be asked again."""
_OBSTORE_BACKOFF: "BackoffConfig" = {
    "init_backoff": timedelta(seconds=0.1),
    "max_backoff": timedelta(seconds=15),
    # A pause is drawn between the first one and this many times the last: with 2 they would shrink, not grow.
    "base": 8,
}
"""Pauses between attempts: in all 8 seconds or more in 999 of 1,000 cases, a minute and a half usually."""


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


def obstore_options(ca_bundle: str) -> "ClientConfig":
    """Timeouts, and a PEM file of certificates to trust, if any. Raises OSError where it cannot be read."""
    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": READ_TIMEOUT,
        "timeout": REQUEST_TIMEOUT,
    }
    return {**options, "root_certificate": Path(ca_bundle).read_bytes()} if ca_bundle else options


def obstore_retries() -> "RetryConfig":
    """Attempts and the pauses between them."""
    return {"max_retries": ATTEMPTS - 1, "retry_timeout": RETRY_FOR, "backoff": _OBSTORE_BACKOFF}

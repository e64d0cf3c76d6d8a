"""How obstore's clients behave at every service: timeouts, pauses, trusted certificates."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, RetryConfig

CONNECT_TIMEOUT = timedelta(seconds=10)
READ_TIMEOUT = timedelta(seconds=60)
REQUEST_TIMEOUT = timedelta(minutes=10)
RETRY_FOR = timedelta(minutes=3)
BACKOFF: "BackoffConfig" = {
    "init_backoff": timedelta(seconds=0.1),
    "max_backoff": timedelta(seconds=15),
    # A pause is drawn between the first one and this many times the last: with 2 they would shrink, not grow.
    "base": 8,
}
"""Pauses between attempts: in all 8 seconds or more in 999 of 1,000 cases, a minute and a half usually."""


def client_options(ca_bundle: str) -> "ClientConfig":
    """Timeouts, and a PEM file of certificates to trust, if any. Raises OSError where it cannot be read."""
    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": READ_TIMEOUT,
        "timeout": REQUEST_TIMEOUT,
    }
    return {**options, "root_certificate": Path(ca_bundle).read_bytes()} if ca_bundle else options


def retry_config(attempts: int) -> "RetryConfig":
    """Attempts and the pauses between them."""
    return {"max_retries": attempts - 1, "retry_timeout": RETRY_FOR, "backoff": BACKOFF}

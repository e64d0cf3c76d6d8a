"""A client of a scripted server, with a clock that stands still and pauses that take no time."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import LakeFSSettings
from lakefs_gc_assets_tests.lakefs.api.scripted_server import Scripted, ScriptedServer, scripted

KEY_ID = "AKIA-never-to-be-shown"


SECRET = "secret/never+to=be-shown"


NOW = datetime(2026, 11, 21, 12, 0, 0, 250_000, UTC)


class FixedClock:
    def now(self) -> datetime:
        return NOW


class Sleeps:
    """Replaces time.sleep: records pauses without waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def settings(endpoint: str, **changes: Any) -> LakeFSSettings:
    values: dict[str, Any] = {"connect_timeout_seconds": 2, "read_timeout_seconds": 5, "retries": 3}
    return LakeFSSettings(endpoint=endpoint, access_key_id=KEY_ID, secret_access_key=SECRET, **(values | changes))


@contextmanager
def talking(*answers: Scripted, **changes: Any) -> Iterator[tuple[LakeFSClient, ScriptedServer, Sleeps]]:
    sleeps = Sleeps()
    pauses = mock.patch("tenacity.nap.time", SimpleNamespace(sleep=sleeps))
    with scripted(*answers, now=FixedClock().now) as server, pauses:
        yield LakeFSClient(settings(server.url, **changes), "repo", FixedClock()), server, sleeps

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server with the repository `repo`, rule set `oss`, small ranges."""
    with EmbeddedServer(
        tmp_path / "server", settings=ServerSettings(range_entries=10, page_check_rows=10), routes=ROUTES
    ) as started:
        clients.repository(started)
        yield started


@pytest.fixture
def seed_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """The same with rule set `seed`."""
    with EmbeddedServer(tmp_path / "seed-server", settings=ServerSettings(rules="seed"), routes=ROUTES) as started:
        clients.repository(started)
        yield started

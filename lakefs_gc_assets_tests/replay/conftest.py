from collections.abc import Iterator

import pytest

from lakefs_gc_assets_tests.replay.clients import NOW
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of


@pytest.fixture(scope="module")
def small() -> Iterator[ReplayServer]:
    with ReplayServer(folder_of("small"), now=NOW) as server:
        yield server

"""Referenced objects that a run deleted: every run reports them, whatever it lists, until they are back."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration, status
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

DAYS = timedelta(days=1)
RULES = {"default_retention_days": 365, "branches": []}


@dataclass
class Repository:
    """A repository in which a run has deleted an object; `body` stages the object by its address."""

    server: EmbeddedServer
    flow: Flow
    body: dict[str, str | int]

    def run(self) -> Report:
        given = configuration(self.server, sweep_mode="quarantine")
        self.runs = ArrowRuns(Loaded(given, {}))
        return self.runs.collect(self.flow)

    def stage(self) -> None:
        """Stages the address that a client learned before the object was deleted."""
        path = "/repositories/repo/branches/main/objects"
        assert clients.call(self.server, "PUT", path, self.body, path="again")[0] == 201

    @property
    def object(self) -> Path:
        return self.server.objects_folder / "repo" / self.address

    @property
    def address(self) -> str:
        return str(self.body["physical_address"]).partition("/repo/")[2]


def deleted(server: EmbeddedServer, flow: Flow, *others: str) -> Repository:
    """A repository whose first run deletes one of its objects.

    Args:
        others: paths committed in the slice of the deleted object.
    """
    with server.clock.at(datetime.now(UTC) - 30 * DAYS):
        clients.repository(server)
        clients.upload(server, "path", b"one")
        facts = clients.call(server, "GET", "/repositories/repo/refs/main/objects/stat", path="path")[1]
        for other in others:
            clients.upload(server, other, other.encode())
    with server.clock.at(datetime.now(UTC) - 20 * DAYS):
        clients.upload(server, "path", b"two")
        clients.commit(server, "one")
    assert clients.call(server, "PUT", "/repositories/repo/settings/gc_rules", RULES)[0] == 204
    found = Repository(server, flow, {name: facts[name] for name in ("physical_address", "checksum", "size_bytes")})
    first = found.run()
    assert first.counts["quarantined"] == 1
    assert not found.object.exists()
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path, routes=ROUTES) as server:
        yield server


@pytest.mark.parametrize("flow", [Flow.OPTIMIZED, Flow.UNIFIED])
def test_every_run_tells_until_the_object_is_back(server: EmbeddedServer, flow: Flow) -> None:
    repository = deleted(server, flow, "other")
    repository.stage()
    assert repository.run().counts["lost"] == 1, "staged"
    assert clients.call(server, "DELETE", "/repositories/repo/branches/main/objects", path="again")[0] == 204
    assert repository.run().counts["lost"] == 0, "no head holds it any more"
    repository.stage()
    clients.commit(server, "two")
    assert status(server, "again") == 410
    for _ in range(2):
        reported = repository.run()
        assert reported.counts["lost"] == 1, "committed"
        assert any(repository.address in warning for warning in reported.warnings)
    # A user puts it back by hand.
    repository.object.parent.mkdir(parents=True, exist_ok=True)
    repository.object.write_bytes(b"one")
    assert repository.run().counts["lost"] == 0
    assert status(server, "again") == 200


def test_a_slice_of_which_all_objects_were_deleted_is_not_passed_over(server: EmbeddedServer) -> None:
    """The slice is no longer listed."""
    repository = deleted(server, Flow.CLEAN)
    assert not any(repository.object.parent.glob("*"))
    repository.object.parent.rmdir()
    repository.stage()
    assert repository.run().counts["lost"] == 1

"""Two repositories on one storage namespace: on two servers, and on one server that does not report it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import LocalBlockstore
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns, Between

DAYS = timedelta(days=1)
NAMES = ("one", "two", "three")
RULES = {"default_retention_days": 12, "branches": []}


def configuration(server: EmbeddedServer, **collection: Any) -> Configuration:
    """Settings for sweeps of the repository of a server."""
    given = demo.configuration(server, "repo")
    changes = {"sweep": True, "max_candidate_share": 1.0, **collection}
    return given.model_copy(update={"collection": given.collection.model_copy(update=changes)})


def status(server: EmbeddedServer, path: str, name: str = "repo") -> int:
    """The status of a read of an object on the main branch."""
    return clients.call(server, "GET", f"/repositories/{name}/refs/main/objects", path=path)[0]


@dataclass
class Twins:
    """Two servers that share a folder of objects; each has a repository there, and neither knows the other."""

    server: EmbeddedServer
    other: EmbeddedServer

    @property
    def objects(self) -> Path:
        """The folder of the storage namespace."""
        return self.server.objects_folder / "repo"

    def upload(self, server: EmbeddedServer, *paths: str, days: int = 30) -> set[str]:
        """Stages old objects; returns their addresses."""
        with server.clock.at(datetime.now(UTC) - days * DAYS):
            return {clients.upload(server, path, f"{path} of {server.url}".encode()) for path in paths}

    def stored(self, addresses: set[str]) -> set[str]:
        """Addresses at which an object still exists."""
        return {address for address in addresses if (self.objects / address).is_file()}

    def swept(
        self,
        server: EmbeddedServer | None = None,
        flow: Flow = Flow.CLEAN,
        between: Between = lambda name: None,
        **collection: Any,
    ) -> Report:
        """One run over the repository of a server, by default the first."""
        server = server or self.server
        given = configuration(server, **collection)
        # Objects of both servers are in the first one's folder.
        store = given.store.model_copy(update={"local_root": str(self.server.objects_folder.resolve())})
        loaded = Loaded(given.model_copy(update={"store": store}), {})
        return ArrowRuns(loaded, between=between).collect(flow)


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[Twins]:
    with (
        EmbeddedServer(tmp_path / "one") as server,
        EmbeddedServer(
            tmp_path / "other", blockstore=lambda clock: LocalBlockstore(server.objects_folder, clock)
        ) as other,
    ):
        made = Twins(server, other)
        clients.repository(server)
        # A server refuses a namespace with this file, but a migration or a restored backup involves no server.
        (made.objects / "_lakefs" / "dummy").unlink()
        clients.repository(other)
        made.upload(server, "lasting", "mine")
        clients.commit(server, "mine")
        yield made


def test_what_only_another_server_has_committed_stays(twins: Twins) -> None:
    committed = twins.upload(twins.other, *NAMES)
    clients.commit(twins.other, "its own", name="repo")
    twins.upload(twins.server, "dropped")
    path = "/repositories/repo/branches/main/objects"
    assert clients.call(twins.server, "DELETE", path, path="dropped")[0] == 204
    assert clients.call(twins.server, "PUT", "/repositories/repo/settings/gc_rules", RULES)[0] == 204

    found = twins.swept(flow=Flow.UNIFIED)

    assert twins.stored(committed) == committed
    assert [status(twins.other, name) for name in NAMES] == [200, 200, 200]
    assert (found.ending, found.counts["deleted"]) == (Ending.DELETED, 1)
    assert found.counts["unnamed_ranges"] > 0

    mine = twins.swept(twins.other, Flow.UNIFIED)

    assert [status(twins.server, name) for name in ("lasting", "mine")] == [200, 200]
    assert (mine.counts["deleted"], mine.counts["unnamed_ranges"] > 0) == (0, True)


def test_where_such_ranges_are_known_to_be_orphans_they_keep_nothing(twins: Twins) -> None:
    committed = twins.upload(twins.other, *NAMES)
    clients.commit(twins.other, "its own")

    found = twins.swept(keep_unnamed_ranges=False)

    assert (twins.stored(committed), found.counts["deleted"], found.counts["unnamed_ranges"]) == (set(), 3, 0)


def test_what_another_server_commits_between_mark_and_sweep_stays(twins: Twins) -> None:
    """At the mark it is staged, which only its own server can see."""
    committed = twins.upload(twins.other, *NAMES)
    assert clients.call(twins.server, "PUT", "/repositories/repo/settings/gc_rules", RULES)[0] == 204

    def between(name: str) -> None:
        if name == "candidates":
            clients.commit(twins.other, "its own")

    found = twins.swept(between=between)

    assert twins.stored(committed) == committed
    assert (found.counts["candidates"], found.counts["kept_live"], found.counts["deleted"]) == (3, 3, 0)


def test_an_optimized_run_knows_what_was_read_and_sees_what_is_new(twins: Twins) -> None:
    committed = twins.upload(twins.other, *NAMES)
    clients.commit(twins.other, "its own")
    clean = twins.swept()
    assert clean.counts["unnamed_ranges"] > 0

    again = twins.swept(flow=Flow.OPTIMIZED)

    assert (again.flow, again.counts["unnamed_ranges"], again.counts["ranges_read"]) == ("optimized", 0, 0)
    assert twins.stored(committed) == committed
    # Three days old: in a slice that no run has sealed or listed before.
    more = twins.upload(twins.other, "four", "five", days=3)
    clients.commit(twins.other, "more of its own")

    last = twins.swept(flow=Flow.OPTIMIZED)

    assert last.flow == "optimized" and last.counts["unnamed_ranges"] > 0
    assert twins.stored(committed | more) == committed | more


def test_an_optimized_run_does_not_build_on_another_idea_of_such_ranges(twins: Twins) -> None:
    committed = twins.upload(twins.other, *NAMES)
    clients.commit(twins.other, "its own")
    twins.swept()

    found = twins.swept(flow=Flow.OPTIMIZED, keep_unnamed_ranges=False)

    assert found.flow == "clean" and "another definition of what is live" in (found.why_clean or "")
    assert twins.stored(committed) == set()


def test_a_damaged_range_that_no_commit_names_ends_the_run(twins: Twins) -> None:
    damaged = twins.objects / "_lakefs" / ("0" * 64)
    damaged.write_bytes(b"no table")

    with pytest.raises(Exception, match=r"no commit of the repository refers to the file.*keep_unnamed_ranges"):
        twins.swept()

    assert twins.swept(keep_unnamed_ranges=False).success


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server with the repository `repo` and a bare repository on the same namespace."""
    with EmbeddedServer(tmp_path, routes=routes.ROUTES) as started, started.clock.at(datetime.now(UTC) - 30 * DAYS):
        clients.repository(started)
        clients.upload(started, "lasting", b"lasting")
        clients.commit(started, "first")
        yield started


def make_twin(server: EmbeddedServer) -> set[str]:
    """A bare repository on the same namespace, with three committed objects; returns their addresses."""
    namespace = f"{server.core.blockstore.scheme}repo"
    body = {"name": "twin", "storage_namespace": namespace}
    assert clients.call(server, "POST", "/repositories", body, bare="true")[0] == 201
    first = clients.call(server, "GET", "/repositories/repo/refs/main/commits")[1]["results"][-1]
    record = {
        "commit_id": first["id"],
        "committer": first["committer"],
        "message": first["message"],
        "metarange_id": first["meta_range_id"],
        "creation_date": first["creation_date"],
        "parents": [],
        "generation": 1,
    }
    assert clients.call(server, "POST", "/repositories/twin/commits", record)[0] == 204
    branch = {"name": "main", "source": first["id"]}
    assert clients.call(server, "POST", "/repositories/twin/branches", branch)[0] == 201
    uploaded = set()
    for name in NAMES:
        path = "/repositories/twin/branches/main/objects"
        code, answer = clients.call(server, "POST", path, name.encode(), path=name)
        assert code == 201, answer
        uploaded.add(str(answer["physical_address"].partition("repo/")[2]))
    clients.commit(server, "of the twin", name="twin")
    return uploaded


def loaded(server: EmbeddedServer, user: Any = None, **collection: Any) -> Loaded:
    """The configuration, perhaps with another user's credentials."""
    given = configuration(server, **collection)
    if user is not None:
        keys = {"access_key_id": user.access_key_id, "secret_access_key": user.secret_access_key}
        given = given.model_copy(update={"lakefs": given.lakefs.model_copy(update=keys)})
    return Loaded(given, {})


def test_a_repository_on_the_very_same_namespace_refuses_a_sweep(server: EmbeddedServer) -> None:
    make_twin(server)
    with server.clock.at(datetime.now(UTC)), pytest.raises(GuardTripped, match=r"guard namespaces: .*: twin"):
        ArrowRuns(loaded(server)).collect()


def test_who_may_not_list_repositories_may_not_sweep(server: EmbeddedServer) -> None:
    user = routes.add_user(server, "collector", "fs:ListRepositories")
    with server.clock.at(datetime.now(UTC)):
        with pytest.raises(GuardTripped, match=r"guard other repositories: .*Grant fs:ListRepositories on \*"):
            ArrowRuns(loaded(server, user)).collect()
        dry = ArrowRuns(loaded(server, user, sweep=False)).collect()
        (warning,) = dry.warnings
        assert "a sweep would be refused: guard other repositories" in warning
        assert ArrowRuns(loaded(server, user, allow_unknown_repositories=True)).collect().success


def test_a_twin_that_the_list_does_not_show_keeps_what_it_committed(server: EmbeddedServer) -> None:
    committed = make_twin(server)
    user = routes.add_user(server, "collector", "fs:ListRepositories")
    with server.clock.at(datetime.now(UTC)):
        found = ArrowRuns(loaded(server, user, allow_unknown_repositories=True)).collect()
    assert (found.counts["candidates"], found.counts["unnamed_ranges"] > 0) == (0, True)
    assert all((server.objects_folder / "repo" / address).is_file() for address in committed)

"""Imports: objects from outside become entries with full addresses, in a commit."""

from typing import Any

import pytest

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

_IMPORT = "/repositories/repo/branches/main/import"


def _import(server: EmbeddedServer, *sources: dict[str, str]) -> dict[str, Any]:
    status, task = clients.call(server, "POST", _IMPORT, {"paths": list(sources), "commit": {"message": "import"}})
    assert status == 202
    server.core.tasks.wait_for_all(30)
    answer: dict[str, Any] = clients.call(server, "GET", _IMPORT, id=task["id"])[1]
    return answer


@pytest.fixture
def lake(server: EmbeddedServer) -> EmbeddedServer:
    """The server, with objects outside its repository."""
    server.core.blockstore.create("local://lake")
    for key in ("in/a", "in/deep/b", "in-between", "other"):
        server.core.blockstore.put("local://lake", key, key.encode())
    return server


def test_a_prefix_and_an_object_are_imported_where_they_lie(lake: EmbeddedServer) -> None:
    prefix = {"type": "common_prefix", "path": "local://lake/in/", "destination": "got/"}
    single = {"type": "object", "path": "local://lake/other", "destination": "single"}
    done = _import(lake, prefix, single)
    assert (done["completed"], done["ingested_objects"]) == (True, 3)
    objects = clients.sdk(lake).objects_api
    found = {item.path: item.physical_address for item in objects.list_objects("repo", "main@").results}
    assert found == {
        "got/a": "local://lake/in/a",
        "got/deep/b": "local://lake/in/deep/b",
        "single": "local://lake/other",
    }
    for path, address in found.items():
        assert objects.get_object("repo", "main", path) == address.removeprefix("local://lake/").encode()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"type": "common_prefix", "path": "local://none/", "destination": "x"}, "local://none"),
        ({"type": "object", "path": "local://lake/none", "destination": "x"}, "none"),
        ({"type": "folder", "path": "local://lake/in/", "destination": "x"}, "'folder'"),
    ],
)
def test_an_import_that_cannot_be_done_says_so_and_commits_nothing(
    lake: EmbeddedServer, source: dict[str, str], said: str
) -> None:
    before = clients.call(lake, "GET", "/repositories/repo/branches/main")
    done = _import(lake, source)
    assert not done["completed"]
    assert said in done["error"]["message"]
    assert clients.call(lake, "GET", "/repositories/repo/branches/main") == before


def test_a_branch_with_changes_is_not_imported_to(lake: EmbeddedServer) -> None:
    clients.upload(lake, "staged", b"x")
    done = _import(lake, {"type": "object", "path": "local://lake/other", "destination": "single"})
    assert "uncommitted changes" in done["error"]["message"]


@pytest.mark.parametrize("below", ["", "/data/", "-2/data/x"])
def test_import_from_own_namespace_is_refused(lake: EmbeddedServer, below: str) -> None:
    namespace = clients.call(lake, "GET", "/repositories/repo")[1]["storage_namespace"]
    paths = [{"type": "common_prefix", "path": namespace + below, "destination": "x"}]
    status, refusal = clients.call(lake, "POST", _IMPORT, {"paths": paths, "commit": {"message": "import"}})
    assert status == 400
    assert refusal["message"].endswith(f"in repository namespace ({namespace}) is prohibited: invalid import source")


def test_import_of_prefix_around_own_namespace_is_refused(lake: EmbeddedServer) -> None:
    namespace = clients.call(lake, "GET", "/repositories/repo")[1]["storage_namespace"]
    paths = [{"type": "common_prefix", "path": namespace[:-1], "destination": "x"}]
    status, refusal = clients.call(lake, "POST", _IMPORT, {"paths": paths, "commit": {"message": "import"}})
    assert (status, "contains repository namespace" in refusal["message"]) == (400, True)

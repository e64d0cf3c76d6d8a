"""Refused calls: every API path, for a read-only repository and for a user without permissions."""

import re
from typing import Any

import pytest

from lakefs_gc_assets.extensions.playground.embedded.http import Route
from lakefs_gc_assets.extensions.playground.embedded.routes import ADMINISTRATION_PREFIX, ROUTES
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes

_ROUTES = (
    *ROUTES,
    *(route for route in routes.ROUTES if not route.template.startswith(ADMINISTRATION_PREFIX)),
)
_WRITES_NOTHING = {("POST", "/repositories/{repository}/dump"), ("POST", "/repositories")}
_WRITES_WITH_GET = {("GET", "/repositories/{repository}/branches/{branch}/staging/backing")}
_BODY = {
    "name": "new",
    "source": "main",
    "type": "reset",
    "message": "m",
    "ref": "main",
    "parent_number": 1,
    "id": "new",
    "paths": [],
    "commit": {},
    "default_retention_days": 1,
    "branches": [],
    "physical_address": "local://elsewhere/x",
    "checksum": "c",
    "size_bytes": 1,
    "staging": {"physical_address": "local://fixed/data/x/y"},
    "src_path": "a",
    "set": {},
    "parts": [],
    "commit_id": "0" * 64,
    "committer": "c",
    "metarange_id": "",
    "creation_date": 1,
    "parents": [],
    "generation": 1,
}


def _call(server: EmbeddedServer, route: Route, authorization: str | None = None) -> tuple[int, Any]:
    path = re.sub(
        r"\{(\w+)\}", lambda match: {"repository": "fixed", "branch": "main"}.get(match[1], "x"), route.template
    )
    query = {"path": "a", "dest_path": "b", "ref": "main", "id": "x", "task_id": "x"}
    body = None if route.method in ("GET", "HEAD") else _BODY
    return clients.call(server, route.method, path, body, authorization=authorization, **query)


@pytest.fixture
def fixed(server: EmbeddedServer) -> EmbeddedServer:
    """The server with a read-only repository `fixed`."""
    body = {"name": "fixed", "storage_namespace": "local://fixed", "read_only": True}
    assert clients.call(server, "POST", "/repositories", body)[0] == 201
    return server


def test_nothing_is_written_to_a_read_only_repository(fixed: EmbeddedServer) -> None:
    before = sorted(fixed.objects_folder.rglob("*"))
    writing = [
        route
        for route in _ROUTES
        if (route.method not in ("GET", "HEAD") or (route.method, route.template) in _WRITES_WITH_GET)
        and (route.method, route.template) not in _WRITES_NOTHING
    ]
    assert len(writing) > 25
    for route in writing:
        assert _call(fixed, route) == (403, {"message": "read-only repository"}), route
    assert sorted(fixed.objects_folder.rglob("*")) == before
    assert clients.call(fixed, "GET", "/repositories/fixed/branches")[0] == 200


def test_every_path_asks_for_a_right_and_for_each_it_names(fixed: EmbeddedServer) -> None:
    nobody = routes.add_user(fixed, "nobody", "*")
    for route in _ROUTES:
        expected = 200 if route.template.startswith("/config") else 403
        assert _call(fixed, route, nobody.basic_authorization)[0] == expected, route
        assert _call(fixed, route, "Basic bm86bm8=")[0] == 401, route
        for action in route.actions.split():
            limited = routes.add_user(fixed, "limited", action)
            status, answer = _call(fixed, route, limited.basic_authorization)
            assert status == 403, (route, action)
            if route.method != "HEAD":
                assert answer == {"message": "insufficient permissions"}, (route, action)

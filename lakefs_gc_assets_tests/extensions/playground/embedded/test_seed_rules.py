"""Differences of rule set `seed` from rule set `oss`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.extensions.playground.embedded import collection
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

_BRANCH = "/repositories/repo/branches/main"


def _stat(server: EmbeddedServer, path: str, reference: str = "main") -> str:
    _, answer = clients.call(server, "GET", f"/repositories/repo/refs/{reference}/objects/stat", path=path)
    return str(answer["physical_address"])


def _copy(server: EmbeddedServer, source: str, destination: str, **more: Any) -> tuple[int, Any]:
    return clients.call(server, "POST", _BRANCH + "/objects/copy", {"src_path": source, **more}, dest_path=destination)


def _rows(server: EmbeddedServer) -> list[str]:
    _, page = clients.call(server, "POST", "/repositories/repo/gc/prepare_uncommited", {})
    return _read(server.objects_folder / "repo" / f"_lakefs/retention/gc/uncommitted/{page['run_id']}/uncommitted")


def _read(folder: Path) -> list[str]:
    return [row["physical_address"] for file in folder.glob("*") for row in pq.read_table(file).to_pylist()]


def _issue(server: EmbeddedServer, path: str) -> dict[str, Any]:
    _, issued = clients.call(server, "GET", _BRANCH + "/staging/backing", path=path)
    return {"staging": {"physical_address": issued["physical_address"]}, "checksum": "c", "size_bytes": 1}


def _link(server: EmbeddedServer, path: str, body: dict[str, Any]) -> int:
    return clients.call(server, "PUT", _BRANCH + "/staging/backing", body, path=path)[0]


def _stage(server: EmbeddedServer, address: str) -> int:
    body = {"physical_address": address, "checksum": "c", "size_bytes": 1}
    return clients.call(server, "PUT", _BRANCH + "/objects", body, path="staged")[0]


def test_staging_is_allowed_outside_the_namespace_only(seed_server: EmbeddedServer, server: EmbeddedServer) -> None:
    for address in ("local://repo/data/x/y", "local://repo/other", "local://repo/"):
        assert _stage(seed_server, address) == 400
        assert _stage(server, address) == 201
    assert _stage(seed_server, "local://elsewhere/x") == 201
    assert _stage(seed_server, "local://repository-with-a-longer-name/x") == 201


def test_an_address_is_linked_once(seed_server: EmbeddedServer, server: EmbeddedServer) -> None:
    for started, second in ((seed_server, 400), (server, 200)):
        body = _issue(started, "a")
        assert _link(started, "a", body) == 200
        assert _link(started, "a", body) == second


def test_an_address_is_for_one_path_and_expires(seed_server: EmbeddedServer, server: EmbeddedServer) -> None:
    for started in (seed_server, server):
        body = _issue(started, "a")
        assert _link(started, "b", body) == 400
        clients.call(started, "POST", "/_embedded/clock/advance", {"seconds": 86_500})
        assert _link(started, "a", body) == 400


def test_addresses_are_tracked_and_removed_when_used_or_expired(
    seed_server: EmbeddedServer, server: EmbeddedServer
) -> None:
    def tracked(started: EmbeddedServer) -> int:
        with started.core.database.transaction() as database:
            return int(database.execute("SELECT count(*) FROM issued_addresses").fetchone()[0])

    used, _ = _issue(seed_server, "used"), _issue(seed_server, "forgotten")
    assert tracked(seed_server) == 2
    _link(seed_server, "used", used)
    assert tracked(seed_server) == 1
    clients.call(seed_server, "POST", "/_embedded/clock/advance", {"seconds": 86_500})
    _issue(seed_server, "new")
    assert tracked(seed_server) == 1
    _issue(server, "a")
    assert tracked(server) == 0


def test_a_copy_within_the_staging_area_is_shallow_and_any_other_is_full(
    seed_server: EmbeddedServer, server: EmbeddedServer
) -> None:
    clients.upload(seed_server, "committed", b"x")
    clients.commit(seed_server, "one")
    clients.upload(seed_server, "staged", b"y")
    clients.call(seed_server, "POST", "/repositories/repo/branches", {"name": "side", "source": "main"})
    assert _copy(seed_server, "staged", "copy")[0] == 201
    assert _stat(seed_server, "copy") == _stat(seed_server, "staged")
    assert _copy(seed_server, "committed", "copy of committed")[0] == 201
    assert _stat(seed_server, "copy of committed") != _stat(seed_server, "committed")
    body = {"src_path": "staged", "src_ref": "main"}
    assert (
        clients.call(seed_server, "POST", "/repositories/repo/branches/side/objects/copy", body, dest_path="copy")[0]
        == 201
    )
    assert _stat(seed_server, "copy", "side") != _stat(seed_server, "staged")
    clients.upload(server, "staged", b"y")
    assert _copy(server, "staged", "copy")[0] == 201
    assert _stat(server, "copy") != _stat(server, "staged")
    assert _copy(server, "staged", "shallow", shallow=True)[0] == 501


def test_copies_are_listed_behind_the_uncommitted_data_and_forgotten_after_a_time(
    seed_server: EmbeddedServer, server: EmbeddedServer
) -> None:
    address = clients.upload(seed_server, "old", b"x")
    other = clients.upload(seed_server, "other", b"y")
    _copy(seed_server, "old", "new")
    for path in ("old", "new"):
        clients.call(seed_server, "DELETE", _BRANCH + "/objects", path=path)
    assert _rows(seed_server) == [other, address]
    clients.call(seed_server, "POST", "/_embedded/clock/advance", {"seconds": 86_500})
    assert _rows(seed_server) == [other]
    clients.upload(server, "old", b"x")
    _copy(server, "old", "new")
    for path in ("old", "new"):
        clients.call(server, "DELETE", _BRANCH + "/objects", path=path)
    assert _rows(server) == []


def _rename(server: EmbeddedServer, old: str, new: str) -> None:
    assert _copy(server, old, new)[0] == 201
    assert clients.call(server, "DELETE", _BRANCH + "/objects", path=old)[0] == 204


def test_a_rename_between_pages_is_not_lost(tmp_path: Path) -> None:
    """The row moves behind the pages already read: only the tracked copy, on the last page, holds it."""
    with EmbeddedServer(tmp_path, settings=ServerSettings(rules="seed", page_check_rows=1, page_bytes=0)) as server:
        clients.repository(server)
        first, address = clients.upload(server, "m", b"y"), clients.upload(server, "z", b"x")
        prepare = "/repositories/repo/gc/prepare_uncommited"
        _, page = clients.call(server, "POST", prepare, {})
        folder = server.objects_folder / "repo" / f"_lakefs/retention/gc/uncommitted/{page['run_id']}/uncommitted"
        assert _read(folder) == [first]
        _rename(server, "z", "a")
        _, last = clients.call(server, "POST", prepare, {"continuation_token": page["continuation_token"]})
        assert "continuation_token" not in last
        assert sorted(_read(folder)) == sorted([first, address])


def test_a_rename_while_a_page_is_read_is_not_lost(
    seed_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are read after all uncommitted data of the page."""
    first, address = clients.upload(seed_server, "m", b"y"), clients.upload(seed_server, "z", b"x")
    read = collection._rows

    def interrupted(*arguments: Any) -> Iterator[tuple[str, str, int]]:
        for row in read(*arguments):
            yield row
            _rename(seed_server, "z", "a")

    monkeypatch.setattr(collection, "_rows", interrupted)
    monkeypatch.setattr(collection, "_ROWS_READ_AT_ONCE", 1)
    assert _rows(seed_server) == [first, address]


def test_a_restart_forgets_neither_addresses_nor_copies(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(rules="seed")) as server:
        clients.repository(server)
        used, unused = _issue(server, "used"), _issue(server, "unused")
        assert _link(server, "used", used) == 200
        address = clients.upload(server, "old", b"x")
        _rename(server, "old", "new")
        assert clients.call(server, "DELETE", _BRANCH + "/objects", path="new")[0] == 204
    with EmbeddedServer(tmp_path, settings=ServerSettings(rules="seed")) as server:
        assert _link(server, "used", used) == 400
        assert _link(server, "unused", unused) == 200
        assert address in _rows(server)

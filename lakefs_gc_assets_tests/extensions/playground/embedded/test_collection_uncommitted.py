from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.collector.live.uncommitted import prepare
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import LakeFSSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.scripted import opened
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

_PREPARE = "/repositories/repo/gc/prepare_uncommited"


def _pages(server: EmbeddedServer) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    token = None
    while not pages or token:
        status, answer = clients.call(server, "POST", _PREPARE, {"continuation_token": token} if token else {})
        assert status == 201
        pages.append(answer)
        token = answer.get("continuation_token")
        assert len(pages) < 1000
    return pages


def _rows(server: EmbeddedServer, page: dict[str, Any]) -> list[str]:
    folder = server.objects_folder / "repo" / f"_lakefs/retention/gc/uncommitted/{page['run_id']}/uncommitted"
    return [row["physical_address"] for file in sorted(folder.glob("*")) for row in pq.read_table(file).to_pylist()]


def _stage_some(server: EmbeddedServer) -> list[str]:
    staged = [clients.upload(server, f"main/{number:03d}", b"x") for number in range(25)]
    for name, hidden in (("another", False), ("hidden", True)):
        body = {"name": name, "source": "main", "hidden": hidden}
        assert clients.call(server, "POST", "/repositories/repo/branches", body)[0] == 201
        staged += [clients.upload(server, f"{name}/{number:03d}", b"y", branch=name) for number in range(25)]
    return staged


def test_pages_by_size_cover_every_branch_once(tmp_path: Path) -> None:
    settings = ServerSettings(page_check_rows=10, page_bytes=1)
    with EmbeddedServer(tmp_path, settings=settings) as server:
        clients.repository(server)
        staged = _stage_some(server)
        pages = _pages(server)
        assert len(pages) == 8
        assert {page["run_id"] for page in pages} == {pages[0]["run_id"]}
        assert sorted(_rows(server, pages[0])) == sorted(staged)


def test_a_page_that_ends_by_time_repeats_its_token_and_writes_a_file_without_rows(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=ServerSettings(page_seconds=0)) as server:
        clients.repository(server)
        clients.upload(server, "a", b"x")
        first = clients.call(server, "POST", _PREPARE, {})[1]
        token = first["continuation_token"]
        second = clients.call(server, "POST", _PREPARE, {"continuation_token": token})[1]
        assert second["continuation_token"] == token
        assert first["gc_uncommitted_location"] == second["gc_uncommitted_location"] != ""
        assert _rows(server, first) == []


def test_rows_are_relative_and_what_lies_elsewhere_or_is_deleted_has_none(server: EmbeddedServer) -> None:
    kept = clients.upload(server, "kept", b"x")
    clients.upload(server, "gone", b"x")
    clients.call(server, "DELETE", "/repositories/repo/branches/main/objects", path="gone")
    clients.commit(server, "one")
    clients.call(server, "DELETE", "/repositories/repo/branches/main/objects", path="kept")
    body = {"physical_address": "local://elsewhere/x", "checksum": "c", "size_bytes": 1}
    assert clients.call(server, "PUT", "/repositories/repo/branches/main/objects", body, path="out")[0] == 201
    body = {"physical_address": f"local://repo/{kept}", "checksum": "c", "size_bytes": 1}
    assert clients.call(server, "PUT", "/repositories/repo/branches/main/objects", body, path="in")[0] == 201
    page = clients.call(server, "POST", _PREPARE, {})[1]
    assert _rows(server, page) == [kept]


def test_a_moved_row_is_listed_before_or_after_but_never_missed(tmp_path: Path) -> None:
    settings = ServerSettings(page_check_rows=1, page_bytes=0)
    with EmbeddedServer(tmp_path, settings=settings) as server:
        clients.repository(server)
        addresses = [clients.upload(server, f"{number}", b"x%d" % number) for number in range(6)]
        first = clients.call(server, "POST", _PREPARE, {})[1]
        clients.call(server, "DELETE", "/repositories/repo/branches/main/objects", path="3")
        token = first["continuation_token"]
        while token:
            answer = clients.call(server, "POST", _PREPARE, {"continuation_token": token})[1]
            token = answer.get("continuation_token")
        rows = _rows(server, first)
        assert sorted(rows) == sorted(set(addresses) - {addresses[3]})
        assert len(rows) == len(set(rows))


def test_pages_skip_the_rest_of_a_folder_that_is_not_utf8_and_no_run_believes_them(tmp_path: Path) -> None:
    """As a real server: its token has replacement characters, which sort behind the bytes of the folder."""
    settings = ServerSettings(page_check_rows=2, page_bytes=0)
    with EmbeddedServer(tmp_path, settings=settings) as server:
        clients.repository(server)
        staged = [clients.upload(server, f"donn\udce9es/{number}", b"x") for number in range(6)]
        assert _rows(server, _pages(server)[0]) == staged[:2]
        credentials = LakeFSSettings(
            endpoint=server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
        )
        client = LakeFSClient(credentials, "repo", SystemClock())
        store = LocalStore(server.objects_folder / "repo")
        with pytest.raises(LakeFSError, match=r'not UTF-8.*"path":"donn\\ufffdes/2"'):
            prepare(opened(client, store, Namespace.parse("local://repo")))

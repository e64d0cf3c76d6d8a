"""Pages of uncommitted data that end at a path that is not UTF-8.

A real server begins a new page after 20 MiB of rows or a minute. With a limit of one byte, a page ends before its first
row, since a file has more than that at its beginning.
"""

import base64
import re
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets_tests.real.calls import Server, both
from lakefs_gc_assets_tests.real.server import RealRepository, installation

ROWLESS_PAGES = {"LAKEFS_UGC_PREPARE_MAX_FILE_SIZE": "1"}


def _next_paths(server: Server) -> list[str]:
    """The path of each token as it is spelled in JSON, until there is none, or one comes again."""
    call = "/repositories/repo/gc/prepare_uncommited"
    paths: list[str] = []
    body: dict[str, Any] = {}
    while True:
        page = server.send("POST", call, body).json()
        if page["gc_uncommitted_location"]:
            folder = server.folder() / page["gc_uncommitted_location"].removeprefix("s3://")
            assert {pq.read_metadata(file).num_rows for file in folder.iterdir()} == {0}
        if not page.get("continuation_token"):
            return [*paths, ""]
        body = {"continuation_token": page["continuation_token"]}
        token = base64.b64decode(page["continuation_token"]).decode()
        found = re.fullmatch(rf'{{"branch":"main","path":"(.*)","run_id":"{page["run_id"]}","key":""}}', token)
        assert found, token
        if found[1] in paths:
            return paths
        paths.append(found[1])


def test_tokens_skip_a_folder_that_is_not_utf8_on_both_servers() -> None:
    with both(ROWLESS_PAGES, ServerSettings(page_seconds=0)) as servers:
        for server in servers:
            body = {"name": "repo", "storage_namespace": "s3://lake/repo", "default_branch": "main"}
            assert server.send("POST", "/repositories", body).status == 201

            def upload(path: bytes, server: Server = server) -> None:
                answer = server.send("POST", "/repositories/repo/branches/main/objects", path, {"path": path})
                assert answer.status == 201

            for number in range(3):
                upload(b"donn\xe9es/%d" % number)
            assert _next_paths(server) == [r"donn\ufffdes/0", ""]
            # These bytes sort behind a replacement character, so the server finds the entry again.
            upload(b"donn\xffes")
            assert _next_paths(server) == [r"donn\ufffdes/0", r"donn\ufffdes"]
            # A replacement character of the path itself is not escaped.
            upload("donn\ufffdes/0".encode())
            assert _next_paths(server) == [r"donn\ufffdes/0", "donn\ufffdes/0"]


def test_a_run_that_follows_such_a_token_would_delete_staged_objects() -> None:
    with installation(ROWLESS_PAGES) as lakefs:
        lakefs.start(days_ago=3)
        repository = RealRepository.make(lakefs, "repo")
        repository.upload("committed", b"committed")
        repository.commit()
        for number in range(3):
            lakefs.upload_raw("repo", "main", f"donn%E9es/{number}", b"staged %d" % number)
        lakefs.start()
        before, committed = repository.stored(), {repository.address("committed")}
        assert len(before) == 4
        with pytest.raises(LakeFSError, match=r'not UTF-8.*"path":"donn\\ufffdes/0"'):
            repository.runs().collect()
        assert repository.stored() == before
        with mock.patch.object(uncommitted, "_require_text"):
            assert repository.runs().collect().counts["deleted"] == 3
        assert repository.stored() == committed

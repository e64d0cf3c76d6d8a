"""The collector's own lakeFS client reads the embedded server's answers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.errors import AccessDenied, NotFound
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import ObjectsPage
from lakefs_gc_assets.lakefs.formats.ranges import read_metarange
from lakefs_gc_assets.settings import LakeFSSettings
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import read_commits


class _Now:
    def now(self) -> datetime:
        return datetime.now(UTC)


def _client(server: EmbeddedServer, repository: str, key: str = "", secret: str = "") -> LakeFSClient:
    settings = LakeFSSettings(
        endpoint=server.url,
        access_key_id=key or server.access_key_id,
        secret_access_key=secret or server.secret_access_key,
    )
    return LakeFSClient(settings, repository, _Now())


def test_it_reads_a_sample(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        sample = make_sample_repository(server, objects=100)
        client = _client(server, "sample")
        assert client.repository().storage_namespace == "local://sample"
        assert client.grace_period() == timedelta(days=1)
        page = client.prepare_uncommitted(None)
        assert page.continuation_token is None
        folder = server.objects_folder / "sample" / page.location.removeprefix("local://sample/")
        rows = {row["physical_address"] for file in folder.glob("*") for row in pq.read_table(file).to_pylist()}
        staged = {live.address for live in sample.live if live.kind in ("staged", "copied", "just uploaded")}
        assert staged <= rows
        hidden = {live.address for live in sample.live if live.kind == "uploaded again with equal content"}
        assert not hidden & rows
        assert not rows & {garbage.address for garbage in sample.garbage}
        assert [branch.id for branch in client.branches()] == ["imports", "main", "restore", "scratch"]
        assert [tag.id for tag in client.tags()] == ["v0.9"]
        first = client.first_change("main")
        assert first is not None
        assert len(list(client.changes("main"))) >= len(staged)
        assert client.first_change("scratch") is None
        live = sample.live[0]
        stats = client.stat(live.reference, live.path)
        assert stats is not None
        assert (stats.physical_address, stats.size) == (f"local://sample/{live.address}", len(live.content))
        assert client.stat("main", "no such path") is None
        equal = next(live for live in sample.live if live.kind == "uploaded again with equal content")
        behind = client.list_objects(equal.reference, equal.path[:-1])
        addresses = {each.path: each.physical_address for each in behind.objects}
        assert addresses[equal.path] == f"local://sample/{equal.address}"
        assert all(client.stat(equal.reference, each.path) == each for each in behind.objects[:10])
        assert not behind.more
        assert client.list_objects("no such branch", "") == ObjectsPage((), more=False)
        task = client.start_refs_dump()
        server.core.tasks.wait_for_all(10)
        dump = client.refs_dump(task)
        assert dump.done
        metarange = (server.objects_folder / "sample/_lakefs" / dump.commits_meta_range_id).read_bytes()
        records = read_metarange(metarange, "commits", entity="commit")
        dumped = [
            commit
            for record in records
            for commit in read_commits((server.objects_folder / "sample/_lakefs" / record.id).read_bytes(), record.id)
        ]
        assert {branch.commit_id for branch in client.branches()} <= {commit.id for commit in dumped}
        assert replace(client.commit(dumped[0].id), generation=0, committer="", metadata=()) == dumped[0]
        drift = client.server_clocks.latest
        assert drift is not None
        assert abs(drift) < timedelta(seconds=5)


def test_refusals_reach_it(server: EmbeddedServer) -> None:
    user = routes.add_user(server, "no dumps", "fs:ListCommits")
    with pytest.raises(AccessDenied):
        _client(server, "repo", user.access_key_id, user.secret_access_key).start_refs_dump()
    with pytest.raises(NotFound):
        _client(server, "none-such").repository()


def test_pages_of_lists_are_followed(server: EmbeddedServer) -> None:
    core = server.core
    with core.database.transaction() as database:
        commit = database.execute("SELECT commit_id FROM branches").fetchone()[0]
        rows = [("repo", f"b{number:05d}", commit, f"token {number}", 0) for number in range(2500)]
        database.executemany("INSERT INTO branches VALUES (?, ?, ?, ?, ?)", rows)
    assert [branch.id for branch in _client(server, "repo").branches()] == [row[1] for row in rows] + ["main"]
    assert clients.call(server, "GET", "/repositories/repo/branches", amount="2")[1]["pagination"]["has_more"]

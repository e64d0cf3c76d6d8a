from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from lakefs_gc_assets.extensions.playground.embedded import branches, collection, commits, repositories
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.formats import decode_entry
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord, read_metarange, read_range
from lakefs_gc_assets.lakefs.formats.refs import read_branches, read_tags
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import read_commits


def _ranges(server: EmbeddedServer, metarange_id: str) -> list[RangeRecord]:
    return read_metarange(_file(server, metarange_id).read_bytes(), metarange_id)


def _file(server: EmbeddedServer, file_id: str) -> Path:
    return server.objects_folder / "repo" / "_lakefs" / file_id


def _head(server: EmbeddedServer, reference: str = "main") -> commits.ServedCommit:
    return commits.resolve(server.core, repositories.get(server.core, "repo"), reference)


def test_the_reader_accepts_every_entry_of_a_commit(server: EmbeddedServer) -> None:
    paths = [f"data/{number:04d}/{'x' * (number % 50)}" for number in range(150)] + ["ünï cödé/%25 +", "a//b"]
    for path in paths:
        clients.upload(server, path, path.encode())
    clients.call(
        server,
        "PUT",
        "/repositories/repo/branches/main/objects",
        {"physical_address": "local://elsewhere/x", "checksum": "c", "size_bytes": 7, "metadata": {"k": "v", "": ""}},
        path="outside",
    )
    clients.commit(server, "all")
    head = _head(server)
    ranges = _ranges(server, head.metarange_id)
    assert len(ranges) > 10
    read: list[tuple[object, ...]] = []
    for record in ranges:
        data = _file(server, record.id).read_bytes()
        entries = read_range(data, record.id, expected=record, columns=("keys", "etags", "identities"))
        read += zip(
            entries.keys.to_pylist() if entries.keys is not None else (),
            entries.addresses.to_pylist(),
            entries.address_types.to_pylist(),
            entries.sizes.to_pylist(),
            entries.last_modified.to_pylist(),
            entries.etags.to_pylist() if entries.etags is not None else (),
            entries.identities.to_pylist() if entries.identities is not None else (),
            strict=True,
        )
    stored = []
    for key, identity, data in commits.all_records(server.core, head.metarange_id):
        entry = decode_entry(data)
        assert entry.identity == identity
        stored.append((key, entry.address, entry.address_type, entry.size, entry.last_modified, entry.etag, identity))
    assert read == stored
    assert {branches.decode_path(row[0]) for row in stored} == {*paths, "outside"}


def test_a_small_change_rewrites_few_ranges(server: EmbeddedServer) -> None:
    for number in range(100):
        clients.upload(server, f"part/{number:04d}", b"x")
    clients.commit(server, "first")
    before = {record.id for record in _ranges(server, _head(server).metarange_id)}
    clients.upload(server, "part/0050", b"changed")
    clients.commit(server, "second")
    after = {record.id for record in _ranges(server, _head(server).metarange_id)}
    assert len(after - before) == 1
    assert len(before & after) == len(before) - 1


def test_a_metarange_may_be_empty(server: EmbeddedServer) -> None:
    clients.upload(server, "only", b"x")
    clients.commit(server, "one")
    clients.call(server, "DELETE", "/repositories/repo/branches/main/objects", path="only")
    clients.commit(server, "none")
    assert _head(server).metarange_id
    assert _ranges(server, _head(server).metarange_id) == []


def test_a_dump_holds_all_commits_branches_and_tags(server: EmbeddedServer) -> None:
    clients.upload(server, "a", b"x")
    first = clients.commit(server, "first")
    sdk = clients.sdk(server)
    clients.call(server, "POST", "/repositories/repo/branches", {"name": "secret", "source": "main", "hidden": True})
    clients.call(server, "POST", "/repositories/repo/tags", {"id": "v1", "ref": "main"})
    clients.call(server, "POST", "/repositories/repo/branches", {"name": "doomed", "source": "main"})
    clients.upload(server, "b", b"y", branch="doomed")
    dangling = clients.commit(server, "dangling", branch="doomed")
    clients.call(server, "DELETE", "/repositories/repo/branches/doomed")
    task = sdk.repositories_api.dump_submit("repo").id
    server.core.tasks.wait_for_all(5)
    refs = sdk.repositories_api.dump_status("repo", task).refs
    assert refs is not None

    def tables(metarange_id: str, entity: str) -> list[bytes]:
        records = read_metarange(_file(server, metarange_id).read_bytes(), metarange_id, entity=entity)
        return [_file(server, record.id).read_bytes() for record in records]

    dumped = {
        commit.id: commit for data in tables(refs.commits_meta_range_id, "commit") for commit in read_commits(data, "c")
    }
    assert {first["id"], dangling["id"]} < dumped.keys()
    assert dumped[dangling["id"]].parents == (first["id"],)
    assert dumped[dangling["id"]].metarange_id == dangling["meta_range_id"]
    assert dumped[first["id"]].creation_date == first["creation_date"]
    assert next(commit for commit in dumped.values() if not commit.parents).metarange_id == ""
    listed = [branch for data in tables(refs.branches_meta_range_id, "branch") for branch in read_branches(data, "b")]
    assert [(branch.id, branch.commit_id) for branch in listed] == [("main", first["id"]), ("secret", first["id"])]
    tags = [tag for data in tables(refs.tags_meta_range_id, "tag") for tag in read_tags(data, "t")]
    assert [(tag.id, tag.commit_id) for tag in tags] == [("v1", first["id"])]


def test_a_dump_is_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    paused, goes_on = Event(), Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        paused.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(collection, "time", SimpleNamespace(sleep=pause))
    with EmbeddedServer(tmp_path, settings=ServerSettings(dump_pause_seconds=0.5)) as server:
        clients.repository(server)
        clients.upload(server, "a", b"x")
        _, task = clients.call(server, "POST", "/repositories/repo/dump")
        assert paused.wait(60)
        made = clients.commit(server, "between commits and branches")
        assert pauses == [0.5]
        goes_on.set()
        server.core.tasks.wait_for_all(60)
        refs = clients.call(server, "GET", "/repositories/repo/dump", task_id=task["id"])[1]["refs"]
        found = read_metarange(_file(server, refs["commits_meta_range_id"]).read_bytes(), "commits", entity="commit")
        commits_read = [commit for item in found for commit in read_commits(_file(server, item.id).read_bytes(), "c")]
        found = read_metarange(_file(server, refs["branches_meta_range_id"]).read_bytes(), "branches", entity="branch")
        heads = [
            branch.commit_id for item in found for branch in read_branches(_file(server, item.id).read_bytes(), "b")
        ]
        assert heads == [made["id"]]
        assert made["id"] not in {commit.id for commit in commits_read}


def test_changes_are_those_that_comparing_with_all_records_finds(server: EmbeddedServer) -> None:
    names = [f"{number:04d}" for number in range(60)]
    for number, name in enumerate(names):
        if number % 3:
            clients.upload(server, name, name.encode())
    clients.commit(server, "base")
    for number, name in enumerate(names):
        if number % 4 == 0:
            clients.upload(server, name, b"new")
        elif number % 5 == 0:
            clients.upload(server, name, name.encode())
    core, metarange_id = server.core, _head(server).metarange_id
    assert len(_ranges(server, metarange_id)) > 2
    records = {record[0]: record for record in commits.all_records(core, metarange_id)}

    with core.database.transaction() as database:
        repository = repositories.get(core, "repo")
        branch = branches.every(core, repository, hidden=True)[0]
        for start in (b"", b"0013", b"0040", b"x"):
            staged = list(branches.scan_staged(database, branch.staging_token, start))
            changes = branches.staged_changes(core, database, repository, branch, start)
            found = {change.path: change.type for change in changes}
            expected: dict[bytes, str] = {}
            for path, identity, _ in staged:
                base = records.get(path)
                assert commits.find_record(core, metarange_id, path) == base
                if base is None or base[1] != identity:
                    expected[path] = "added" if base is None else "changed"
            assert found == expected
            assert len(found) < len(staged) or start == b"x"

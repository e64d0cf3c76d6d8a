"""Differences of commits and branches, references that count back, and imports, with lakefs-sdk."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.clients import models

# Differences.


_BRANCHES = "/repositories/repo/branches"


def _delete(server: EmbeddedServer, path: str, branch: str) -> None:
    assert clients.call(server, "DELETE", f"{_BRANCHES}/{branch}/objects", path=path)[0] == 204


def _branch(server: EmbeddedServer, name: str) -> None:
    assert clients.call(server, "POST", _BRANCHES, {"name": name, "source": "main"})[0] == 201


def _diverged(server: EmbeddedServer) -> None:
    for name in ("kept", "same", "ours", "theirs", "both", "ours gone", "theirs gone"):
        clients.upload(server, name, b"base")
    clients.commit(server, "base")
    _branch(server, "side")
    for branch, own in (("main", "ours"), ("side", "theirs")):
        clients.upload(server, own, b"changed", branch=branch)
        clients.upload(server, "same", b"equal", branch=branch)
        clients.upload(server, "both", branch.encode(), branch=branch)
        clients.upload(server, f"{own} new", b"new", branch=branch)
        _delete(server, f"{own} gone", branch)
        clients.commit(server, branch, branch=branch)


def test_three_dots_show_what_a_merge_would_bring_and_two_all_that_differs(server: EmbeddedServer) -> None:
    _diverged(server)
    refs = clients.sdk(server).refs_api

    def shown(**more: Any) -> dict[str, str]:
        return {change.path: change.type for change in refs.diff_refs("repo", "main", "side", **more).results}

    brought = {"theirs": "changed", "both": "conflict", "theirs new": "added", "theirs gone": "removed"}
    assert shown() == shown(type="three_dot") == brought
    opposite = {"ours": "changed", "ours new": "removed", "ours gone": "added", "both": "changed"}
    assert shown(type="two_dot") == brought | opposite
    with pytest.raises(ApiException) as error:
        shown(type="four_dot")
    assert error.value.status == 400


@pytest.mark.parametrize("committed", [False, True])
def test_pages_prefixes_and_groups(server: EmbeddedServer, committed: bool) -> None:
    source = random.Random(4)
    paths = sorted({"/".join(source.choices("abc", k=source.randint(1, 4))) for _ in range(40)} | {"é/ü", "a-b/c"})
    sdk = clients.sdk(server)
    _branch(server, "side")
    for path in paths:
        clients.upload(server, path, b"x", branch="side")
    if committed:
        clients.commit(server, "side", branch="side")

    def every(amount: int, **more: str) -> list[str]:
        found: list[str] = []
        after = ""
        while True:
            if committed:
                page = sdk.refs_api.diff_refs("repo", "main", "side", amount=amount, after=after, **more)
            else:
                page = sdk.branches_api.diff_branch("repo", "side", amount=amount, after=after, **more)
            assert len(page.results) <= amount
            found += [change.path for change in page.results]
            if not page.pagination.has_more:
                return found
            after = page.pagination.next_offset

    for amount in (3, 1000):
        assert every(amount) == paths
        for prefix in ("", "a", "a/", "a/b/", "nothing"):
            below = [path for path in paths if path.startswith(prefix)]
            assert every(amount, prefix=prefix) == below
            cut = [prefix + "/".join(path[len(prefix) :].split("/")[:1]) for path in below]
            groups = [name + "/" if path != name else name for path, name in zip(below, cut, strict=True)]
            assert every(amount, prefix=prefix, delimiter="/") == sorted(set(groups))


def test_references_count_back(server: EmbeddedServer) -> None:
    _diverged(server)
    merge = "/repositories/repo/refs/side/merge/main"
    assert clients.call(server, "POST", merge, {"strategy": "source-wins"})[0] == 200
    clients.upload(server, "kept", b"staged")
    commits = clients.sdk(server).commits_api

    def message(reference: str) -> str:
        return str(commits.get_commit("repo", reference).message)

    assert [message(name) for name in ("main~1", "main^", "main^1", "main^2", "main~2", "main^2~1", "main~~")] == [
        "main",
        "main",
        "main",
        "side",
        "base",
        "base",
        "base",
    ]
    assert message("main~0") == message("main^0") == message("main") == message("main@")
    head = commits.get_commit("repo", "main")
    assert message(f"{head.id[:12]}~3") == "Repository created"
    objects = clients.sdk(server).objects_api
    for reference, content in (("main", b"staged"), ("main@", b"base"), ("main~2", b"base")):
        assert objects.get_object("repo", reference, "kept") == content
    for reference in ("main~9", "main^3", "main~x", "none~1", "~1", "@"):
        with pytest.raises(ApiException) as error:
            message(reference)
        assert error.value.status == 404, reference


def test_what_is_not_served_is_refused_and_not_ignored(server: EmbeddedServer) -> None:
    sdk = clients.sdk(server)
    clients.upload(server, "a", b"x")
    sdk.refs_api.log_commits("repo", "main", first_parent=False, amount=1)
    commit = models.CommitCreation(message="m")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: sdk.refs_api.log_commits("repo", "main", first_parent=True),
        lambda: sdk.refs_api.log_commits("repo", "main", prefixes=["a"]),
        lambda: sdk.commits_api.commit("repo", "main", commit, source_metarange="0" * 64),
    )
    for call in calls:
        with pytest.raises(ApiException) as error:
            call()
        assert error.value.status == 501


def test_a_merge_may_change_nothing_where_that_is_allowed(server: EmbeddedServer) -> None:
    clients.upload(server, "a", b"x")
    first = clients.commit(server, "one")
    _branch(server, "side")
    refs = clients.sdk(server).refs_api
    with pytest.raises(ApiException) as error:
        refs.merge_into_branch("repo", "side", "main")
    assert error.value.status == 400
    made = refs.merge_into_branch("repo", "side", "main", models.Merge(allow_empty=True)).reference
    commit = clients.sdk(server).commits_api.get_commit("repo", made)
    assert (commit.meta_range_id, commit.parents) == (first["meta_range_id"], [first["id"], first["id"]])


# Imports.


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

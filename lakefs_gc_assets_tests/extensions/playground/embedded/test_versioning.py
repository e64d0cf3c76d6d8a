import random
from datetime import UTC, datetime, timedelta

import pytest

from lakefs_gc_assets.extensions.playground.embedded.core import Writer
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import StoreClock
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

_BRANCH = "/repositories/repo/branches/main"
_OBJECTS = _BRANCH + "/objects"
_MAIN = "/repositories/repo/refs/main/objects"


def _listing(server: EmbeddedServer, reference: str = "main") -> dict[str, bytes]:
    """Content by path, as the API returns it."""
    found = {}
    _, answer = clients.call(server, "GET", f"/repositories/repo/refs/{reference}/objects/ls", amount="1000")
    for item in answer["results"]:
        status, content = clients.call(server, "GET", f"/repositories/repo/refs/{reference}/objects", path=item["path"])
        assert status == 200
        found[item["path"]] = content
    return found


def test_an_entry_staged_with_the_committed_identity_is_no_change(server: EmbeddedServer) -> None:
    committed_address = clients.upload(server, "same", b"content")
    clients.commit(server, "first")
    staged_address = clients.upload(server, "same", b"content")
    assert staged_address != committed_address
    _, stat = clients.call(server, "GET", _MAIN + "/stat", path="same")
    assert stat["physical_address"].endswith(staged_address)
    _, difference = clients.call(server, "GET", _BRANCH + "/diff")
    assert difference["results"] == []
    _, prepared = clients.call(server, "POST", "/repositories/repo/gc/prepare_uncommited", {})
    assert prepared["gc_uncommitted_location"] == ""
    status, answer = clients.call(server, "POST", _BRANCH + "/commits", {"message": "nothing"})
    assert (status, answer["message"]) == (400, "commit: no changes")
    clients.upload(server, "other", b"x")
    clients.commit(server, "second")
    _, stat = clients.call(server, "GET", _MAIN + "/stat", path="same")
    assert stat["physical_address"].endswith(committed_address)


@pytest.mark.parametrize("seed", range(2))
def test_branches_hold_what_a_plain_model_holds(seed: int, server: EmbeddedServer) -> None:
    """Random writes, deletions, commits, resets, merges: contents agree with dictionaries."""
    source = random.Random(seed)
    committed: dict[str, dict[str, bytes]] = {"main": {}}
    staged: dict[str, dict[str, bytes | None]] = {"main": {}}
    paths = [f"{letter}/{number}" for letter in "ab" for number in range(6)]

    def content(branch: str) -> dict[str, bytes]:
        whole = {**committed[branch], **staged[branch]}
        return {path: data for path, data in whole.items() if data is not None}

    for step in range(60):
        branch = source.choice(sorted(committed))
        base = f"/repositories/repo/branches/{branch}"
        path, action = source.choice(paths), source.random()
        if action < 0.45:
            data = b"%d" % source.randrange(5)
            clients.upload(server, path, data, branch=branch)
            staged[branch][path] = data
        elif action < 0.6:
            assert clients.call(server, "DELETE", base + "/objects", path=path)[0] == 204
            staged[branch][path] = None
        elif action < 0.75:
            status, _ = clients.call(server, "POST", base + "/commits", {"message": str(step)})
            assert status == (201 if content(branch) != committed[branch] else 400)
            if status == 201:
                committed[branch], staged[branch] = content(branch), {}
        elif action < 0.8:
            assert clients.call(server, "PUT", base, {"type": "reset"})[0] == 204
            staged[branch] = {}
        elif action < 0.85:
            assert clients.call(server, "PUT", base, {"type": "common_prefix", "path": "a/"})[0] == 204
            staged[branch] = {name: data for name, data in staged[branch].items() if not name.startswith("a/")}
        elif action < 0.92 and len(committed) < 4:
            new = f"b{step}"
            made = clients.call(server, "POST", "/repositories/repo/branches", {"name": new, "source": branch})
            assert made[0] == 201
            committed[new], staged[new] = dict(committed[branch]), {}
        else:
            other = source.choice(sorted(committed))
            merge = f"/repositories/repo/refs/{branch}/merge/{other}"
            status, answer = clients.call(server, "POST", merge, {"strategy": "source-wins"})
            if other != branch and content(other) != committed[other]:
                assert (status, "dirty" in answer["message"]) == (400, True)
            if status == 200:
                changed = {p for p in paths if committed[branch].get(p) != committed[other].get(p)}
                after = _listing(server, answer["reference"])
                untouched = {p for p in paths if p not in changed}
                assert {p: after.get(p) for p in untouched} == {p: committed[other].get(p) for p in untouched}
                assert all(after.get(p) in (committed[branch].get(p), committed[other].get(p)) for p in changed)
                committed[other], staged[other] = after, {}
        assert _listing(server, branch) == content(branch)


def test_merging_is_three_way(server: EmbeddedServer) -> None:
    for path in ("kept", "changed", "removed", "both"):
        clients.upload(server, path, b"base")
    clients.commit(server, "base")
    clients.call(server, "POST", "/repositories/repo/branches", {"name": "side", "source": "main"})
    clients.upload(server, "changed", b"side", branch="side")
    clients.upload(server, "both", b"side", branch="side")
    clients.upload(server, "new", b"side", branch="side")
    clients.call(server, "DELETE", "/repositories/repo/branches/side/objects", path="removed")
    clients.commit(server, "side", branch="side")
    clients.upload(server, "both", b"main")
    clients.upload(server, "own", b"main")
    clients.commit(server, "main")
    merge = "/repositories/repo/refs/side/merge/main"
    status, answer = clients.call(server, "POST", merge, {})
    assert (status, answer) == (409, {"reference": ""})
    assert clients.call(server, "POST", merge, {"strategy": "mine"})[0] == 400
    assert clients.call(server, "POST", merge, {"strategy": "dest-wins"})[0] == 200
    assert _listing(server) == {
        "kept": b"base",
        "changed": b"side",
        "both": b"main",
        "new": b"side",
        "own": b"main",
    }


def test_a_squashed_merge_has_one_parent(server: EmbeddedServer) -> None:
    clients.call(server, "POST", "/repositories/repo/branches", {"name": "side", "source": "main"})
    clients.upload(server, "a", b"one", branch="side")
    clients.commit(server, "one", branch="side")
    before = clients.call(server, "GET", _BRANCH)[1]["commit_id"]
    _, merged = clients.call(server, "POST", "/repositories/repo/refs/side/merge/main", {"squash_merge": True})
    _, commit = clients.call(server, "GET", f"/repositories/repo/commits/{merged['reference']}")
    assert (commit["parents"], _listing(server)) == ([before], {"a": b"one"})


def test_slices_end_by_time_and_by_number_and_the_newest_sorts_first() -> None:
    clock = StoreClock(datetime(2026, 1, 1, tzinfo=UTC))
    writer = Writer(clock, max_slice_size=3)
    addresses = [writer.new_address() for _ in range(7)]
    clock.advance(timedelta(minutes=59))
    addresses.append(writer.new_address())
    clock.advance(timedelta(minutes=2))
    addresses.append(writer.new_address())
    slices = [layout.parse(address).slice for address in addresses]
    assert [slices.index(name) for name in slices] == [0, 0, 0, 3, 3, 3, 6, 6, 8]
    names = list(dict.fromkeys(slices))
    assert names[-1] == min(filter(None, names))
    for address in addresses:
        name = address.rpartition("/")[2]
        created = layout.created_at(layout.parse(address).slice or "")
        assert created <= layout.issued_at(name) <= created + layout.SLICE_SPAN_SECONDS


@pytest.mark.parametrize("namespace", ["local://other//", "local://other/deep/"])
def test_a_namespace_may_end_with_a_slash(server: EmbeddedServer, namespace: str) -> None:
    body = {"name": "other", "storage_namespace": namespace}
    assert clients.call(server, "POST", "/repositories", body)[1]["storage_namespace"] == namespace
    status, stats = clients.call(server, "POST", "/repositories/other/branches/main/objects", b"x", path="a")
    key = stats["physical_address"].removeprefix(namespace.rstrip("/") + "/")
    assert (status, key.startswith("data/")) == (201, True)
    assert clients.call(server, "GET", "/repositories/other/refs/main/objects", path="a") == (200, b"x")
    made = clients.commit(server, "one", name="other")
    folder = server.objects_folder / namespace.removeprefix("local://").strip("/")
    assert (folder / key).read_bytes() == b"x"
    assert (folder / "_lakefs" / made["meta_range_id"]).is_file()

"""Several clients at once: every call gets the right answer, and no write is lost."""

import random
from concurrent.futures import ThreadPoolExecutor

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients


def _work(server: EmbeddedServer, worker: int) -> dict[str, bytes]:
    """Uploads, renames, deletes and commits on the worker's own paths; returns the expected contents."""
    source, own = random.Random(worker), {}
    base = "/repositories/repo/branches/main"
    for step in range(30):
        path, action = f"{worker}/{source.randrange(12)}", source.random()
        if action < 0.5 or path not in own:
            own[path] = b"%d %d" % (worker, step)
            clients.upload(server, path, own[path])
        elif action < 0.65:
            assert clients.call(server, "DELETE", base + "/objects", path=path)[0] == 204
            del own[path]
        elif action < 0.85:
            new = f"{path}-{step}"
            status, _ = clients.call(server, "POST", base + "/objects/copy", {"src_path": path}, dest_path=new)
            assert status == 201
            own[new] = own[path]
        elif action < 0.93:
            status, answer = clients.call(server, "POST", base + "/commits", {"message": f"{worker} {step}"})
            assert status == 201 or answer["message"] == "commit: no changes"
        else:
            assert clients.call(server, "POST", "/repositories/repo/gc/prepare_uncommited", {})[0] == 201
            assert clients.call(server, "POST", "/repositories/repo/dump", {})[0] == 202
    return own


def test_workers_do_not_disturb_each_other(server: EmbeddedServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda worker: _work(server, worker), range(4)))
    for own in results:
        for path, content in own.items():
            assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path=path) == (200, content)
    _, listed = clients.call(server, "GET", "/repositories/repo/refs/main/objects/ls", amount="1000")
    assert {item["path"] for item in listed["results"]} == {path for own in results for path in own}
    server.core.tasks.wait_for_all(10)


def test_merges_into_one_branch_come_one_after_the_other(server: EmbeddedServer) -> None:
    clients.upload(server, "base", b"x")
    clients.commit(server, "base")
    names = [f"side-{number}" for number in range(5)]
    for name in names:
        assert clients.call(server, "POST", "/repositories/repo/branches", {"name": name, "source": "main"})[0] == 201
        clients.upload(server, name, b"y", branch=name)
        clients.commit(server, name, branch=name)

    def merge(name: str) -> int:
        return clients.call(server, "POST", f"/repositories/repo/refs/{name}/merge/main", {})[0]

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(merge, names)) == [200] * 5
    _, log = clients.call(server, "GET", "/repositories/repo/refs/main/commits", first_parent="false")
    merges = [commit for commit in log["results"] if len(commit["parents"]) == 2]
    assert len(merges) == len({commit["parents"][0] for commit in merges}) == 5
    _, listed = clients.call(server, "GET", "/repositories/repo/refs/main/objects/ls")
    assert [item["path"] for item in listed["results"]] == ["base", *names]

"""One scene with every call that the collector, a user or lakefs-sdk makes every day."""

import time
from typing import Any

from lakefs_gc_assets_tests.real.calls import Server
from lakefs_gc_assets_tests.real.collectors_calls import look

_R = "/repositories/repo"
_B = _R + "/branches/main"
_MISSING = "0" * 64
_TRIES = 300


def play(server: Server) -> None:
    """Makes every call; answers are in `server.answers`."""
    play_changes(server)
    for part in (_collection, _imports, _read_only, _squash_merges, _pulls, _protected):
        part(server)


def play_changes(server: Server) -> None:
    """Makes the calls that change what the collector sees, and its own calls after each part."""
    for part in (_repositories, _objects, _commits, _branches, _tags, _merges, _rules, _hard_reset, _staging):
        part(server)
        look(server, part.__name__.strip("_"))


def _repositories(server: Server) -> None:
    ask = server.ask
    new = {"name": "repo", "storage_namespace": "s3://lake/repo", "default_branch": "main"}
    ask("no repositories", "GET", "/repositories")
    ask("create repository", "POST", "/repositories", new)
    ask("create repository again", "POST", "/repositories", new)
    ask("create repository in used namespace", "POST", "/repositories", {**new, "name": "other"})
    ask("create repository with bad name", "POST", "/repositories", {**new, "name": "A b"})
    ask("create repository without name", "POST", "/repositories", {"storage_namespace": "s3://lake/x"})
    ask("get repository", "GET", _R)
    ask("get missing repository", "GET", "/repositories/none")
    ask("repositories", "GET", "/repositories")
    ask("repositories after all", "GET", "/repositories", after="zzz")
    ask("repository metadata", "GET", _R + "/metadata")
    ask("garbage collection config", "GET", "/config/garbage-collection")
    ask("unknown call", "GET", "/unknown")
    ask("branches of missing repository", "GET", "/repositories/none/branches")
    ask("wrong method", "PATCH", _R)


def _objects(server: Server) -> None:
    ask = server.ask
    for path, content in (("a/1", b"one"), ("a/2", b"two"), ("b", b"bee"), ("c/x/1", b""), ("ü +%/?", b"odd")):
        ask(f"upload {path}", "POST", _B + "/objects", content, path=path)
    ask("upload to missing branch", "POST", _R + "/branches/none/objects", b"x", path="x")
    ask("upload without path", "POST", _B + "/objects", b"x")
    ask("upload to empty path", "POST", _B + "/objects", b"x", path="")
    for name, reference, path in (
        ("", "main", "a/1"),
        (" of missing path", "main", "none"),
        (" on missing branch", "none", "a/1"),
        (" on commit without it", "main@", "a/1"),
    ):
        ask(f"stat{name}", "GET", f"{_R}/refs/{reference}/objects/stat", path=path)
        ask(f"read{name}", "GET", f"{_R}/refs/{reference}/objects", path=path)
    ask("stat without metadata", "GET", _R + "/refs/main/objects/stat", path="a/1", user_metadata="false")
    ask("stat without path", "GET", _R + "/refs/main/objects/stat")
    for name, query in _PAGES.items():
        ask(f"objects {name}", "GET", _R + "/refs/main/objects/ls", **query)
        ask(f"diff {name}", "GET", _B + "/diff", **query)
    ask("objects below delimiter", "GET", _R + "/refs/main/objects/ls", delimiter="/")
    ask("objects without metadata", "GET", _R + "/refs/main/objects/ls", user_metadata="false", amount=1)
    ask("diff below delimiter", "GET", _B + "/diff", delimiter="/")
    ask("objects of missing branch", "GET", _R + "/refs/none/objects/ls")
    ask("diff of missing branch", "GET", _R + "/branches/none/diff")
    ask("copy", "POST", _B + "/objects/copy", {"src_path": "a/1"}, dest_path="copied")
    ask("copy of missing path", "POST", _B + "/objects/copy", {"src_path": "none"}, dest_path="copied")
    ask("set metadata", "PUT", _B + "/objects/stat/user_metadata", {"set": {"m": "1"}}, path="b")
    ask("stat with metadata", "GET", _R + "/refs/main/objects/stat", path="b")
    ask("objects with metadata", "GET", _R + "/refs/main/objects/ls", prefix="b")
    ask("objects without their metadata", "GET", _R + "/refs/main/objects/ls", prefix="b", user_metadata="false")
    ask("stat without its metadata", "GET", _R + "/refs/main/objects/stat", path="b", user_metadata="false")
    ask("set metadata of missing path", "PUT", _B + "/objects/stat/user_metadata", {"set": {}}, path="none")
    ask("delete staged path", "DELETE", _B + "/objects", path="copied")
    ask("delete missing path", "DELETE", _B + "/objects", path="none")
    ask("delete on missing branch", "DELETE", _R + "/branches/none/objects", path="a/1")
    ask("delete several", "POST", _B + "/objects/delete", {"paths": ["copied", "none"]})
    issued = ask("issue address", "GET", _B + "/staging/backing", path="linked")
    body = {
        "staging": {"physical_address": issued["physical_address"]},
        "checksum": "0123456789abcdef0123456789abcdef",
        "size_bytes": 3,
    }
    # Nothing is uploaded to it: the server does not check.
    ask("link address", "PUT", _B + "/staging/backing", body, path="linked")
    ask("link address to another path", "PUT", _B + "/staging/backing", body, path="other")
    ask("read linked object without data", "GET", _R + "/refs/main/objects", path="linked")
    ask("delete linked", "DELETE", _B + "/objects", path="linked")


_PAGES: dict[str, dict[str, Any]] = {
    "all": {},
    "amount 2": {"amount": 2},
    "amount 0": {"amount": 0},
    "amount -1": {"amount": -1},
    "amount 5000": {"amount": 5000},
    "amount x": {"amount": "x"},
    "after": {"after": "a/1", "amount": 2},
    "prefix": {"prefix": "a/"},
    "prefix and after": {"prefix": "a/", "after": "a/1"},
    "prefix behind after": {"prefix": "c", "after": "a"},
    "none": {"prefix": "zzz"},
}


def _commits(server: Server) -> None:
    ask = server.ask
    first = ask("commit", "POST", _B + "/commits", {"message": "first", "metadata": {"k": "v"}})["id"]
    ask("commit without changes", "POST", _B + "/commits", {"message": "nothing"})
    ask("commit without message", "POST", _B + "/commits", {})
    ask("commit with empty message", "POST", _B + "/commits", {"message": ""})
    ask("commit nothing on purpose", "POST", _B + "/commits", {"message": "nothing", "allow_empty": True})
    ask("commit on missing branch", "POST", _R + "/branches/none/commits", {"message": "none"})
    ask("upload committed content again", "POST", _B + "/objects", b"one", path="a/1")
    ask("diff after committed content", "GET", _B + "/diff")
    ask("upload other content", "POST", _B + "/objects", b"other", path="a/1")
    ask("remove committed", "DELETE", _B + "/objects", path="a/2")
    ask("upload new", "POST", _B + "/objects", b"new", path="new")
    ask("diff after commit", "GET", _B + "/diff")
    ask("stat removed", "GET", _R + "/refs/main/objects/stat", path="a/2")
    ask("objects after changes", "GET", _R + "/refs/main/objects/ls")
    ask("reset path", "PUT", _B, {"type": "object", "path": "a/1"})
    ask("reset missing path", "PUT", _B, {"type": "object", "path": "none"})
    ask("reset unknown type", "PUT", _B, {"type": "unknown"})
    ask("reset missing branch", "PUT", _R + "/branches/none", {"type": "reset"})
    ask("diff after reset", "GET", _B + "/diff")
    ask("dated commit", "POST", _B + "/commits", {"message": "dated", "date": 1700000000})
    ask("get commit", "GET", f"{_R}/commits/{first}")
    # The beginning of an id is no commit of this call on a real server.
    ask("get missing commit", "GET", f"{_R}/commits/{_MISSING}")
    ask("get commit of branch", "GET", _R + "/commits/main")
    ask("get commit by expression", "GET", _R + "/commits/main~1")
    ask("get commit before the first", "GET", _R + "/commits/main~9")
    ask("log", "GET", _R + "/refs/main/commits")
    ask("log amount 1", "GET", _R + "/refs/main/commits", amount=1)
    ask("log after", "GET", _R + "/refs/main/commits", amount=1, after=first)
    ask("log of path", "GET", _R + "/refs/main/commits", objects="a/2")
    ask("log of missing branch", "GET", _R + "/refs/none/commits")
    ask("diff of commits", "GET", f"{_R}/refs/{first}/diff/main", type="two_dot")
    ask("diff of branch and missing", "GET", f"{_R}/refs/main/diff/none")


def _branches(server: Server) -> None:
    ask, branches = server.ask, _R + "/branches"
    for name in ("dev", "dev-2", "other"):
        ask(f"create branch {name}", "POST", branches, {"name": name, "source": "main"})
    ask("create hidden branch", "POST", branches, {"name": "dev-hidden", "source": "main", "hidden": True})
    ask("create branch again", "POST", branches, {"name": "dev", "source": "main"})
    ask("create branch of bad name", "POST", branches, {"name": "a b", "source": "main"})
    ask("create branch from nothing", "POST", branches, {"name": "x", "source": "none"})
    ask("create branch without source", "POST", branches, {"name": "x"})
    ask("create branch from expression", "POST", branches, {"name": "older", "source": "main~1"})
    for name, query in {**_PAGES, "after": {"after": "dev", "amount": 1}, "prefix": {"prefix": "dev"}}.items():
        ask(f"branches {name}", "GET", branches, **query)
    ask("branches with hidden", "GET", branches, show_hidden="true")
    ask("first branch of hidden name", "GET", branches, prefix="dev-hidden", amount=1)
    ask("get branch", "GET", branches + "/dev")
    ask("get hidden branch", "GET", branches + "/dev-hidden")
    ask("get missing branch", "GET", branches + "/none")
    ask("get branch of bad name", "GET", branches + "/a b")
    ask("delete branch", "DELETE", branches + "/other")
    ask("delete branch again", "DELETE", branches + "/other")
    ask("delete default branch", "DELETE", branches + "/main")
    ask("upload to hidden branch", "POST", branches + "/dev-hidden/objects", b"hidden", path="hidden")


def _tags(server: Server) -> None:
    ask, tags = server.ask, _R + "/tags"
    ask("create tag", "POST", tags, {"id": "v1", "ref": "main"})
    ask("create tag of expression", "POST", tags, {"id": "v0", "ref": "main~1"})
    ask("create tag again", "POST", tags, {"id": "v1", "ref": "main"})
    ask("create tag by force", "POST", tags, {"id": "v1", "ref": "dev", "force": True})
    ask("create tag of missing", "POST", tags, {"id": "v2", "ref": "none"})
    for name in ("a b", "a/b", "a..b", "a.lock", "a.", "@", "a@{", "a^", "a:b", "a\u00a0b", "a~b", "v1.0", "ü"):
        ask(f"create tag {name}", "POST", tags, {"id": name, "ref": "main"})
    ask("create tag without name", "POST", tags, {"ref": "main"})
    ask("tags", "GET", tags)
    ask("tags amount 1", "GET", tags, amount=1)
    ask("tags after", "GET", tags, after="v0")
    ask("get tag", "GET", tags + "/v1")
    ask("get missing tag", "GET", tags + "/none")
    ask("stat on tag", "GET", _R + "/refs/v1/objects/stat", path="b")
    ask("create tag to delete", "POST", tags, {"id": "gone", "ref": "main"})
    ask("delete tag", "DELETE", tags + "/gone")
    ask("delete missing tag", "DELETE", tags + "/gone")


def _merges(server: Server) -> None:
    ask, dev = server.ask, _R + "/branches/dev"
    ask("upload to dev", "POST", dev + "/objects", b"dev", path="dev")
    ask("merge into dirty branch", "POST", _R + "/refs/main/merge/dev", {})
    ask("commit dev", "POST", dev + "/commits", {"message": "dev"})
    ask("merge", "POST", _R + "/refs/dev/merge/main", {"message": "merged"})
    ask("merge again", "POST", _R + "/refs/dev/merge/main", {})
    ask("merge missing branch", "POST", _R + "/refs/none/merge/main", {})
    ask("merge into missing branch", "POST", _R + "/refs/main/merge/none", {})
    # Contents that no other path has: lakeFS confuses the identity of the next path in the base with that of this path.
    for branch in ("dev", "main"):
        base = f"{_R}/branches/{branch}"
        ask(f"upload conflict to {branch}", "POST", base + "/objects", f"on {branch}".encode(), path="conflict")
        ask(f"commit conflict on {branch}", "POST", base + "/commits", {"message": f"on {branch}"})
    ask("merge conflict", "POST", _R + "/refs/dev/merge/main", {})
    ask("merge conflict by strategy", "POST", _R + "/refs/dev/merge/main", {"strategy": "source-wins"})
    ask("merge by unknown strategy", "POST", _R + "/refs/dev/merge/main", {"strategy": "unknown"})
    ask("revert merge without parent", "POST", _B + "/revert", {"ref": "main", "parent_number": 0})
    ask("revert", "POST", _B + "/revert", {"ref": "main", "parent_number": 1})
    ask("revert missing", "POST", _B + "/revert", {"ref": "none", "parent_number": 0})
    ask("cherry-pick", "POST", _R + "/branches/dev-2/cherry-pick", {"ref": "dev"})
    ask("log after merges", "GET", _R + "/refs/main/commits", amount=4)
    ask("head after merges", "GET", _R + "/commits/main")


def _rules(server: Server) -> None:
    ask, rules = server.ask, _R + "/settings/gc_rules"
    ask("no rules", "GET", rules)
    ask("prepare commits without rules", "POST", _R + "/gc/prepare_commits")
    task = ask("prepare commits without rules in the background", "POST", _R + "/gc/prepare_commits/async")["id"]
    server.wait("status without rules", _R + "/gc/prepare_commits/status", "completed", id=task)
    ask("delete missing rules", "DELETE", rules)
    ask("put rules without branches", "PUT", rules, {"default_retention_days": 3})
    ask("put rules of null branches", "PUT", rules, {"default_retention_days": 3, "branches": None})
    ask("put rules of no branches", "PUT", rules, {"default_retention_days": 3, "branches": []})
    ask("rules of no branches", "GET", rules)
    look(server, "rules of no branches")
    ask("put zero rules", "PUT", rules, {"default_retention_days": 0, "branches": []})
    ask("zero rules", "GET", rules)
    look(server, "zero rules")
    ask("put negative rules", "PUT", rules, {"default_retention_days": -1, "branches": []})
    ask("negative rules", "GET", rules)
    ask("put rules as text", "PUT", rules, {"default_retention_days": "3", "branches": []})
    ask("delete rules", "DELETE", rules)
    ask("rules after deletion", "GET", rules)
    ask(
        "put rules",
        "PUT",
        rules,
        {"default_retention_days": 9, "branches": [{"branch_id": "main", "retention_days": 5}]},
    )
    ask("rules", "GET", rules)


def _hard_reset(server: Server) -> None:
    """Staged entries stay. One with the content of the head at its path is listed while the branch is elsewhere."""
    ask, moved = server.ask, _R + "/branches/moved"
    ask("create branch to move", "POST", _R + "/branches", {"name": "moved", "source": "main"})
    ask("upload before hard reset", "POST", moved + "/objects", b"moved", path="moved")
    ask("commit before hard reset", "POST", moved + "/commits", {"message": "moved"})
    ask("tag head before hard reset", "POST", _R + "/tags", {"id": "moved-head", "ref": "moved"})
    ask("stage committed content", "POST", moved + "/objects", b"moved", path="moved")
    ask("stage new content", "POST", moved + "/objects", b"never committed", path="other")
    ask("diff before hard reset", "GET", moved + "/diff")
    ask("hard reset of dirty branch", "PUT", moved + "/hard_reset", ref="moved~1")
    ask("diff after hard reset", "GET", moved + "/diff")
    ask("get branch after hard reset", "GET", moved)
    ask("hard reset to missing commit", "PUT", moved + "/hard_reset", ref="none")
    ask("hard reset of missing branch", "PUT", _R + "/branches/none/hard_reset", ref="main")
    ask("hard reset without commit", "PUT", moved + "/hard_reset")


def _staging(server: Server) -> None:
    ask, moved = server.ask, _R + "/branches/moved"
    ask("hard reset back", "PUT", moved + "/hard_reset", ref="moved-head")
    ask("diff after hard reset back", "GET", moved + "/diff")
    ask("hard reset by force", "PUT", moved + "/hard_reset", ref="moved-head", force="true")
    ask("diff after hard reset by force", "GET", moved + "/diff")
    ask("stat after hard reset back", "GET", _R + "/refs/moved/objects/stat", path="moved")
    ask("stage before collection", "POST", _B + "/objects", b"staged", path="staged")


def _collection(server: Server) -> None:
    ask, gc = server.ask, _R + "/gc"
    ask("prepare uncommitted with null", "POST", gc + "/prepare_uncommited", {"continuation_token": None})
    ask("prepare uncommitted without body", "POST", gc + "/prepare_uncommited")
    page = ask("prepare uncommitted", "POST", gc + "/prepare_uncommited", {})
    server.kept["uncommitted"] = page["gc_uncommitted_location"]
    ask("prepare uncommitted with bad token", "POST", gc + "/prepare_uncommited", {"continuation_token": "bad"})
    prepared = ask("prepare commits", "POST", gc + "/prepare_commits")
    server.kept["commits"] = prepared["gc_commits_location"]
    task = ask("prepare commits in the background", "POST", gc + "/prepare_commits/async")["id"]
    server.wait("status of prepared commits", gc + "/prepare_commits/status", "completed", id=task)
    ask("status of missing task", "GET", gc + "/prepare_commits/status", id="none")
    ask("status without task", "GET", gc + "/prepare_commits/status")
    dump = ask("dump", "POST", _R + "/dump")["id"]
    server.kept["refs"] = server.wait("status of dump", _R + "/dump", "done", task_id=dump)["refs"]
    ask("status of missing dump", "GET", _R + "/dump", task_id="none")
    ask("dump of missing repository", "POST", "/repositories/none/dump")
    ask("prepare uncommitted of missing repository", "POST", "/repositories/none/gc/prepare_uncommited", {})
    head = server.send("GET", _R + "/commits/main").json()
    server.kept["metarange"] = head["meta_range_id"]
    ask("location of metarange", "GET", f"{_R}/metadata/meta_range/{head['meta_range_id']}")
    ask("location of missing metarange", "GET", f"{_R}/metadata/meta_range/{_MISSING}")


def _imports(server: Server) -> None:
    own = server.send("GET", _R + "/refs/main/objects/stat", query={"path": "b"}).json()["physical_address"]
    for name, kind, path in (
        ("own object", "object", own),
        ("own prefix", "common_prefix", "s3://lake/repo/data/"),
        ("own namespace", "common_prefix", "s3://lake/repo"),
        ("prefix around own namespace", "common_prefix", "s3://lake/"),
        ("namespace that begins alike", "object", "s3://lake/repo-2/data/x"),
    ):
        body = {"paths": [{"type": kind, "path": path, "destination": "x"}], "commit": {"message": "imported"}}
        server.ask(f"import {name}", "POST", _R + "/branches/dev-2/import", body)


def _read_only(server: Server) -> None:
    ask, base = server.ask, "/repositories/frozen"
    new = {"name": "frozen", "storage_namespace": "s3://lake/frozen", "read_only": True}
    # Initial commits of repositories made in the same second have the same id.
    time.sleep(1)
    ask("create read-only repository", "POST", "/repositories", new)
    for name, method, path, body in (
        ("get", "GET", "", None),
        ("branches of", "GET", "/branches", None),
        ("upload to", "POST", "/branches/main/objects?path=x", b"x"),
        ("commit to", "POST", "/branches/main/commits", {"message": "x"}),
        ("branch of", "POST", "/branches", {"name": "dev", "source": "main"}),
        ("tag in", "POST", "/tags", {"id": "v1", "ref": "main"}),
        ("reset in", "PUT", "/branches/main", {"type": "reset"}),
        ("delete branch in", "DELETE", "/branches/none", None),
        ("rules of", "GET", "/settings/gc_rules", None),
        ("put rules of", "PUT", "/settings/gc_rules", {"default_retention_days": 3, "branches": []}),
        ("prepare uncommitted of", "POST", "/gc/prepare_uncommited", {}),
        ("prepare commits of", "POST", "/gc/prepare_commits", None),
        ("prepare commits in the background of", "POST", "/gc/prepare_commits/async", None),
    ):
        path, _, query = path.partition("?")
        ask(f"{name} read-only repository", method, base + path, body, **dict([query.split("=")] if query else []))
    task = ask("dump read-only repository", "POST", base + "/dump").get("id")
    if task:
        server.wait("status of dump of read-only repository", base + "/dump", "done", task_id=task)


def _squash_merges(server: Server) -> None:
    """The calls of object lifecycle."""
    ask, hidden, target = server.ask, _R + "/branches/squashed", _R + "/branches/target"
    for path in ("gone", "stays"):
        server.send("POST", _B + "/objects", path.encode(), {"path": path})
    server.send("POST", _B + "/commits", {"message": "before squash merges"})
    ask("create target of squash merges", "POST", _R + "/branches", {"name": "target", "source": "main"})
    ask("create hidden source", "POST", _R + "/branches", {"name": "squashed", "source": "target", "hidden": True})
    ask("delete paths of hidden source", "POST", hidden + "/objects/delete", {"paths": ["gone", "none"]})
    ask("commit hidden source", "POST", hidden + "/commits", {"message": "squashed", "metadata": {"m": "1"}})
    ask("merge base", "GET", _R + "/refs/squashed/merge/target")
    ask("merge base of missing branch", "GET", _R + "/refs/none/merge/target")
    ask("changes of merge", "GET", _R + "/refs/target/diff/squashed", type="three_dot")
    body = {"message": "one commit", "metadata": {"m": "2"}, "squash_merge": True, "strategy": ""}
    ask("squash merge", "POST", _R + "/refs/squashed/merge/target", body)
    ask("squash merge again", "POST", _R + "/refs/squashed/merge/target", body)
    merged = ask("head after squash merge", "GET", _R + "/commits/target")["id"]
    ask("create hidden branch at squash merge", "POST", _R + "/branches", {"name": "back", "source": merged})
    ask("revert squash merge", "POST", _R + "/branches/back/revert", {"ref": merged, "parent_number": 1})
    server.send("POST", target + "/objects", b"written again", {"path": "gone"})
    ask("squash merge into dirty branch", "POST", _R + "/refs/back/merge/target", body)
    server.send("POST", target + "/commits", {"message": "written again"})
    ask("changes of conflicting merge", "GET", _R + "/refs/target/diff/back", type="three_dot")
    ask("conflicting squash merge", "POST", _R + "/refs/back/merge/target", body)
    ask("squash merge that target wins", "POST", _R + "/refs/back/merge/target", {**body, "strategy": "dest-wins"})
    ask("path written again", "GET", _R + "/refs/target/objects/stat", path="gone")
    ask("log after squash merges", "GET", _R + "/refs/target/commits", amount=3)


def _pulls(server: Server) -> None:
    ask, pulls = server.ask, _R + "/pulls"
    ask("no pull requests", "GET", pulls, status="open")
    creation = {"title": "t", "description": "d", "source_branch": "dev", "destination_branch": "main"}
    first = ask("make pull request", "POST", pulls, creation)["id"]
    ask("make pull request without title", "POST", pulls, {"source_branch": "dev", "destination_branch": "main"})
    ask("make pull request of one branch", "POST", pulls, {**creation, "destination_branch": "dev"})
    ask("make pull request of missing branch", "POST", pulls, {**creation, "source_branch": "none"})
    ask("open pull requests", "GET", pulls, status="open")
    ask("get pull request", "GET", f"{pulls}/{first}")
    ask("get missing pull request", "GET", f"{pulls}/{'0' * 20}")
    ask("closed pull requests", "GET", pulls, status="closed")
    ask("close pull request", "PATCH", f"{pulls}/{first}", {"status": "closed"})
    ask("close missing pull request", "PATCH", f"{pulls}/{'0' * 20}", {"status": "closed"})
    ask("open pull requests after closing", "GET", pulls, status="open")
    ask("closed pull requests after closing", "GET", pulls, status="closed")
    ask("get closed pull request", "GET", f"{pulls}/{first}")
    ask("merge closed pull request", "PUT", f"{pulls}/{first}/merge", {})
    server.send("POST", _R + "/branches/dev-2/objects", b"reviewed", {"path": "reviewed"})
    server.send("POST", _R + "/branches/dev-2/commits", {"message": "reviewed"})
    reviewed = ask("make another pull request", "POST", pulls, {**creation, "source_branch": "dev-2"})["id"]
    ask("merge pull request", "PUT", f"{pulls}/{reviewed}/merge", {})
    ask("get merged pull request", "GET", f"{pulls}/{reviewed}")


def _protected(server: Server) -> None:
    ask, protection, dev = server.ask, _R + "/settings/branch_protection", _R + "/branches/dev"
    # Staged on both servers, however soon the real one knows of the rule.
    server.send("POST", dev + "/objects", b"x", {"path": "x"})
    ask("no protection", "GET", protection)
    ask("protect branches", "PUT", protection, [{"pattern": "dev*"}])
    ask("protection", "GET", protection)
    # A real server applies a new rule some seconds later.
    for _ in range(_TRIES):
        if server.send("POST", dev + "/objects", b"x", {"path": "x"}).status == 403 or not server.enforces_protection:
            break
        time.sleep(0.1)
    for name, method, path, body, query in (
        ("upload to", "POST", "/objects", b"x", {"path": "x"}),
        ("delete in", "DELETE", "/objects", None, {"path": "x"}),
        ("commit to", "POST", "/commits", {"message": "x"}, {}),
        ("diff of", "GET", "/diff", None, {}),
        ("reset", "PUT", "", {"type": "reset"}, {}),
        ("get", "GET", "", None, {}),
    ):
        ask(f"{name} protected branch", method, dev + path, body, **query)
    ask("delete protected branch", "DELETE", dev)

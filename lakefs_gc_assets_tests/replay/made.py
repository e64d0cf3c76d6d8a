"""Recordings of the embedded server, made by tests: the same scenes as recorded from real servers, but fewer.

Each has the shape and time of the real recording of its name, so that tests can use either: answers, objects, and why
each object is live. A recording has `api.jsonl`, `listing.json`, `truth.json` and `namespace/`, see `recording`. It has
no `sstables.jsonl`: files decoded by the code under test would prove nothing.
"""

import csv
import fcntl
import hashlib
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import StoreClock
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.replay.made_world import BucketFolder, World

_JSON = "application/json"
_PAUSE_SECONDS = 0.02


class Recorder:
    """Makes all requests of a collector to a server, and records the raw answers.

    Args:
        url: address of the server, without `/api/v1`.
        read: returns the text of a file by its full address.
    """

    def __init__(
        self, url: str, authorization: str, repository: str, now: Callable[[], datetime], read: Callable[[str], str]
    ) -> None:
        self._url = url
        self._now = now
        self._read = read
        self._base = f"/repositories/{repository}"
        self._pool = urllib3.PoolManager(headers={"Authorization": authorization})
        self.rows: list[dict[str, Any]] = []

    def ask(self, note: str, method: str, path: str, body: Any = None, /, **query: Any) -> Any:
        """Sends a request and returns the answer's JSON. A leading dot in a path stands for the repository."""
        path = "/api/v1" + (self._base + path[1:] if path.startswith(".") else path)
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        content = None if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, self._url + target, body=content)
        said = {"response_json": answer.json()} if answer.headers.get("Content-Type") == _JSON else {}
        row = {
            "kind": "api",
            "note": note,
            "at": self._now().timestamp(),
            "method": method,
            "path": path,
            "query": query,
            "request_body": body,
            "status": answer.status,
            "response_headers": dict(answer.headers),
        }
        self.rows.append({**row, **(said or {"response_text": answer.data.decode()})})
        return said.get("response_json")

    def ask_everything(self, commits: Iterable[str], staged: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Makes all requests of a collector; returns facts that are not in the books: rules, prepared commits,
        references.

        Args:
            commits: ids of the commits to request.
            staged: branch and path of the staged objects to request.
        """
        note = "gc: config, repository"
        for path in ("/config", "/config/version", "/config/storage", "/config/garbage-collection", ".", "./metadata"):
            self.ask(note, "GET", path)
        rules = self.ask("gc: rules", "GET", "./settings/gc_rules")
        self.ask("gc: rules", "GET", "./gc/rules")
        self.ask("gc: rules", "GET", "./gc/rules/set_allowed")
        page = self.ask("gc: prepare_uncommited", "POST", "./gc/prepare_uncommited", {})
        while token := page.get("continuation_token"):
            page = self.ask("gc: prepare_uncommited", "POST", "./gc/prepare_uncommited", {"continuation_token": token})
        note = "gc: prepare_commits async"
        task = self.ask(note, "POST", "./gc/prepare_commits/async")["id"]
        while not self.ask(note, "GET", "./gc/prepare_commits/status", id=task)["completed"]:
            time.sleep(_PAUSE_SECONDS)
        prepared = self.ask("gc: prepare_commits sync", "POST", "./gc/prepare_commits")
        prepared_at = self._now().timestamp()
        branches, tags = self._ask_references(staged)
        note = "refs dump"
        task = self.ask(note, "POST", "./dump")["id"]
        while not self.ask(note, "GET", "./dump", task_id=task)["done"]:
            time.sleep(_PAUSE_SECONDS)
        return {
            "gc_rules": rules,
            "gc_prepared_at": prepared_at,
            "prepare_commits": self._prepared(prepared),
            "branches": branches,
            "tags": tags,
            "commits": [self.ask("state: commits", "GET", f"./commits/{id_}") for id_ in commits],
        }

    def _prepared(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        """Prepared commits; None without retention rules, when the server prepares none."""
        if "gc_commits_location" not in answer:
            return None
        location = answer["gc_commits_location"]
        return {"location": location, "run_id": answer["run_id"], "rows": list(self._rows_of(location))}

    def _ask_references(self, staged: Iterable[tuple[str, str]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Requests branches and tags, their first changes and logs, and all staged paths."""
        note = "what a collector asks besides prepare"
        branches = self.ask(note, "GET", "./branches", amount=1000, show_hidden="true")["results"]
        tags = self.ask(note, "GET", "./tags", amount=1000)["results"]
        for branch in branches:
            self.ask(note, "GET", f"./branches/{branch['id']}/diff", amount=1)
            self.ask("state: branches, tags, logs", "GET", f"./refs/{branch['id']}/commits", amount=1000, after="")
        for branch_id, path in staged:
            self.ask("state: staged", "GET", f"./refs/{branch_id}/objects/stat", path=path)
        return branches, tags

    def _rows_of(self, location: str) -> Iterator[dict[str, str]]:
        return iter(csv.DictReader(self._read(location).splitlines()))


def write_answers_and_files(
    recorder: Recorder, files: Iterable[tuple[str, Path]], folder: Path
) -> list[dict[str, Any]]:
    """Writes a recording except `truth.json` into a new folder; returns the listing.

    Args:
        files: keys and files of the namespace's objects.
    """
    folder.mkdir(parents=True)
    (folder / "api.jsonl").write_text("".join(json.dumps(row) + "\n" for row in recorder.rows))
    listed: list[dict[str, Any]] = []
    for key, file in files:
        copied = folder / "namespace" / key
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copied)
        content = file.read_bytes()
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        listed.append({"key": key, "size": len(content), "mtime": float(int(file.stat().st_mtime)), "etag": digest})
    (folder / "listing.json").write_text(json.dumps(listed, indent=1))
    return listed


def record(world: World, folder: Path) -> None:
    """Writes a recording of the repository's present state into a new folder."""

    def read(location: str) -> str:
        parent, _, name = location.rpartition("/")
        return world.bucket.open(parent).get(name).decode()

    server = world.server
    recorder = Recorder(server.url, server.basic_authorization, world.repository, server.clock.now, read)
    stated = recorder.ask_everything(world.books.commits, world.staged_places())
    listed = write_answers_and_files(recorder, world.bucket.files(world.namespace), folder)
    active = {row["commit_id"] for row in stated["prepare_commits"]["rows"]}
    objects = list(_objects(world, {row["key"]: row for row in listed}, active))
    truth = {
        "kind": "made",
        "repository": world.repository,
        "storage_namespace": world.namespace,
        "recorded_at": world.server.clock.now().timestamp(),
        **stated,
        "class_counts": Counter(each["class"] for each in objects),
        "objects": objects,
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1))


def _objects(world: World, stored: dict[str, dict[str, Any]], active: set[str]) -> Iterator[dict[str, Any]]:
    """Every object with its class; `active` are the commits that retention keeps."""
    for address in sorted(world.books.addresses()):
        commits, staged_in, paths = world.books.holders(address)
        inside, facts = "://" not in address, stored.get(address)
        why = world.books.written.get(address)
        yield {
            "address": address,
            "exists": facts is not None or not inside,
            "size": facts["size"] if facts else None,
            "mtime": facts["mtime"] if facts else None,
            "inside_namespace": inside,
            "staged_in": staged_in,
            "n_commits": len(commits),
            "commits": commits,
            "paths": paths,
            "scenarios": [{"scenario": why}] if why else [],
            "n_active_commits": len(active & set(commits)),
            "class": _class(address, commits, staged_in, active),
        }


def _class(address: str, commits: list[str], staged_in: list[str], active: set[str]) -> str:
    if "://" in address:
        return "outside_namespace"
    if commits and staged_in:
        return "staged_and_committed"
    if commits:
        return "committed_expired_only" if active.isdisjoint(commits) else "committed"
    if staged_in:
        return "staged"
    return "unreferenced" if address.startswith("data/") else "not_data"


_RECORDED_AT = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)


def make_once(group: str, folder: Path) -> Path:
    """Makes the recordings of a group in a folder, once for all processes; returns the folder."""
    whole = folder / group
    if not whole.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{group}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.is_dir():
                unfinished = Path(tempfile.mkdtemp(dir=folder))
                _MAKERS[group](unfinished / group)
                shutil.move(unfinished / group, whole)
                unfinished.rmdir()
    return folder


@contextmanager
def _world(repository: str) -> Iterator[World]:
    """A new repository on its own server, whose clock shows the time of the recordings."""
    clock = StoreClock(_RECORDED_AT)
    with tempfile.TemporaryDirectory() as scratch:
        bucket = BucketFolder(Path(scratch, "buckets"), clock)
        with EmbeddedServer(Path(scratch, "server"), clock=clock, blockstore=bucket, routes=ROUTES) as server:
            world = World(server, bucket, repository)
            yield world
            world.session.close()


def _empty(folder: Path) -> None:
    """A single object that a commit held long ago; the newest metarange has no entries."""
    with _world("empty-made") as world:
        world.set_rules(7)
        world.upload("main", "only")
        world.commit("main", days_ago=50)
        world.delete("main", "only")
        world.commit("main", days_ago=40)
        record(world, folder)


def _small(folder: Path) -> None:
    """Every scenario once or twice."""
    with _world("small-made") as world:
        world.set_rules(21, main=28, feature=7)
        world.upload("main", *(f"live/{number:02}.bin" for number in range(12)))
        world.upload("main", "replaced/0", "replaced/1", "a b+c%25/ü.txt")
        world.upload("main", "replaced/1")
        first = world.commit("main")
        world.upload("main", "replaced/0")
        world.describe("main", "live/00.bin")
        world.commit("main")
        world.tag("v1", first)
        world.branch("feature")
        world.upload("feature", "feature/0", "feature/1", "feature/2")
        world.delete("feature", "live/01.bin")
        world.commit("feature")
        world.merge("feature", "main")
        world.upload("main", "reverted")
        world.revert("main", world.commit("main"))
        world.branch("sq-src")
        world.branch("sq-dst", "sq-src")
        for number in range(2):
            world.upload("sq-src", f"squashed/{number}")
            world.commit("sq-src")
        world.merge("sq-src", "sq-dst", squash=True)
        world.drop_branch("sq-src")
        world.branch("doomed")
        world.upload("doomed", "doomed/0", "doomed/1")
        world.drop_branch("doomed")
        world.branch("dangling")
        world.upload("dangling", "dangling/0")
        world.commit("dangling")
        world.drop_branch("dangling")
        world.branch("reset")
        world.upload("reset", "reset/0", "reset/1")
        world.reset("reset")
        world.upload("reset", "reset/kept")
        world.branch("hid", hidden=True)
        world.upload("hid", "hid/0")
        world.branch("imports")
        world.import_from_outside("imports", "0", "1", "2")
        world.upload("main", "staged/0", "staged/1", "staged/2", "overwritten", "deleted")
        world.upload("main", "overwritten")
        world.delete("main", "deleted", "live/02.bin")
        world.describe("main", "live/03.bin")
        world.copy("main", "live/04.bin", "copy/clone-1")
        world.upload_to_link("main", "linked/0")
        world.upload_to_link("main", "linked/1")
        world.upload_to_link("main", "never-linked", linked=False)
        world.interrupted_upload("main", "interrupted")
        world.put_by_hand("data/stray-1/s0")
        world.put_by_hand("stray-root-1")
        record(world, folder)


def _merge_dangling(folder: Path) -> None:
    """Sixty days of commits, some kept by rules, merges, dangling commits and tags; all objects are young."""
    with _world("merge-dangling-made") as world:
        world.set_rules(21, main=21, dev=7)
        commits = []
        for days in (60, 45, 30, 25, 10):
            # The next commit replaces this path: only this commit holds the object.
            world.upload("main", "replaced", f"kept/{days}")
            commits.append(world.commit("main", days_ago=days))
        world.tag("v0", commits[1])
        world.branch("dev", commits[2])
        for days in (28, 20, 9, 8, 2):
            world.upload("dev", "dev/replaced", f"dev/kept/{days}")
            world.commit("dev", days_ago=days)
        world.merge("dev", "main", days_ago=1)
        for name, ages in (("stale", (50, 40)), ("young", (30, 5))):
            world.branch(name, commits[0])
            for days in ages:
                world.upload(name, f"{name}/replaced")
                dangling = world.commit(name, days_ago=days)
            if name == "stale":
                world.tag("dropped", dangling)
            world.drop_branch(name)
        world.branch("lost", commits[0])
        world.upload("lost", "lost/0")
        world.commit("lost", days_ago=35)
        world.drop_branch("lost")
        world.upload("dev", "dev/staged", "dev/overwritten")
        world.upload("dev", "dev/overwritten")
        world.describe("main", "kept/60")
        record(world, folder)


def _chain(folder: Path) -> None:
    """One repository at four moments, each in a slice of its own; no garbage becomes live again."""
    with _world("chain-made") as world:
        world.set_rules(21)
        for number, happens in enumerate((_first_moment, _second_moment, _third_moment, _last_moment), start=1):
            happens(world)
            record(world, folder / str(number))
            world.restart()


def _first_moment(world: World) -> None:
    world.upload("main", "a/0", "a/1", "a/2", "a/3")
    world.upload("main", "a/2", "a/3")
    world.commit("main")
    world.branch("b1")
    world.upload("b1", "b/0", "b/1", "b/2")
    world.drop_branch("b1")
    world.branch("b2")
    world.upload("b2", "b/3", "b/4", "b/5")
    world.commit("b2")
    world.upload("b2", "b/6", "b/7")
    world.reset("b2")
    world.upload("b2", "wait/0", "wait/1", "gone")
    world.delete("b2", "gone")
    world.upload_to_link("main", "linked/0")
    for number in range(3):
        world.upload_to_link("main", f"never-linked/{number}", linked=False)
    world.interrupted_upload("main", "interrupted/1")


def _second_moment(world: World) -> None:
    world.delete("b2", "wait/0")
    world.commit("b2")
    world.commit("main")
    world.merge("b2", "main")
    world.upload("main", "a/0", "a/4", "a/5")
    world.upload("main", "a/5")
    world.commit("main")
    world.describe("main", "a/1")
    world.branch("b3")
    world.upload("b3", "c/0", "c/1", "c/2")
    world.upload("b3", "c/2")
    world.interrupted_upload("main", "interrupted/2")


def _third_moment(world: World) -> None:
    before = world.books.branches["main"].head
    world.delete("b3", "c/0")
    world.commit("b3")
    world.upload("main", "a/6")
    world.revert("main", world.commit("main"))
    world.branch("b4", before)
    world.upload("b4", "d/0")
    world.commit("b4")
    world.upload("b4", "d/1", "d/2")
    world.hard_reset("b4", before)
    world.upload_to_link("main", "linked/1")
    world.upload_to_link("main", "never-linked/3", linked=False)
    world.upload("main", "wait/2", "wait/3")
    world.copy("main", "a/1", "copy/0")


def _last_moment(world: World) -> None:
    world.drop_branch("b2")
    world.drop_branch("b4")
    world.delete("main", "wait/2", "copy/0")
    world.commit("main")
    world.upload("b3", "c/3", "c/4")
    world.upload("b3", "c/4")
    world.tag("v1", world.commit("b3"))
    world.merge("b3", "main")
    world.upload("main", "a/7", "a/8")
    world.delete("main", "a/8")
    world.upload("b3", "c/5", "c/6", "c/7")


_MAKERS: dict[str, Callable[[Path], None]] = {
    "empty": _empty,
    "small": _small,
    "merge-dangling": _merge_dangling,
    "chain": _chain,
}

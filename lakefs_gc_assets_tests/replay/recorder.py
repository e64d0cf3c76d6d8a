"""Records a repository of an embedded server as real ones were recorded: answers, objects, and why each object is live.

A recording has `api.jsonl`, `listing.json`, `truth.json` and `namespace/`, see `recording`. It has no `sstables.jsonl`:
files decoded by the code under test would prove nothing. `real.recorder` records real servers by the same calls, but
without `objects` in `truth.json`, since they have no books.
"""

import csv
import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from lakefs_gc_assets_tests.replay.made_world import World

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

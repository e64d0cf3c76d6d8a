"""Answers of the recorded server on `/api/v1`, in its state at the end of the recording.

- `prepare_uncommited`: the last sequence that begins without a token. The token of a request selects its page. Repeats
  of one token get the recorded pages in order, then the last one again. A request without a token starts over.
- `prepare_commits`: the recorded answers for the replayed rules.
- `diff` and `stat` that were not recorded: no changes, and the entries of the heads' ranges.
- everything else: the last 2xx answer to the same method, path and query.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, unquote

from lakefs_gc_assets.lakefs.addresses import AddressType, parse_location
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord, read_metarange, read_range
from lakefs_gc_assets_tests.replay.recording import Recording, Row

Stats = dict[str, Any]


class CommittedObjects:
    """Answers `stat` and listings of commits. It reads each file once.

    Args:
        read: returns the content of a key relative to the storage namespace.
        commits: recorded answers that describe a commit.
    """

    def __init__(self, read: Callable[[str], bytes], storage_namespace: str, commits: Iterable[dict[str, Any]]) -> None:
        self._read = read
        self._storage_namespace = storage_namespace.rstrip("/")
        self.commits = {commit["id"]: commit for commit in commits}
        self._metaranges: dict[str, list[RangeRecord]] = {}
        self._ranges: dict[str, dict[bytes, Stats]] = {}
        self._lock = Lock()

    def stat(self, commit_id: str, path: str) -> Stats | None:
        """The object in lakeFS's JSON; None if the commit has none there. Raises KeyError for an unknown commit."""
        metarange_id = self.commits[commit_id]["meta_range_id"]
        key = path.encode()
        with self._lock:
            for part in self._ranges_of(metarange_id) if metarange_id else ():
                if part.min_key <= key <= part.max_key:
                    return self._entries(part).get(key)
        return None

    def objects(self, commit_id: str) -> dict[str, Stats]:
        """All objects of a commit by path, in byte order. Raises KeyError for an unknown commit."""
        metarange_id = self.commits[commit_id]["meta_range_id"]
        with self._lock:
            parts = self._ranges_of(metarange_id) if metarange_id else []
            return {stats["path"]: stats for part in parts for stats in self._entries(part).values()}

    def _ranges_of(self, metarange_id: str) -> list[RangeRecord]:
        if metarange_id not in self._metaranges:
            file = f"_lakefs/{metarange_id}"
            self._metaranges[metarange_id] = read_metarange(self._read(file), file)
        return self._metaranges[metarange_id]

    def _entries(self, part: RangeRecord) -> dict[bytes, Stats]:
        if part.id not in self._ranges:
            file = f"_lakefs/{part.id}"
            entries = read_range(self._read(file), file, expected=part, columns=("keys", "etags"))
            assert entries.keys is not None and entries.etags is not None
            columns = (
                entries.keys,
                entries.addresses,
                entries.address_types,
                entries.sizes,
                entries.last_modified,
                entries.etags,
            )
            rows = zip(*(column.to_pylist() for column in columns), strict=True)
            self._ranges[part.id] = {row[0]: self._stats(*row) for row in rows}
        return self._ranges[part.id]

    def _stats(self, key: bytes, address: str, address_type: int, size: int, modified: int, etag: str) -> Stats:
        full = address_type == AddressType.FULL or (
            address_type == AddressType.BY_PREFIX_DEPRECATED and parse_location(address) is not None
        )
        path = key.decode()
        return {
            "checksum": etag,
            "content_type": "application/octet-stream",
            "metadata": {},
            "mtime": modified,
            "path": path,
            "path_type": "object",
            "physical_address": address if full else f"{self._storage_namespace}/{address}",
            "size_bytes": size,
        }


ACCESS_KEY_ID = "AKIAREPLAYREPLAY"
SECRET_ACCESS_KEY = "replay/not-a-real-secret/0123456789ABCDE"
_AUTHORIZATION = "Basic " + b64encode(f"{ACCESS_KEY_ID}:{SECRET_ACCESS_KEY}".encode()).decode()
_BOOLEANS = {"True": "true", "False": "false"}
"""Spellings of a value: lakeFS reads both, `lakefs-sdk` sends the first, the recordings have the second."""
_REPOSITORIES = "/api/v1/repositories"
_PREPARE = "/gc/prepare_uncommited"


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """Status and body of an answer."""

    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    path: str
    query: dict[str, str]


def _said(content: object, status: int = 200) -> ApiAnswer:
    return ApiAnswer(status, json.dumps(content).encode())


def _refused(status: int, message: str) -> ApiAnswer:
    return _said({"message": message}, status)


def _replayed(row: Row) -> ApiAnswer:
    return ApiAnswer(row.status, row.body, row.content_type)


def _key(method: str, path: str, query: dict[str, str]) -> tuple[str, str, frozenset[tuple[str, str]]]:
    return method, path, frozenset(query.items())


class PreparedPages:
    """The replayed preparation of uncommitted data: the last recorded one."""

    def __init__(self, rows: list[Row]) -> None:
        starts = [index for index, row in enumerate(rows) if not _token(row.request)]
        self._by_token: dict[str, list[Row]] = {}
        for row in rows[starts[-1] :] if starts else []:
            self._by_token.setdefault(_token(row.request), []).append(row)
        self._asked: dict[str, int] = {}
        self._lock = Lock()

    def answer(self, body: bytes) -> ApiAnswer:
        """The next page for the token in a request's body."""
        try:
            token = _token(json.loads(body or b"{}"))
        except ValueError:
            return _refused(400, "request body has an error: failed to decode request body")
        pages = self._by_token.get(token)
        if pages is None:
            return _refused(400, "invalid continuation token")
        with self._lock:
            if not token:
                self._asked.clear()
            times = self._asked.get(token, 0)
            self._asked[token] = times + 1
        return _replayed(pages[min(times, len(pages) - 1)])


def _token(request: object) -> str:
    return (request.get("continuation_token") or "").strip() if isinstance(request, dict) else ""


class ApiAnswers:
    """All answers of a recording.

    Args:
        variant: number of the rule set to replay; None for the rules that the repository had at the end.
    """

    def __init__(self, recording: Recording, variant: int | None = None) -> None:
        self._base = f"{_REPOSITORIES}/{recording.repository}"
        self._pages = PreparedPages([row for row in recording.rows if row.path == f"{self._base}{_PREPARE}"])
        rows = [row for row in recording.rows if "/gc/prepare_" not in row.path]
        self._last = {_key(row.method, row.path, row.query): row for row in rows}
        self._commits = CommittedObjects(recording.read, recording.storage_namespace, _commits(rows))
        prepared = [row for row in recording.rows if row.path.startswith(f"{self._base}/gc/prepare_commits")]
        if variant is None:
            self._rules: dict[str, Any] | None = None
            main = [row for row in prepared if row.note.startswith("gc: prepare_commits")]
            self._prepared = {_key(row.method, row.path, row.query): _replayed(row) for row in main}
        else:
            rules, run_id = recording.rule_variant(variant)
            # lakeFS answers null if no branch has a rule of its own.
            self._rules = {**rules, "branches": rules["branches"] or None}
            self._prepared = _variant(self._base, prepared, run_id)

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> ApiAnswer:
        """Returns the answer to one request; `target` is the raw path and query, header names are lower case."""
        path, _, query = target.partition("?")
        parameters = {name: _BOOLEANS.get(value, value) for name, value in parse_qsl(query, keep_blank_values=True)}
        asked = _Asked(method, unquote(path), parameters)
        if headers.get("authorization") != _AUTHORIZATION:
            return _refused(401, "error authenticating request")
        named = path.split("/")[4] if path.startswith(_REPOSITORIES + "/") else ""
        if named and f"{_REPOSITORIES}/{unquote(named)}" != self._base:
            return _refused(404, "repository not found")
        if asked.path == f"{self._base}{_PREPARE}" and method == "POST":
            return self._pages.answer(body)
        if asked.path.startswith(f"{self._base}/gc/prepare_commits"):
            return self._prepared_commits(asked)
        if self._rules is not None and method == "GET" and asked.path in self._rule_paths():
            return _said(self._rules)
        row = self._last.get(_key(asked.method, asked.path, asked.query))
        if row is not None:
            return _replayed(row)
        return self._derived(asked) if method == "GET" else _unknown()

    def _rule_paths(self) -> tuple[str, str]:
        return f"{self._base}/settings/gc_rules", f"{self._base}/gc/rules"

    def _prepared_commits(self, asked: _Asked) -> ApiAnswer:
        is_status = asked.path.endswith("/status")
        if is_status and "id" not in asked.query:
            return _refused(400, 'parameter "id" in query has an error: value is required but missing')
        found = self._prepared.get(_key(asked.method, asked.path, asked.query if is_status else {}))
        return found or (_refused(404, "not found") if is_status else _unknown())

    def _derived(self, asked: _Asked) -> ApiAnswer:
        """Derives an answer from recorded ones if the request itself was not recorded."""
        if asked.path == _REPOSITORIES:
            return self._only_repository()
        inside = asked.path.removeprefix(self._base)
        if inside in ("/branches", "/tags"):
            return self._list(asked)
        if inside.startswith("/branches/") and inside.endswith("/diff"):
            return self._diff(asked, inside.removeprefix("/branches/").removesuffix("/diff"))
        if inside.startswith("/refs/") and inside.endswith("/objects/stat"):
            return self._stat(asked, inside.removeprefix("/refs/").removesuffix("/objects/stat"))
        if inside.startswith("/refs/") and inside.endswith("/objects/ls"):
            return self._list_objects(asked, inside.removeprefix("/refs/").removesuffix("/objects/ls"))
        if inside.startswith("/commits/"):
            commit = self._commits.commits.get(inside.removeprefix("/commits/"))
            return _said(commit) if commit else _refused(404, "not found")
        if inside == "/dump" and "task_id" in asked.query:
            return _refused(404, "not found")
        return _unknown()

    def _only_repository(self) -> ApiAnswer:
        """The recorded repository, as if the server had no other."""
        row = self._last.get(_key("GET", self._base, {}))
        if row is None:
            return _unknown()
        page = {"has_more": False, "next_offset": "", "results": 1, "max_per_page": 1000}
        return _said({"pagination": page, "results": [row.content]})

    def _list(self, asked: _Asked) -> ApiAnswer:
        """Answers for another page size or start than the recorded one."""
        recorded = self._widest(
            asked.path, {name: asked.query[name] for name in ("show_hidden",) if name in asked.query}
        )
        if recorded is None or recorded["pagination"]["has_more"]:
            return _unknown()
        return _said(_page(recorded, asked.query, "id"))

    def _diff(self, asked: _Asked, branch: str) -> ApiAnswer:
        if branch not in self._heads():
            return _refused(404, "branch not found")
        recorded = self._widest(asked.path, {})
        return _said(_page(recorded or {"results": [], "pagination": {"has_more": False}}, asked.query, "path"))

    def _stat(self, asked: _Asked, reference: str) -> ApiAnswer:
        path = asked.query.get("path", "")
        row = self._last.get(_key("GET", asked.path, {"path": path}))
        if row is not None:
            return _replayed(row)
        commit_id = self._commit_of(reference)
        if isinstance(commit_id, ApiAnswer):
            return commit_id
        found = self._commits.stat(commit_id, path)
        return _said(found) if found else _refused(404, "not found")

    def _list_objects(self, asked: _Asked, reference: str) -> ApiAnswer:
        """Objects of the commit, with the recorded `stat` answers for single paths in their place."""
        commit_id = self._commit_of(reference)
        if isinstance(commit_id, ApiAnswer):
            return commit_id
        found = self._commits.objects(commit_id)
        single = asked.path.removesuffix("/ls") + "/stat"
        for (method, its_path, its_query), row in self._last.items():
            if (method, its_path) == ("GET", single):
                found[dict(its_query)["path"]] = row.content
        results = [found[path] for path in sorted(found)]
        return _said(_page({"results": results, "pagination": {"has_more": False}}, asked.query, "path"))

    def _commit_of(self, reference: str) -> str | ApiAnswer:
        """The commit of a branch, a tag or a commit's own id, or the server's error answer if it has none."""
        commit_id = {**self._heads("/tags"), **self._heads()}.get(reference, reference)
        if commit_id in self._commits.commits:
            return commit_id
        known = commit_id != reference
        return _refused(500, "the commit was not recorded") if known else _refused(404, "branch not found")

    def _heads(self, kind: str = "/branches") -> dict[str, str]:
        recorded = self._widest(self._base + kind, {"show_hidden": "true"}) or self._widest(self._base + kind, {})
        return {item["id"]: item["commit_id"] for item in recorded["results"]} if recorded else {}

    def _widest(self, path: str, query: dict[str, str]) -> Any:
        """The recorded list with most results for these parameters besides `amount`, from its beginning."""
        found = [
            row.content
            for (method, its_path, its_query), row in self._last.items()
            if (method, its_path) == ("GET", path)
            and {name: value for name, value in its_query if name != "amount"} == query
        ]
        return max(found, key=lambda content: len(content["results"]), default=None)


def _unknown() -> ApiAnswer:
    return _refused(404, "invalid API endpoint")


def _page(recorded: dict[str, Any], query: dict[str, str], name: str) -> dict[str, Any]:
    after, prefix = query.get("after", ""), query.get("prefix", "")
    amount = int(query.get("amount", "100"))
    amount = amount if 0 < amount <= 1000 else 1000
    rest = [item for item in recorded["results"] if item[name] > after and item[name].startswith(prefix)]
    results = rest[:amount]
    # Only the beginning of a longer list was recorded: the rest counts as empty.
    more = len(rest) > amount or (recorded["pagination"]["has_more"] and bool(results))
    return {
        "pagination": {
            "has_more": more,
            "max_per_page": 1000,
            "next_offset": results[-1][name] if more else "",
            "results": len(results),
        },
        "results": results,
    }


def _commits(rows: list[Row]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in rows:
        if isinstance(row.content, dict):
            for content in (row.content, *(row.content.get("results") or ())):
                if isinstance(content, dict) and {"id", "meta_range_id", "parents"} <= content.keys():
                    found.append(content)
    return found


def _variant(base: str, rows: list[Row], run_id: str) -> dict[tuple[str, str, frozenset[tuple[str, str]]], ApiAnswer]:
    """The answers of `prepare_commits` that led to this run id; the blocking call gives the same result."""
    for status in rows:
        if not status.note.startswith("rules variant") or not status.path.endswith("/status"):
            continue
        result = status.content.get("result")
        if result is None or result["run_id"] != run_id:
            continue
        start = next(row for row in rows if row.path.endswith("/async") and row.content["id"] == status.query["id"])
        path = f"{base}/gc/prepare_commits"
        return {
            _key("POST", f"{path}/async", {}): _replayed(start),
            _key("GET", f"{path}/status", status.query): _replayed(status),
            _key("POST", path, {}): _said(result, 201),
        }
    raise ValueError(f"the recording has no prepared commits of run {run_id}")

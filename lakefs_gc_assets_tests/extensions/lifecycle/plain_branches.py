"""Branches with histories in a store, and a plain decision about their entries with Python's dictionaries."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import yaml

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import Dump
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.extensions.lifecycle import expired
from lakefs_gc_assets.extensions.lifecycle.listing import LifecycleListing
from lakefs_gc_assets.extensions.playground.embedded import formats
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import Branch, Commit, ServerClocks
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.collector.scripted import opened
from lakefs_gc_assets_tests.simulation import lakefs_files
from lakefs_gc_assets_tests.simulation.bucket import Bucket

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
DAY = 86_400
_IDS = layout.XidGenerator(b"12345", 0)


def moment(days: float) -> int:
    """Seconds since 1970 of a moment some days before NOW."""
    return int(NOW.timestamp() - days * DAY)


@dataclass(frozen=True)
class PlainEntry:
    """The object of a path.

    Attributes:
        written: time of the entry in seconds since 1970; 0 for none.
        issued: time in the address; 0 for none.
    """

    address: str
    written: int
    issued: int = 0

    @property
    def time(self) -> int:
        return max(self.written, self.issued) if self.written > 0 else 0


@dataclass(frozen=True)
class PlainCommit:
    """A commit, with the ids of its parents and its whole content."""

    id: str
    parents: tuple[str, ...]
    date: int
    content: Mapping[str, PlainEntry]


@dataclass
class PlainBranches:
    """A repository.

    Attributes:
        heads, tags: commits by name.
        staged: content that the next commit has, by branch.
    """

    folder: Path
    heads: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    commits: dict[str, PlainCommit] = field(default_factory=dict)
    staged: dict[str, dict[str, PlainEntry]] = field(default_factory=lambda: {"main": {}})
    dumps: int = 0

    def __post_init__(self) -> None:
        self.store = MemoryStore()
        self.commit("main", 400)

    def put(self, branch: str, path: str, days: float, *, is_dated: bool = False) -> None:
        """Stages an object that was written some days ago; NaN for an unknown time."""
        number = f"{len(self.commits)}-{branch}-{path.encode(errors='replace').hex()}"
        written = 0 if days != days else moment(days)
        if is_dated and written:
            when = datetime.fromtimestamp(written, UTC)
            address = f"data/{_IDS.descending(when)}/{_IDS.ascending(when)}"
            # A client states an older time than the server's.
            entry = PlainEntry(address, written - 5 * DAY, written)
        else:
            entry = PlainEntry(f"data/x/{number}-{days}", written)
        self.staged[branch][path] = entry

    def commit(self, branch: str, days: float, *more_parents: str) -> None:
        """Commits the staged content at a claimed date."""
        first = (self.heads[branch],) if branch in self.heads else ()
        id_ = f"{len(self.commits):064x}"
        self.commits[id_] = PlainCommit(id_, (*first, *more_parents), moment(days), dict(self.staged[branch]))
        self.heads[branch] = id_

    def fork(self, branch: str, source: str) -> None:
        self.heads[branch] = self.heads[source]
        self.staged[branch] = dict(self.commits[self.heads[source]].content)

    def merge(self, source: str, branch: str, days: float) -> None:
        """Takes everything from another branch, in a merge commit."""
        self.staged[branch] |= self.commits[self.heads[source]].content
        self.commit(branch, days, self.heads[source])

    def opened(self, rules: list[dict[str, Any]]) -> OpenRepository:
        """The repository with rules of lifecycle."""
        policy = self.folder / "policy.yaml"
        policy.write_text(yaml.safe_dump({"lifecycle": rules}))
        settings = CollectionSettings(retention_policy=str(policy), commit_dates="claimed")
        return opened(
            cast(Any, _Api(self)), cast(Any, self.store), Namespace.parse("local://repo"), settings, cast(Any, _Now())
        )

    def dumped(self, *_: Any) -> Dump:
        """A refs dump; the files of all commits are stored."""
        self.dumps += 1
        columns = CommitColumns.from_commits([self.served(id_) for id_ in self.commits])
        # Dates of the API have whole seconds.
        columns.nanos[:] = 0
        return Dump(NOW, NOW, columns, dict(self.heads), dict(self.tags), 0)

    def served(self, id_: str) -> Commit:
        plain = self.commits[id_]
        return Commit(id_, self._metarange(plain.content), plain.parents, plain.date)

    def _metarange(self, content: Mapping[str, PlainEntry]) -> str:
        with mock.patch.object(lakefs_files, "_record", _record):
            files = cast(Bucket, self.store)
            return lakefs_files.put_commit_objects(files, cast(Any, content), anew=False) if content else ""

    def listed(self, rules: list[dict[str, Any]]) -> LifecycleListing:
        with mock.patch.object(commits, "complete_dump", self.dumped):
            return expired.list_expired(self.opened(rules), lambda line: None)

    def expired_now(self, rules: list[dict[str, Any]], listing: LifecycleListing, branch: str) -> dict[str, set[str]]:
        with mock.patch.object(commits, "complete_dump", self.dumped):
            head = Branch(branch, self.heads[branch])
            found = expired.expired_now(self.opened(rules), listing, head, lambda line: None)
        return {rule: paths_of(rows) for rule, rows in found.items()}


def paths_of(rows: pa.Table) -> set[str]:
    paths = rows.column("path").to_pylist()
    assert paths == sorted(paths, key=str.encode)
    return set(paths)


def _record(path: str, entry: PlainEntry) -> lakefs_files.Record:
    stored = formats.Entry(entry.address, AddressType.RELATIVE, 2 ** (len(path) % 5), "e", entry.written)
    return path.encode(errors="surrogateescape"), hashlib.sha256(stored.encode()).digest(), stored.encode()


@dataclass
class MemoryStore:
    """The calls of a store that listings need."""

    objects: dict[str, bytes] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)

    def ranges_read(self, work: Callable[[], object]) -> list[str]:
        """Keys of ranges that some work reads, once for each time."""
        self.read.clear()
        work()
        files = [key for key in self.read if "/" not in key.removeprefix(layout.METADATA_PREFIX)]
        return [key for key in files if ranges.table_kind(self.objects[key], key).type == "ranges"]

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes:
        self.read.append(key)
        if key not in self.objects:
            raise ObjectNotFound(key)
        return self.objects[key]


class _Now:
    def now(self) -> datetime:
        return NOW


class _Api:
    """The server's answers about branches."""

    def __init__(self, plain: PlainBranches) -> None:
        self._plain = plain
        self.server_clocks = ServerClocks()

    def visible_branches(self) -> frozenset[str]:
        return frozenset(self._plain.heads) - self._plain.hidden

    def commit(self, id_: str) -> Commit:
        return self._plain.served(id_)

    def repository(self) -> Any:
        return mock.Mock(id="repo")


def _matches(pattern: str, path: str) -> bool:
    if not pattern:
        return not path
    if pattern.startswith("**"):
        return any(_matches(pattern[2:], path[start:]) for start in range(len(path) + 1))
    if pattern[0] == "*":
        end = path.find("/") if "/" in path else len(path)
        return any(_matches(pattern[1:], path[start:]) for start in range(end + 1))
    return path[:1] == pattern[0] and _matches(pattern[1:], path[1:])


def fits(patterns: str | list[str], path: str) -> bool:
    """True if a path fits one of some patterns."""
    return any(
        _matches(each + ("**" if each.endswith("/") else ""), path)
        for each in ([patterns] if isinstance(patterns, str) else patterns)
    )


def decide(plain: PlainBranches, rules: list[dict[str, Any]], branch: str) -> dict[str, set[str]]:
    """The expired paths of a branch by rule."""
    found: dict[str, set[str]] = {}
    own = [rule for rule in rules if branch in rule["branches"]]
    content = plain.commits[plain.heads[branch]].content
    chosen: dict[str, list[str]] = {}
    for path in content if branch not in plain.hidden else ():
        rule = next((rule for rule in own if fits(rule["paths"], path)), None)
        if rule is not None and not fits(rule.get("except", []), path):
            chosen.setdefault(rule["name"], []).append(path)
    for rule in own:
        paths = chosen.get(rule["name"], [])
        if "keep_newest" in rule:
            going = {*_beyond_newest(rule, {path: content[path] for path in paths})}
        else:
            going = {path for path in paths if _is_old(plain, rule, branch, path)}
        if going:
            found[rule["name"]] = going
    return found


def _is_old(plain: PlainBranches, rule: dict[str, Any], branch: str, path: str) -> bool:
    entry = plain.commits[plain.heads[branch]].content[path]
    now = int(NOW.timestamp())
    if "older_than" in rule:
        return 0 < entry.time < now - int(rule["older_than"][:-1]) * DAY
    limit = now - int(rule["unchanged_for"][:-1]) * DAY
    line = [plain.commits[plain.heads[branch]]]
    while line[-1].parents:
        line.append(plain.commits[line[-1].parents[0]])
    came = next(
        number for number in range(len(line)) if number + 1 == len(line) or line[number + 1].content.get(path) != entry
    )
    dates = [line[came].date, *(commit.date for commit in line[came:] if commit.date <= now)]
    return max(dates) < limit and 0 < entry.time < limit


def _beyond_newest(rule: dict[str, Any], entries: dict[str, PlainEntry]) -> Iterator[str]:
    groups: dict[str, list[tuple[Any, str]]] = {}
    for path, entry in entries.items():
        *folders, _ = path.split("/")
        if rule["of"] == "objects":
            if 0 < entry.time <= NOW.timestamp():
                groups.setdefault("/".join(folders), []).append((entry.time, path))
            continue
        at = next((at for at, name in enumerate(folders) if name.startswith(f"{rule['partition']}=")), None)
        if at is not None and (value := _value(folders[at].partition("=")[2])) is not None:
            groups.setdefault("/".join(folders[:at]), []).append((value, path))
    for rows in groups.values():
        if len({type(order) for order, _ in rows}) > 1:
            continue
        orders = sorted((order for order, _ in rows), reverse=True)
        if rule["of"] == "partitions":
            orders = sorted({*orders}, reverse=True)
        staying = {*orders[: rule["keep_newest"]]}
        yield from (path for order, path in rows if order not in staying)


def _value(text: str) -> int | datetime | None:
    if text.isdigit():
        return int(text)
    try:
        value = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return value if value <= NOW else None

"""Histories of branch heads in a store, and a plain count of their objects with Python's sets."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.extensions.holdings import known_heads
from lakefs_gc_assets.extensions.holdings.attribution import HeadHoldings, attribute_heads
from lakefs_gc_assets.extensions.holdings.holdings_files import HoldingsRow, HoldingState
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import Branch, Commit
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.scripted import opened
from lakefs_gc_assets_tests.simulation.bucket import Bucket
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry, put_commit_objects

FIRST_DAY = datetime(2026, 11, 1, tzinfo=UTC)
_IDS = layout.XidGenerator(b"12345", 0)
Rows = dict[tuple[str, str, str | None], tuple[int, int]]


class CountingStore(LocalStore):
    """A store that counts what is read of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, key: str) -> bytes:
        self.read.append(key)
        return super().get(key)

    @property
    def ranges_read(self) -> list[str]:
        """Names of metadata files that were read."""
        prefix = layout.METADATA_PREFIX
        return [key.removeprefix(prefix) for key in self.read if "/" not in key.removeprefix(prefix)]


@dataclass
class _Files:
    """The part of a simulated bucket that files of lakeFS are written to."""

    store: ObjectStore
    objects: dict[str, int] = field(default_factory=dict)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = len(data)
        self.store.put(key, data)


@dataclass
class PlainHeads:
    """Branches of a repository with their entries, as clients change them.

    Attributes:
        branches: entries by path, by branch.
        heads: commit by branch.
    """

    store: CountingStore
    branches: dict[str, dict[str, Entry]] = field(default_factory=lambda: {"main": {}})
    heads: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    contents: dict[str, dict[str, Entry]] = field(default_factory=dict)
    known: dict[str, str] | None = None
    before: frozenset[str] = frozenset()
    brought: dict[str, Commit] = field(default_factory=dict)
    commits_asked: list[str] = field(default_factory=list)
    _files: _Files = field(init=False)
    _day: int = 0

    def __post_init__(self) -> None:
        self._files = _Files(self.store)
        self.commit("main")

    def commit(self, branch: str, by: str = "someone", **metadata: str) -> str:
        """Commits the entries of a branch."""
        metarange = (
            put_commit_objects(cast(Bucket, self._files), self.branches[branch]) if self.branches[branch] else ""
        )
        parents = (self.heads[branch],) if branch in self.heads else ()
        id_ = f"{len(self.commits):064x}"
        generation = self.commits[parents[0]].generation + 1 if parents else 1
        pairs = tuple(metadata.items())
        self.commits[id_] = Commit(id_, metarange, parents, 1_700_000_000 + len(self.commits), 1, generation, by, pairs)
        self.contents[id_] = dict(self.branches[branch])
        self.heads[branch] = id_
        return id_

    def fork(self, branch: str, commit_id: str) -> None:
        """Makes a branch on a commit."""
        self.heads[branch], self.branches[branch] = commit_id, dict(self.contents[commit_id])

    def drop(self, branch: str) -> None:
        """Deletes a branch."""
        del self.heads[branch], self.branches[branch]

    def attribute(self, depth: int = 1, keys: tuple[str, ...] = (), engine: Any = None) -> HeadHoldings:
        """Attributes the objects of the heads, one day later than the time before, and keeps the facts."""
        self._day += 1
        self.store.read.clear()
        self.commits_asked.clear()
        heads = {branch: self.commits[commit].metarange_id for branch, commit in self.heads.items()}
        heads = {branch: metarange for branch, metarange in heads.items() if metarange}
        known = known_heads.read_usable(self.store, "repo", lambda line: None)
        found = attribute_heads(self._step(), lambda entries: engine or LocalEngine(), heads, known, depth, keys)
        known_heads.write(self.store, found.known)
        return found

    def _step(self) -> Step[Any]:
        now = FIRST_DAY + timedelta(days=self._day)
        api: Any = _Served(self)
        repository = opened(api, self.store, Namespace.parse("local://repo"))
        # The store of this process counts; tasks open no other one.
        object.__setattr__(repository, "opener", SameStore(self.store))
        plan = Plan(
            flow=Flow.CLEAN,
            repository="repo",
            storage_namespace="local://repo",
            run_id=_IDS.descending(now),
            attempt="attempt",
            owner="owner",
            started_at=now,
            cutoff=now,
            earliest_clock=now,
            min_age_seconds=0,
            grace_period_seconds=0,
            clock_skew_seconds=0,
            slice_window="month",
            windows=("legacy",),
            sweep=False,
        )
        return Step(lambda line: None, lambda line: None, repository, LocalEngine(), plan, None)

    def count(self, depth: int = 1, keys: tuple[str, ...] = ()) -> Rows:
        """Objects and bytes by dimension, key and sharing, counted with sets; follows what `attribute` is to do."""
        holders: dict[str, set[str]] = {}
        folders: dict[str, set[str]] = {}
        sizes: dict[str, int] = {}
        for branch, head in self.heads.items():
            for path, entry in self.contents[head].items():
                holders.setdefault(entry.address, set()).add(branch)
                folders.setdefault(entry.address, set()).add(
                    "".join(f"{each}/" for each in path.split("/")[:-1][:depth])
                )
                sizes[entry.address] = entry.size
        rows: Rows = {}

        def add(dimension: str, key: str, sharing: str | None, address: str) -> None:
            objects, size = rows.get((dimension, key, sharing), (0, 0))
            rows[dimension, key, sharing] = objects + 1, size + sizes[address]

        self._bring(frozenset(holders))
        for address, branches in holders.items():
            sharing = "alone" if len(branches) == 1 else "shared"
            for branch in branches:
                add("branch", branch, sharing, address)
            for folder in folders[address]:
                add("path", folder, sharing, address)
            add("age", month_of(address), None, address)
            if (commit := self.brought.get(address)) is not None:
                add("commit", commit.id, None, address)
                add("committer", commit.committer, None, address)
                for key, value in commit.metadata:
                    if key in keys:
                        add(f"metadata:{key}", value, None, address)
        return rows

    def _bring(self, now: frozenset[str]) -> None:
        new: list[Commit] = []
        for branch in self.heads if self.known is not None else ():
            commit: Commit | None = self.commits[self.heads[branch]]
            while commit is not None and self.known is not None and commit.id not in self.known.values():
                new.append(commit)
                commit = self.commits[commit.parents[0]] if commit.parents else None
        self.brought = {address: commit for address, commit in self.brought.items() if address in now}
        for commit in sorted(new, key=lambda each: (each.generation, each.creation_date, each.id)):
            for address in {entry.address for entry in self.contents[commit.id].values()} & now - self.before:
                self.brought.setdefault(address, commit)
        self.known, self.before = dict(self.heads), now


@dataclass(frozen=True)
class SameStore:
    """Opens the store that is open already."""

    store: ObjectStore

    def open(self) -> ObjectStore:
        return self.store


@dataclass(frozen=True)
class _Served:
    """The calls of a server."""

    heads: PlainHeads

    def branches(self) -> tuple[Branch, ...]:
        return tuple(Branch(name, commit) for name, commit in sorted(self.heads.heads.items()))

    def commit(self, commit_id: str) -> Commit:
        self.heads.commits_asked.append(commit_id)
        return self.heads.commits[commit_id]


def month_of(address: str) -> str:
    issued = layout.parse(address).issued_at
    assert issued is not None
    return f"{layout.as_datetime(issued):%Y-%m}"


def entry(number: int) -> Entry:
    """The entry of an object; objects share slices, three each."""
    at = FIRST_DAY - timedelta(days=20 * (number % 5))
    slices = layout.XidGenerator(b"slice", 0)
    name = [slices.descending(FIRST_DAY - timedelta(days=200)) for _ in range(number // 3 + 1)][-1]
    object_id = layout.XidGenerator(b"objec", number).ascending(at)
    return Entry(f"data/{name}/{object_id}", AddressType.RELATIVE.value, 2**number, f"{number:032x}")


def as_rows(rows: Iterable[HoldingsRow]) -> Rows:
    """Rows as `count` gives them."""
    found: Rows = {}
    for row in rows:
        assert row.state is HoldingState.HEAD and row.bytes is not None
        found[row.dimension, row.key, row.held and row.held.value] = (row.objects, row.bytes)
    return found

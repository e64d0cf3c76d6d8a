"""Commits and the references that name them."""

import heapq
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakefs_gc_assets.embedded import identities
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import bad_request, not_found
from lakefs_gc_assets.embedded.repositories import Repository

_CURRENT_VERSION = 1
_SHORTEST_PREFIX = 6
_REFERENCE = re.compile(r"([^~^@]+)((?:[~^][0-9]{0,4})*)@?")
_STEP = re.compile(r"([~^])([0-9]*)")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; `creation_date` in seconds since 1970 UTC, `metarange_id` empty for a first commit."""

    id: str
    committer: str
    message: str
    metarange_id: str
    creation_date: int
    metadata: Mapping[str, str]
    parents: tuple[str, ...]
    version: int
    generation: int

    @property
    def main_parent(self) -> str | None:
        """The parent that retention follows: the first, in very old commits the last."""
        if not self.parents:
            return None
        return self.parents[-1 if self.version == 0 else 0]

    def as_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.id,
            "parents": list(self.parents),
            "committer": self.committer,
            "message": self.message,
            "creation_date": self.creation_date,
            "meta_range_id": self.metarange_id,
            "metadata": dict(self.metadata),
            "generation": self.generation,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class Draft:
    """A commit that has no id yet; its date is now unless given."""

    committer: str
    message: str
    metarange_id: str
    parents: tuple[str, ...]
    generation: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    creation_date: int | None = None


def add(core: Core, repository: Repository, draft: Draft) -> Commit:
    """Stores a commit. One with the same content has the same id, so it is there once."""
    date = core.clock.seconds() if draft.creation_date is None else draft.creation_date
    commit_id = identities.commit_id(
        draft.committer, draft.message, draft.metarange_id, date, draft.metadata, draft.parents
    )
    commit = Commit(
        commit_id,
        draft.committer,
        draft.message,
        draft.metarange_id,
        date,
        draft.metadata,
        draft.parents,
        _CURRENT_VERSION,
        draft.generation,
    )
    store_record(core, repository, commit)
    return commit


def store_record(core: Core, repository: Repository, commit: Commit) -> None:
    """Stores a commit under the id it has."""
    with core.database.transaction() as database:
        database.execute(
            "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                repository.id,
                commit.id,
                commit.committer,
                commit.message,
                commit.metarange_id,
                commit.creation_date,
                json.dumps(dict(commit.metadata)),
                json.dumps(commit.parents),
                commit.version,
                commit.generation,
            ),
        )


def get(core: Core, repository: Repository, commit_id: str) -> Commit:
    """The commit of exactly this id. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        row = database.execute(
            "SELECT * FROM commits WHERE repository = ? AND id = ?", (repository.id, commit_id)
        ).fetchone()
    if row is None:
        raise not_found("commit")
    return _from_row(row)


def every(core: Core, repository: Repository) -> list[Commit]:
    """All commits, dangling ones included, by id."""
    with core.database.transaction() as database:
        rows = database.execute("SELECT * FROM commits WHERE repository = ? ORDER BY id", (repository.id,)).fetchall()
    return [_from_row(row) for row in rows]


def resolve(core: Core, repository: Repository, reference: str) -> Commit:
    """The commit that a reference names. Raises ApiFailure 404, 400.

    A reference is a branch, tag, commit id or unambiguous beginning of one. Behind it, `~2` goes back twice over first
    parents, `^2` to the second parent; `@` says that what is staged on a branch is not meant.
    """
    match = _REFERENCE.fullmatch(reference)
    name, steps = (match[1], match[2]) if match else (reference, "")
    commit = _named(core, repository, name)
    for sign, digits in _STEP.findall(steps):
        number = int(digits or 1)
        for parent in [1] * number if sign == "~" else [number] * bool(number):
            if parent > len(commit.parents):
                raise not_found(f"{reference}: reference")
            commit = get(core, repository, commit.parents[parent - 1])
    return commit


def _named(core: Core, repository: Repository, reference: str) -> Commit:
    with core.database.transaction() as database:
        for table in ("branches", "tags"):
            row = database.execute(
                f"SELECT commit_id FROM {table} WHERE repository = ? AND id = ?",  # noqa: S608
                (repository.id, reference),
            ).fetchone()
            if row:
                return get(core, repository, row[0])
        if len(reference) < _SHORTEST_PREFIX:
            raise not_found(f"{reference}: reference")
        rows = database.execute(
            "SELECT id FROM commits WHERE repository = ? AND substr(id, 1, ?) = ? LIMIT 2",
            (repository.id, len(reference), reference),
        ).fetchall()
    if not rows:
        raise not_found(f"{reference}: reference")
    if len(rows) > 1:
        raise bad_request(f"{reference}: reference is ambiguous")
    return get(core, repository, rows[0][0])


def log(core: Core, repository: Repository, start: Commit) -> Iterator[Commit]:
    """A commit and all its ancestors, of those reached so far the newest first."""
    return _ancestry(core, repository, start, lambda commit: (commit.creation_date, commit.generation))


def merge_base(core: Core, repository: Repository, left: Commit, right: Commit) -> Commit | None:
    """The common ancestor of the highest generation."""
    ancestors = {commit.id for commit in log(core, repository, left)}
    by_generation = _ancestry(core, repository, right, lambda commit: (commit.generation, commit.creation_date))
    return next((commit for commit in by_generation if commit.id in ancestors), None)


def _ancestry(
    core: Core, repository: Repository, start: Commit, priority: Callable[[Commit], tuple[int, int]]
) -> Iterator[Commit]:
    known = {commit.id: commit for commit in every(core, repository)}
    reached = {start.id}
    waiting = [((0, 0), 0, start)]
    while waiting:
        commit = heapq.heappop(waiting)[2]
        yield commit
        for parent in commit.parents:
            if parent not in reached and parent in known:
                reached.add(parent)
                first, second = priority(known[parent])
                heapq.heappush(waiting, ((-first, -second), len(reached), known[parent]))


def _from_row(row: tuple[Any, ...] | sqlite3.Row) -> Commit:
    _, commit_id, committer, message, metarange_id, creation_date, metadata, parents, version, generation = row
    return Commit(
        commit_id,
        committer,
        message,
        metarange_id,
        creation_date,
        json.loads(metadata),
        tuple(json.loads(parents)),
        version,
        generation,
    )

"""Branches: made, moved, reset, removed; each has a staging token, under which its uncommitted entries lie.

A branch may rest on a compacted base in place of its commit's metarange: what was staged, folded into a metarange that
no commit names (https://docs.lakefs.io/admin/compaction/). A commit, a reset and whatever moves the branch end it.
"""

import re
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakefs_gc_assets.embedded import commits, committed, staging
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import ApiFailure, bad_request, not_found
from lakefs_gc_assets.embedded.repositories import Repository

_NAME = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch and the commit it points to; `compacted_base` is empty where nothing was compacted since."""

    id: str
    commit_id: str
    staging_token: str
    hidden: bool
    compacted_base: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {"id": self.id, "commit_id": self.commit_id}


def insert(
    database: sqlite3.Connection, repository: Repository, branch_id: str, commit_id: str, *, hidden: bool
) -> None:
    """Adds a branch that is known not to exist."""
    database.execute(
        "INSERT INTO branches (repository, id, commit_id, staging_token, hidden) VALUES (?, ?, ?, ?, ?)",
        (repository.id, branch_id, commit_id, new_token(repository, branch_id), int(hidden)),
    )


def new_token(repository: Repository, branch_id: str) -> str:
    """A staging token under which nothing is staged."""
    return f"{repository.id}-{branch_id}:{secrets.token_hex(8)}"


def check_name(branch_id: str) -> None:
    """Raises ApiFailure 400 for what cannot be a branch's name."""
    if not _NAME.fullmatch(branch_id):
        raise bad_request("argument branchID: invalid value")


def create(core: Core, repository: Repository, branch_id: str, source: str, *, hidden: bool) -> str:
    """Makes a branch from a reference; returns its commit. Raises ApiFailure 400, 404, 409."""
    check_name(branch_id)
    commit = commits.resolve(core, repository, source)
    with core.database.transaction() as database:
        if find(core, repository, branch_id) is not None:
            raise ApiFailure(409, "branch already exists")
        insert(database, repository, branch_id, commit.id, hidden=hidden)
    return commit.id


def find(core: Core, repository: Repository, branch_id: str) -> Branch | None:
    """The branch of this name, None where there is none."""
    with core.database.transaction() as database:
        row = database.execute(
            "SELECT id, commit_id, staging_token, hidden, compacted_base FROM branches WHERE repository = ? AND id = ?",
            (repository.id, branch_id),
        ).fetchone()
    return None if row is None else Branch(row[0], row[1], row[2], bool(row[3]), row[4])


def get(core: Core, repository: Repository, branch_id: str) -> Branch:
    """The branch of this name. Raises ApiFailure 404."""
    branch = find(core, repository, branch_id)
    if branch is None:
        raise not_found("branch")
    return branch


def every(core: Core, repository: Repository, *, hidden: bool) -> list[Branch]:
    """Branches by name."""
    with core.database.transaction() as database:
        rows = database.execute(
            "SELECT id, commit_id, staging_token, hidden, compacted_base FROM branches "
            "WHERE repository = ? AND hidden <= ? ORDER BY id",
            (repository.id, int(hidden)),
        ).fetchall()
    return [Branch(row[0], row[1], row[2], bool(row[3]), row[4]) for row in rows]


def delete(core: Core, repository: Repository, branch_id: str) -> None:
    """Removes a branch and what is staged on it; its commits stay, perhaps dangling."""
    if branch_id == repository.default_branch:
        raise bad_request("cannot delete repository default branch")
    with core.database.transaction() as database:
        branch = get(core, repository, branch_id)
        staging.drop(database, branch.staging_token)
        database.execute("DELETE FROM branches WHERE repository = ? AND id = ?", (repository.id, branch_id))


def move(core: Core, repository: Repository, branch: Branch, commit_id: str) -> None:
    """Points a branch to a commit; what was staged is dropped, under a new token nothing is."""
    with core.database.transaction() as database:
        staging.drop(database, branch.staging_token)
        database.execute(
            "UPDATE branches SET commit_id = ?, staging_token = ?, compacted_base = '' WHERE repository = ? AND id = ?",
            (commit_id, new_token(repository, branch.id), repository.id, branch.id),
        )


def require_clean(core: Core, repository: Repository, branch: Branch, doing: str) -> None:
    """Raises ApiFailure 400 where the branch has uncommitted changes."""
    head = commits.get(core, repository, branch.commit_id)
    with core.database.transaction() as database:
        changes = staging.changes(core, database, branch.staging_token, head.metarange_id, branch.compacted_base)
        if next(changes, None) is not None:
            raise bad_request(f"{doing}: uncommitted changes (dirty branch)")


def reset(core: Core, repository: Repository, branch_id: str, kind: str, path: str) -> None:
    """Drops what is staged: everything, one object, or all below a prefix."""
    with core.database.transaction() as database:
        branch = get(core, repository, branch_id)
        token = branch.staging_token
        if kind == "reset":
            move(core, repository, branch, branch.commit_id)
        elif kind == "object":
            staging.drop_path(database, token, path)
            _take_back(core, repository, branch, lambda key: key == staging.encode_path(path))
        elif kind == "common_prefix":
            staging.drop_prefix(database, token, path)
            _take_back(core, repository, branch, lambda key: key.startswith(staging.encode_path(path)))
        else:
            raise bad_request(f"reset type not found: {kind}")


def _take_back(core: Core, repository: Repository, branch: Branch, chosen: Callable[[bytes], bool]) -> None:
    """Stages what the commit has at some paths where the compacted base has something else."""
    if not branch.compacted_base:
        return
    head = commits.get(core, repository, branch.commit_id)
    with core.database.transaction() as database:
        changes = staging.changes(core, database, branch.staging_token, head.metarange_id, branch.compacted_base)
        for path in [change.path for change in changes if chosen(change.path)]:
            staging.put_record(database, branch.staging_token, path, committed.lookup(core, head.metarange_id, path))

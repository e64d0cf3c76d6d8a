"""Branches, the objects staged on them, and tags.

Each branch has a staging token, under which its uncommitted entries lie, and tombstones for deleted committed paths. A
branch may rest on a compacted base in place of its commit's metarange: what was staged, folded into a metarange that
no commit names (https://docs.lakefs.io/admin/compaction/). A commit, a reset and whatever moves the branch end it.
"""

import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from lakefs_gc_assets.embedded import commits
from lakefs_gc_assets.embedded.core import ApiFailure, Core, bad_request, not_found
from lakefs_gc_assets.embedded.formats import Entry
from lakefs_gc_assets.embedded.repositories import Repository

_StagedRow = tuple[bytes, bytes | None, bytes | None]
"""Path, identity and data of a staged entry; identity and data are None for a tombstone."""


def encode_path(path: str) -> bytes:
    """A path as it is stored and ordered."""
    return path.encode("utf-8", "surrogateescape")


def decode_path(path: bytes) -> str:
    """A path out of its stored form, which `encode_path` makes."""
    return path.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between staging and commit; `identity` and `data` are None where the path was removed."""

    type: Literal["added", "changed", "removed"]
    path: bytes
    identity: bytes | None
    data: bytes | None
    base_data: bytes | None


def stage_entry(database: sqlite3.Connection, token: str, path: str, entry: Entry) -> None:
    """Stages an entry."""
    database.execute(
        "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)",
        (token, encode_path(path), entry.identity, entry.encode()),
    )


def stage_deletion(core: Core, database: sqlite3.Connection, token: str, metarange_id: str, path: str) -> None:
    """Stages a deletion: a tombstone where the metarange that the branch rests on has the path, else nothing stays."""
    key = encode_path(path)
    if commits.find_record(core, metarange_id, key) is None:
        drop_staged_path(database, token, path)
    else:
        stage_record(database, token, key, None)


def stage_record(database: sqlite3.Connection, token: str, path: bytes, record: commits.Record | None) -> None:
    """Stages a committed record as it is, or with None a tombstone."""
    _, identity, data = record or (path, None, None)
    database.execute("INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)", (token, path, identity, data))


def drop_staged(database: sqlite3.Connection, token: str) -> None:
    """Forgets everything staged."""
    database.execute("DELETE FROM staged WHERE token = ?", (token,))


def drop_staged_path(database: sqlite3.Connection, token: str, path: str) -> None:
    """Drops the staged entry of one path."""
    database.execute("DELETE FROM staged WHERE token = ? AND path = ?", (token, encode_path(path)))


def drop_staged_prefix(database: sqlite3.Connection, token: str, prefix: str) -> None:
    """Drops the staged entries below a prefix."""
    key = encode_path(prefix)
    database.execute(
        "DELETE FROM staged WHERE token = ? AND path >= ? AND substr(path, 1, ?) = ?", (token, key, len(key), key)
    )


def find_staged(database: sqlite3.Connection, token: str, path: str) -> tuple[bool, bytes | None]:
    """True if anything is staged at a path, and the entry's data; None for a tombstone."""
    row = database.execute(
        "SELECT data FROM staged WHERE token = ? AND path = ?", (token, encode_path(path))
    ).fetchone()
    return (False, None) if row is None else (True, row[0])


def scan_staged(database: sqlite3.Connection, token: str, start: bytes = b"") -> Iterator[_StagedRow]:
    """Path, identity and data of staged entries, in order; identity and data are None for a tombstone."""
    yield from database.execute(
        "SELECT path, identity, data FROM staged WHERE token = ? AND path >= ? ORDER BY path", (token, start)
    )


def staged_changes(
    core: Core,
    database: sqlite3.Connection,
    token: str,
    metarange_id: str,
    compacted_base: str = "",
    start: bytes = b"",
) -> Iterator[Change]:
    """Staged differences from the commit, in order of path. To be used up inside the transaction it began in.

    As in lakeFS, a staged entry whose identity equals the committed one at its path is no difference.

    Args:
        compacted_base: the metarange that what was staged before was folded into; empty for none.
    """
    following = commits.next_record(core, metarange_id, start)
    rows = scan_staged(database, token, start)
    if compacted_base:
        rows = _over_compacted(database, rows, metarange_id, compacted_base, start)
    for path, identity, data in rows:
        if following is not None and following[0] < path:
            following = commits.next_record(core, metarange_id, path)
        base = following if following is not None and following[0] == path else None
        if data is None:
            if base is not None:
                yield Change("removed", path, None, None, base[2])
        elif base is None:
            yield Change("added", path, identity, data, None)
        elif base[1] != identity:
            yield Change("changed", path, identity, data, base[2])


def _over_compacted(
    database: sqlite3.Connection, staged: Iterator[_StagedRow], metarange_id: str, compacted_base: str, start: bytes
) -> Iterator[_StagedRow]:
    """Staged rows, and rows of the compacted base at paths where it differs from the commit and nothing is staged."""
    head, base = (
        {path: (identity, data) for path, identity, data in commits.scan_records(database, metarange, start)}
        for metarange in (metarange_id, compacted_base)
    )
    nothing = (None, None)
    rows: dict[bytes, tuple[bytes | None, bytes | None]] = {
        path: base.get(path, nothing)
        for path in head.keys() | base.keys()
        if base.get(path, nothing)[0] != head.get(path, nothing)[0]
    }
    rows |= {path: (identity, data) for path, identity, data in staged}
    for path in sorted(rows):
        yield (path, *rows[path])


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
    """Removes a branch and its staged entries; its commits stay, perhaps dangling."""
    if branch_id == repository.default_branch:
        raise bad_request("cannot delete repository default branch")
    with core.database.transaction() as database:
        branch = get(core, repository, branch_id)
        drop_staged(database, branch.staging_token)
        database.execute("DELETE FROM branches WHERE repository = ? AND id = ?", (repository.id, branch_id))


def move(core: Core, repository: Repository, branch: Branch, commit_id: str) -> None:
    """Points a branch to a commit; what was staged is dropped, under a new token nothing is."""
    with core.database.transaction() as database:
        drop_staged(database, branch.staging_token)
        database.execute(
            "UPDATE branches SET commit_id = ?, staging_token = ?, compacted_base = '' WHERE repository = ? AND id = ?",
            (commit_id, new_token(repository, branch.id), repository.id, branch.id),
        )


def require_clean(core: Core, repository: Repository, branch: Branch, doing: str) -> None:
    """Raises ApiFailure 400 where the branch has uncommitted changes."""
    head = commits.get(core, repository, branch.commit_id)
    with core.database.transaction() as database:
        changes = staged_changes(core, database, branch.staging_token, head.metarange_id, branch.compacted_base)
        if next(changes, None) is not None:
            raise bad_request(f"{doing}: uncommitted changes (dirty branch)")


def reset(core: Core, repository: Repository, branch_id: str, kind: str, path: str) -> None:
    """Drops staged entries: all, one object, or those below a prefix."""
    with core.database.transaction() as database:
        branch = get(core, repository, branch_id)
        token = branch.staging_token
        if kind == "reset":
            move(core, repository, branch, branch.commit_id)
        elif kind == "object":
            drop_staged_path(database, token, path)
            _take_back(core, repository, branch, lambda key: key == encode_path(path))
        elif kind == "common_prefix":
            drop_staged_prefix(database, token, path)
            _take_back(core, repository, branch, lambda key: key.startswith(encode_path(path)))
        else:
            raise bad_request(f"reset type not found: {kind}")


def _take_back(core: Core, repository: Repository, branch: Branch, chosen: Callable[[bytes], bool]) -> None:
    """Stages what the commit has at some paths where the compacted base has something else."""
    if not branch.compacted_base:
        return
    head = commits.get(core, repository, branch.commit_id)
    with core.database.transaction() as database:
        changes = staged_changes(core, database, branch.staging_token, head.metarange_id, branch.compacted_base)
        for path in [change.path for change in changes if chosen(change.path)]:
            stage_record(database, branch.staging_token, path, commits.find_record(core, head.metarange_id, path))


def create_tag(
    core: Core, repository: Repository, tag_id: str, reference: str, *, force: bool = False
) -> dict[str, Any]:
    """Makes a tag. Raises ApiFailure 404 for an unknown reference, 409 where the tag exists."""
    if not tag_id:
        raise bad_request("tag id is required")
    commit = commits.resolve(core, repository, reference)
    with core.database.transaction() as database:
        exists = database.execute(
            "SELECT 1 FROM tags WHERE repository = ? AND id = ?", (repository.id, tag_id)
        ).fetchone()
        if exists and not force:
            raise ApiFailure(409, "tag already exists")
        database.execute("INSERT OR REPLACE INTO tags VALUES (?, ?, ?)", (repository.id, tag_id, commit.id))
    return {"id": tag_id, "commit_id": commit.id}


def every_tag(core: Core, repository: Repository) -> list[dict[str, Any]]:
    """Tags by name, as the API shows them."""
    with core.database.transaction() as database:
        rows = database.execute(
            "SELECT id, commit_id FROM tags WHERE repository = ? ORDER BY id", (repository.id,)
        ).fetchall()
    return [{"id": tag_id, "commit_id": commit_id} for tag_id, commit_id in rows]


def get_tag(core: Core, repository: Repository, tag_id: str) -> dict[str, Any]:
    """The tag of this name, as the API shows it. Raises ApiFailure 404."""
    for tag in every_tag(core, repository):
        if tag["id"] == tag_id:
            return tag
    raise not_found("tag")


def delete_tag(core: Core, repository: Repository, tag_id: str) -> None:
    """Removes a tag. Raises ApiFailure 404."""
    get_tag(core, repository, tag_id)
    with core.database.transaction() as database:
        database.execute("DELETE FROM tags WHERE repository = ? AND id = ?", (repository.id, tag_id))

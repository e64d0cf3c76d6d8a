"""Branches with their staged entries, and tags; commits, merges, reverts and imports.

Each branch has a staging token. Its uncommitted entries are stored under the token, with tombstones for deletions of
committed paths.
"""

import hashlib
import re
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakefs_gc_assets.extensions.playground.embedded import commits, repositories
from lakefs_gc_assets.extensions.playground.embedded.commits import Description, Record, ServedCommit
from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, bad_request, not_found
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry, decode_entry
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore

_StagedRow = tuple[bytes, bytes | None, bytes | None]
"""Path, identity and data of a staged entry; identity and data are None for a tombstone."""


def encode_path(path: str) -> bytes:
    """A path in its stored form, which also defines the order."""
    return path.encode("utf-8", "surrogateescape")


def decode_path(path: bytes) -> str:
    """The inverse of `encode_path`."""
    return path.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class StagedChange:
    """A changed path: its present record, None if it was removed, and its previous record."""

    type: str
    path: bytes
    record: Record | None
    before: Record | None

    def as_json(self) -> dict[str, Any]:
        """The form that the API returns."""
        record = self.record or self.before
        size = decode_entry(record[2]).size if record else 0
        return {"type": self.type, "path": decode_path(self.path), "path_type": "object", "size_bytes": size}


def stage_entry(database: sqlite3.Connection, token: str, path: str, entry: Entry) -> None:
    """Stages an entry."""
    database.execute(
        "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)",
        (token, encode_path(path), entry.identity, entry.encode()),
    )


def stage_deletion(core: Core, database: sqlite3.Connection, token: str, metarange_id: str, path: str) -> None:
    """Stages a deletion: writes a tombstone if the path is committed, otherwise only drops the staged entry."""
    key = encode_path(path)
    if commits.find_record(core, metarange_id, key) is None:
        drop_staged_path(database, token, path)
    else:
        database.execute("INSERT OR REPLACE INTO staged VALUES (?, ?, NULL, NULL)", (token, key))


def drop_staged(database: sqlite3.Connection, token: str) -> None:
    """Drops all staged entries."""
    database.execute("DELETE FROM staged WHERE token = ?", (token,))


def drop_staged_path(database: sqlite3.Connection, token: str, path: str) -> None:
    """Drops the staged entry of one path."""
    database.execute("DELETE FROM staged WHERE token = ? AND path = ?", (token, encode_path(path)))


def find_staged(database: sqlite3.Connection, token: str, path: str) -> tuple[bool, bytes | None]:
    """True if a path has a staged entry, and the entry's data; None for a tombstone."""
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
    core: Core, database: sqlite3.Connection, repository: ServedRepository, branch: "ServedBranch", start: bytes = b""
) -> Iterator[StagedChange]:
    """Staged differences from the commit, by path. Consume it within the transaction in which it began.

    As in lakeFS, a staged entry whose identity equals that of the committed entry at its path is no difference.
    """
    metarange_id = commits.get(core, repository, branch.commit_id).metarange_id
    following = commits.next_record(core, metarange_id, start)
    for path, identity, data in scan_staged(database, branch.staging_token, start):
        if following is not None and following[0] < path:
            following = commits.next_record(core, metarange_id, path)
        base = following if following is not None and following[0] == path else None
        if data is None or identity is None:
            if base is not None:
                yield StagedChange("removed", path, None, base)
        elif base is None:
            yield StagedChange("added", path, (path, identity, data), None)
        elif base[1] != identity:
            yield StagedChange("changed", path, (path, identity, data), base)


_NAME = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_]*")
_NO_TAG = re.compile(r"^@$|\.$|\.lock$|\.\.|@\{|[/^:?*\[\\\x00-\x20\x7f]")
"""Matches within names that git forbids for tags; unlike git, lakeFS allows `~`."""
_NAME_RULE = ": branch id must consist of letters, digits, underscores and dashes, and cannot start with a dash"


@dataclass(frozen=True, slots=True)
class ServedBranch:
    """A branch and the commit it points to."""

    id: str
    commit_id: str
    staging_token: str
    hidden: bool

    def as_json(self) -> dict[str, Any]:
        """The form that the API returns."""
        return {"id": self.id, "commit_id": self.commit_id}


def insert(
    database: sqlite3.Connection, repository: ServedRepository, branch_id: str, commit_id: str, *, hidden: bool
) -> None:
    """Inserts a branch that is known not to exist."""
    database.execute(
        "INSERT INTO branches (repository, id, commit_id, staging_token, hidden) VALUES (?, ?, ?, ?, ?)",
        (repository.id, branch_id, commit_id, new_token(repository, branch_id), int(hidden)),
    )


def new_token(repository: ServedRepository, branch_id: str) -> str:
    """A new staging token, without staged entries."""
    return f"{repository.id}-{branch_id}:{secrets.token_hex(8)}"


def check_name(branch_id: str, rule: str = "") -> None:
    """Raises ApiFailure 400 if the name is invalid; the message ends with the rule."""
    if not _NAME.fullmatch(branch_id):
        raise bad_request(f"argument branch: branch id: invalid value: validation error{rule}")


def create(core: Core, repository: ServedRepository, branch_id: str, source: str, *, hidden: bool) -> str:
    """Creates a branch from a reference; returns its commit. Raises ApiFailure 400, 404, 409."""
    check_name(branch_id, _NAME_RULE)
    commit = commits.resolve(core, repository, source, f"source reference '{source}':")
    with core.database.transaction() as database:
        if find(core, repository, branch_id) is not None:
            raise ApiFailure(409, "branch already exists: not unique")
        insert(database, repository, branch_id, commit.id, hidden=hidden)
    return commit.id


def find(core: Core, repository: ServedRepository, branch_id: str) -> ServedBranch | None:
    """The branch of this name; None if there is none."""
    with core.database.transaction() as database:
        row = database.execute(
            "SELECT id, commit_id, staging_token, hidden FROM branches WHERE repository = ? AND id = ?",
            (repository.id, branch_id),
        ).fetchone()
    return None if row is None else ServedBranch(row[0], row[1], row[2], bool(row[3]))


def get(core: Core, repository: ServedRepository, branch_id: str) -> ServedBranch:
    """The branch of this name. Raises ApiFailure 404."""
    branch = find(core, repository, branch_id)
    if branch is None:
        raise not_found("branch")
    return branch


def every(core: Core, repository: ServedRepository, *, hidden: bool) -> list[ServedBranch]:
    """Branches by name, hidden ones only on request."""
    with core.database.transaction() as database:
        rows = database.execute(
            "SELECT id, commit_id, staging_token, hidden FROM branches WHERE repository = ? AND hidden <= ? "
            "ORDER BY id",
            (repository.id, int(hidden)),
        ).fetchall()
    return [ServedBranch(row[0], row[1], row[2], bool(row[3])) for row in rows]


def delete(core: Core, repository: ServedRepository, branch_id: str) -> None:
    """Deletes a branch and its staged entries. Its commits stay, perhaps dangling. Raises ApiFailure 403, 404."""
    if branch_id == repository.default_branch:
        raise ApiFailure(403, "cannot delete repository default branch")
    with core.database.transaction() as database:
        branch = get(core, repository, branch_id)
        drop_staged(database, branch.staging_token)
        database.execute("DELETE FROM branches WHERE repository = ? AND id = ?", (repository.id, branch_id))


def move(core: Core, repository: ServedRepository, branch: ServedBranch, commit_id: str) -> None:
    """Points a branch to a commit, drops its staged entries, and gives it a new staging token."""
    with core.database.transaction() as database:
        drop_staged(database, branch.staging_token)
        database.execute(
            "UPDATE branches SET commit_id = ?, staging_token = ? WHERE repository = ? AND id = ?",
            (commit_id, new_token(repository, branch.id), repository.id, branch.id),
        )


def require_clean(core: Core, repository: ServedRepository, branch: ServedBranch) -> None:
    """Raises ApiFailure 400 if the branch has uncommitted changes."""
    with core.database.transaction() as database:
        if next(staged_changes(core, database, repository, branch), None) is not None:
            raise bad_request("uncommitted changes (dirty branch)")


def reset(core: Core, repository: ServedRepository, branch_id: str, kind: str, path: str) -> None:
    """Drops staged entries: all, one object, or all objects below a prefix."""
    with core.database.transaction() as database:
        branch = get(core, repository, branch_id)
        if kind == "reset":
            move(core, repository, branch, branch.commit_id)
        elif kind == "object":
            drop_staged_path(database, branch.staging_token, path)
        elif kind == "common_prefix":
            prefix = encode_path(path)
            for staged, _, _ in list(scan_staged(database, branch.staging_token, prefix)):
                if staged.startswith(prefix):
                    drop_staged_path(database, branch.staging_token, decode_path(staged))
        else:
            raise bad_request(
                'request body has an error: Error at "/type": value is not one of the allowed values '
                '["object","common_prefix","reset"]'
            )


def create_tag(core: Core, repository: ServedRepository, tag_id: str, reference: str) -> dict[str, Any]:
    """Creates a tag. Raises ApiFailure 400 for an invalid name, 404 for an unknown reference, 409 if the tag exists."""
    if not tag_id or _NO_TAG.search(tag_id):
        raise bad_request("argument tagID: tag id: invalid value: validation error")
    commit = commits.resolve(core, repository, reference)
    with core.database.transaction() as database:
        exists = database.execute(
            "SELECT 1 FROM tags WHERE repository = ? AND id = ?", (repository.id, tag_id)
        ).fetchone()
        if exists:
            raise ApiFailure(409, "tag already exists: not unique")
        database.execute("INSERT INTO tags VALUES (?, ?, ?)", (repository.id, tag_id, commit.id))
    return {"id": tag_id, "commit_id": commit.id}


def every_tag(core: Core, repository: ServedRepository) -> list[dict[str, Any]]:
    """Tags by name, in the API's form."""
    with core.database.transaction() as database:
        rows = database.execute(
            "SELECT id, commit_id FROM tags WHERE repository = ? ORDER BY id", (repository.id,)
        ).fetchall()
    return [{"id": tag_id, "commit_id": commit_id} for tag_id, commit_id in rows]


def delete_tag(core: Core, repository: ServedRepository, tag_id: str) -> None:
    """Deletes a tag. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        deleted = database.execute("DELETE FROM tags WHERE repository = ? AND id = ?", (repository.id, tag_id))
        if not deleted.rowcount:
            raise not_found("tag")


def commit_staged(
    core: Core, repository: ServedRepository, branch_id: str, described: Description, *, allow_empty: bool = False
) -> ServedCommit:
    """Commits a branch. Raises ApiFailure 400 if there are no changes, unless `allow_empty` is set.

    An entry staged again with the committed identity is no change: the commit keeps the committed entry.
    """
    with core.database.transaction() as database:
        branch = get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        changes = list(staged_changes(core, database, repository, branch))
        metarange_id = head.metarange_id
        if changes:
            entries = {record[0]: record for record in commits.all_records(core, metarange_id)}
            for change in changes:
                if change.record is None:
                    del entries[change.path]
                else:
                    entries[change.path] = change.record
            metarange_id = commits.write_metarange(core, repository, [entries[path] for path in sorted(entries)])
        elif not allow_empty:
            raise bad_request("commit: no changes")
        return add_to(core, repository, branch, head, described, metarange_id)


def add_to(
    core: Core,
    repository: ServedRepository,
    branch: ServedBranch,
    head: ServedCommit,
    described: Description,
    metarange_id: str,
) -> ServedCommit:
    """Adds a commit on top of the branch's head, points the branch to it, and drops staged entries."""
    commit = commits.add(core, repository, described, metarange_id, (head.id,), head.generation + 1)
    move(core, repository, branch, commit.id)
    return commit


STRATEGY_KEY = ".lakefs.merge.strategy"
_SOURCE_WINS, _DEST_WINS = "source-wins", "dest-wins"


def combine(
    core: Core, repository: ServedRepository, change: tuple[str, str], destination: str, strategy: str, doing: str
) -> str:
    """Applies the changes between two metaranges, `change[0]` and `change[1]`, to `destination`; returns the new id.

    This is the three-way comparison of entries by identity for merges and reverts.

    Raises ApiFailure 400 if the source changed nothing, 409 if both sides changed a path differently and no strategy
    resolves that.
    """
    base, source = change
    if source == base:
        raise bad_request(f"{doing}: no changes")
    if destination == base:
        return source
    before, theirs, ours = (
        {record[0]: record for record in commits.all_records(core, metarange)}
        for metarange in (base, source, destination)
    )
    merged: dict[bytes, Record] = dict(ours)
    for path in before.keys() | theirs.keys():
        was, their, our = (_identity(records.get(path)) for records in (before, theirs, ours))
        if their in (was, our):
            continue
        if our != was and strategy == _DEST_WINS:
            continue
        if our != was and strategy != _SOURCE_WINS:
            raise ApiFailure(409, f"{doing}: conflict found")
        if path in theirs:
            merged[path] = theirs[path]
        else:
            merged.pop(path, None)
    return commits.write_metarange(core, repository, [merged[path] for path in sorted(merged)])


def _identity(record: Record | None) -> bytes | None:
    return None if record is None else record[1]


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Options of a merge: conflict strategy, a single parent, and whether an empty merge is allowed."""

    strategy: str = ""
    squash: bool = False
    allow_empty: bool = False


def merge(
    core: Core,
    repository: ServedRepository,
    source_reference: str,
    destination_branch: str,
    described: Description,
    options: MergeOptions,
) -> ServedCommit:
    """Merges a reference into a branch; without a message, the commit has a default one.

    Raises ApiFailure 400 if the source changed nothing and `allow_empty` is not set, 409 for a conflict.
    """
    doing, strategy = f"update branch {destination_branch}", options.strategy
    if strategy not in ("", _SOURCE_WINS, _DEST_WINS):
        raise bad_request("argument strategy: invalid value: validation error")
    with core.database.transaction():
        branch = get(core, repository, destination_branch)
        head = commits.get(core, repository, branch.commit_id)
        source = commits.resolve(core, repository, source_reference, f"{doing}: get commit by ref {source_reference}:")
        require_clean(core, repository, branch)
        base = commits.merge_base(core, repository, source, head)
        shared = base.metarange_id if base else ""
        if options.allow_empty and source.metarange_id == shared:
            metarange_id = head.metarange_id
        else:
            metarange_id = combine(core, repository, (shared, source.metarange_id), head.metarange_id, strategy, doing)
        message = described.message or f"Merge '{source_reference}' into '{destination_branch}'"
        metadata = {**described.metadata, STRATEGY_KEY: strategy or "default"}
        commit = commits.add(
            core,
            repository,
            Description(described.committer, message, metadata),
            metarange_id,
            (head.id,) if options.squash else (head.id, source.id),
            max(head.generation, source.generation) + 1,
        )
        move(core, repository, branch, commit.id)
    return commit


def revert(
    core: Core, repository: ServedRepository, branch_id: str, reference: str, parent_number: int, committer: str
) -> None:
    """Reverts the changes of one commit, in a new commit on the branch."""
    with core.database.transaction():
        branch = get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        reverted = commits.resolve(core, repository, reference, f"get commit from ref {reference}:")
        if len(reverted.parents) > 1 and parent_number <= 0:
            raise ApiFailure(409, "must specify 1-based parent number for reverting merge commit")
        require_clean(core, repository, branch)
        parent = parent_of(core, repository, reverted, max(parent_number, 1))
        metarange_id = combine(
            core, repository, (reverted.metarange_id, parent.metarange_id), head.metarange_id, "", "update branch"
        )
        add_to(core, repository, branch, head, Description(committer, f"Revert {reference}"), metarange_id)


def parent_of(core: Core, repository: ServedRepository, commit: ServedCommit, number: int) -> ServedCommit:
    """The parent with this number, counted from 1. Raises ApiFailure 400 if there is none."""
    if number > len(commit.parents):
        raise bad_request(f"parent {number}: given commit does not have the given parent number")
    return commits.get(core, repository, commit.parents[number - 1])


_LAST_IMPORT = ".lakefs.last.import.timestamp"


def run_import(
    core: Core, repository: ServedRepository, branch_id: str, committer: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Imports the body's paths; returns the commit, its metarange and the number of objects.

    Objects outside the storage namespace become entries with full addresses, in a commit of their own.
    """
    imported: dict[bytes, Entry] = {}
    for source in body.get("paths", ()):
        for path, entry in _imported_entries(core, source):
            imported[encode_path(path)] = entry
    commit = body.get("commit") or {}
    with core.database.transaction():
        branch = get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        require_clean(core, repository, branch)
        entries = {record[0]: record for record in commits.all_records(core, head.metarange_id)}
        entries |= {path: (path, entry.identity, entry.encode()) for path, entry in imported.items()}
        metarange_id = commits.write_metarange(core, repository, [entries[path] for path in sorted(entries)])
        metadata = {**(commit.get("metadata") or {}), STRATEGY_KEY: "source-wins"}
        described = Description(committer, str(commit.get("message") or "Import objects"), metadata)
        new_commit = add_to(core, repository, branch, head, described, metarange_id)
        repositories.set_metadata(core, repository, _LAST_IMPORT, str(core.clock.seconds()))
    return {"commit": new_commit.as_json(), "metarange_id": metarange_id, "ingested_objects": len(imported)}


def _imported_entries(core: Core, source: Mapping[str, Any]) -> list[tuple[str, Entry]]:
    location, destination, kind = str(source["path"]), str(source["destination"]), source.get("type")
    folder, _, name = location.rpartition("/")
    store = core.blockstore.open(folder)
    if kind == "object":
        return [(destination, _imported_entry(store, location, store.head(name)))]
    if kind != "common_prefix":
        raise bad_request(f"import path type {kind!r} is neither common_prefix nor object")
    imported = []
    for batch in store.list(""):
        for row in batch.to_pylist():
            if row["key"].startswith(name):
                facts = ObjectFacts(row["key"], row["size"], row["last_modified"], row["etag"])
                imported.append(
                    (destination + row["key"][len(name) :], _imported_entry(store, f"{folder}/{row['key']}", facts))
                )
    return imported


def _imported_entry(store: ObjectStore, address: str, facts: ObjectFacts) -> Entry:
    # A local folder has no content-based ETags: use the one that an upload would have had.
    etag = facts.etag or hashlib.md5(store.get(facts.key), usedforsecurity=False).hexdigest()
    return Entry(address, AddressType.FULL, facts.size, etag, int(facts.last_modified.timestamp()), content_type="")

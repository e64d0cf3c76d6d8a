"""Commits of staged entries, merges, reverts and imports; and differences between commits.

Merges and reverts are one three-way comparison of entries by identity. An import makes objects outside the storage
namespace entries with full addresses, in a commit of their own.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakefs_gc_assets.embedded import branches, commits, repositories
from lakefs_gc_assets.embedded.branches import Branch
from lakefs_gc_assets.embedded.commits import Commit, Draft, Record
from lakefs_gc_assets.embedded.core import ApiFailure, Core, bad_request
from lakefs_gc_assets.embedded.formats import Entry
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore


@dataclass(frozen=True, slots=True)
class Description:
    """Committer, message and metadata of a commit; `date` in seconds since 1970 UTC, by default now."""

    committer: str
    message: str
    metadata: Mapping[str, str]
    date: int | None = None


def commit_staged(
    core: Core, repository: Repository, branch_id: str, described: Description, *, allow_empty: bool = False
) -> Commit:
    """Commits a branch. Raises ApiFailure 400 where nothing changed and `allow_empty` is not set.

    An entry staged again with the committed identity changes nothing: the commit keeps the committed entry.
    """
    with core.database.transaction() as database:
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        changes = list(
            branches.staged_changes(core, database, branch.staging_token, head.metarange_id, branch.compacted_base)
        )
        metarange_id = head.metarange_id
        if changes:
            entries = {
                path: (path, identity, data) for path, identity, data in commits.scan_records(database, metarange_id)
            }
            for change in changes:
                if change.data is None or change.identity is None:
                    del entries[change.path]
                else:
                    entries[change.path] = (change.path, change.identity, change.data)
            metarange_id = commits.write_metarange(core, repository, [entries[path] for path in sorted(entries)])
        elif not allow_empty:
            raise bad_request("commit: no changes")
        return add_to(core, repository, branch, head, described, metarange_id)


def add_to(
    core: Core, repository: Repository, branch: Branch, head: Commit, described: Description, metarange_id: str
) -> Commit:
    """Adds a commit whose one parent is the branch's head, and points the branch to it; what was staged is dropped."""
    draft = Draft(
        described.committer,
        described.message,
        metarange_id,
        (head.id,),
        head.generation + 1,
        described.metadata,
        described.date,
    )
    commit = commits.add(core, repository, draft)
    branches.move(core, repository, branch, commit.id)
    return commit


STRATEGY_KEY = ".lakefs.merge.strategy"
_SOURCE_WINS, _DEST_WINS = "source-wins", "dest-wins"


def combine(
    core: Core, repository: Repository, change: tuple[str, str], destination: str, strategy: str, doing: str
) -> str:
    """The metarange of `destination` with what changed from one metarange, `change[0]`, to another, `change[1]`.

    Raises ApiFailure 400 where the source changed nothing, 409 where both changed a path differently and no strategy
    says who wins.
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
    """Options of a merge: who wins a conflict, one parent only, and no changes allowed."""

    strategy: str = ""
    squash: bool = False
    allow_empty: bool = False


def merge(
    core: Core,
    repository: Repository,
    source_reference: str,
    destination_branch: str,
    described: Description,
    options: MergeOptions,
) -> Commit:
    """Merges a reference into a branch; without a message the commit has one that says so.

    Raises ApiFailure 400 where the source changed nothing and `allow_empty` is not set, 409 for a conflict.
    """
    doing, strategy = f"update branch {destination_branch}", options.strategy
    if strategy not in ("", _SOURCE_WINS, _DEST_WINS):
        raise bad_request(f"{doing}: invalid merge strategy {strategy!r}")
    with core.database.transaction():
        branch = branches.get(core, repository, destination_branch)
        head = commits.get(core, repository, branch.commit_id)
        source = commits.resolve(core, repository, source_reference)
        branches.require_clean(core, repository, branch, doing)
        base = commits.merge_base(core, repository, source, head)
        shared = base.metarange_id if base else ""
        if options.allow_empty and source.metarange_id == shared:
            metarange_id = head.metarange_id
        else:
            metarange_id = combine(core, repository, (shared, source.metarange_id), head.metarange_id, strategy, doing)
        commit = commits.add(
            core,
            repository,
            Draft(
                described.committer,
                described.message or f"Merge '{source_reference}' into '{destination_branch}'",
                metarange_id,
                (head.id,) if options.squash else (head.id, source.id),
                max(head.generation, source.generation) + 1,
                {**described.metadata, STRATEGY_KEY: strategy or "default"},
            ),
        )
        branches.move(core, repository, branch, commit.id)
    return commit


def revert(
    core: Core, repository: Repository, branch_id: str, reference: str, parent_number: int, committer: str
) -> None:
    """Takes back what one commit changed, in a new commit on the branch."""
    with core.database.transaction():
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        reverted = commits.resolve(core, repository, reference)
        if len(reverted.parents) > 1 and parent_number <= 0:
            raise bad_request("must specify 1-based parent number for reverting merge commit")
        branches.require_clean(core, repository, branch, "update branch")
        parent = parent_of(core, repository, reverted, max(parent_number, 1))
        metarange_id = combine(
            core, repository, (reverted.metarange_id, parent.metarange_id), head.metarange_id, "", "update branch"
        )
        add_to(core, repository, branch, head, Description(committer, f"Revert {reference}", {}), metarange_id)


def parent_of(core: Core, repository: Repository, commit: Commit, number: int) -> Commit:
    """The parent of this number, counted from 1. Raises ApiFailure 400 where there is none."""
    if number > len(commit.parents):
        raise bad_request(f"parent {number}: given commit does not have the given parent number")
    return commits.get(core, repository, commit.parents[number - 1])


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that differs; `data` is the entry that is there now or, where it was removed, that was there."""

    type: str
    path: bytes
    data: bytes


def branch_differences(core: Core, repository: Repository, branch_id: str, start: bytes) -> Iterator[Difference]:
    """Staged changes of a branch, from a path on, in order of path. Use up inside a transaction."""
    with core.database.transaction() as database:
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
    token, base = branch.staging_token, branch.compacted_base
    for change in branches.staged_changes(core, database, token, head.metarange_id, base, start):
        data = change.data if change.data is not None else change.base_data
        assert data is not None
        yield Difference(change.type, change.path, data)


_LAST_IMPORT = ".lakefs.last.import.timestamp"


def run_import(
    core: Core, repository: Repository, branch_id: str, committer: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Imports what the body's paths name; returns the commit, its metarange and the number of objects."""
    imported: dict[bytes, Entry] = {}
    for source in body.get("paths", ()):
        for path, entry in _imported_entries(core, source):
            imported[branches.encode_path(path)] = entry
    commit = body.get("commit") or {}
    with core.database.transaction():
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        branches.require_clean(core, repository, branch, f"update branch {branch_id}")
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
    # A folder has no ETags that say something of the content: take what an upload would have had.
    etag = facts.etag or hashlib.md5(store.get(facts.key), usedforsecurity=False).hexdigest()
    return Entry(address, AddressType.FULL, facts.size, etag, int(facts.last_modified.timestamp()), content_type="")

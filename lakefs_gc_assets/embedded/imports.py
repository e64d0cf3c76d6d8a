"""Imports: objects outside the storage namespace become entries with full addresses, in a commit of their own."""

import hashlib
from collections.abc import Mapping
from typing import Any

from lakefs_gc_assets.embedded import branches, commits, committed, merges, repositories, staging
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.entries import Entry
from lakefs_gc_assets.embedded.failures import bad_request
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore

_LAST_IMPORT = ".lakefs.last.import.timestamp"


def run(core: Core, repository: Repository, branch_id: str, committer: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Imports what the body's paths name; returns the commit, its metarange and the number of objects."""
    imported: dict[bytes, Entry] = {}
    for source in body.get("paths", ()):
        for path, entry in _source(core, source):
            imported[staging.encode_path(path)] = entry
    commit = body.get("commit") or {}
    with core.database.transaction():
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        branches.require_clean(core, repository, branch, f"update branch {branch_id}")
        entries = {record[0]: record for record in committed.records(core, head.metarange_id)}
        entries |= {path: (path, entry.identity, entry.encode()) for path, entry in imported.items()}
        metarange_id = committed.write(core, repository, [entries[path] for path in sorted(entries)])
        made = commits.add(
            core,
            repository,
            commits.Draft(
                committer,
                str(commit.get("message") or "Import objects"),
                metarange_id,
                (head.id,),
                head.generation + 1,
                {**(commit.get("metadata") or {}), merges.STRATEGY_KEY: "source-wins"},
            ),
        )
        branches.move(core, repository, branch, made.id)
        repositories.set_metadata(core, repository, _LAST_IMPORT, str(core.clock.seconds()))
    return {"commit": made.as_json(), "metarange_id": metarange_id, "ingested_objects": len(imported)}


def _source(core: Core, source: Mapping[str, Any]) -> list[tuple[str, Entry]]:
    location, destination, kind = str(source["path"]), str(source["destination"]), source.get("type")
    folder, _, name = location.rpartition("/")
    store = core.blockstore.open(folder)
    if kind == "object":
        return [(destination, _entry(store, location, store.head(name)))]
    if kind != "common_prefix":
        raise bad_request(f"import path type {kind!r} is neither common_prefix nor object")
    found = []
    for batch in store.list(""):
        for row in batch.to_pylist():
            if row["key"].startswith(name):
                facts = ObjectFacts(row["key"], row["size"], row["last_modified"], row["etag"])
                found.append((destination + row["key"][len(name) :], _entry(store, f"{folder}/{row['key']}", facts)))
    return found


def _entry(store: ObjectStore, address: str, facts: ObjectFacts) -> Entry:
    # A folder has no ETags that say something of the content: take what an upload would have had.
    etag = facts.etag or hashlib.md5(store.get(facts.key), usedforsecurity=False).hexdigest()
    return Entry(address, AddressType.FULL, facts.size, etag, int(facts.last_modified.timestamp()), content_type="")

"""A dump of commits, branches and tags as tables of their own. It is no snapshot: one is read after the other."""

import time
from typing import Any

from lakefs_gc_assets.embedded import branches, commits, committed, entries, tags
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.repositories import Repository

_SCHEMAS = {"commit": "CommitData", "branch": "BranchData", "tag": "TagData"}


def dump(core: Core, repository: Repository) -> dict[str, Any]:
    """Writes the three tables; returns the ids of their metaranges."""
    commits_id = _write(
        core,
        repository,
        "commit",
        [
            (
                commit.id,
                commit.id,
                entries.commit_data(
                    commit.id,
                    commit.committer,
                    commit.message,
                    commit.creation_date,
                    commit.metarange_id,
                    commit.metadata,
                    commit.parents,
                    commit.version,
                    commit.generation,
                ),
            )
            for commit in commits.every(core, repository)
        ],
    )
    time.sleep(core.settings.dump_pause_seconds)
    branches_id = _write(
        core,
        repository,
        "branch",
        [
            (
                branch.id,
                branch.commit_id,
                entries.branch_data(
                    branch.id, branch.commit_id, branch.staging_token, (), branch.hidden, branch.compacted_base
                ),
            )
            for branch in branches.every(core, repository, hidden=True)
        ],
    )
    time.sleep(core.settings.dump_pause_seconds)
    tags_id = _write(
        core,
        repository,
        "tag",
        [(tag["id"], tag["commit_id"], entries.tag_data(**_renamed(tag))) for tag in tags.every(core, repository)],
    )
    return {
        "commits_meta_range_id": commits_id,
        "branches_meta_range_id": branches_id,
        "tags_meta_range_id": tags_id,
    }


def _renamed(tag: dict[str, Any]) -> dict[str, str]:
    return {"tag_id": tag["id"], "commit_id": tag["commit_id"]}


def _write(core: Core, repository: Repository, entity: str, rows: list[tuple[str, str, bytes]]) -> str:
    records = sorted((key.encode("utf-8", "surrogateescape"), identity.encode(), data) for key, identity, data in rows)
    properties = {"entity": entity, "schema_name": f"io.treeverse.lakefs.graveler.{_SCHEMAS[entity]}"}
    if entity == "branch":
        properties["schema_definition"] = entries.branch_schema()
    return committed.write(core, repository, records, more_properties=properties)

"""Tags: names of commits that do not move."""

from typing import Any

from lakefs_gc_assets.embedded import commits
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import ApiFailure, bad_request, not_found
from lakefs_gc_assets.embedded.repositories import Repository


def create(core: Core, repository: Repository, tag_id: str, reference: str, *, force: bool = False) -> dict[str, Any]:
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


def every(core: Core, repository: Repository) -> list[dict[str, Any]]:
    """Tags by name, as the API shows them."""
    with core.database.transaction() as database:
        rows = database.execute(
            "SELECT id, commit_id FROM tags WHERE repository = ? ORDER BY id", (repository.id,)
        ).fetchall()
    return [{"id": tag_id, "commit_id": commit_id} for tag_id, commit_id in rows]


def get(core: Core, repository: Repository, tag_id: str) -> dict[str, Any]:
    """The tag of this name, as the API shows it. Raises ApiFailure 404."""
    for tag in every(core, repository):
        if tag["id"] == tag_id:
            return tag
    raise not_found("tag")


def delete(core: Core, repository: Repository, tag_id: str) -> None:
    """Removes a tag. Raises ApiFailure 404."""
    get(core, repository, tag_id)
    with core.database.transaction() as database:
        database.execute("DELETE FROM tags WHERE repository = ? AND id = ?", (repository.id, tag_id))

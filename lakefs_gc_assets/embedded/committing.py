"""Making commits of what is staged: the changes laid over the head's entries."""

from collections.abc import Mapping

from lakefs_gc_assets.embedded import branches, commits, committed, staging
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import bad_request
from lakefs_gc_assets.embedded.repositories import Repository


def commit(
    core: Core,
    repository: Repository,
    branch_id: str,
    committer: str,
    message: str,
    metadata: Mapping[str, str],
    *,
    date: int | None = None,
    allow_empty: bool = False,
) -> commits.Commit:
    """Commits a branch. Raises ApiFailure 400 where nothing changed and `allow_empty` is not set.

    An entry staged again with the committed identity changes nothing: the commit keeps the committed entry.
    """
    with core.database.transaction() as database:
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        changes = list(staging.changes(core, database, branch.staging_token, head.metarange_id, branch.compacted_base))
        metarange_id = head.metarange_id
        if changes:
            entries = {path: (path, identity, data) for path, identity, data in committed.scan(database, metarange_id)}
            for change in changes:
                if change.data is None or change.identity is None:
                    del entries[change.path]
                else:
                    entries[change.path] = (change.path, change.identity, change.data)
            metarange_id = committed.write(core, repository, [entries[path] for path in sorted(entries)])
        elif not allow_empty:
            raise bad_request("commit: no changes")
        made = commits.add(
            core,
            repository,
            commits.Draft(
                committer, message, metarange_id, (head.id,), head.generation + 1, metadata, creation_date=date
            ),
        )
        branches.move(core, repository, branch, made.id)
    return made

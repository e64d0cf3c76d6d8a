"""What differs: a branch's staging area from its commit, one commit from another."""

from collections.abc import Iterator
from dataclasses import dataclass

from lakefs_gc_assets.embedded import branches, commits, committed, staging
from lakefs_gc_assets.embedded.commits import Commit
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.repositories import Repository


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that differs; `data` is the entry that is there now or, where it was removed, that was there."""

    type: str
    path: bytes
    data: bytes


def of_branch(core: Core, repository: Repository, branch_id: str, start: bytes) -> Iterator[Difference]:
    """What is staged on a branch, from a path on, in order of path. Use up inside a transaction."""
    with core.database.transaction() as database:
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
    token, base = branch.staging_token, branch.compacted_base
    for change in staging.changes(core, database, token, head.metarange_id, base, start):
        data = change.data if change.data is not None else change.base_data
        assert data is not None
        yield Difference(change.type, change.path, data)


def of_commits(
    core: Core, repository: Repository, left: Commit, right: Commit, *, since_base: bool
) -> Iterator[Difference]:
    """What is otherwise in `right` than in `left`, in order of path.

    Args:
        since_base: only what a merge of `right` into `left` would change: not what changed in `left` alone since both
            were the same; a path that changed in both is a `conflict`.
    """
    base = commits.merge_base(core, repository, left, right) if since_base else left
    before, common, after = (
        {path: (identity, data) for path, identity, data in committed.records(core, metarange)}
        for metarange in (left.metarange_id, base.metarange_id if base else "", right.metarange_id)
    )
    for path in sorted(before.keys() | after.keys()):
        was, shared, now = (records.get(path, (None, b"")) for records in (before, common, after))
        if was[0] == now[0] or (since_base and shared[0] == now[0]):
            continue
        kind = "added" if was[0] is None else "removed" if now[0] is None else "changed"
        yield Difference(kind if shared[0] == was[0] else "conflict", path, (was if now[0] is None else now)[1])

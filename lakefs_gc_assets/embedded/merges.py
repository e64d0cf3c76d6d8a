"""Merges and reverts: one three-way comparison of entries by identity."""

from collections.abc import Mapping

from lakefs_gc_assets.embedded import branches, commits, committed
from lakefs_gc_assets.embedded.committed import Record
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import ApiFailure, bad_request
from lakefs_gc_assets.embedded.repositories import Repository

STRATEGY_KEY = ".lakefs.merge.strategy"
_SOURCE_WINS, _DEST_WINS = "source-wins", "dest-wins"


def combine(
    core: Core, repository: Repository, base: str, source: str, destination: str, strategy: str, doing: str
) -> str:
    """The metarange of `destination` with what changed from `base` to `source`.

    Raises ApiFailure 400 where the source changed nothing, 409 where both changed a path differently and no strategy
    says who wins.
    """
    if source == base:
        raise bad_request(f"{doing}: no changes")
    if destination == base:
        return source
    before, theirs, ours = (
        {record[0]: record for record in committed.records(core, metarange)}
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
    return committed.write(core, repository, [merged[path] for path in sorted(merged)])


def _identity(record: Record | None) -> bytes | None:
    return None if record is None else record[1]


def merge(
    core: Core,
    repository: Repository,
    source_reference: str,
    destination_branch: str,
    committer: str,
    message: str,
    metadata: Mapping[str, str],
    *,
    strategy: str = "",
    squash: bool = False,
    allow_empty: bool = False,
) -> commits.Commit:
    """Merges a reference into a branch; squashed, the commit has one parent only.

    Raises ApiFailure 400 where the source changed nothing and `allow_empty` is not set, 409 for a conflict.
    """
    doing = f"update branch {destination_branch}"
    if strategy not in ("", _SOURCE_WINS, _DEST_WINS):
        raise bad_request(f"{doing}: invalid merge strategy {strategy!r}")
    with core.database.transaction():
        branch = branches.get(core, repository, destination_branch)
        head = commits.get(core, repository, branch.commit_id)
        source = commits.resolve(core, repository, source_reference)
        branches.require_clean(core, repository, branch, doing)
        base = commits.merge_base(core, repository, source, head)
        shared = base.metarange_id if base else ""
        if allow_empty and source.metarange_id == shared:
            metarange_id = head.metarange_id
        else:
            metarange_id = combine(core, repository, shared, source.metarange_id, head.metarange_id, strategy, doing)
        made = commits.add(
            core,
            repository,
            commits.Draft(
                committer,
                message or f"Merge '{source_reference}' into '{destination_branch}'",
                metarange_id,
                (head.id,) if squash else (head.id, source.id),
                max(head.generation, source.generation) + 1,
                {**metadata, STRATEGY_KEY: strategy or "default"},
            ),
        )
        branches.move(core, repository, branch, made.id)
    return made


def revert(
    core: Core, repository: Repository, branch_id: str, reference: str, parent_number: int, committer: str
) -> commits.Commit:
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
            core, repository, reverted.metarange_id, parent.metarange_id, head.metarange_id, "", "update branch"
        )
        made = commits.add(
            core,
            repository,
            commits.Draft(committer, f"Revert {reference}", metarange_id, (head.id,), head.generation + 1),
        )
        branches.move(core, repository, branch, made.id)
    return made


def parent_of(core: Core, repository: Repository, commit: commits.Commit, number: int) -> commits.Commit:
    """The parent of this number, counted from 1. Raises ApiFailure 400 where there is none."""
    if number > len(commit.parents):
        raise bad_request(f"parent {number}: given commit does not have the given parent number")
    return commits.get(core, repository, commit.parents[number - 1])

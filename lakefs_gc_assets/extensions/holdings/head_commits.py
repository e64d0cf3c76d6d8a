"""Finds the commits that branches got since an earlier attribution, with their committers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lakefs_gc_assets.errors import LogLine, NotFound, counted
from lakefs_gc_assets.lakefs.api.models import Commit, LakeFSApi

MOST_COMMITS = 500
"""Maximum commits that one attribution fetches, one call each. Older ones stay unknown."""


@dataclass(frozen=True)
class NewCommits:
    """Commits on the first-parent lines of branches.

    Attributes:
        branches: commit of the head that the run saw, by branch; without branches that have gone since.
        commits: new commits, each before its descendants.
        branch_of: a branch of each new commit, by commit id; without commits whose parents are unknown, since their
            objects may be older.
    """

    branches: Mapping[str, str]
    commits: tuple[Commit, ...]
    branch_of: Mapping[str, str]


def find_new_commits(
    api: LakeFSApi, heads: Mapping[str, str], known: Mapping[str, str] | None, log: LogLine
) -> NewCommits:
    """Follows first parents from each head back to a commit that was a head before. Raises LakeFSError.

    Args:
        heads: metarange of the head that a run saw, by branch.
        known: commits of the heads that the earlier attribution saw, by branch; None if there was none. Commits are
            then not new.
    """
    fetched: dict[str, Commit | None] = {}

    def fetch(commit_id: str) -> Commit | None:
        if commit_id not in fetched:
            if len(fetched) >= MOST_COMMITS:
                return None
            try:
                fetched[commit_id] = api.commit(commit_id)
            except NotFound:
                fetched[commit_id] = None
        return fetched[commit_id]

    known_ids = frozenset((known or {}).values())
    branches: dict[str, str] = {}
    branch_of: dict[str, str] = {}
    without_parents: set[str] = set()
    for branch in api.branches():
        if known is not None and known.get(branch.id) == branch.commit_id:
            branches[branch.id] = branch.commit_id
        elif branch.id in heads:
            line = _line_of(branch.commit_id, heads[branch.id], known_ids if known is not None else None, fetch)
            if line:
                branches[branch.id] = line[0].id
            if known is not None:
                for commit in (each for each in line if each.id not in known_ids):
                    if commit.parents and commit.parents[0] not in known_ids and not fetched.get(commit.parents[0]):
                        without_parents.add(commit.id)
                    else:
                        branch_of.setdefault(commit.id, branch.id)
    if len(fetched) >= MOST_COMMITS:
        log(f"more than {counted(MOST_COMMITS, 'new commits')}: it is unknown which older ones brought objects")
    new = [
        commit for commit in fetched.values() if commit is not None and commit.id in branch_of.keys() | without_parents
    ]
    new.sort(key=lambda commit: (commit.generation, commit.creation_date, commit.id))
    return NewCommits(branches, tuple(new), branch_of)


def _line_of(
    head: str, metarange_id: str, known_ids: Collection[str] | None, fetch: Callable[[str], Commit | None]
) -> list[Commit]:
    """The commits from the head that a run saw down to a known one, newest first; empty if it cannot be found.

    Args:
        known_ids: None for the head alone.
    """
    line: list[Commit] = []
    commit = fetch(head)
    while commit is not None:
        # Commits above this one were made after the run.
        if line or commit.metarange_id == metarange_id:
            line.append(commit)
        if (line if known_ids is None else commit.id in known_ids) or not commit.parents:
            break
        commit = fetch(commit.parents[0])
    return line

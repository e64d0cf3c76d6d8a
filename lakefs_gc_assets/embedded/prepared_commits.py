"""The list of commits that retention keeps, as the reference server computes it, its known hole included.

The hole: the walk from a starting point stops at a commit that another walk passed with the same or a longer
retention, before it asks whether this walk would keep that commit. A commit that was head of a young branch can so be
lost. A collector must not trust this list alone; a server that hid the hole could not show that.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from lakefs_gc_assets.embedded import branches, commits, presigned, retention_rules
from lakefs_gc_assets.embedded.commits import Commit
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import ApiFailure
from lakefs_gc_assets.embedded.repositories import Repository, store_of
from lakefs_gc_assets.embedded.retention_rules import Rules

_FOLDER = "_lakefs/retention/gc"
HEADER = ("commit_id", "expired", "metarange_id")


def starting_points(heads: Mapping[str, str], all_commits: Iterable[Commit]) -> list[tuple[str, str | None]]:
    """Commit and branch of each head, commit and None of each leaf that is no head; by commit, then branch."""
    known = list(all_commits)
    parents = {commit.main_parent for commit in known}
    leaves = {commit.id for commit in known} - parents - set(heads.values())
    points: list[tuple[str, str | None]] = [(commit_id, branch) for branch, commit_id in heads.items()]
    points += [(leaf, None) for leaf in leaves]
    return sorted(points, key=lambda point: (point[0], point[1] or ""))


def active_commits(heads: Mapping[str, str], all_commits: Iterable[Commit], rules: Rules, now: datetime) -> set[str]:
    """Ids of the commits that the reference server keeps.

    Args:
        heads: commit by branch, hidden branches included.
    """
    known = {commit.id: commit for commit in all_commits}
    active: set[str] = set()
    passed: dict[str, datetime] = {}
    for commit_id, branch in starting_points(heads, known.values()):
        days = rules.default_days if branch is None else rules.branches.get(branch, rules.default_days)
        threshold = now - timedelta(days=days)
        date = known[commit_id].creation_date
        following: str | None = commit_id
        if branch is not None:
            active.add(commit_id)
            following = known[commit_id].main_parent
        while following is not None and following in known:
            if following in passed and passed[following] <= threshold:
                break
            if date > threshold.timestamp():
                active.add(following)
            passed[following] = threshold
            date, following = known[following].creation_date, known[following].main_parent
    return active


def prepare(core: Core, repository: Repository) -> dict[str, Any]:
    """Writes the list; returns where. Raises ApiFailure 404 where there are no rules."""
    try:
        rules = retention_rules.get(core, repository)
    except ApiFailure as failure:
        raise ApiFailure(failure.status, f"get gc rules: {failure.message}") from None
    with core.database.transaction():
        heads = {branch.id: branch.commit_id for branch in branches.every(core, repository, hidden=True)}
        all_commits = commits.every(core, repository)
    active = active_commits(heads, all_commits, rules, core.clock.now())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows((commit.id, "false", commit.metarange_id) for commit in all_commits if commit.id in active)
    run_id = core.writer.new_run_id()
    key = f"{_FOLDER}/commits/run_id={run_id}/commits.csv"
    store_of(core, repository).put(key, text.getvalue().encode())
    return {
        "run_id": run_id,
        "gc_commits_location": repository.namespace + key,
        "gc_addresses_location": f"{repository.namespace}{_FOLDER}/addresses/",
        "gc_commits_presigned_url": presigned.url(core, repository, key, "GET"),
    }

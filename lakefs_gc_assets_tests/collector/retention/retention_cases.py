"""Checks our active set against a file of cases, in the format of `_read`.

The file is JSON: `cases`, `derived_cases` and `divergence_cases` hold graphs with rules and the commits that must be
active, `starting_point_cases` heads and loose ends with the walks that must begin there. Other keys are ignored. Prints
a line for each case that fails, then `N passed, N failed`; exit status 1 where one failed.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from lakefs_gc_assets.collector.retention.active_commits import Active, Graph, active_commits
from lakefs_gc_assets.collector.retention.rules import Policy, effective
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns

Case = dict[str, Any]
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
GRAPHS = ("cases", "derived_cases", "divergence_cases")
STARTS = ("starting_point_cases",)


def exactly(commits: list[Commit]) -> CommitColumns:
    """Columns of commits whose dates are whole seconds."""
    columns = CommitColumns.from_commits(commits)
    columns.nanos[:] = 0
    return columns


def active(commits: list[Commit], heads: dict[str, str], rules: RetentionRules, now: datetime) -> Active:
    """Commits that the definition keeps, apart from tags."""
    found = effective(rules, Policy(), heads)
    assert found is not None
    return active_commits(Graph.from_commits(exactly(commits), heads), found, now)


def active_ids(found: Active) -> set[str]:
    """The ids of active commits."""
    ids = found.graph.commits.ids.to_pylist()
    return {id_ for id_, flag in zip(ids, found.flags.tolist(), strict=True) if flag}


def commits_of(case: Case) -> list[Commit]:
    """The commits of a case; ages count back from NOW."""
    return [
        Commit(
            id=commit["id"],
            metarange_id=commit.get("metarange_id") or "",
            parents=tuple(commit.get("parents") or ()),
            creation_date=int((NOW - timedelta(days=commit["age_days"])).timestamp()),
            version=commit.get("version", 1),
        )
        for commit in case["commits"]
    ]


def graph_problem(case: Case) -> str | None:
    """Difference between our active set and the case's expectation, or None."""
    rules = case["rules"]
    branches = {
        rule.get("branch", rule.get("branch_id")): rule["retention_days"] for rule in rules.get("branches") or ()
    }
    heads = {branch["branch"]: branch["head"] for branch in case["branches"]}
    commits = commits_of(case)
    found = active_ids(active(commits, heads, RetentionRules(rules["default_retention_days"], branches), NOW))
    expired = {commit.id for commit in commits} - found
    problems = [
        f"{name}: {sorted(wrong)}"
        for name, wrong in (
            ("active, should be expired", found - set(case["expected_active"])),
            ("expired, should be active", set(case["expected_active"]) - found),
            ("not expired as expected", set(case.get("expected_expired", expired)) ^ expired),
        )
        if wrong
    ]
    return "; ".join(problems) or None


def starting_points(graph: Graph) -> list[tuple[str, bool]]:
    """Sorted ids of the commits at which walks begin, each with True if it is a branch head."""
    ids = graph.commits.ids
    return sorted((ids[at].as_py(), at in graph.branches_at) for at in {*graph.branches_at, *graph.leaves.tolist()})


def start_problem(case: Case) -> str | None:
    """Difference between our starting points and the case's expectation, or None."""
    heads = {f"branch of {commit}": commit for commit in case["branch_heads"]}
    names = sorted({*case["branch_heads"], *case["leaf_commits"]})
    graph = Graph.from_commits(exactly([Commit(name, "", (), 0) for name in names]), heads)
    found = [{"commit": commit, "is_branch_head": is_head} for commit, is_head in starting_points(graph)]
    return None if found == case["expected"] else f"found {found}, expected {case['expected']}"


def problems(content: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Each case's name and its problem, or None."""
    readers: tuple[tuple[tuple[str, ...], Callable[[Case], str | None]], ...] = (
        (GRAPHS, graph_problem),
        (STARTS, start_problem),
    )
    for keys, problem_of in readers:
        for key in keys:
            for case in content.get(key) or ():
                try:
                    yield f"{key}: {case.get('name')}", problem_of(case)
                except (CollectionError, KeyError, TypeError, AttributeError) as error:
                    yield f"{key}: {case.get('name')}", f"{type(error).__name__}: {error}"

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakefs_gc_assets.extensions.playground.embedded.collection import Rules, active_commits, starting_points
from lakefs_gc_assets.extensions.playground.embedded.commits import ServedCommit
from lakefs_gc_assets_tests.runs.recordings import FIXTURES

_FILE = FIXTURES.parent / "retention-cases.json"
_CASES: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else {}
_NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)

pytestmark = pytest.mark.skipif(not _CASES, reason="the cases of retention are not beside this checkout (../shared)")


def _commits(case: dict[str, Any]) -> list[ServedCommit]:
    return [
        ServedCommit(
            id=commit["id"],
            committer="",
            message="",
            metarange_id=commit["metarange_id"],
            creation_date=int((_NOW - timedelta(days=commit["age_days"])).timestamp()),
            metadata={},
            parents=tuple(commit["parents"]),
            version=commit.get("version", 1),
            generation=0,
        )
        for commit in case["commits"]
    ]


def _active(case: dict[str, Any]) -> set[str]:
    heads = {branch["branch"]: branch["head"] for branch in case["branches"]}
    rules = case["rules"]
    days = {rule["branch"]: rule["retention_days"] for rule in rules["branches"]}
    return active_commits(heads, _commits(case), Rules(rules["default_retention_days"], days), _NOW)


@pytest.mark.parametrize("case", _CASES.get("derived_cases", []), ids=lambda case: case["name"])
def test_derived_cases(case: dict[str, Any]) -> None:
    assert _active(case) == set(case["expected_active"])


@pytest.mark.parametrize("case", _CASES.get("divergence_cases", []), ids=lambda case: case["name"])
def test_the_hole_of_the_reference_server_is_there(case: dict[str, Any]) -> None:
    assert _active(case) == set(case["upstream_gives"])
    assert set(case["upstream_gives"]) <= set(case["expected_active"])


@pytest.mark.parametrize("case", _CASES.get("starting_point_cases", []), ids=lambda case: case["name"])
def test_starting_points(case: dict[str, Any]) -> None:
    heads = {f"branch of {commit}": commit for commit in case["branch_heads"]}
    names = {*case["branch_heads"], *case["leaf_commits"]}
    commits = [ServedCommit(name, "", "", "", 0, {}, (), 1, 0) for name in names]
    found = [
        {"commit": commit, "is_branch_head": branch is not None} for commit, branch in starting_points(heads, commits)
    ]
    assert found == case["expected"]

"""`lakefs-gc lifecycle`, `approve` and `revert` with a policy, on an embedded server over HTTP."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets_tests.extensions.lifecycle.aged_repository import AgedRepository, aged_repository


@pytest.fixture
def made(tmp_path: Path) -> Iterator[AgedRepository]:
    """`raw/old` and `tables/old` expire on main and `dev`, by a rule each; one more entry stays."""
    with aged_repository(tmp_path) as repository:
        repository.add(100, "raw/old", "tables/old", "raw/keep/old")
        repository.call("POST", "/branches", {"name": "dev", "source": "main"})
        branches = ["main", "dev"]
        repository.policy(
            {"paths": "raw/", "except": "raw/keep/", "older_than": "90d", "branches": branches},
            {"paths": "tables/", "older_than": "90d", "branches": branches},
        )
        yield repository


def called(made: AgedRepository, *arguments: str) -> Result:
    command = ["lifecycle", "--config", str(made.folder / "lakefs-gc.yaml"), *arguments]
    return CliRunner().invoke(main, command, catch_exceptions=False)


def paths(made: AgedRepository, branch: str) -> list[str]:
    return [each.path for each in made.opened().api.list_objects(branch, "").objects]


def test_from_the_list_to_the_deletion_and_back(made: AgedRepository) -> None:
    digest = re.findall(r"lifecycle approve (\w+)`", called(made).stdout)[0]
    assert "not confirmed: nothing was changed" in called(made, "approve", digest).stderr
    result = called(made, "approve", digest, "--yes")
    assert result.exit_code == Status.WELL
    *lines, last = result.stdout.splitlines()
    assert [re.sub("[0-9a-f]{64}", "…", line) for line in lines] == [
        f"branch {branch}, rule rule-{rule}: deleted: 1 entry, {size} B by commit …"
        for branch in ("dev", "main")
        for rule, size in ((1, 11), (2, 14))
    ]
    assert last == "4 deleted"
    assert paths(made, "main") == paths(made, "dev") == ["raw/keep/old"]
    assert "nothing expires" in called(made).stdout
    run_id = re.findall(r"lifecycle revert (\w+)`", result.stderr)[0]
    *rows, counts = map(json.loads, called(made, "approve", digest, "--yes", "--json").stdout.splitlines())
    assert {row["fate"] for row in rows} == {"deleted before"} and counts["counts"]["deleted before"] == 4
    assert "not confirmed: nothing was changed" in called(made, "revert", run_id).stderr
    result = called(made, "revert", run_id, "--yes")
    assert result.exit_code == Status.WELL and result.stdout.splitlines()[-1] == "4 brought back"
    assert paths(made, "main") == paths(made, "dev") == ["raw/keep/old", "raw/old", "tables/old"]
    assert called(made, "revert", "x" * 20, "--yes").exit_code == Status.CONFIGURATION


def test_what_stays_ends_with_status_6(made: AgedRepository) -> None:
    digest = made.listed().digest
    made.put("staged", "staged", "dev")
    result = called(made, "approve", digest, "--yes")
    assert result.exit_code == Status.INCOMPLETE
    assert "branch dev, rule rule-1: kept: the branch has uncommitted changes, such as staged" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 deleted, 2 kept"
    assert paths(made, "main") == ["raw/keep/old"] and len(paths(made, "dev")) == 4

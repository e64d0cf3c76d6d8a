"""Deleting expired entries by a standing approval."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.own_commits import MARK
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.extensions.lifecycle.acts import Act, ActState, LifecycleFate, acts_of
from lakefs_gc_assets_tests.collector.test_standing_approvals import granted
from lakefs_gc_assets_tests.extensions.lifecycle.acting_repository import OLD, ActingRepository, acting_repository
from lakefs_gc_assets_tests.extensions.lifecycle.aged_repository import aged_repository

APPROVED_BY = f"{MARK}-approved-by"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ActingRepository]:
    with acting_repository(tmp_path) as made:
        made.list("main", "dev")
        yield made


def withdrawn_at(call: int) -> Callable[[], str]:
    """An approver that counts until this call, numbered from 1."""
    calls = list[int]()

    def approver() -> str:
        calls.append(len(calls) + 1)
        if calls[-1] >= call:
            raise GuardTripped("standing approval", "it was withdrawn", "Approve the list")
        return "Ada"

    return approver


def acts(made: ActingRepository, run_id: str) -> list[Act]:
    return [act for act in acts_of(made.open(), run_id) if isinstance(act, Act)]


def is_whole(made: ActingRepository, branch: str) -> bool:
    return sum(path.startswith(OLD) for path in made.entries(f"{branch}@")) == 3


def run_of(made: ActingRepository) -> str:
    """The run of the only approval."""
    (commit,) = (each for each in made.log() if MARK in each["metadata"])
    return str(commit["metadata"][MARK])


def test_the_approver_is_in_records_and_commits_but_not_in_reverts(made: ActingRepository) -> None:
    outcomes = made.approve(approver=withdrawn_at(5))
    assert {each.fate for each in outcomes.values()} == {LifecycleFate.DELETED}
    run_id = outcomes["main"].run_id
    assert {each.approved_by for each in acts(made, run_id)} == {"Ada"}
    assert made.log()[0]["metadata"][APPROVED_BY] == "Ada"
    made.revert(run_id)
    assert APPROVED_BY not in made.log()[0]["metadata"]


@pytest.mark.parametrize(
    ("call", "states"),
    [(3, [ActState.DELETED]), (4, [ActState.DELETED, ActState.KEPT])],
    ids=["between two groups", "right before a merge"],
)
def test_one_that_is_withdrawn_meanwhile_deletes_nothing_more(
    made: ActingRepository, call: int, states: list[ActState]
) -> None:
    with pytest.raises(GuardTripped, match="it was withdrawn"):
        made.approve(approver=withdrawn_at(call))
    assert (is_whole(made, "main"), is_whole(made, "dev"), made.own_branches()) == (False, True, [])
    assert [each.state for each in acts(made, run_of(made))] == states
    assert made.approve()["dev"].fate is LifecycleFate.DELETED


def test_one_that_is_withdrawn_right_before_a_review_opens_none(made: ActingRepository) -> None:
    made.call("PUT", "/settings/branch_protection", [{"pattern": "main"}])
    with pytest.raises(GuardTripped, match="it was withdrawn"):
        made.approve(approver=withdrawn_at(2))
    assert made.open().branches_api.open_pull_requests() == () and not made.own_branches()


def test_by_the_command(tmp_path: Path) -> None:
    with aged_repository(tmp_path) as made:
        made.add(100, "raw/old", "tables/old")
        made.add(1, "raw/new", "tables/new")
        made.policy({"paths": ["raw/", "tables/"], "older_than": "90d"})

        def call(*words: str) -> Result:
            command = ["lifecycle", "approve", "--config", str(made.folder / "lakefs-gc.yaml"), *words]
            return CliRunner().invoke(main, command, catch_exceptions=False)

        def paths() -> list[str]:
            return [each.path for each in made.opened().api.list_objects("main", "").objects]

        def grant(paths: tuple[str, ...], **limits: float) -> str:
            limit = Limits(paths=paths, **{"objects": 2, **limits})  # type: ignore[arg-type]
            return str(granted(made.opened(), kind=ApprovedWork.LIFECYCLE, limits=limit))

        assert call("--standing", "digest").exit_code == call().exit_code == Status.USAGE
        refused = call("--standing")
        assert (refused.exit_code, refused.stdout) == (Status.REFUSED, "")
        assert "no standing approval for lifecycle covers this deletion: there is none" in refused.stderr
        for limits, why in (
            ({"objects": 1}, "2 objects would be deleted, more than the limit of 1 object"),
            ({"share": 0.4}, "50.00% would be deleted, more than the limit of 40.00%"),
        ):
            grant((), **limits)
            assert why in call("--standing").stderr
        grant(("raw/",))
        assert "1 object would be deleted outside of raw/" in call("--standing").stderr
        approval = grant(("raw/", "tables/"), share=0.5, branches=1)
        with made.two_approvers():
            assert "a second person has to grant the same limits" in call("--standing").stderr
        assert len(paths()) == 4
        result = call("--standing", "--json")
        assert result.exit_code == Status.WELL, result.stderr
        assert re.search(f"{re.escape(approval)} covers the entries of list [0-9a-f]{{16}}", result.stderr)
        assert json.loads(result.stdout.splitlines()[0])["objects"] == 2
        assert paths() == ["raw/new", "tables/new"]
        assert made.call("GET", "/commits/main")["metadata"][APPROVED_BY] == approval
        again = call("--standing")
        assert (again.exit_code, again.stdout) == (Status.WELL, "0 deleted\n")

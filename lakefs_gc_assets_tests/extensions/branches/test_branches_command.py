"""`lakefs-gc branches`: lines, prompts and exit statuses. The rules of staleness are tested in their own module."""

import json
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import click
import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import Target
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.across_runs import BranchState, DeletedBranch
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.branches.stale_branches import (
    BranchFate,
    BranchIdentity,
    BranchListing,
    BranchOutcome,
    BranchStatus,
)
from lakefs_gc_assets_tests.extensions.check.test_fsck_command import NOW

RULE = "rule of line 2"
STALE = BranchStatus(BranchIdentity("old", "c1", ""), RULE, "", NOW, NOW, NOW, hidden=False, undo="until 2027-01-01")
KEPT = replace(STALE, identity=BranchIdentity("new\n", "c2", ""), kept="it is protected")
UNFIT = replace(KEPT, identity=BranchIdentity("main", "c3", ""), rule="", kept="no rule matches it")
LISTING = BranchListing("repo", NOW, (UNFIT, KEPT, STALE))
Branches = Callable[..., Result]


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> Branches:
    """Calls the command with a scripted answer of the collector."""
    monkeypatch.setattr(Target, "open", mock.Mock())

    def call(answer: object, *arguments: str) -> Result:
        asked = {"approve": "delete", "restore": "restore"}.get(arguments[0] if arguments else "", "list_branches")
        with mock.patch.object(stale_branches, asked, side_effect=[answer]):
            return CliRunner().invoke(main, ["branches", *arguments])

    return call


def test_what_is_stale_and_what_a_rule_fits_and_stays(branches: Branches) -> None:
    result = branches(LISTING)
    assert result.exit_code == Status.WELL
    assert result.stdout.splitlines() == [
        "old: first own commit 2026-11-26, last commit 2026-11-26, stale by the rule of line 2",
        "    can be recreated with its data until 2027-01-01",
        "kept: new\\n: it is protected",
        "repo: 1 of 3 branches are stale",
        "run `lakefs-gc forecast` to see here how many bytes only each branch references",
        f"`lakefs-gc branches approve {LISTING.digest}` deletes them",
    ]
    assert branches(LISTING, "list", "--quiet").stdout == result.stdout


def test_a_branch_that_the_server_failed_at_is_named_and_the_status_is_6(branches: Branches) -> None:
    unknown = replace(KEPT, identity=BranchIdentity("odd", "c4", ""), kept="not known: 500", is_unknown=True)
    result = branches(replace(LISTING, standings=(*(KEPT,) * 25, unknown, STALE)))
    assert result.exit_code == Status.INCOMPLETE
    assert "kept: odd: not known: 500" in result.stdout.splitlines()
    assert "undecided, since the server failed: 1 branch" in result.stdout.splitlines()


def test_what_a_stale_branch_holds(branches: Branches) -> None:
    holding = replace(STALE, alone=Amount(1, 2048), freed=Amount(1, 1024), changes=3)
    lines = branches(replace(LISTING, standings=(holding,), forecast_made_at=NOW)).stdout.splitlines()
    assert lines[1:3] == [
        "    3 uncommitted changes are lost with it",
        "    it alone references 1 object, 2.0 KiB; deleting it makes 1.0 KiB garbage at once (forecast of 2026-11-26)",
    ]
    assert not any("`lakefs-gc forecast`" in line for line in lines)


def test_none_is_stale_and_many_stay(branches: Branches) -> None:
    lines = branches(replace(LISTING, standings=(KEPT,) * 25)).stdout.splitlines()
    assert lines[-2:] == ["5 more branches are in the output of --json", "repo: 0 of 25 branches are stale"]
    lines = branches(replace(LISTING, refused_by="guard x")).stdout.splitlines()
    assert lines[-1] == "this deletion would be refused: guard x"


def test_in_json(branches: Branches) -> None:
    answer = json.loads(branches(LISTING, "list", "--json").stdout)
    assert answer["digest"] == LISTING.digest
    assert [each["kept"] for each in answer["standings"]] == ["no rule matches it", "it is protected", ""]


def test_approving(branches: Branches) -> None:
    well = [
        BranchOutcome("old", "c1", BranchFate.DELETED),
        BranchOutcome("older", "c2", BranchFate.GONE, "another client deleted it"),
    ]
    result = branches(well, "approve", "digest", "--yes")
    assert result.exit_code == Status.WELL
    assert result.stdout.splitlines() == [
        "older: gone before: another client deleted it",
        "1 deleted, 1 gone before",
    ]
    partly = branches(
        [*well, BranchOutcome("new", "c3", BranchFate.KEPT, "changed")], "approve", "digest", "--yes", "--json"
    )
    assert partly.exit_code == Status.INCOMPLETE
    *rows, last = map(json.loads, partly.stdout.splitlines())
    assert [(row["branch"], row["why"]) for row in rows[1:]] == [
        ("older", "another client deleted it"),
        ("new", "changed"),
    ]
    assert last == {"counts": {"deleted": 1, "gone before": 1, "kept": 1}}
    assert branches(GuardTripped("g", "f", "l"), "approve", "digest", "--yes").exit_code == Status.REFUSED


@pytest.mark.parametrize("arguments", [("approve", "digest"), ("restore",)])
def test_nothing_is_done_unasked(branches: Branches, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str]) -> None:
    record = DeletedBranch("repo", "old", "c1", False, "digest", BranchState.DELETED, NOW)
    monkeypatch.setattr(stale_branches, "list_deleted", lambda *arguments: (record,))
    never = AssertionError("asked before it was confirmed")
    assert "not confirmed: nothing was changed" in branches(never, *arguments).stderr
    monkeypatch.setattr(click, "confirm", lambda *arguments, **options: False)
    assert "not confirmed: nothing was changed" in branches(never, *arguments).stderr
    monkeypatch.setattr(click, "confirm", lambda *arguments, **options: True)
    assert branches([BranchOutcome("old", "c1", BranchFate.RESTORED)], *arguments).exit_code == Status.WELL


def test_nothing_to_restore_needs_no_question(branches: Branches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_branches, "list_deleted", lambda *arguments: ())
    assert branches([], "restore").exit_code == Status.WELL

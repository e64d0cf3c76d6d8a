"""Deleting stale branches by a standing approval."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.across_runs import BranchState, read_deleted_branches
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits, StandingApproval, standing_approver
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.collector.test_standing_approvals import granted
from lakefs_gc_assets_tests.extensions.branches.test_stale_branches import branch, heads, listed, made, opened
from lakefs_gc_assets_tests.runs.retained_repository import RetainedRepository

__all__ = ["made"]


def grant(made: RetainedRepository, **changes: Any) -> StandingApproval:
    given = {"kind": ApprovedWork.BRANCHES, "limits": Limits(branches=1), **changes}
    return granted(opened(made), **given)


def delete(made: RetainedRepository) -> list[stale_branches.BranchOutcome]:
    """Lists stale branches, and deletes them by the standing approval."""
    repository, listing = opened(made), listed(made)
    planned = stale_branches.planned_deletion(listing)
    approver = standing_approver(repository, ApprovedWork.BRANCHES, lambda paths: planned, 1)
    return [*stale_branches.delete(repository, listing.digest, "test", lambda line: None, pytest.fail, approver)]


def test_a_standing_approval_covers_a_listing_or_nothing_goes(made: RetainedRepository) -> None:
    before = heads(made)
    with pytest.raises(GuardTripped, match="no standing approval for branches covers this deletion: there is none"):
        delete(made)
    branch(made, "old-2", 90)
    grant(made)
    with pytest.raises(GuardTripped, match="2 branches would be deleted, more than the limit of 1 branch"):
        delete(made)
    grant(made, limits=Limits(branches=2, share=0.5))
    with pytest.raises(GuardTripped, match=r"66\.67% would be deleted, more than the limit of 50\.00%"):
        delete(made)
    assert {*heads(made)} == {*before, "old-2"}
    approval = grant(made, limits=Limits(branches=2, share=0.7))
    assert {each.fate for each in delete(made)} == {stale_branches.BranchFate.DELETED}
    assert {*heads(made)} == {"main"}
    records = read_deleted_branches(opened(made).store, "repo", pytest.fail)
    assert {each.approved_by for each in records} == {str(approval)}


def test_one_that_is_withdrawn_right_before_a_deletion_is_not_used(made: RetainedRepository) -> None:
    changed = stale_branches._changed
    grant(made)

    def withdraw(repository: OpenRepository, identity: stale_branches.BranchIdentity) -> str:
        grant(made, withdrawn_at=NOW)
        return changed(repository, identity)

    with mock.patch.object(stale_branches, "_changed", withdraw), pytest.raises(GuardTripped, match="was withdrawn"):
        delete(made)
    assert "old-1" in heads(made)
    (record,) = read_deleted_branches(opened(made).store, "repo", pytest.fail)
    assert record.state is BranchState.KEPT


def test_by_the_command(made: RetainedRepository) -> None:
    file = str(Path(made.folder, "lakefs-gc.yaml"))

    def call(*words: str) -> Result:
        return CliRunner().invoke(main, ["branches", "approve", "--config", file, *words])

    assert call("--standing", "digest").exit_code == call().exit_code == Status.USAGE
    refused = call("--standing")
    assert (refused.exit_code, refused.stdout) == (Status.REFUSED, "")
    assert "there is none. It waits for a person: review it and approve it" in refused.stderr
    approval = grant(made)
    with made.two_approvers():
        assert "a second person has to grant the same limits" in call("--standing").stderr
    result = call("--standing", "--json")
    assert result.exit_code == Status.WELL and f"{approval} covers 1 stale branch" in result.stderr
    assert json.loads(result.stdout.splitlines()[0])["branch"] == "old-1"
    again = call("--standing")
    assert (again.exit_code, again.stdout) == (Status.WELL, "0 deleted\n")

"""Seeded bugs in deleting and bringing back, with the tests that notice them."""

from typing import Any

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.extensions.lifecycle import acting, merging
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets_tests.extensions.lifecycle.test_acting import (
    test_a_commit_before_the_merge_is_noticed_and_the_merge_reverted,
    test_a_share_that_became_too_large_since_the_list_is_refused,
    test_after_a_merge_that_cannot_be_reverted_the_next_rule_is_decided_anew,
    test_too_large_a_share_is_refused,
    test_what_users_stage_is_neither_committed_nor_dropped,
)
from lakefs_gc_assets_tests.extensions.lifecycle.test_reverting import (
    test_a_commit_that_left_the_history_is_not_reverted,
    test_paths_written_again_stay_and_the_others_come_back,
)
from lakefs_gc_assets_tests.simulation.bug import TestedBug, replaced, without_call

_squash_merge = LakeFSClient.squash_merge


def _accept(*arguments: Any) -> None:
    """In place of a guard."""


def _delete_on_branch(
    self: LakeFSClient, source: str, branch: str, message: str, metadata: dict[str, str], strategy: str = ""
) -> str:
    """Deletes on the branch itself, and commits there with everything that is staged."""
    paths = [change.path for change in self.merge_changes(source, branch)]
    self.delete_paths(branch, paths)
    self.commit_changes(branch, message, metadata)
    head = self.branch(branch)
    assert head is not None
    return head.commit_id


def _overwrite(
    self: LakeFSClient, source: str, branch: str, message: str, metadata: dict[str, str], strategy: str = ""
) -> str:
    """Lets the source win, where the target is to win."""
    return _squash_merge(self, source, branch, message, metadata, "source-wins" if strategy else "")


LIFECYCLE_BUGS = {
    "lifecycle: a merge on another head than that of the decision believed": TestedBug(
        replaced((merging, "is_based_on", lambda commit, head: True)),
        test_a_commit_before_the_merge_is_noticed_and_the_merge_reverted,
    ),
    "lifecycle: a decision used again after a merge on another head": TestedBug(
        replaced((acting, "is_based_on", lambda commit, head: True)),
        test_after_a_merge_that_cannot_be_reverted_the_next_rule_is_decided_anew,
    ),
    "lifecycle: deletes on the branch, and commits what users staged there": TestedBug(
        replaced((LakeFSClient, "squash_merge", _delete_on_branch)),
        test_what_users_stage_is_neither_committed_nor_dropped,
    ),
    "lifecycle: too large a share of a branch deleted": TestedBug(
        without_call(guards, "require_few_expired", acting._look_at_shares), test_too_large_a_share_is_refused
    ),
    "lifecycle: a share of a branch deleted that became too large since the list": TestedBug(
        without_call(guards, "require_few_expired", acting._Deletion._decide),
        test_a_share_that_became_too_large_since_the_list_is_refused,
    ),
    "lifecycle: a commit outside of the history reverted": TestedBug(
        replaced((merging, "_require_in_history", _accept)), test_a_commit_that_left_the_history_is_not_reverted
    ),
    "lifecycle: a revert overwrites paths that were written again": TestedBug(
        replaced((LakeFSClient, "squash_merge", _overwrite)), test_paths_written_again_stay_and_the_others_come_back
    ),
}

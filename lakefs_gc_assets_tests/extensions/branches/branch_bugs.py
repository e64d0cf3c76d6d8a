"""Seeded bugs in the rules of stale branches, with the tests that notice them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.branches.stale_branches import BranchStatus, Staged
from lakefs_gc_assets_tests.extensions.branches.test_stale_branches import (
    test_a_commit_of_object_lifecycle_is_no_use_if_its_receipt_is_intact,
    test_a_recent_staged_write_keeps_its_branch,
    test_an_unknown_age_is_not_old,
    test_an_unknown_last_use_is_not_old,
)
from lakefs_gc_assets_tests.simulation.bug import TestedBug, replaced

_with_last_use, _is_young, _read_staged = (
    stale_branches._with_last_use,
    stale_branches._is_young,
    stale_branches.read_staged,
)


def _last_use_believed_old(*arguments: Any) -> BranchStatus:
    standing = _with_last_use(*arguments)
    return replace(standing, kept="") if "is unknown" in standing.kept else standing


def _age_believed_old(*arguments: Any) -> str:
    why = _is_young(*arguments)
    return "" if "is unknown" in why else why


def _staged_long_ago(*arguments: Any) -> Staged | None:
    staged = _read_staged(*arguments)
    return staged and replace(staged, last_write=datetime(2000, 1, 1, tzinfo=UTC))


def _receipts_unread(store: Any, repository_id: str, note: Any, commit_ids: Any) -> frozenset[str]:
    return frozenset(commit_ids)


BRANCH_BUGS = {
    "stale branches: damaged receipts of object lifecycle believed": TestedBug(
        replaced((stale_branches, "read_own_commits", _receipts_unread)),
        test_a_commit_of_object_lifecycle_is_no_use_if_its_receipt_is_intact,
    ),
    "stale branches: an unknown last use taken for an old one": TestedBug(
        replaced((stale_branches, "_with_last_use", _last_use_believed_old)), test_an_unknown_last_use_is_not_old
    ),
    "stale branches: an unknown age taken for an old one": TestedBug(
        replaced((stale_branches, "_is_young", _age_believed_old)), test_an_unknown_age_is_not_old
    ),
    "stale branches: a recent staged write ignored": TestedBug(
        replaced((stale_branches, "read_staged", _staged_long_ago)), test_a_recent_staged_write_keeps_its_branch
    ),
}

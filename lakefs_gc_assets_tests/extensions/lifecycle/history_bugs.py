"""Seeded bugs of object lifecycle, which simulated histories find (`simulated_lifecycle`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.lifecycle import acting, merging, reverting
from lakefs_gc_assets.extensions.lifecycle.acts import REVERT, Act, ActState, LifecycleWork
from lakefs_gc_assets.extensions.lifecycle.history import PathHistory
from lakefs_gc_assets_tests.simulation.bug import Bug, ignored, replaced


def _by_own_time(self: PathHistory, commit_id: str, entries: pa.Table, period: timedelta) -> npt.NDArray[np.bool_]:
    """Takes the time at which an entry was written for the one at which it came to its path."""
    limit = (self.now - period).timestamp()
    return np.array([each.timestamp() < limit for each in entries.column("last_modified").to_pylist()], np.bool_)


def _on_the_branch(self: Any, act: Act, paths: pa.ChunkedArray) -> Act:
    """Deletes on the branch itself, and commits there."""
    api = self.work.api
    api.delete_paths(act.branch, paths.to_pylist())
    api.commit_changes(act.branch, "expired", act.metadata())
    current = api.branch(act.branch)
    return self.work.put(act, ActState.DELETED, commit_id=current.commit_id)  # type: ignore[no-any-return]


@contextmanager
def _own_branch_left(work: LifecycleWork, name: str, commit_id: str, *, hidden: bool = True) -> Iterator[None]:
    """Never removes the branch on which it works."""
    work.api.create_branch(name, commit_id, hidden)
    yield


def _bring_back_over(work: LifecycleWork, act: Act, commit_id: str) -> tuple[str, ...]:
    """Brings back each path, whatever others wrote there since."""
    name, metadata = act.own_branch + REVERT, act.metadata(REVERT)
    with merging.own_branch(work, name, commit_id):
        work.api.revert(name, commit_id)
        work.record_commit(act, work.api.squash_merge(name, act.branch, "back", metadata, "source-wins"))
    return ()


LIFECYCLE_HISTORY_BUGS: dict[str, Bug] = {
    "own time taken for the time at which an entry came": replaced((PathHistory, "are_older", _by_own_time)),
    "deletes on the branch itself": replaced((acting._Deletion, "_merge", _on_the_branch)),
    "branches of its own left": replaced(
        (acting, "own_branch", _own_branch_left), (merging, "settle", lambda work, act, *others: act)
    ),
    "revert overwrites paths written again": replaced(
        (merging, "bring_back", _bring_back_over), (reverting, "bring_back", _bring_back_over)
    ),
    "receipts of its commits forgotten": replaced((LifecycleWork, "record_commit", ignored)),
}
"""Seeded bugs by name."""
STALE_BRANCH_BUGS: dict[str, Bug] = {
    "last commit of a branch ignored": replaced((stale_branches, "_is_younger", lambda *arguments: "")),
    "uncommitted changes of a stale branch ignored": replaced(
        (stale_branches, "read_staged", lambda *arguments: stale_branches.Staged())
    ),
}
"""Seeded bugs of stale branches by name."""

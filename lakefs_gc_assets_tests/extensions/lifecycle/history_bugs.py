"""Seeded bugs of object lifecycle, which simulated histories find (`simulated_lifecycle`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.extensions.lifecycle import acting, merging
from lakefs_gc_assets.extensions.lifecycle.acts import Act, ActState, LifecycleWork
from lakefs_gc_assets_tests.simulation.bug import Bug, ignored, replaced


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


LIFECYCLE_HISTORY_BUGS: dict[str, Bug] = {
    "deletes on the branch itself": replaced((acting._Deletion, "_merge", _on_the_branch)),
    "branches of its own left": replaced(
        (acting, "own_branch", _own_branch_left), (merging, "settle", lambda work, act: act)
    ),
    "receipts of its commits forgotten": replaced((LifecycleWork, "record_commit", ignored)),
}
"""Seeded bugs by name."""

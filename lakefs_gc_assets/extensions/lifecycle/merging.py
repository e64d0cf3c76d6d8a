"""Common parts of deleting and reverting: own branches, merges, and leftovers of interrupted acts.

The server has no conditional merge. If another commit comes between the decision and the merge, the server merges by
contents: it ignores the rules, and drops new paths in rare cases. So the parent of each commit is compared
with the head that the decision was about. A commit with another parent is reverted at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lakefs_gc_assets.collector.retention.rules import may_fit
from lakefs_gc_assets.errors import (
    CollectionError,
    CorruptFile,
    LakeFSError,
    LockLost,
    NotSupported,
    ServerUnavailable,
    StorageError,
    UnknownPath,
)
from lakefs_gc_assets.extensions.lifecycle.acts import (
    BRANCH_PREFIX,
    REVERT,
    Act,
    ActState,
    LifecycleWork,
    act_of,
    list_unfinished,
)
from lakefs_gc_assets.lakefs.api.models import Commit

_UNKNOWN_EFFECT = (ServerUnavailable, StorageError, LockLost)
"""Errors after which it is unknown whether a change was made. The next attempt finds out."""


class GroupKept(CollectionError):
    """A group stays as it is; the message is the reason."""


def require_nothing_staged(work: LifecycleWork, branch: str) -> None:
    """Raises GroupKept if a branch has uncommitted changes, which a merge would meet."""
    if (change := work.api.first_change(branch)) is not None:
        raise GroupKept(f"the branch has uncommitted changes, such as {change.path}: commit or reset them")


def protecting(work: LifecycleWork, branch: str) -> str:
    """The first branch protection rule that matches, or may match, a branch; empty for none."""
    return next((pattern for pattern in work.api.protection_patterns() if may_fit(pattern, branch)), "")


@contextmanager
def own_branch(work: LifecycleWork, name: str, commit_id: str, *, hidden: bool = True) -> Iterator[None]:
    """A branch for the work of an act, which is made anew, and removed at the end if it is hidden.

    It stays if the server or the store failed, the lock was lost, or the process ends: then it is unknown whether its
    merge was made, and the next attempt finds out.
    """
    work.api.delete_branch(name)
    work.api.create_branch(name, commit_id, hidden)
    try:
        yield
    except CollectionError as error:
        if not isinstance(error, _UNKNOWN_EFFECT):
            work.api.delete_branch(name)
        raise
    if hidden:
        work.api.delete_branch(name)


def request_review(work: LifecycleWork, name: str, act: Act, title: str) -> str:
    """Opens a pull request from a branch of an act to its target; returns its id. Raises GroupKept."""
    description = f"lakefs-gc lifecycle, run {act.run_id}, rule {act.rule}"
    try:
        return work.api.open_pull_request(name, act.branch, title, description)
    except (NotSupported, UnknownPath) as error:
        raise GroupKept(f"the branch is protected, and the server has no pull requests: {error}") from None


def bring_back(work: LifecycleWork, act: Act, commit_id: str) -> tuple[str, ...]:
    """Reverts a commit of an act on its branch, except at paths that were written again.

    Returns the paths that came back.

    Raises:
        GroupKept: the branch has uncommitted changes, or the commit is not in its history any more.
        HookFailed: a hook refused.
        LakeFSError: the server failed.
    """
    name, title = act.own_branch + REVERT, f"Bring back {act.amount} that expired by rule {act.rule}"
    with own_branch(work, name, commit_id):
        paths = _revert_on(work, act, name, commit_id)
        if paths:
            require_nothing_staged(work, act.branch)
            work.lock.check()
            message, metadata = f"{title}\n\nlakefs-gc lifecycle run {act.run_id}", act.metadata(REVERT)
            work.record_commit(act, work.api.squash_merge(name, act.branch, message, metadata, "dest-wins"))
    return paths


def request_bringing_back(work: LifecycleWork, act: Act) -> Act:
    """Opens a pull request that brings back the entries of a protected branch; returns the act, which waits."""
    name = act.own_branch + REVERT
    with own_branch(work, name, act.commit_id, hidden=False):
        if not _revert_on(work, act, name, act.commit_id):
            raise GroupKept("all of its paths were written again")
        pull_id = request_review(work, name, act, f"Bring back entries that expired by rule {act.rule}")
        return work.put(act, ActState.REVERT_WAITING, pull_id=pull_id)


def _revert_on(work: LifecycleWork, act: Act, name: str, commit_id: str) -> tuple[str, ...]:
    """Reverts a commit on a branch that begins at it; returns the paths that a merge brings back. Raises GroupKept."""
    work.api.revert(name, commit_id)
    _require_in_history(work, act.branch, name, commit_id)
    changes = [change for change in work.api.merge_changes(name, act.branch) if change.type != "conflict"]
    if act.pull_id and (more := next((change.path for change in changes if change.type != "added"), "")):
        # The revert would take that change back, and could remove a path that reviewers added.
        raise GroupKept(f"reviewers changed {more} in commit {commit_id}, too: revert it in lakeFS")
    return tuple(change.path for change in changes)


def _require_in_history(work: LifecycleWork, branch: str, name: str, commit_id: str) -> None:
    """Raises GroupKept unless a merge is based on the reverted commit: it would bring back what others changed."""
    if work.api.merge_base(name, branch) != commit_id:
        raise GroupKept(f"commit {commit_id} is not in the history of the branch any more")


def is_based_on(commit: Commit, head: str) -> bool:
    """True if a commit on a branch came right after this head of it."""
    return commit.parents[:1] == (head,)


def conclude(work: LifecycleWork, act: Act, commit: Commit) -> Act:
    """Records the commit that deleted the entries of an act. One that another commit preceded is reverted first.

    Returns the act, which is deleted, or kept if its commit was reverted.
    """
    work.record_commit(act, commit.id)
    if not is_based_on(commit, act.head):
        work.note(f"branch {act.branch}: another commit came before {commit.id}, which is reverted")
        try:
            bring_back(work, act, commit.id)
            return work.put(act, ActState.KEPT)
        except _UNKNOWN_EFFECT:
            raise
        except CollectionError as error:
            work.warn(
                f"WARNING: commit {commit.id} on branch {act.branch} is based on another head than the decision, and "
                f"cannot be reverted now: {error}; `lakefs-gc lifecycle revert {act.run_id}` reverts it"
            )
    return work.put(act, ActState.DELETED, commit_id=commit.id)


def settle(work: LifecycleWork, act: Act, *others: str) -> Act:
    """Finds out what an interrupted or waiting act has done, records that, and removes its branches.

    Args:
        others: names of branches of earlier attempts, which are removed too.
    Raises:
        LakeFSError: the server failed.
    """
    back, deletes = act.own_branch + REVERT, act.state is ActState.DELETING
    if deletes or act.state is ActState.REVERTING:
        found = work.find_commit(act, REVERT, *([""] if deletes else []))
        if found is None:
            name, waiting = (act.own_branch, ActState.WAITING) if deletes else (back, ActState.REVERT_WAITING)
            before = ActState.KEPT if deletes else ActState.DELETED
            act = _find_review(work, act, name, waiting) or work.put(act, before)
        elif work.is_of(act, found, REVERT):
            work.record_commit(act, found.id)
            act = work.put(act, ActState.KEPT if deletes else ActState.REVERTED)
        else:
            act = conclude(work, act, found)
    elif act.state is ActState.WAITING:
        act = _settle_review(work, act, ActState.DELETED, ActState.KEPT)
    elif act.state is ActState.REVERT_WAITING:
        act = _settle_review(work, act, ActState.REVERTED, ActState.DELETED)
    needed = {ActState.WAITING: act.own_branch, ActState.REVERT_WAITING: back}.get(act.state)
    for name in {act.own_branch: None, back: None, **dict.fromkeys(others)}:
        if name != needed:
            work.api.delete_branch(name)
    return act


def _find_review(work: LifecycleWork, act: Act, name: str, state: ActState) -> Act | None:
    """The act in a waiting state, if a pull request from its branch is open; None if there is none."""
    pull_id = next((pull.id for pull in work.api.open_pull_requests() if pull.source == name), None)
    return None if pull_id is None else work.put(act, state, pull_id=pull_id)


def _settle_review(work: LifecycleWork, act: Act, merged: ActState, closed: ActState) -> Act:
    pull = work.api.pull_request(act.pull_id)
    if pull.status == "open":
        return act
    # The status alone proves nothing: a client may set it.
    if not pull.merged_commit_id:
        return work.put(act, closed)
    return work.put(act, merged, commit_id=pull.merged_commit_id if merged is ActState.DELETED else act.commit_id)


def settle_leftovers(work: LifecycleWork) -> tuple[Act, ...]:
    """Settles each run's unfinished acts, and finished ones with branches left; returns acts that wait for review.

    A branch of such a name without a record is not lifecycle's, and stays.
    """
    waiting = dict[str, Act]()
    for name in _leftovers(work):
        try:
            act = act_of(work.repository, name)
        except CorruptFile as corrupt:
            work.warn(f"WARNING: {name} is left, since its record is damaged: {corrupt}")
            continue
        if act is None:
            work.warn(f"WARNING: {name} is left, since no record of this repository names it")
            continue
        try:
            act = settle(work, act, *([name] if name.startswith(BRANCH_PREFIX) else []))
            work.index(act)
        except ServerUnavailable:
            raise
        except LakeFSError as error:
            work.warn(f"WARNING: {name} of run {act.run_id} is left: {error}")
        if act.state in (ActState.WAITING, ActState.REVERT_WAITING):
            waiting[act.act_id] = act
    return tuple(waiting.values())


def _leftovers(work: LifecycleWork) -> Iterator[str]:
    """Yields ids of unfinished acts, then names of branches that are left once these are settled."""
    yield from list_unfinished(work.repository)
    yield from (branch.id for branch in work.api.branches() if branch.id.startswith(BRANCH_PREFIX))

"""Deletes the entries of an approved listing, with one commit for each rule and branch.

A deletion on the branch itself could drop, or commit, what a user has staged there. So the entries are deleted on a
hidden branch that begins at the head which the decision is about, and a squash merge brings that to the branch. lakeFS
refuses the merge if the branch has uncommitted changes, or if another commit changed one of the paths. A protected
branch gets a pull request instead.

The order is: record and entries, hidden branch, deletions, commit, another look at the branch, merge, receipt.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.outcomes import one_by_one
from lakefs_gc_assets.collector.repository.lock import locked
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import PlannedDeletion
from lakefs_gc_assets.errors import (
    CollectionError,
    Conflict,
    CorruptFile,
    GuardTripped,
    HookFailed,
    LakeFSError,
    LogLine,
    ServerUnavailable,
)
from lakefs_gc_assets.extensions.lifecycle.acts import (
    WORK,
    Act,
    ActState,
    LifecycleFate,
    LifecycleOutcome,
    LifecycleWork,
    read_act,
    run_of,
)
from lakefs_gc_assets.extensions.lifecycle.expired import expired_now, read_entries, read_listing
from lakefs_gc_assets.extensions.lifecycle.listing import ENTRIES, Group, LifecycleListing
from lakefs_gc_assets.extensions.lifecycle.merging import (
    GroupKept,
    conclude,
    is_based_on,
    own_branch,
    protecting,
    request_review,
    require_nothing_staged,
    settle,
    settle_leftovers,
)
from lakefs_gc_assets.lakefs.api.models import OBJECTS_ON_PAGE
from lakefs_gc_assets.lakefs.formats.ranges import read_metarange_columns
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import fetch

_TRIES = 3
"""Decisions about a group before it stays, if other clients commit meanwhile."""


def approve(
    repository: OpenRepository,
    digest: str,
    owner: str,
    note: LogLine,
    warn: LogLine,
    approver: Callable[[], str] = str,
) -> Iterator[LifecycleOutcome]:
    """Deletes the entries of an approved listing, during iteration; yields the outcome of each group.

    May be repeated: groups deleted before stay so, and the others are tried again.

    Args:
        digest: digest of the listing.
        owner: owner of the repository's lock.
        note, warn: receive log lines.
        approver: returns the approver, for records and commits; called again right before each merge. Raises
            GuardTripped if the approval no longer counts.
    Raises:
        OrderViolation: the digest is not that of a stored listing.
        GuardTripped: too large a share of a branch would be deleted, or the approval no longer counts. The group at
            hand and later ones are untouched.
        ServerUnavailable: the server fails at two groups in a row.
        CollectionError: the server or the store fails, or a record is damaged.
    """
    with locked(repository, WORK, owner, warn) as lock:
        work = LifecycleWork(repository, lock, note, warn)
        listing = read_listing(repository, digest)
        _look_at_shares(repository, listing)
        run_id = run_of(repository, listing)
        note(f"run {run_id}: `lakefs-gc lifecycle revert {run_id}` brings back what it deletes")
        deletion = _Deletion(work, listing, run_id, settle_leftovers(work), approver)

        def failed(numbered: tuple[int, Group], error: CollectionError) -> LifecycleOutcome:
            return LifecycleOutcome(run_id, numbered[1].branch, numbered[1].rule, LifecycleFate.FAILED, str(error))

        yield from one_by_one(enumerate(listing.groups), deletion.delete_group, failed)


def _look_at_shares(repository: OpenRepository, listing: LifecycleListing) -> None:
    """Raises GuardTripped if too large a share of the entries of a branch would be deleted."""
    going = Counter[tuple[str, str]]()
    for group in listing.groups:
        going[group.branch, group.commit_id] += group.expired.objects
    for (branch, commit_id), count in going.items():
        guards.require_few_expired(count, count_entries(repository, commit_id), branch, repository.settings)


def count_planned(repository: OpenRepository, listing: LifecycleListing, paths: tuple[str, ...]) -> PlannedDeletion:
    """Figures of a listing for a standing approval. Raises CorruptFile if stored entries cannot be read.

    Args:
        paths: prefixes of the only paths that may be deleted; empty for no such limit.
    """
    heads = {(group.branch, group.commit_id) for group in listing.groups}
    outside = 0
    for group in listing.groups if paths else ():
        entries = read_entries(repository, listing, group).column("path").to_pylist()
        outside += sum(not path.startswith(paths) for path in entries)
    return PlannedDeletion(
        objects=listing.expired.objects,
        bytes=listing.expired.bytes,
        branches=len({branch for branch, _ in heads}),
        whole=sum(count_entries(repository, commit_id) for _, commit_id in heads),
        outside=outside,
    )


def count_entries(repository: OpenRepository, commit_id: str) -> int:
    """Number of entries of a commit. Raises CorruptFile, StorageError or LakeFSError."""
    file = METADATA_PREFIX + repository.api.commit(commit_id).metarange_id
    return pc.sum(read_metarange_columns(fetch(repository.store, file), file).counts).as_py() or 0


@dataclass(frozen=True, slots=True)
class _Deletion:
    """The deletion of the groups of a listing.

    Attributes:
        waiting: acts of any run that wait for review.
        approver: see `approve`.
        decided: by branch, the head of the newest decision, and what expires there by each rule.
    """

    work: LifecycleWork
    listing: LifecycleListing
    run_id: str
    waiting: tuple[Act, ...]
    approver: Callable[[], str]
    decided: dict[str, tuple[str, Mapping[str, pa.Table]]] = field(default_factory=dict)

    def delete_group(self, numbered: tuple[int, Group]) -> LifecycleOutcome:
        """Deletes the entries of one group, given with its number."""
        number, group = numbered
        try:
            act = read_act(self.work.repository, self.run_id, number)
            if act is not None:
                act = settle(self.work, act)
                if act.state is ActState.WAITING:
                    return self.work.waiting(act)
                if act.state is not ActState.KEPT:
                    return self.work.outcome(act, LifecycleFate.GONE, f"{act.state} at {act.at:%F %T}Z")
            for other in self.waiting:
                if (other.branch, other.rule) == (group.branch, group.rule):
                    return self.work.waiting(other)
            return self._delete(number, group)
        except (GroupKept, HookFailed, CorruptFile) as reason:
            return LifecycleOutcome(self.run_id, group.branch, group.rule, LifecycleFate.KEPT, str(reason))

    def _delete(self, number: int, group: Group) -> LifecycleOutcome:
        """Decides about a group and deletes it; decides anew if another client commits meanwhile. Raises GroupKept."""
        for _ in range(_TRIES):
            act = self._delete_once(number, group)
            if act.state is ActState.WAITING:
                return self.work.waiting(act)
            if act.state is ActState.DELETED:
                return self.work.outcome(act, LifecycleFate.DELETED, f"{act.amount} by commit {act.commit_id}")
        raise GroupKept(f"other clients committed to the branch during each of {_TRIES} attempts")

    def _delete_once(self, number: int, group: Group) -> Act:
        """One attempt; returns the act, which is kept if another client committed to the branch meanwhile."""
        work, listing = self.work, self.listing
        head, entries = self._decide(group)
        act = Act(
            listing.repository,
            self.run_id,
            number,
            listing.digest,
            group.branch,
            group.rule,
            head,
            entries.num_rows,
            pc.sum(entries["size"]).as_py(),
            "",
            ActState.DELETING,
            work.repository.clock.now(),
            approved_by=self.approver(),
        )
        sha256 = tables.put(work.repository.store, act.entries_key, entries)
        act = work.put(act, ActState.DELETING, entries_sha256=sha256)
        try:
            return self._merge(act, entries["path"])
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}; the entries may be deleted: approve again to find out") from error
        except (GroupKept, GuardTripped, LakeFSError) as error:
            # The server may have merged, although it failed then, or its answer could not be read.
            act = settle(work, act)
            if act.state is ActState.KEPT and not isinstance(error, Conflict):
                raise
            return act

    def _decide(self, group: Group) -> tuple[str, pa.Table]:
        """Head of the branch, and the entries of a group that still expire there. Raises GroupKept."""
        work, branch = self.work, group.branch
        if work.api.repository().read_only:
            raise GroupKept("the repository is read-only")
        current = work.api.branch(branch)
        if current is None:
            raise GroupKept("the branch was deleted")
        require_nothing_staged(work, branch)
        if branch not in self.decided or self.decided[branch][0] != current.commit_id:
            decision = expired_now(work.repository, self.listing, current, work.note)
            # The branch may have lost other entries since the listing, whose shares were compared at the start.
            going, whole = sum(map(len, decision.values())), count_entries(work.repository, current.commit_id)
            guards.require_few_expired(going, whole, branch, work.repository.settings)
            self.decided[branch] = current.commit_id, decision
        head, tables_by_rule = self.decided[branch]
        entries = tables_by_rule.get(group.rule, ENTRIES.empty_table())
        if not entries.num_rows:
            raise GroupKept("its entries were changed since, or do not expire any more")
        return head, entries

    def _merge(self, act: Act, paths: pa.ChunkedArray) -> Act:
        """Deletes paths on a branch of its own, and merges that, or asks for a review.

        Raises GroupKept, Conflict if another client changed or protected the branch, LakeFSError.
        """
        work, name = self.work, act.own_branch
        protection, title = protecting(work, act.branch), f"Delete {act.amount} that expired by rule {act.rule}"
        if pattern := protecting(work, name):
            raise GroupKept(f"the branch protection rule {pattern} matches {name}, on which lifecycle would delete")
        message, metadata = f"{title}\n\nlakefs-gc lifecycle run {act.run_id}", act.metadata()
        with own_branch(work, name, act.head, hidden=not protection):
            for start in range(0, len(paths), OBJECTS_ON_PAGE):
                for path, why in work.api.delete_paths(name, paths[start : start + OBJECTS_ON_PAGE].to_pylist()):
                    raise GroupKept(f"the server refused to delete {path}: {why}")
            work.api.commit_changes(name, message, metadata)
            self.approver()
            work.lock.check()
            if protection:
                return work.put(act, ActState.WAITING, pull_id=request_review(work, name, act, title))
            current = work.api.branch(act.branch)
            if current is None or current.commit_id != act.head or protecting(work, act.branch):
                raise Conflict(f"branch {act.branch} was changed or protected meanwhile")
            require_nothing_staged(work, act.branch)
            commit_id = work.api.squash_merge(name, act.branch, message, metadata)
            try:
                commit = work.api.commit(commit_id)
            except LakeFSError as error:
                # The act is neither kept nor concluded: the next attempt finds its commit.
                raise ServerUnavailable(f"commit {commit_id} was made and cannot be read: {error}") from error
            if is_based_on(commit, act.head):
                self.decided[act.branch] = commit_id, self.decided[act.branch][1]
            return conclude(work, act, commit)

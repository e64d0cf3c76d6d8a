"""Records of deletions by object lifecycle, and of the commits and branches made for them.

A record is stored before each act, so that a repeated approval finds out what an interrupted one has done: by the
metadata of the branch's commits, and by the names of the branches that it left.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.collector.records.outcomes import BaseFate, size
from lakefs_gc_assets.collector.records.own_commits import MARK, OwnCommit, record_own_commit
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CorruptFile, LogLine, counted
from lakefs_gc_assets.extensions.lifecycle.listing import LifecycleListing
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import Commit
from lakefs_gc_assets.storage.interface import keys_below

if TYPE_CHECKING:
    from lakefs_gc_assets.lakefs.api.client import LakeFSClient

FORMAT_VERSION = 1
WORK = "lifecycle"
BRANCH_PREFIX = "lakefs-gc-lifecycle-"
"""Beginning of the names of branches that lifecycle makes."""
REVERT = "-revert"
"""End of the names of branches, and of ids in metadata, that bring entries back."""
_NAME = re.compile(rf"(?:{BRANCH_PREFIX})?([0-9a-v]{{20}})-([0-9]+)(?:-[0-9a-f]{{12}})?(?:{REVERT})?")
"""Id of an act, or name of its branch."""
_FOLDER = f"{layout.RUNS_PREFIX}lifecycle/"
_ACTS = f"{_FOLDER}acts/"
_UNFINISHED = f"{_FOLDER}unfinished.json"
_ACT, _RULE, _OBJECTS, _APPROVED_BY = (f"{MARK}-{name}" for name in ("act", "rule", "objects", "approved-by"))
"""Metadata keys of commits, beside MARK."""
_MOST_COMMITS = 10_000
"""Commits read to find out if an interrupted act made one, before the branch is known to have the act's head. A branch
that was reset to another commit may have any number."""


class ActState(StrEnum):
    """State of an act. Records hold these texts."""

    DELETING = "deleting"
    DELETED = "deleted"
    WAITING = "waiting for review"
    KEPT = "kept"
    REVERTING = "reverting"
    REVERT_WAITING = "reverting, waiting for review"
    REVERTED = "reverted"


FINISHED = (ActState.DELETED, ActState.KEPT, ActState.REVERTED)
"""States of acts that were not interrupted, and do not wait for review."""


@dataclass(frozen=True, slots=True)
class Act:
    """The record of the deletion of a group: the entries of one branch that expire by one rule.

    Attributes:
        run_id: run of the approval; an approval that is repeated goes on with the same run.
        number: position of the group in the listing.
        listing: digest of the approved listing.
        head: the head of the branch that the decision is about.
        entries_sha256: digest of the stored entries, which are to be deleted.
        at: time of the last change of state, UTC.
        commit_id: commit on the branch that deleted the entries; empty before.
        pull_id: pull request that is to delete the entries, or to bring them back; empty without one.
        approved_by: approver of the deletion; empty if a user of the command line approved the list.
    """

    repository: str
    run_id: str
    number: int
    listing: str
    branch: str
    rule: str
    head: str
    objects: int
    bytes: int
    entries_sha256: str
    state: ActState
    at: datetime
    commit_id: str = ""
    pull_id: str = ""
    approved_by: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def act_id(self) -> str:
        """Names the act in metadata of commits."""
        return f"{self.run_id}-{self.number}"

    @property
    def own_branch(self) -> str:
        """Name of the branch on which the entries are deleted before the merge.

        Attempts that delete different entries have different branches. So a process that has lost the lock cannot
        delete on the branch of the one that took it over.
        """
        return f"{BRANCH_PREFIX}{self.act_id}-{self.entries_sha256[:12]}"

    @property
    def entries_key(self) -> str:
        """Key of the stored entries."""
        return f"{_ACTS}{self.run_id}/{self.number}.parquet"

    @property
    def amount(self) -> str:
        """Number and bytes of the entries, in words."""
        return f"{counted(self.objects, 'entries')}, {size(self.bytes)}"

    def metadata(self, suffix: str = "") -> dict[str, str]:
        """Metadata of a commit of this act."""
        stated = {MARK: self.run_id, _ACT: self.act_id + suffix, _RULE: self.rule, _OBJECTS: str(self.objects)}
        # The approver approved the deletion, not its revert.
        return {**stated, _APPROVED_BY: self.approved_by} if self.approved_by and not suffix else stated


@dataclass(frozen=True, slots=True)
class _Approval:
    """The run of an approved listing. `listed_at`: when the listing was made, UTC."""

    repository: str
    listing: str
    listed_at: datetime
    run_id: str
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """Ids of acts that may be unfinished. A finished act may be among them, and an act that changed nothing missing."""

    repository: str
    acts: tuple[str, ...]
    format_version: int = FORMAT_VERSION


class LifecycleFate(BaseFate):
    """Outcome for a group."""

    DELETED = "deleted"
    GONE = "deleted before"
    WAITING = "waits for review"
    KEPT = "kept"
    FAILED = "failed"
    REVERTED = "brought back"
    INCOMPLETE = "brought back, data is gone"
    UNNEEDED = "nothing to bring back"


@dataclass(frozen=True, slots=True)
class LifecycleOutcome:
    """Outcome for a group, and its reason or details.

    Attributes:
        commit_id: commit that deleted the entries; empty if there is none.
        objects, bytes: entries deleted now.
    """

    run_id: str
    branch: str
    rule: str
    fate: LifecycleFate
    why: str = ""
    commit_id: str = ""
    objects: int = 0
    bytes: int = 0

    @property
    def group(self) -> str:
        """Name of the group for lines."""
        return f"branch {self.branch}, rule {self.rule}"


@dataclass(frozen=True, slots=True)
class LifecycleWork:
    """The repository of acts, its lock, and receivers of log lines."""

    repository: OpenRepository
    lock: Lock
    note: LogLine
    warn: LogLine

    @property
    def api(self) -> "LakeFSClient":
        """Calls of the server."""
        return self.repository.branches_api

    def put(self, act: Act, state: ActState, **changes: str) -> Act:
        """Stores an act in another state, and with other changes; returns it. Raises LockLost."""
        self.lock.check()
        act = replace(act, state=state, at=self.repository.clock.now(), **changes)  # type: ignore[arg-type]
        self.repository.store.put(f"{_ACTS}{act.run_id}/{act.number}.json", records_json.encode(act))
        self.index(act)
        return act

    def index(self, act: Act) -> None:
        """Adds an act to the unfinished ones, or removes it, by its state."""
        before = frozenset(list_unfinished(self.repository))
        after = before - {act.act_id} if act.state in FINISHED else before | {act.act_id}
        if after != before:
            self.repository.store.put(_UNFINISHED, records_json.encode(_Unfinished(act.repository, (*sorted(after),))))

    def record_commit(self, act: Act, commit_id: str) -> None:
        """Stores the receipt by which rules that count commits leave this one out."""
        own = OwnCommit(act.repository, commit_id, act.branch, act.run_id, self.repository.clock.now())
        record_own_commit(self.repository.store, own)

    def outcome(self, act: Act, fate: LifecycleFate, why: str = "") -> LifecycleOutcome:
        """The outcome of an act."""
        amount = (act.objects, act.bytes) if fate is LifecycleFate.DELETED else (0, 0)
        return LifecycleOutcome(act.run_id, act.branch, act.rule, fate, why, act.commit_id, *amount)

    def waiting(self, act: Act) -> LifecycleOutcome:
        """The outcome of an act that waits for review."""
        return self.outcome(act, LifecycleFate.WAITING, f"pull request {act.pull_id}")

    def is_of(self, act: Act, commit: Commit, suffix: str) -> bool:
        """True if a commit's metadata names an act with this suffix."""
        return dict(commit.metadata).get(_ACT) == act.act_id + suffix

    def find_commit(self, act: Act, *suffixes: str) -> Commit | None:
        """The newest commit of an act on its branch, since the head that it was decided about; None if there is none.

        Args:
            suffixes: suffixes of the act's id in metadata.
        """
        branch = self.api.branch(act.branch)
        commit_id = "" if branch is None else branch.commit_id
        for number in count():
            if commit_id in ("", act.head):
                break
            if number == _MOST_COMMITS and self.api.merge_base(act.head, act.branch) != act.head:
                break
            commit = self.api.commit(commit_id)
            if any(self.is_of(act, commit, suffix) for suffix in suffixes):
                return commit
            commit_id = commit.parents[0] if commit.parents else ""
        return None


def read_act(repository: OpenRepository, run_id: str, number: int) -> Act | None:
    """The record of an act of this repository; None if there is none. Raises CorruptFile."""
    act = records_json.read(repository.store, Act, f"{_ACTS}{run_id}/{number}.json")
    return act if act is not None and act.repository == repository.facts.id else None


def acts_of(repository: OpenRepository, run_id: str) -> Iterator[Act | CorruptFile]:
    """The acts of a run, in order of their numbers, or the damage of a record."""
    names = (key.rpartition("/")[2].removesuffix(".json") for key in keys_below(repository.store, f"{_ACTS}{run_id}/"))
    for number in sorted(int(name) for name in names if name.isdigit()):
        try:
            if (act := read_act(repository, run_id, number)) is not None:
                yield act
        except CorruptFile as damage:
            yield damage


def list_unfinished(repository: OpenRepository) -> tuple[str, ...]:
    """Ids of acts that may be unfinished; of all acts if the record is damaged."""
    try:
        record = records_json.read(repository.store, _Unfinished, _UNFINISHED)
    except CorruptFile:
        keys = (key.removeprefix(_ACTS) for key in keys_below(repository.store, _ACTS) if key.endswith(".json"))
        return tuple(key.removesuffix(".json").replace("/", "-") for key in keys)
    return record.acts if record is not None and record.repository == repository.facts.id else ()


def describe_unfinished(repository: OpenRepository) -> Iterator[str]:
    """Yields a line about each act that was interrupted, with the command that finishes it."""
    for act_id in list_unfinished(repository):
        try:
            act = act_of(repository, act_id)
        except CorruptFile as damage:
            yield f"it is unknown if act {act_id} was interrupted, since its record is damaged: {damage}"
            continue
        if act is not None and act.state in (ActState.DELETING, ActState.REVERTING):
            command = f"approve {act.listing}" if act.state is ActState.DELETING else f"revert {act.run_id}"
            again = f"`lakefs-gc lifecycle {command}` finishes it"
            yield f"{act.state} {act.amount} of branch {act.branch}, rule {act.rule}, was interrupted: {again}"


def act_of(repository: OpenRepository, name: str) -> Act | None:
    """The act with an id, or that made a branch of this name; None if no record names it. Raises CorruptFile."""
    match = _NAME.fullmatch(name)
    return None if match is None else read_act(repository, match[1], int(match[2]))


def run_of(repository: OpenRepository, listing: LifecycleListing) -> str:
    """The run of an approved listing: the one of an earlier approval of it, or a new one, which is recorded.

    If the record is damaged, a new run decides anew about entries that the earlier one has not deleted.
    """
    key = f"{_FOLDER}approved/{listing.digest}.json"
    try:
        approval = records_json.read(repository.store, _Approval, key)
    except CorruptFile:
        approval = None
    if approval is None or (approval.repository, approval.listed_at) != (repository.facts.id, listing.made_at):
        run_id = layout.issue_run_id(repository.clock.now())
        approval = _Approval(repository.facts.id, listing.digest, listing.made_at, run_id)
        repository.store.put(key, records_json.encode(approval))
    return approval.run_id

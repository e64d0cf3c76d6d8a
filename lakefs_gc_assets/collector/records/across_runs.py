"""Records beside the lock that outlive runs: the last restoration, undeletable objects, and deleted branches.

A restoration is recorded before the first object is restored. It concerns every run that was opened before: such a run
deletes nothing more, and no run builds on it, since its mark and its checkpoint lack the restored objects. Run ids
decide which runs these are, not clocks. The record of a later restoration replaces an earlier one, because it concerns
more runs.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.errors import CorruptFile, LogLine, OrderViolation, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, head_if_there, keys_below

FORMAT_VERSION = 1
RESTORATION_KEY = f"{layout.RUNS_PREFIX}restored.json"
UNKNOWN_RUN = ""
_NO_RUN = "v" * layout.XID_LENGTH
"""Sorts behind all ids: older than any run."""


@dataclass(frozen=True, slots=True)
class Restoration:
    """The last restoration of objects.

    Attributes:
        run_id: the run whose deletions were undone; UNKNOWN_RUN if that record could not be read.
        newest_run: the newest run of any kind at that time.
        began_at: UTC.
    """

    run_id: str
    newest_run: str
    began_at: datetime
    format_version: int = FORMAT_VERSION

    def __str__(self) -> str:
        """The event and its time, as the beginning of a sentence."""
        if self.run_id == UNKNOWN_RUN:
            return f"objects may have been restored before {self.began_at:%F %T}Z (the record of this was damaged)"
        return f"objects that run {self.run_id} had deleted were restored at {self.began_at:%F %T}Z"

    def concerns(self, run_id: str) -> bool:
        """True if this run existed at that time; ids of newer runs sort first."""
        return run_id >= self.newest_run


def write_restoration(store: ObjectStore, run_id: str, now: datetime) -> None:
    """Records that objects of a run are about to be restored, under the repository's lock. `now`: UTC."""
    newest_run = next(run_folder.newest_runs(store), run_id)
    store.put(RESTORATION_KEY, records_json.encode(Restoration(run_id, newest_run, now)))


def read_restoration(store: ObjectStore) -> Restoration | None:
    """The last restoration; None if there was none. Raises CorruptFile."""
    return records_json.read(store, Restoration, RESTORATION_KEY)


def replace_unreadable_restoration(store: ObjectStore, now: datetime) -> str | None:
    """Replaces an unreadable record with one that concerns every run stored so far.

    An unreadable record may concern any earlier run. Its replacement stops these runs for good, and no later run.

    Call it under the repository's lock, before a run stores its first plan. A file of a newer version of the program is
    replaced too: the new record concerns at least the same runs.

    Args:
        now: UTC.
    Returns:
        A warning; None if the record can be read or there is none.
    """
    try:
        read_restoration(store)
    except CorruptFile as corrupt:
        newest_run = next(run_folder.newest_runs(store), _NO_RUN)
        store.put(RESTORATION_KEY, records_json.encode(Restoration(UNKNOWN_RUN, newest_run, now)))
        return (
            f"the record of the last restoration could not be read ({corrupt.check}: {corrupt.detail}) and was "
            "replaced: runs opened before this one delete nothing more, and this run does not build on them"
        )
    return None


def require_not_restored_since(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation if a run began before the last restoration: its candidates no longer hold.

    It also raises OrderViolation if the record of that restoration cannot be read.
    """
    try:
        restoration = read_restoration(store)
    except CorruptFile as corrupt:
        raise OrderViolation(
            f"it is unknown whether objects were restored after run {run_id} was opened: {corrupt} "
            "Open a new run: it replaces this file and examines everything"
        ) from corrupt
    if restoration is not None and restoration.concerns(run_id):
        raise OrderViolation(f"{restoration}, after run {run_id} was opened: it deletes nothing more; open a new run")


UNDELETABLE_KEY = f"{layout.RUNS_PREFIX}undeletable.json"
UNDELETABLE_LIMIT = 1000
"""Maximum objects on the list. A sweep with more failures does not succeed."""
_LASTING = re.compile(
    r"\b(AccessDenied|AllAccessDisabled|ObjectLocked"  # S3
    r"|403 forbidden|retentionPolicyNotMet|objectUnderActiveHold"  # Google Cloud Storage
    r"|AuthorizationFailure|AuthorizationPermissionMismatch|BlobImmutableDueToPolicy|LeaseIdMissing"  # Azure
    r"|Operation not permitted|Permission denied)\b"  # a local folder
)


@dataclass(frozen=True, slots=True)
class Undeletable:
    """An object that cannot be deleted.

    Attributes:
        error: the last error of the store.
        since: time of the first failed deletion, UTC.
    """

    address: str
    error: str
    since: datetime


@dataclass(frozen=True, slots=True)
class _Undeletables:
    """The stored list."""

    entries: tuple[Undeletable, ...]
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of a sweep.

    Attributes:
        rows: addresses and errors of failures; UNDELETABLE_LIMIT + 1 rows are enough.
        count: number of failures.
        gone: number of candidates deleted, or moved to quarantine.
    """

    rows: Sequence[tuple[str, str | None]]
    count: int
    gone: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Conclusions from the failures of a sweep.

    Attributes:
        undeletable: the new list.
        failing: the objects on the new list that the sweep failed to delete.
        new: number of failing objects that were not on the list before.
        success: True if every failed object was on the list before.
        failed: number of all failures.
    """

    undeletable: tuple[Undeletable, ...]
    failing: tuple[Undeletable, ...]
    new: int
    success: bool
    failed: int = 0

    @property
    def warning(self) -> str | None:
        """Warning for the report of the run; None if the sweep failed at no object on the list."""
        if not self.failing:
            return None
        oldest = min(self.failing, key=lambda entry: entry.since)
        more = ""
        if self.failed > UNDELETABLE_LIMIT:
            more = (
                f"; {counted(self.failed, 'deletions')} failed in total, and {UNDELETABLE_KEY} lists at most "
                f"{UNDELETABLE_LIMIT:,} objects"
            )
        return (
            f"{counted(len(self.failing), 'objects')} cannot be deleted, such as {oldest.address} since "
            f"{oldest.since:%F} ({oldest.error}): lift its lock or grant the permission; each sweep tries again{more}"
        )


def is_lasting(error: str | None) -> bool:
    """True if a failure lasts until a person lifts a lock or grants a permission, by its error code."""
    return error is not None and _LASTING.search(error) is not None


def judge_undeletable(
    known: Sequence[Undeletable], failures: Failures, settled: Collection[str], now: datetime
) -> Verdict:
    """Judges the failures of a finished sweep.

    A retry cannot overcome a lock or a missing permission. The first run that fails to delete such an object does not
    succeed, so that a person notices. The object joins the list beside the lock. Later runs retry it, and succeed if
    they fail only at objects on the list.

    Objects join the list only if the same sweep deleted something. Otherwise its credentials may be at fault.

    Args:
        known: the list so far.
        settled: addresses on the list that the sweep decided without a failure; they leave the list.
        now: UTC.
    """
    entries = {entry.address: entry for entry in known if entry.address not in settled}
    lasting = {address: error for address, error in failures.rows if error is not None and is_lasting(error)}
    new = [address for address in lasting if address not in entries] if failures.gone else []
    new = new[: max(0, UNDELETABLE_LIMIT - len(entries))]
    joining = frozenset(new)
    for address, error in lasting.items():
        if address in entries:
            entries[address] = replace(entries[address], error=error)
        elif address in joining:
            entries[address] = Undeletable(address, error, now)
    failing = tuple(entries[address] for address in lasting if address in entries)
    success = not new and len(failing) == failures.count <= UNDELETABLE_LIMIT
    return Verdict(tuple(entries.values()), failing, len(new), success, failures.count)


def read_undeletable(store: ObjectStore) -> tuple[Undeletable, ...]:
    """The stored list; empty if there is none or it cannot be read. Its objects then count as new again.

    Raises StorageError if the store cannot be reached.
    """
    try:
        stored = records_json.read(store, _Undeletables, UNDELETABLE_KEY)
        return () if stored is None else stored.entries
    except CorruptFile:
        return ()


def write_undeletable(store: ObjectStore, entries: Sequence[Undeletable]) -> None:
    """Replaces the stored list, under the repository's lock. An empty first list is not stored."""
    if entries or head_if_there(store, UNDELETABLE_KEY) is not None:
        store.put(UNDELETABLE_KEY, records_json.encode(_Undeletables(tuple(entries))))


BRANCHES = f"{layout.RUNS_PREFIX}branches/"
"""Folder of listings of stale branches, and of the records of deleted ones."""
_DELETED = f"{BRANCHES}deleted/"


class BranchState(StrEnum):
    """State of a branch chosen for deletion. Records hold these texts."""

    DELETING = "deleting"
    DELETED = "deleted"
    KEPT = "kept"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class DeletedBranch:
    """A branch that `collector.stale_branches` deleted or was about to delete, with all facts to recreate it.

    The record is stored before the deletion. Branches are recreated from these records, and the guard on the number of
    branches ignores the branches that they name.

    Attributes:
        listing: the listing that was approved.
        at: time of the last change of state, UTC.
        approved_by: who approved the deletion, if known; records of earlier versions lack it.
    """

    repository: str
    branch: str
    commit_id: str
    hidden: bool
    listing: str
    state: BranchState
    at: datetime
    approved_by: str = ""
    format_version: int = FORMAT_VERSION
    ADDED: ClassVar = ("approved_by",)

    @property
    def key(self) -> str:
        """Key of the record."""
        name = hashlib.sha256(f"{self.repository}/{self.branch}".encode()).hexdigest()[:32]
        return f"{_DELETED}{self.listing}-{name}.json"


def write_deleted_branch(store: ObjectStore, record: DeletedBranch) -> None:
    """Stores a branch's record, replacing an earlier one of the same listing, under the repository's lock."""
    store.put(record.key, records_json.encode(record))


def read_deleted_branches(store: ObjectStore, repository: str, warn: LogLine) -> tuple[DeletedBranch, ...]:
    """Records of a repository, oldest first. Warns of unreadable records and skips them."""
    records = []
    for key in keys_below(store, _DELETED):
        try:
            if (record := records_json.read(store, DeletedBranch, key)) is not None:
                records.append(record)
        except CorruptFile as corrupt:
            warn(f"the record of a deleted branch cannot be read: {corrupt}")
    return tuple(sorted((each for each in records if each.repository == repository), key=lambda each: each.at))


def branches_we_deleted(store: ObjectStore, repository: str, since: datetime, warn: LogLine) -> frozenset[str]:
    """Names of branches that were deleted as stale after a given time, UTC."""
    return frozenset(
        record.branch
        for record in read_deleted_branches(store, repository, warn)
        if record.state is BranchState.DELETED and record.at > since
    )

"""Records beside the lock that outlive runs: the last restoration, undeletable objects, and deleted branches.

A restoration is stored before the first object is restored, and concerns every run that was opened before: such a run
deletes nothing more, and no run builds on it, since its mark and its checkpoint lack those objects. Which runs these
are is decided by run ids and not by a clock. The record of a later restoration replaces an earlier one and concerns
more runs. A record that cannot be read may concern any run that was opened before. The next run that begins replaces it
with one that concerns all of them. So it stops these runs for good, and no run after them.

An object cannot be deleted for a lock or a missing permission, which no repetition overcomes. The
first run that fails at such an object does not succeed, so that somebody looks. The object is put on a list beside the
lock. Later runs try to delete it again, and succeed also where they fail at objects on the list alone.

A branch that `collector.stale_branches` deletes has a record of its own, stored before the deletion. These records are
the list by which branches are made again. The guard on the number of branches leaves out those that they name.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

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
        run_id: the run whose deletions were undone; UNKNOWN where the record of that could not be read.
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
            return f"objects may have been brought back before {self.began_at:%F %T}Z (the record of it was damaged)"
        return f"objects that run {self.run_id} had deleted were brought back at {self.began_at:%F %T}Z"

    def concerns(self, run_id: str) -> bool:
        """True if this run existed already; ids of newer runs sort first."""
        return run_id >= self.newest_run


def write_restoration(store: ObjectStore, run_id: str, now: datetime) -> None:
    """Stores that objects of a run are about to be restored, under the repository's lock. `now`: UTC."""
    newest_run = next(run_folder.newest_runs(store), run_id)
    store.put(RESTORATION_KEY, records_json.encode(Restoration(run_id, newest_run, now)))


def read_restoration(store: ObjectStore) -> Restoration | None:
    """The last restoration; None where there was none. Raises CorruptFile."""
    return records_json.read(store, Restoration, RESTORATION_KEY)


def replace_unreadable_restoration(store: ObjectStore, now: datetime) -> str | None:
    """Replaces a record that cannot be read with one that concerns every run stored so far.

    To be called under the repository's lock, before a run stores its first plan. A file of a newer version of the
    program is replaced as well: the new record concerns at least the same runs.

    Args:
        now: UTC.
    Returns:
        A warning; None where the record can be read or there is none.
    """
    try:
        read_restoration(store)
    except CorruptFile as corrupt:
        newest_run = next(run_folder.newest_runs(store), _NO_RUN)
        store.put(RESTORATION_KEY, records_json.encode(Restoration(UNKNOWN_RUN, newest_run, now)))
        return (
            f"the record of the last restoration could not be read ({corrupt.check}: {corrupt.detail}) and was "
            "replaced: runs that were opened before this one delete nothing more, and this run builds on none of them"
        )
    return None


def require_not_restored_since(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation where a run began before the last restoration: its candidates no longer hold.

    So it does where the record of that restoration cannot be read.
    """
    try:
        restoration = read_restoration(store)
    except CorruptFile as corrupt:
        raise OrderViolation(
            f"it is not known whether objects were brought back after run {run_id} was opened: {corrupt} "
            "Open a new run: it replaces this file and looks at everything"
        ) from corrupt
    if restoration is not None and restoration.concerns(run_id):
        raise OrderViolation(f"{restoration}, after run {run_id} was opened: it deletes nothing more; open a new run")


UNDELETABLE_KEY = f"{layout.RUNS_PREFIX}undeletable.json"
UNDELETABLE_LIMIT = 1000
"""The list has at most so many objects. A sweep that fails at more of them does not succeed."""
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
        error: what the store said last.
        since: when a run failed at it first, UTC.
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
        rows: address and error of each failure; LIMIT + 1 of them are enough.
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
        undeletable: the list from now on.
        failing: the objects on the list that the sweep failed at.
        new: number of these that were not on the list before.
        success: True if nothing failed but objects that were on the list before.
        failed: number of all failures.
    """

    undeletable: tuple[Undeletable, ...]
    failing: tuple[Undeletable, ...]
    new: int
    success: bool
    failed: int = 0

    @property
    def warning(self) -> str | None:
        """The warning for the report of the run; None where the sweep failed at no object on the list."""
        if not self.failing:
            return None
        oldest = min(self.failing, key=lambda entry: entry.since)
        more = ""
        if self.failed > UNDELETABLE_LIMIT:
            more = (
                f"; {counted(self.failed, 'deletions')} failed in all, and {UNDELETABLE_KEY} names at most "
                f"{UNDELETABLE_LIMIT:,} objects"
            )
        return (
            f"{counted(len(self.failing), 'objects')} cannot be deleted, such as {oldest.address} since "
            f"{oldest.since:%F} ({oldest.error}): lift its lock or grant the permission; each sweep tries again{more}"
        )


def is_lasting(error: str | None) -> bool:
    """True if a failure lasts until somebody lifts a lock or grants a permission, by its error's code."""
    return error is not None and _LASTING.search(error) is not None


def judge_undeletable(
    known: Sequence[Undeletable], failures: Failures, settled: Collection[str], now: datetime
) -> Verdict:
    """Decides what the failures of a sweep mean that came to its end.

    Objects join the list only where the same sweep deleted something: otherwise its credentials may be at fault.

    Args:
        known: the list as it was.
        settled: addresses on the list that the sweep decided about without failing; they leave it.
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
    """The stored list; empty where there is none, or where it cannot be read: its objects then count as new again.

    Raises StorageError where the store cannot be asked.
    """
    try:
        stored = records_json.read(store, _Undeletables, UNDELETABLE_KEY)
        return () if stored is None else stored.entries
    except CorruptFile:
        return ()


def write_undeletable(store: ObjectStore, entries: Sequence[Undeletable]) -> None:
    """Stores the list in place of the one before, under the repository's lock. An empty first list is not stored."""
    if entries or head_if_there(store, UNDELETABLE_KEY) is not None:
        store.put(UNDELETABLE_KEY, records_json.encode(_Undeletables(tuple(entries))))


BRANCHES = f"{layout.RUNS_PREFIX}branches/"
"""Folder of what was shown of stale branches, and of the records of those that were deleted."""
_DELETED = f"{BRANCHES}deleted/"


class BranchState(StrEnum):
    """State of a branch that was to be deleted. Records hold these texts."""

    DELETING = "deleting"
    DELETED = "deleted"
    KEPT = "kept"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class DeletedBranch:
    """A branch that was deleted, or was about to be, and all that it takes to make it again.

    Attributes:
        listing: what was approved.
        at: when it came into this state, UTC.
    """

    repository: str
    branch: str
    commit_id: str
    hidden: bool
    listing: str
    state: BranchState
    at: datetime
    format_version: int = FORMAT_VERSION

    @property
    def key(self) -> str:
        """Key of the record."""
        name = hashlib.sha256(f"{self.repository}/{self.branch}".encode()).hexdigest()[:32]
        return f"{_DELETED}{self.listing}-{name}.json"


def write_deleted_branch(store: ObjectStore, record: DeletedBranch) -> None:
    """Stores the record of a branch in place of an earlier one of the same listing, under the repository's lock."""
    store.put(record.key, records_json.encode(record))


def read_deleted_branches(store: ObjectStore, repository: str, warn: LogLine) -> tuple[DeletedBranch, ...]:
    """Records of one repository, the newest last. Warns of each that cannot be read, and leaves it out."""
    records = []
    for key in keys_below(store, _DELETED):
        try:
            if (record := records_json.read(store, DeletedBranch, key)) is not None:
                records.append(record)
        except CorruptFile as corrupt:
            warn(f"the record of a deleted branch cannot be read: {corrupt}")
    return tuple(sorted((each for each in records if each.repository == repository), key=lambda each: each.at))


def branches_we_deleted(store: ObjectStore, repository: str, since: datetime, warn: LogLine) -> frozenset[str]:
    """Names of branches that were deleted as stale after a moment, UTC."""
    return frozenset(
        record.branch
        for record in read_deleted_branches(store, repository, warn)
        if record.state is BranchState.DELETED and record.at > since
    )

"""Standing approvals: deletions that scheduled work may make without asking a person each time.

A person grants one for a kind of work, with limits and an end. Its record is beside the lock, one for each repository
and kind. It only answers the question that an approver would be asked: every guard and recheck stays. If a limit is
exceeded, a figure unknown or the record unreadable, nothing is deleted and a person has to approve.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.collector.records.figures import Statistics
from lakefs_gc_assets.collector.records.outcomes import share, size
from lakefs_gc_assets.collector.repository.lock import earliest_clock, latest_clock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CorruptFile, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore

LONGEST = timedelta(days=366)
"""Maximum time until the end of an approval."""
NOT_COVERED = "waits for a person, since no standing approval covers it: "
"""Prefix of the warning in the report of a dry run."""
_FOLDER = f"{layout.RUNS_PREFIX}standing-approvals/"


class ApprovedWork(StrEnum):
    """Kinds of work that a standing approval can cover. Records hold these texts."""

    COLLECTION = "collection"
    BRANCHES = "branches"
    LIFECYCLE = "lifecycle"


LIMITS = {
    ApprovedWork.COLLECTION: ("objects", "bytes", "share"),
    ApprovedWork.BRANCHES: ("branches", "share"),
    ApprovedWork.LIFECYCLE: ("objects", "bytes", "branches", "share", "paths"),
}
"""Limits that can be checked for each kind of work; the first one is required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one deletion. A limit that is None, or no paths, is not checked.

    Attributes:
        share: part of the known objects, or of the branches if only branches are deleted; from 0 to 1.
        paths: prefixes of the only paths that may be deleted.
    """

    objects: int | None = None
    bytes: int | None = None
    branches: int | None = None
    share: float | None = None
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        stated = ", ".join(_SHOWN[name](value) for name, value in self.stated.items())
        return f"at most {stated or 'nothing'}" + (f", of paths {'*, '.join(self.paths)}*" if self.paths else "")

    @property
    def stated(self) -> Mapping[str, float]:
        """The limits that are numbers, by name."""
        values = ((name, getattr(self, name)) for name in _SHOWN)
        return {name: value for name, value in values if value is not None}


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "objects": lambda count: counted(count, "objects"),
    "bytes": size,
    "branches": lambda count: counted(count, "branches"),
    "share": lambda part: f"{part:.2%}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeletion:
    """Figures of a deletion that needs an approval. A figure that is None is unknown and exceeds any limit.

    Attributes:
        whole: number of all known objects, or of all branches, for `share`.
        outside: number of objects or entries that are not below the paths of the limits.
        name: name of the deletion for messages.
    """

    objects: int | None = None
    bytes: int | None = None
    branches: int | None = None
    whole: int | None = None
    outside: int | None = None
    name: str = "this deletion"

    @property
    def share(self) -> float | None:
        """The share of the whole."""
        part = self.branches if self.objects is None else self.objects
        return None if part is None or self.whole is None else share(part, self.whole)


def planned_sweep(run_id: str, statistics: Statistics, known: int) -> PlannedDeletion:
    """The deletion of a run's candidates.

    Args:
        known: number of objects that the run knows, see `guards.Mark`.
    """
    objects, bytes_ = statistics.candidates, statistics.candidates_bytes
    return PlannedDeletion(objects=objects, bytes=bytes_, whole=known, name=f"run {run_id}")


def limit_exceeded(limits: Limits, planned: PlannedDeletion) -> str:
    """The first limit that a deletion exceeds, in words; empty if all limits hold."""
    for name, limit in limits.stated.items():
        figure, shown = getattr(planned, name), _SHOWN[name]
        if figure is None:
            return f"the {name} of this deletion are unknown, and the limit is {shown(limit)}"
        if not figure <= limit:
            return f"{shown(figure)} would be deleted, more than the limit of {shown(limit)}"
    if limits.paths and planned.outside != 0:
        count = "an unknown number of objects" if planned.outside is None else counted(planned.outside, "objects")
        return f"{count} would be deleted outside of {', '.join(limits.paths)}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingApproval:
    """A standing approval as it is stored. Times are in UTC.

    Attributes:
        granted_by, second_by: names of approvers and their source; `second_by` is empty without a second approver.
        until: the moment from which it no longer counts.
        withdrawn_at: None unless it was withdrawn.
    """

    approval_id: str
    repository: str
    storage_namespace: str
    kind: ApprovedWork
    limits: Limits
    until: datetime
    granted_by: str
    granted_at: datetime
    second_by: str = ""
    withdrawn_at: datetime | None = None
    format_version: int = field(default=1)

    def __str__(self) -> str:
        """The approval for reports, receipts and tags."""
        people = "; ".join(filter(None, (self.granted_by, self.second_by)))
        return f"standing approval {self.approval_id} of {self.granted_at:%F} by {people}"

    @property
    def key(self) -> str:
        """Key of the record."""
        return _key(self.repository, self.kind)


def _key(repository_id: str, kind: ApprovedWork) -> str:
    return f"{_FOLDER}{repository_id}-{kind}.json"


def read(repository: OpenRepository, kind: ApprovedWork) -> StandingApproval | None:
    """The stored approval, which may no longer count; None if there is none. Raises CorruptFile."""
    return records_json.read(repository.store, StandingApproval, _key(repository.facts.id, kind))


def why_void(repository: OpenRepository, approval: StandingApproval, approvers: int = 1) -> str:
    """Reason that an approval does not count; empty if it does.

    It ends as soon as one clock has reached its end. A clock that was set back does not prolong it beyond LONGEST.

    Args:
        approvers: number of people who must grant it, as in launch.approvers.
    """
    if (approval.repository, approval.storage_namespace) != (repository.facts.id, repository.namespace.uri):
        return f"it is of repository {approval.repository} at {approval.storage_namespace}"
    if (required := LIMITS[approval.kind][0]) not in approval.limits.stated:
        return f"it has no limit of {required}"
    if approval.withdrawn_at is not None:
        return f"it was withdrawn at {approval.withdrawn_at:%F %T}Z"
    if approval.until <= latest_clock(repository):
        return f"it ended at {approval.until:%F %T}Z"
    if approval.until - earliest_clock(repository) > LONGEST:
        return f"it ends at {approval.until:%F %T}Z, more than {LONGEST.days} days ahead"
    if approvers == 2 and not approval.second_by:
        return "a second person has to grant the same limits (launch.approvers)"
    return ""


def _find(repository: OpenRepository, kind: ApprovedWork) -> tuple[StandingApproval | None, str]:
    """The stored approval, or the reason why its record cannot be read. Neither if none was granted."""
    try:
        return read(repository, kind), ""
    except CorruptFile as corrupt:
        return None, f"its record cannot be read: {corrupt.check}: {corrupt.detail}"


def _why_uncovered(
    repository: OpenRepository, approval: StandingApproval, planned: PlannedDeletion, approvers: int = 1
) -> str:
    """The reason why an approval does not cover a deletion; empty if it does."""
    why = why_void(repository, approval, approvers) or limit_exceeded(approval.limits, planned)
    return f"{approval}: {why}" if why else ""


def describe_all(repository: OpenRepository, approvers: int = 1) -> Iterator[tuple[ApprovedWork, str]]:
    """One line about the stored approval of each kind of work."""
    for kind in ApprovedWork:
        approval, unreadable = _find(repository, kind)
        if unreadable:
            yield kind, f"approves nothing, since {unreadable}"
        elif approval is not None:
            void = why_void(repository, approval, approvers)
            state = f"approves nothing: {void}" if void else f"until {approval.until:%F %T}Z"
            yield kind, f"{approval}: {approval.limits}, {state}"


def list_limits_met(repository: OpenRepository, kind: ApprovedWork, planned: PlannedDeletion) -> list[str]:
    """A warning if there is a standing approval that does not cover a deletion, for a person who decides about it."""
    approval, why = _find(repository, kind)
    if approval is not None and approval.withdrawn_at is None:
        why = _why_uncovered(repository, approval, planned)
    return [f"{NOT_COVERED}{why}"] if why else []


def require_covered(
    repository: OpenRepository, kind: ApprovedWork, planned: PlannedDeletion, approvers: int = 1, approval_id: str = ""
) -> StandingApproval:
    """The standing approval that covers a deletion, read now.

    Args:
        approvers: as for `why_void`.
        approval_id: the approval that was used before; empty for any.
    Raises:
        GuardTripped: no approval covers the deletion; the message has the reason or the exceeded limit.
        StorageError: the record cannot be fetched.
    """
    approval, unreadable = _find(repository, kind)
    if approval is None:
        guards.refuse_standing(kind, planned.name, unreadable or "there is none")
    if approval_id and approval.approval_id != approval_id:
        guards.refuse_standing(kind, planned.name, f"{approval_id} was replaced by {approval}")
    if why := _why_uncovered(repository, approval, planned, approvers):
        guards.refuse_standing(kind, planned.name, why)
    return approval


def standing_approver(
    repository: OpenRepository, kind: ApprovedWork, count: Callable[[tuple[str, ...]], PlannedDeletion], approvers: int
) -> Callable[[], str]:
    """The approver of a list that the standing approval covers: a function that reads the approval anew and names it.

    That function raises GuardTripped once the approval no longer counts. It is called right before each deletion.

    Args:
        count: figures of the list. Called once, with the prefixes of the only paths that may be deleted; empty for no
            such limit.
        approvers: as for `why_void`.
    Raises:
        GuardTripped: no standing approval covers all of the list.
    """
    approval, _ = _find(repository, kind)  # `require_covered` gives the reason.
    planned = count(approval.limits.paths if approval else ())

    def cover(approval_id: str = "") -> StandingApproval:
        return require_covered(repository, kind, planned, approvers, approval_id)

    covering = cover()
    if covering != approval:
        guards.refuse_standing(kind, planned.name, "it was replaced while it was compared with the list")
    return lambda: str(cover(covering.approval_id))


def require_standing(store: ObjectStore, approval: StandingApproval) -> None:
    """Raises GuardTripped if the record of an approval in use has changed since. One small read, before each batch."""
    try:
        current = records_json.read(store, StandingApproval, approval.key)
    except CorruptFile:
        current = None
    if current != approval:
        why = f"{approval} was withdrawn or replaced, so nothing more is deleted"
        guards.refuse_standing(approval.kind, "the rest", why)

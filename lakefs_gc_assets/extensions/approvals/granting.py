"""Granting and withdrawing standing approvals. Only commands do this: no launch through Dagster can."""

import uuid
from dataclasses import replace
from datetime import datetime

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.collector.repository.lock import earliest_clock, latest_clock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import (
    LIMITS,
    LONGEST,
    ApprovedWork,
    Limits,
    StandingApproval,
    read,
    why_void,
)
from lakefs_gc_assets.errors import ConfigurationError, CorruptFile


def check(repository: OpenRepository, kind: ApprovedWork, limits: Limits, until: datetime) -> None:
    """Raises ConfigurationError for limits or an end that no approval may have."""
    stated = {*limits.stated, *(["paths"] if limits.paths else [])}
    if LIMITS[kind][0] not in stated:
        raise ConfigurationError(f"a standing approval for {kind} needs a limit: give --{LIMITS[kind][0]}")
    if unknown := sorted(stated.difference(LIMITS[kind])):
        why = "most garbage has no known path" if "paths" in unknown else f"it can limit {', '.join(LIMITS[kind])}"
        raise ConfigurationError(f"a standing approval for {kind} cannot limit {', '.join(unknown)}: {why}")
    if any(not value > 0 for value in limits.stated.values()) or not (limits.share or 0) <= 1:
        raise ConfigurationError("each limit must be above 0, and a share at most 1")
    if not all(path.strip() for path in limits.paths):
        raise ConfigurationError("an empty path would allow every path: give a prefix, such as logs/")
    if until <= latest_clock(repository) or until - earliest_clock(repository) > LONGEST:
        raise ConfigurationError(
            f"the end of a standing approval must be ahead, by at most {LONGEST.days} days: {until:%F %T}Z is not"
        )


def grant(
    repository: OpenRepository, kind: ApprovedWork, limits: Limits, until: datetime, name: str, approvers: int
) -> StandingApproval:
    """Stores a standing approval, which replaces the one of the same kind of work.

    If two people must approve, the first grant alone approves nothing. The approval counts once a second person grants
    the same limits until the same moment.

    Args:
        until: UTC.
        name: name of the approver.
        approvers: number of people who must approve, as in launch.approvers.
    Raises:
        ConfigurationError: see `check`; or the name is empty, or could be read as more than a name.
        CorruptFile: two people must approve, and the record of the first one cannot be read.
    """
    check(repository, kind, limits, until)
    if not plans.person(plans.single_name(name)):
        raise ConfigurationError("a standing approval needs the name of the person who grants it: give --by")
    by = f"{plans.single_name(name)}{plans.KNOWN_BY}command line says"
    first = read(repository, kind) if approvers == 2 else None
    if first is not None and _awaits(repository, first, limits, until) and not _is_same(first.granted_by, by):
        return _write(repository, replace(first, second_by=by))
    approval = StandingApproval(
        approval_id=uuid.uuid4().hex[:12],
        repository=repository.facts.id,
        storage_namespace=repository.namespace.uri,
        kind=kind,
        limits=limits,
        until=until,
        granted_by=by,
        granted_at=repository.clock.now(),
    )
    return _write(repository, approval)


def _awaits(repository: OpenRepository, first: StandingApproval, limits: Limits, until: datetime) -> bool:
    is_same = (first.limits, first.until, first.second_by) == (limits, until, "")
    return is_same and not why_void(repository, first)


def _is_same(approver: str, other: str) -> bool:
    return plans.person(approver) == plans.person(other)


def withdraw(repository: OpenRepository, kind: ApprovedWork) -> StandingApproval | None:
    """Withdraws the approval of a kind of work; returns it, or None if there was none.

    Work in progress stops before its next batch. An unreadable record is replaced by one that approves nothing.
    """
    now = repository.clock.now()
    try:
        approval = read(repository, kind)
    except CorruptFile:
        approval = StandingApproval(
            approval_id="unreadable",
            repository=repository.facts.id,
            storage_namespace=repository.namespace.uri,
            kind=kind,
            limits=Limits(),
            until=now,
            granted_by="an unknown person",
            granted_at=now,
        )
    if approval is None or approval.withdrawn_at is not None:
        return approval
    return _write(repository, replace(approval, withdrawn_at=now))


def _write(repository: OpenRepository, approval: StandingApproval) -> StandingApproval:
    repository.store.put(approval.key, records_json.encode(approval))
    return approval

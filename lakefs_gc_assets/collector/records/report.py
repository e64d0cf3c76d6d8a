"""The report of a run: the objects it examined, found and deleted, and whether it can be relied on.

Every run writes one, failed runs too. Times UTC, sizes in bytes, durations in seconds. `describe` formats a finished
run for a person.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.collector.records.figures import Statistics
from lakefs_gc_assets.collector.records.outcomes import Kept, Outcome, count_known, share, size
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.errors import CorruptFile, OrderViolation, RunEnded, counted
from lakefs_gc_assets.storage.interface import ObjectStore

FORMAT_VERSION = 2
INTERRUPTED = "interrupted"
"""The error of a run that a person or the machine interrupted."""
WOULD_BE_REFUSED = "a sweep would be refused: "
"""Prefix of a dry run's warning about a guard that its sweep would trip."""
_FOR_A_NEW_RUN = "for a new run, launch the job open_run, or add a new run_id"
_USUAL_CLASS = "STANDARD"


class Ending(StrEnum):
    """How a run ended. Reports hold these texts: one may be added, none changed or removed."""

    NOTHING_TO_DELETE = "nothing to delete"
    MARKED = "marked, nothing deleted"
    KEPT_LIVE = "all candidates kept as live at the recheck"
    DELETED = "deleted"
    PARTLY_DELETED = "some deletions failed"
    NONE_DELETED = "every deletion failed"
    QUARANTINED = "moved to quarantine"
    PARTLY_QUARANTINED = "some could not be moved to quarantine"
    NONE_QUARANTINED = "none could be moved to quarantine"
    DELETED_AND_QUARANTINED = "some deleted, the others moved to quarantine"
    KEPT_ARCHIVED = "none moved to quarantine: what is garbage is in an archive tier"
    FAILED = "failed"


_MOVED = (Ending.QUARANTINED, Ending.PARTLY_QUARANTINED, Ending.NONE_QUARANTINED, Ending.KEPT_ARCHIVED)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State that a sweep leaves for the next run; it exists once the report that contains it does.

    Attributes:
        attempt: attempt of the run that wrote these files.
        sealed, read, pending, committed: number of sealed slices, ids read, pending objects and committed addresses.
        sealed_objects: objects in sealed slices, or in no slice, that commits hold.
        sealed_sha256, read_sha256: SHA-256 of the files with the sealed slices and with the ids read.
        pending_digest, committed_digest: SHA-256 of the manifests of the two frames.
        pending_windows: windows of pending objects.
        other_folders: names directly below `data/` that are not slices; only runs that list everything list them.
        tracked, tracked_sha256: number of tracked ranges, and SHA-256 of the file that names them. Only runs by
            retention rules track ranges; their `read` and `committed` are empty, and so are these digests.
        full_run: the last run by retention rules in the chain of base runs that examined everything.
    """

    attempt: str
    sealed: int
    sealed_objects: int
    sealed_sha256: str
    read: int
    read_sha256: str
    pending: int
    pending_digest: str
    committed: int
    committed_digest: str
    pending_windows: tuple[str, ...]
    other_folders: tuple[str, ...]
    tracked: int = 0
    tracked_sha256: str | None = None
    full_run: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one run.

    Attributes:
        format_version: version of this format.
        run_id: id of the run, a text of twenty characters; of two ids the newer one sorts first.
        attempt: id of the attempt that made these frames; repeating a step after a failure begins a new attempt.
        repository: name of the lakeFS repository.
        storage_namespace: storage namespace of the repository, as lakeFS spells it.
        flow: clean, optimized, committed or unified: the flow that the run had.
        previous_run: the newest run that was opened before; null if there is none.
        dry_run: true if the run was to delete nothing.
        success: `ended_well`, and no losses: no branch head and no staged entry needs an object that an earlier run
            deleted although it had not expired. The exit status agrees with it.
        ending: how the run ended, one of the endings.
        started_at: run start time.
        ended_at: time when the report was made.
        cutoff: objects stay unless they are older than this, by LastModified and by name.
        windows: slice windows of the run.
        limited_to: description of the windows, if the run listed only some; otherwise empty. The report then covers
            no other windows.
        address_limit: number of addresses to which the run was limited, as in an erasure; null for all addresses.
        last_read_slice: the newest slice that was listed; empty if none was.
        counts: figures of the run by name, except for bytes, and commits by the reason why they stay. Unknown figures
            are absent; a failed run has none.
        object_bytes: figures of the run in bytes, by the name that the objects have in `counts`.
        storage_classes: under `listed` and `candidates`, `objects` and `bytes` of each storage class or access tier;
            empty if the store names no classes, and in reports of earlier versions.
        kept: number of unreferenced objects that stay, by reason.
        commit_source: source of the run's list of commits, such as a refs dump; empty if the run failed.
        server_run_ids: ids that the server gave to the uncommitted data that it prepared.
        warnings: warnings for the user; those of a dry run include the guards that would refuse its sweep.
        error: reason of the failure; null if the run did not fail.
        why_clean: reason why a run that should build on another one examined everything; an optimized run then became
            a clean one.
        base_run: the run that this one built on.
        checkpoint: state for a later run to build on; null if there is none.
        no_checkpoint: reason why a finished run has no checkpoint.
        loosened: settings that launches changed for this run, at its mark or at its approval; includes `sweep` if a
            launch set it.
        ended_well: true if every step ended, and every requested deletion was accepted; known undeletable objects do
            not count as failures. It ignores losses, which are no fault of this run, so later runs rely on it. Null
            in reports of failed runs and of earlier versions: use `success` there.
        waited_seconds: seconds that each step waited for safety, by the name of the step.
        worked_seconds: seconds that each step worked, without these waits, by the name of the step. Excludes the time
            between steps, such as until an approval. Empty in reports of earlier versions.
        approved_by: approver of the deletion, and the source of that name; empty if no dry run was approved.
    """

    run_id: str
    attempt: str
    repository: str
    storage_namespace: str
    flow: str
    previous_run: str | None
    dry_run: bool
    success: bool
    ending: Ending
    started_at: datetime
    ended_at: datetime
    cutoff: datetime
    windows: tuple[str, ...]
    last_read_slice: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    object_bytes: dict[str, int] = field(default_factory=dict)
    storage_classes: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    commit_source: str = ""
    server_run_ids: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    why_clean: str | None = None
    base_run: str | None = None
    checkpoint: Checkpoint | None = None
    no_checkpoint: str | None = None
    loosened: dict[str, bool | int | float] = field(default_factory=dict)
    waited_seconds: dict[str, float] = field(default_factory=dict)
    ended_well: bool | None = None
    worked_seconds: dict[str, float] = field(default_factory=dict)
    limited_to: str = ""
    address_limit: int | None = None
    approved_by: str = ""
    format_version: int = FORMAT_VERSION
    ADDED: ClassVar = (
        "waited_seconds",
        "ended_well",
        "worked_seconds",
        "storage_classes",
        "limited_to",
        "address_limit",
        "approved_by",
    )

    @property
    def statistics(self) -> Statistics:
        """The figures of the run; unknown ones are None."""
        # In runs with a base run, earlier versions counted the committed addresses that the run looked up.
        is_known = self.base_run is None or self.flow == Flow.COMMITTED
        counts = {name: count for name, count in self.counts.items() if name != "committed" or is_known}
        kept, waited = sum(self.kept.values()), sum(self.waited_seconds.values())
        known = {"listed", "candidates"} <= counts.keys()
        return Statistics.from_stored(
            counts,
            self.object_bytes,
            live=counts["listed"] - kept - counts["candidates"] if known else None,
            kept=kept if counts else None,
            seconds=sum(self.worked_seconds.values()) + waited if self.worked_seconds else None,
            seconds_waited=waited if self.worked_seconds else None,
        )

    @property
    def known(self) -> int:
        """Number of objects that the run knows, as `guards.Mark` counts them."""
        statistics = self.statistics
        if self.flow == Flow.COMMITTED:
            return count_known(statistics.committed or 0, statistics.candidates or 0, self.kept)
        return (statistics.listed or 0) if statistics.stored is None else statistics.stored

    @property
    def candidate_share(self) -> float:
        """Share of candidates, which `collection.max_candidate_share` limits."""
        return share(self.statistics.candidates or 0, self.known)

    @property
    def is_complete(self) -> bool:
        """True if every step ended and no deletion failed unexpectedly; losses of earlier runs do not count."""
        return self.success if self.ended_well is None else self.ended_well

    @property
    def is_partial(self) -> bool:
        """True if the run was limited to addresses or windows: its figures do not describe the whole repository."""
        return self.address_limit is not None or bool(self.limited_to)

    @property
    def was_broken_off(self) -> bool:
        """True for a dry run that a person or the machine interrupted; nothing is wrong with it."""
        return self.dry_run and self.error == INTERRUPTED

    @property
    def moved(self) -> bool:
        """True if candidates went to quarantine, or were to."""
        return self.ending in _MOVED or bool(self.statistics.quarantined)

    @property
    def only_undeletable(self) -> bool:
        """True if the run ended and every failure is listed as undeletable, so that a retry would not help."""
        statistics = self.statistics
        return self.ending is not Ending.FAILED and 0 < (statistics.failed or 0) == statistics.undeletable

    @property
    def did(self) -> str:
        """Figures about the outcomes of candidates, in words."""
        deleted, moved = self.statistics.deleted or 0, self.statistics.quarantined or 0
        figures = [f"{moved:,} moved to quarantine"] if self.moved else []
        return ", ".join([*figures, *([f"{deleted:,} deleted"] if deleted or not figures else [])])

    def to_json(self) -> bytes:
        """The report as it is stored."""
        return records_json.encode(self)


def ending(sweep: bool, quarantine: bool, outcomes: Mapping[Outcome, int]) -> Ending:
    """Ending of a run that finished all steps.

    A sweep may have been resumed in the other mode, so its outcomes decide.

    Args:
        sweep: True if candidates were to be deleted, False for a dry run.
        quarantine: True if the sweep was to move them to quarantine; matters only if it neither moved nor deleted any.
        outcomes: number of candidates by outcome; missing outcomes count as 0.
    """
    if not any(count for outcome, count in outcomes.items() if outcome is not Outcome.DELETED_BY_ANOTHER_RUN):
        return Ending.NOTHING_TO_DELETE
    if not sweep:
        return Ending.MARKED
    deleted, moved, failures = (
        outcomes.get(outcome, 0) for outcome in (Outcome.ACCEPTED, Outcome.QUARANTINED, Outcome.FAILED)
    )
    if not deleted and not moved:
        if not failures:
            return Ending.KEPT_ARCHIVED if outcomes.get(Outcome.KEPT_ARCHIVED) else Ending.KEPT_LIVE
        return Ending.NONE_QUARANTINED if quarantine else Ending.NONE_DELETED
    if failures:
        return Ending.PARTLY_DELETED if deleted else Ending.PARTLY_QUARANTINED
    if deleted and moved:
        return Ending.DELETED_AND_QUARANTINED
    return Ending.DELETED if deleted else Ending.QUARANTINED


def from_plan(plan: Plan, ending: Ending, now: datetime, **figures: Any) -> Report:
    """The report of a run from its plan, and figures that the plan does not know."""
    planned = Report(
        run_id=plan.run_id,
        attempt=plan.attempt,
        repository=plan.repository,
        storage_namespace=plan.storage_namespace,
        flow=plan.flow.value,
        previous_run=plan.previous_run,
        dry_run=not plan.sweep,
        success=False,
        ending=ending,
        started_at=plan.started_at,
        ended_at=now,
        cutoff=plan.cutoff,
        windows=plan.windows,
        address_limit=None if plan.only_addresses is None else len(plan.only_addresses),
        why_clean=plan.why_clean,
        base_run=plan.base_run,
        loosened=plan.loosened,
    )
    return replace(planned, **figures)


def failed(plan: Plan, now: datetime, error: str) -> Report:
    """The report of a run that a step ended with an error."""
    return from_plan(plan, Ending.FAILED, now, error=error)


def write(store: ObjectStore, report: Report) -> None:
    """Stores the report, replacing one of an earlier attempt."""
    store.put(run_folder.report(report.run_id), report.to_json())


def read(store: ObjectStore, run_id: str) -> Report | None:
    """The stored report of a run; None if there is none yet. Raises CorruptFile."""
    return records_json.read(store, Report, run_folder.report(run_id), run_id)


def find_named(store: ObjectStore, name: str, windows: Collection[str]) -> str | None:
    """The id of the run that a name means over some windows; None if there is none.

    It is the run that was opened under the name over these windows, or else a run over more windows that ended well.

    Raises CorruptFile.
    """
    if (run_id := plans.find_named(store, name, windows)) is not None:
        return run_id
    for other in sorted(plans.runs_named(store, name)):
        report = read(store, other)
        if report is not None and report.is_complete and {*windows} <= {*report.windows}:
            return other
    return None


def overtakes(store: ObjectStore, ended: Report, run_id: str) -> bool:
    """True if an older failed run need not be finished any more, because this run ended well.

    Every run overtakes dry runs, and launches that failed before they had a plan. A sweep also overtakes
    sweeps, which can no longer be finished: their mark is older than that sweep.

    Args:
        ended: the report of the newer run, which ended well.
    Raises:
        CorruptFile: the older run's plan or approval cannot be read.
    """
    if run_id <= ended.run_id:
        return False
    if not ended.dry_run or not run_folder.has_plan(store, run_id):
        return True
    return not plans.read(store, run_id).sweep and plans.read_approval(store, run_id) is None


def bytes_freed(store: ObjectStore, run_ids: Iterable[str]) -> int:
    """Bytes that runs freed, by their reports; unreadable reports are skipped."""
    freed = 0
    for run_id in run_ids:
        with suppress(CorruptFile):
            freed += (report.statistics.deleted_bytes or 0) if (report := read(store, run_id)) else 0
    return freed


def require_not_ended(store: ObjectStore, run_id: str, windows: Collection[str]) -> None:
    """Raises RunEnded if a run has already ended well, or OrderViolation if it did so without some of the windows."""
    stored = read(store, run_id)
    if stored is None or not stored.is_complete:
        return
    if missed := sorted({*windows} - {*stored.windows}):
        raise OrderViolation(
            f"run {run_id} ended at {stored.ended_at:%F %T}Z and did not cover {', '.join(missed)}: {_FOR_A_NEW_RUN}"
        )
    raise RunEnded(
        f"run {run_id} ended at {stored.ended_at:%F %T}Z ({stored.ending.value}): there is nothing to do. "
        f"{_FOR_A_NEW_RUN.capitalize()}"
    )


def describe(report: Report) -> list[str]:
    """The report of a run as lines; the reason if it failed."""
    first = f"run {report.run_id} of {report.repository}, {report.flow}: {report.ending.value}"
    approver = [f"approved by {report.approved_by}"] if report.approved_by else []
    if not report.counts:
        lines = [*approver, *([report.error] if report.error else [])]
    else:
        settings = [f"a clean run, because {report.why_clean}"] if report.why_clean else []
        if report.loosened:
            settings.append(f"loosened by its launch: {describe_loosened(report.loosened)}")
        lines = [*settings, *approver, *_describe_mark(report), *_describe_outcomes(report)]
    return [first, *(f"  {line}" for line in lines)]


def _figure(name: str, count: int | None, unit: str, more: str = "") -> str:
    return f"{name:11} {counted(count or 0, unit, 12)}{more}"


def _describe_mark(report: Report) -> Iterator[str]:
    """Lines of figures up to the kept objects; figures that earlier versions did not store are skipped."""
    figures = report.statistics
    slices, listed_bytes = counted(figures.slices_listed or 0, "slices"), size(figures.listed_bytes or 0)
    ranges, bases = (
        counted(figures.ranges_read or 0, "ranges"),
        counted(figures.compacted_bases or 0, "compacted bases"),
    )
    if report.limited_to:
        elsewhere = counted(figures.slices_elsewhere or 0, "slices of other windows were")
        yield f"limited to {report.limited_to}: {elsewhere} not listed"
    yield _figure("listed", figures.listed, "objects", f", {listed_bytes}, {slices}, cutoff {report.cutoff:%F %T}Z")
    yield from _describe_classes(report.storage_classes.get("listed", {}))
    yield _figure("uncommitted", figures.uncommitted, "addresses")
    addresses = "" if figures.committed is None else f", {counted(figures.committed, 'addresses')}"
    yield _figure("committed", figures.commits, "commits", f", by the {report.commit_source}, {ranges} read{addresses}")
    if figures.unnamed_ranges:
        yield _figure(
            "unnamed",
            figures.unnamed_ranges,
            "ranges of no commit were",
            " read: their objects stay, since another repository may be on this storage namespace; if they are known "
            "to be orphans, turn off collection.keep_unnamed_ranges",
        )
    if figures.provisional_ranges:
        yield _figure(
            "provisional",
            figures.provisional_ranges,
            "ranges are",
            f" of {bases} of branches, or young and of no commit: their objects are kept for now",
        )
    yield _figure("candidates", figures.candidates, "objects", f", {size(figures.candidates_bytes or 0)}")
    yield from _describe_classes(report.storage_classes.get("candidates", {}))
    if figures.unreadable:
        where = " in an archive tier: their content could not be compared"
        yield _figure("unreadable", figures.unreadable, "objects", where)
    for why, count in sorted(report.kept.items()):
        yield _figure("kept", count, "objects", f": {_explain(why)}")


def _describe_outcomes(report: Report) -> Iterator[str]:
    """Figures of the candidates by outcome, and the next step for a person."""
    figures = report.statistics
    if report.moved:
        moved = size(figures.quarantined_bytes or 0)
        yield _figure("quarantined", figures.quarantined, "objects", f", {moved}: moved, not freed")
    if not report.dry_run and (figures.deleted or not report.moved):
        yield _figure("deleted", figures.deleted, "objects", f", {size(figures.deleted_bytes or 0)}")
    if not report.dry_run:
        yield _figure("failed", figures.failed, "objects")
    if figures.kept_live:
        them = "it" if figures.kept_live == 1 else "them"
        yield _figure("kept live", figures.kept_live, "objects", f": something has referenced {them} since the mark")
    if figures.failed:
        yield f"reasons: lakefs-gc deleted {report.run_id}; missing permissions: lakefs-gc doctor"
    if figures.kept_archived:
        kept = size(figures.kept_archived_bytes or 0)
        yield _figure("archived", figures.kept_archived, "objects", f", {kept}: kept, quarantine cannot copy them")
    if elsewhere := figures.deleted_by_another_run:
        yield f"gone before {elsewhere:>12,} deleted by another run after this run listed them"
    if figures.seconds is not None:
        waited = f", {figures.seconds_waited:,.1f} s of these waiting for safety" if figures.seconds_waited else ""
        yield f"took        {figures.seconds:>12,.1f} s{waited}"
    yield from (f"warning: {warning}" for warning in report.warnings)
    if report.dry_run and figures.candidates:
        refused = any(warning.startswith(WOULD_BE_REFUSED) for warning in report.warnings)
        then = "resolve the warnings, then" if refused else "to delete its candidates"
        yield f"a dry run deletes nothing; {then}: lakefs-gc approve {report.run_id}"
    if figures.quarantined:
        yield f"to restore moved objects before they are purged: lakefs-gc restore {report.run_id}"


def describe_loosened(loosened: Mapping[str, bool | int | float]) -> str:
    """Settings that a launch changed, in one line."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in loosened.items())


def _describe_classes(classes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Objects and bytes by storage class; empty if all have the usual class."""
    if classes.keys() <= {_USUAL_CLASS}:
        return []
    return [
        f"  {name:9} {counted(amount['objects'], 'objects', 12)}, {size(amount['bytes'])}"
        for name, amount in classes.items()
    ]


def _explain(why: str) -> str:
    """Reason why objects are kept, with a next step for a person if that is not obvious."""
    if why == Kept.MULTIPART:
        return f"{why}: the first run, even a dry run, that lists them at least an hour after this one can collect them"
    if why == Kept.UNCERTAIN:
        return f"{why}; collection.hidden_suspect_limit is the maximum"
    return why

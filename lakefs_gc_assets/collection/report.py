"""The report of a run: what it looked at, what it found, what it deleted, and whether it can be relied on.

Written for every run, failed ones too. Times UTC, sizes bytes, durations seconds.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from lakefs_gc_assets.collection import run_folder, stored_records
from lakefs_gc_assets.collection.carry import Carry
from lakefs_gc_assets.collection.plan import Plan
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.storage.interface import ObjectStore

FORMAT_VERSION = 1


class Ending(StrEnum):
    """How a run ended."""

    NOTHING_TO_DELETE = "nothing to delete"
    MARKED = "marked, nothing deleted"
    DELETED = "deleted"
    PARTLY_DELETED = "some deletions failed"
    QUARANTINED = "moved to quarantine"
    PARTLY_QUARANTINED = "some could not be moved to quarantine"
    FAILED = "failed"


_MOVED = (Ending.QUARANTINED, Ending.PARTLY_QUARANTINED)


@dataclass(frozen=True, slots=True)
class Report:
    """What one run did.

    Attributes:
        started_at: run start time.
        last_read_slice: the newest slice that was listed; empty where none was.
        success: every step ended, and every deletion was accepted or none was asked for.
        why_clean: why a run that was asked to be optimized was a clean one.
        predecessor: the run that an optimized run built on.
        carry: what a later run can build on; None where it cannot.
        no_carry: why it cannot, for a run that came to its end.
        counts: objects and addresses by what they were found to be.
        object_bytes: sizes by the same names.
        kept: unreferenced objects that stay, by reason.
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
    kept: dict[str, int] = field(default_factory=dict)
    commit_source: str = ""
    server_run_ids: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    why_clean: str | None = None
    predecessor: str | None = None
    carry: Carry | None = None
    no_carry: str | None = None
    format_version: int = FORMAT_VERSION

    @property
    def moved(self) -> bool:
        """Whether candidates went to quarantine, or were to."""
        return self.ending in _MOVED or bool(self.counts.get("quarantined"))

    @property
    def did(self) -> str:
        """What became of the candidates, in figures."""
        deleted, moved = self.counts["deleted"], self.counts.get("quarantined", 0)
        told = [f"{moved:,} moved to quarantine"] if self.moved else []
        return ", ".join([*told, *([f"{deleted:,} deleted"] if deleted or not told else [])])

    def to_json(self) -> bytes:
        """The report as it is stored."""
        return stored_records.encode(self)

    @classmethod
    def from_json(cls, data: bytes, file: str) -> "Report":
        """Reads a stored report. Raises CorruptFile."""
        return stored_records.decode(cls, FORMAT_VERSION, data, file)


def failed(plan: Plan, now: datetime, error: str) -> Report:
    """The report of a run that a step ended with an error."""
    return Report(
        run_id=plan.run_id,
        attempt=plan.attempt,
        repository=plan.repository,
        storage_namespace=plan.storage_namespace,
        flow=plan.flow.value,
        previous_run=plan.previous_run,
        dry_run=not plan.sweep,
        success=False,
        ending=Ending.FAILED,
        started_at=plan.started_at,
        ended_at=now,
        cutoff=plan.cutoff,
        windows=plan.windows,
        error=error,
        why_clean=plan.why_clean,
        predecessor=plan.predecessor,
    )


def write(store: ObjectStore, report: Report) -> None:
    """Stores the report, in place of one of an earlier attempt."""
    store.put(run_folder.report(report.run_id), report.to_json())


def read(store: ObjectStore, run_id: str) -> Report | None:
    """The stored report of a run; None while there is none. Raises CorruptFile."""
    key = run_folder.report(run_id)
    try:
        found = Report.from_json(store.get(key), key)
    except ObjectNotFound:
        return None
    if found.run_id != run_id:
        raise CorruptFile(key, "report", f"it is the report of run {found.run_id}")
    return found

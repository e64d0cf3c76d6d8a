"""The approval of a dry run: a person looked at its candidates, and they are to be deleted after all."""

from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector import report as reports
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.stored import records, run_folder
from lakefs_gc_assets.errors import CollectionError, CorruptFile, ObjectNotFound, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Approval:
    """That the candidates of one dry run may be deleted.

    Attributes:
        attempt, candidates_digest: name the very frame of candidates; one that was made again needs a new approval.
        approved_at: UTC.
    """

    run_id: str
    attempt: str
    candidates_digest: str
    approved_at: datetime
    format_version: int = FORMAT_VERSION


def require_dry_run(store: ObjectStore, run_id: str) -> Manifest[CandidateFigures]:
    """The manifest of the candidates of a dry run that can be approved.

    It came to its end, so that its checks have passed, and was not approved and swept already. One whose approved sweep
    failed may be approved again.

    Raises CollectionError where the run is no such run, or its candidates are no longer stored.
    """
    planned, found = plans.read(store, run_id), reports.read(store, run_id)
    if planned.sweep:
        raise CollectionError(f"run {run_id} was no dry run: what it was to delete needs no approval")
    if found is not None and found.is_complete and not found.dry_run:
        raise CollectionError(f"run {run_id} was approved before: {found.did}")
    if found is None or not (found.is_complete or read(store, run_id) is not None):
        raise CollectionError(f"run {run_id} did not come to its end: make a new one")
    try:
        return manifests.read(store, run_id, CANDIDATES_DF)
    except OrderViolation:
        raise CollectionError(f"run {run_id} has no candidates stored: they were removed because it is old") from None


def give(store: ObjectStore, candidates: Manifest[CandidateFigures], now: datetime) -> None:
    """Stores an approval of these very candidates: the last step of their run, made again, deletes them. `now`: UTC."""
    write(store, Approval(candidates.span.run_id, candidates.span.attempt, candidates.digest, now))


def write(store: ObjectStore, approval: Approval) -> None:
    """Stores an approval, in place of an earlier one of the run."""
    store.put(run_folder.approval(approval.run_id), records.encode(approval))


def read(store: ObjectStore, run_id: str) -> Approval | None:
    """The approval of a run; None where there is none. Raises CorruptFile."""
    key = run_folder.approval(run_id)
    try:
        found = records.decode(Approval, FORMAT_VERSION, store.get(key), key)
    except ObjectNotFound:
        return None
    if found.run_id != run_id:
        raise CorruptFile(key, "approval", f"it is the approval of run {found.run_id}")
    return found

"""Approves a dry run: a person looked at its candidates, and they are to be deleted after all."""

from datetime import datetime

from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.records import approval
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.approval import Approval
from lakefs_gc_assets.errors import CollectionError, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore


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
    if found is None or not (found.is_complete or approval.read(store, run_id) is not None):
        raise CollectionError(f"run {run_id} did not come to its end: make a new one")
    try:
        return manifests.read(store, run_id, CANDIDATES_DF)
    except OrderViolation:
        raise CollectionError(f"run {run_id} has no candidates stored: they were removed because it is old") from None


def give(store: ObjectStore, candidates: Manifest[CandidateFigures], now: datetime) -> None:
    """Stores an approval of these very candidates: the last step of their run, made again, deletes them. `now`: UTC."""
    approval.write(store, Approval(candidates.span.run_id, candidates.span.attempt, candidates.digest, now))

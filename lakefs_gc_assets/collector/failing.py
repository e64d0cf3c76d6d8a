"""Ending a run that failed: its report says why, and its lock is given back."""

from dataclasses import replace
from datetime import datetime

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.lock import is_held_by, release_owned
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.storage.interface import ObjectStore


def store_report(store: ObjectStore, plan: Plan, now: datetime, error: str) -> None:
    """Stores the report of a failed run, unless the run already ended well.

    A dry run that has receipts was approved since: where that sweep fails, its report no longer holds.
    """
    earlier = reports.read(store, plan.run_id)
    swept = plan.sweep or bool(receipts.keys(store, plan.run_id))
    if earlier is None or not earlier.is_complete or (earlier.dry_run and swept):
        reports.write(store, replace(reports.failed(plan, now, error), dry_run=not swept))


def end_between_steps(store: ObjectStore, run_id: str, now: datetime, error: str) -> None:
    """Stores the report and releases the lock that the run's steps hand on to each other.

    Raises CollectionError where the run has no plan or the store cannot be reached.
    """
    plan = plans.read(store, run_id)
    store_report(store, plan, now, error)
    release_owned(store, plan.owner)


def end_if_left(store: ObjectStore, run_id: str, owner: str, now: datetime, error: str) -> None:
    """Ends a run whose process was interrupted where no step could end it, unless it gave its lock back.

    Args:
        owner: who took the lock for this run.
    Raises:
        CollectionError: the store cannot be reached.
    """
    if not is_held_by(store, owner):
        return
    try:
        store_report(store, plans.read(store, run_id), now, error)
    finally:
        # There may be no plan yet: the lock is taken first.
        release_owned(store, owner)

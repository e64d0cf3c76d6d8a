"""Ending a run that failed: its report says why, and its lock is given back."""

from datetime import datetime

from lakefs_gc_assets.collection import plan as plans
from lakefs_gc_assets.collection import report as reports
from lakefs_gc_assets.collection.lock import release_owned
from lakefs_gc_assets.collection.plan import Plan
from lakefs_gc_assets.storage.interface import ObjectStore


def store_report(store: ObjectStore, plan: Plan, now: datetime, error: str) -> None:
    """Stores the report of a failed run, unless the run already ended well."""
    earlier = reports.read(store, plan.run_id)
    if earlier is None or not earlier.success:
        reports.write(store, reports.failed(plan, now, error))


def end_between_steps(store: ObjectStore, run_id: str, now: datetime, error: str) -> None:
    """Stores the report and releases the lock that the run's steps hand on to each other.

    Raises CollectionError where the run has no plan or the store cannot be reached.
    """
    plan = plans.read(store, run_id)
    store_report(store, plan, now, error)
    release_owned(store, plan.owner)

"""Finds the run that the next optimized run is to follow, once it is due.

Only plans and reports in the store are asked: they also know runs of the command line, and what an event log shows as
the latest may be an old run that was made again. The time in a run's id says which is the newest.

A run is followed that succeeded, and one that failed only at objects that cannot be deleted: those are written down,
and the next run knows them.
"""

from datetime import datetime, timedelta

from lakefs_gc_assets.collector.incremental import base_run
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.storage.interface import ObjectStore

_LOOKED_AT = 100


def report_to_follow(store: ObjectStore, cadence: timedelta, now: datetime, followed: str) -> Report | str:
    """The report of the run that the next optimized run builds on, once it is due; otherwise why none is.

    Args:
        cadence: the least time between the start of that run and the next one.
        followed: id of the run that was followed last; empty for none. Runs that were opened before it count as
            followed: a run id tells when it was opened, the newer one is the smaller. It may be any text: whatever is
            no id, or one of a time to come, counts as none.
    Raises:
        StorageError: the store cannot be asked.
    """
    try:
        newest = base_run.newest_sweep(store, among=_LOOKED_AT)
        found = None if newest is None else reports.read(store, newest.run_id)
    except CorruptFile as corrupt:
        return f"the newest run that was to delete cannot be read ({corrupt}): open a clean run that sweeps"
    if newest is None:
        return "no run was to delete yet: open a clean run that sweeps, optimized runs follow it"
    if found is None:
        return f"run {newest.run_id}, which is to delete, has not ended"
    if found.dry_run:
        return f"run {newest.run_id} was approved and has not deleted yet"
    if not found.is_complete and not found.only_undeletable:
        return (
            f"run {newest.run_id} did not succeed ({found.error or found.ending.value}): make it again, or a clean run"
        )
    believable = xids.is_xid(followed) and not xids.is_to_come(followed, now)
    if believable and found.run_id >= followed:
        return f"run {found.run_id} was followed already"
    due = found.started_at + cadence
    if now < due:
        return f"run {found.run_id} is followed from {due:%F %T}Z on"
    return found

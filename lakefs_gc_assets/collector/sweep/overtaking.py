"""Runs that a newer one has overtaken: what they marked no longer fits what is stored.

A newer run that swept has deleted some of the same objects, and left what the next run builds on. An older run that
went on afterwards, resumed or approved late, would delete behind its back.
"""

from collections.abc import Iterator
from itertools import takewhile

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore


def newer_runs(store: ObjectStore, run_id: str) -> Iterator[str]:
    """The ids of runs that were opened after this one, newest first."""
    return takewhile(lambda other: other < run_id, run_folder.newest_runs(store))


def require_not_overtaken(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation where a newer run has swept or begun to, or may have; the repository's lock is held.

    A report tells that a sweep came to its end, receipts tell that one began. A newer run that only marked, or failed
    before its first receipt, overtakes no run.

    Where the report of a newer run cannot be read, and it has no receipts, it may have swept.

    Raises:
        StorageError: the store cannot be asked.
    """
    for newer in newer_runs(store, run_id):
        try:
            swept = _swept(store, newer)
        except CorruptFile as corrupt:
            raise OrderViolation(
                f"it is not known whether run {newer} has swept, which is newer than run {run_id}: {corrupt} "
                "Open a new run"
            ) from corrupt
        if swept:
            raise OrderViolation(
                f"run {newer} has swept, or begun to, and is newer than run {run_id}: a run that a newer one has "
                "overtaken does not sweep. Open a new run"
            )


def _swept(store: ObjectStore, run_id: str) -> bool:
    if receipts.keys(store, run_id):
        return True
    report = reports.read(store, run_id)
    return report is not None and not report.dry_run and report.ending is not Ending.FAILED

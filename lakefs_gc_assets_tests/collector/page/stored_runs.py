"""Finished runs as stored: plan, report, and frames of a few rows."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Span, StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, STEPS, F
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.outcomes import Why
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets_tests.collector import made_frames
from lakefs_gc_assets_tests.collector.past_runs import NOW, began

STARTED = timedelta(hours=1)
"""Time since the run began."""

COUNTS = {
    "stored": 10,
    "listed": 10,
    "slices_listed": 2,
    "slices_skipped": 0,
    "uncommitted": 2,
    "committed": 3,
    "commits": 4,
    "branches": 1,
    "ranges_read": 1,
    "candidates": 3,
    "deleted": 0,
    "quarantined": 0,
    "failed": 0,
    "kept_live": 0,
}
BYTES = {"listed": 100, "candidates": 3 * 2**30, "deleted": 0, "quarantined": 0}


def stored_run(opened: OpenRepository, *names: str, plan: dict[str, Any] | None = None, **changes: Any) -> Report:
    """A dry run with a candidate of one GiB for each name, three by default.

    Args:
        plan: changes of its plan.
        changes: changes of its report.
    """
    made = began(opened, STARTED, **({"sweep": False} | (plan or {})))
    report = replace(
        reports.failed(made, NOW, ""),
        success=True,
        ending=Ending.MARKED,
        error=None,
        dry_run=not made.sweep,
        counts=COUNTS,
        object_bytes=BYTES,
        kept={"too young": 1},
        worked_seconds=dict.fromkeys(STEPS, 90.0),
        commit_source="refs dump",
    )
    store_frames(opened, made, names or ("data/a", "data/b", "data/c"))
    report = replace(report, **changes)
    reports.write(opened.store, report)
    return report


def store_frames(opened: OpenRepository, plan: Plan, names: Sequence[str]) -> None:
    """Stores the frames of a run up to its candidates, which have these names."""
    _store(opened, plan, made_frames.listed(10))
    _store(opened, plan, made_frames.uncommitted(2))
    _store(opened, plan, made_frames.committed(3))
    rows = [
        {
            "address": name,
            "slice_window": "2026-10",
            "layout": "slice",
            "last_modified": NOW - timedelta(days=40),
            "size": 2**30,
            "why": Why.NO_COMMIT.value,
        }
        for name in names
    ]
    _store(opened, plan, made_frames.frame_of_rows(opened.opener, CANDIDATES_DF, rows, made_frames.CANDIDATE_FIGURES))


def _store(opened: OpenRepository, plan: Plan, frame: StoredFrame[F]) -> None:
    span = Span(frame.name, plan.run_id, plan.attempt, plan.started_at, plan.started_at + timedelta(seconds=90))
    files.write_manifest(opened.store, replace(frame.manifest, span=span))

"""Dagster's part around the steps of a run, for runs on plain tables: it passes frames on, and checks candidates."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from lakefs_gc_assets.collector import reporting
from lakefs_gc_assets.collector import run as protocol
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError

INPUTS = {
    "store_df": (),
    "uncommitted_df": STEPS[:1],
    "committed_df": STEPS[1:2],
    "candidates": STEPS[:3],
    "deleted_report": STEPS[3:4],
}
"""Input frames by asset."""
_FUNCTIONS = {
    "store_df": "list_stored",
    "uncommitted_df": "read_uncommitted",
    "committed_df": "read_committed",
    "candidates": "mark",
    "deleted_report": "sweep",
}
"""The function of `collector.run` that makes each frame."""


def make_frame(name: str, step: Step[ArrowRows], inputs: Sequence[StoredFrame[Any]]) -> StoredFrame[Any]:
    """Makes the step of an asset. Raises the error that ends it."""
    made = getattr(protocol, _FUNCTIONS[name])(step, *inputs)
    frame: StoredFrame[Any] = made[0] if isinstance(made, tuple) else made
    return frame


def require_passed_checks(
    engine: LocalEngine, candidates: StoredFrame[Any], inputs: Sequence[StoredFrame[Any]], cutoff: datetime
) -> None:
    """Runs the blocking checks of the candidates. Raises CollectionError if one fails.

    Args:
        inputs: the frames that the candidates were made from.
    """
    listed, uncommitted, committed = inputs
    violations = [
        *reporting.find_live_candidates(engine, candidates, uncommitted, committed),
        *reporting.find_young_candidates(engine, candidates, cutoff),
        *reporting.find_empty_live_set(listed, uncommitted, committed, candidates),
    ]
    if violations:
        raise CollectionError("; ".join(f"{found.rule}: {found.detail}" for found in violations))

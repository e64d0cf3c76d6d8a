"""One collection of a replayed recording, through the real graph."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lakefs_gc_assets import running
from lakefs_gc_assets.collection import report
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.configuration import Loaded
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.frames import manifest
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets_tests.replay.clock import StoppedClock
from lakefs_gc_assets_tests.replay.server import ReplayServer


def replay(
    folder: Path, flow: Flow, now: datetime | None, variant: int | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Collects a recording in a dry run; every deletion would be refused.

    Returns flow, run_id, candidates and unrecognised (sorted addresses) and counts. Raises CollectionError where the
    run fails.
    """
    moment = now or datetime.now(UTC)
    clock = StoppedClock(moment)
    with ReplayServer(folder, now=moment, variant=variant) as server, running.instance() as home:
        loaded = Loaded(server.configuration(), {})
        succeeded, run_id, error = running.execute(loaded, False, progress, clock, home)
        repository = running.opened(loaded, clock).open()
        ended = report.read(repository.store, run_id)
        if not succeeded or ended is None:
            raise CollectionError(error or f"run {run_id} left no report")

        def addresses(frame: str) -> list[str]:
            stored = StoredFrame(manifest.read(repository.store, run_id, frame), repository.opener, 1)
            return sorted(stored.table().column("address").to_pylist())

        return {
            "flow": flow.value,
            "run_id": run_id,
            "candidates": addresses("candidates"),
            "unrecognised": addresses("unrecognised"),
            "counts": {**ended.counts, "kept": ended.kept},
        }

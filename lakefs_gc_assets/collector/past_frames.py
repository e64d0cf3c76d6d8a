"""Frames of runs that ended: which run is meant, and the manifest of what it stored."""

from typing import Any

from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import FRAMES
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.records import plan, report
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CollectionError, CorruptFile, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore


def newest_run(store: ObjectStore, *, sweeps: bool = False) -> str:
    """The id of the newest run that came to its end. Raises CollectionError where there is none.

    Args:
        sweeps: whether dry runs are passed over.
    """
    for run_id in run_folder.newest_runs(store):
        try:
            ended = report.read(store, run_id)
        except CorruptFile as corrupt:
            # An older run, chosen without a word, would be taken for the newest.
            raise CollectionError(f"{corrupt} Name another run: `lakefs-gc status` lists all runs") from corrupt
        if ended is not None and ended.counts and not (sweeps and ended.dry_run):
            return run_id
    if sweeps:
        raise CollectionError(
            "no sweep has come to its end yet: `lakefs-gc approve RUN` sweeps what a dry run found, `lakefs-gc status` "
            "lists all runs"
        )
    raise CollectionError(
        "no run has come to its end yet: `lakefs-gc run` makes a dry run, `lakefs-gc status` lists all runs"
    )


def read_manifest(store: ObjectStore, frame: str, run_id: str) -> Manifest[Any]:
    """The manifest of a frame of a run. Raises CollectionError where there is none."""
    plan.read(store, run_id)
    try:
        return manifests.read(store, run_id, FRAMES[frame])
    except OrderViolation:
        raise CollectionError(
            f"run {run_id} has no {frame} stored: it ended before, or they were removed because the run is old"
        ) from None

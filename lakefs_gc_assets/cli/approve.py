"""`lakefs-gc approve`: deletes what an earlier dry run found."""

import sys
from pathlib import Path
from typing import Any

import click

from lakefs_gc_assets.cli.endings import Status
from lakefs_gc_assets.cli.frame_output import read_manifest
from lakefs_gc_assets.cli.opening import open_collector
from lakefs_gc_assets.cli.options import CONFIG, REPOSITORY, loaded_configuration, show_progress
from lakefs_gc_assets.cli.run import require_report, tell_ended
from lakefs_gc_assets.collector import plan, report
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.sizes import size
from lakefs_gc_assets.collector.sweep import approval
from lakefs_gc_assets.defs.running import execute_approved, instance
from lakefs_gc_assets.errors import CollectionError


@click.command()
@CONFIG
@REPOSITORY
@click.option("--yes", is_flag=True, help="Delete them without asking.")
@click.argument("run_id", metavar="RUN")
def approve(file: Path | None, repository: str | None, yes: bool, run_id: str) -> None:
    """Deletes what an earlier dry run found, after a look whether it is live by now.

    The run's own plan holds, every guard of a sweep too; collection.max_mark_age_hours says how old it may be. In the
    Dagster UI the setting collection.approve_run does the same.

    Exit status 0 if every deletion was accepted, 6 if some were not; `lakefs-gc --help` lists all of them.
    """
    loaded = loaded_configuration(file, repository)
    collector = open_collector(loaded)
    opened = collector.open()
    found = require_dry_run(opened, run_id)
    objects = f"{found.rows:,} objects, {size(found.object_bytes)}"
    click.echo(f"run {run_id} of {found.span.ended_at:%F %T}Z found {objects}", err=True)
    if not yes and not click.confirm("Delete them, unless they are live by now?", err=True):
        sys.exit(Status.FAILED)
    with instance() as home:
        error = execute_approved(loaded, run_id, show_progress, collector.clock, home)
    if error is not None:
        raise error
    tell_ended(require_report(opened.store, run_id))


def require_dry_run(repository: OpenRepository, run_id: str) -> Manifest[Any]:
    """What a dry run found that came to its end; its checks passed then.

    Raises CollectionError where the run is no such run, or what it found is deleted.
    """
    planned, found = plan.read(repository.store, run_id), report.read(repository.store, run_id)
    if planned.sweep:
        raise CollectionError(f"run {run_id} was no dry run: what it was to delete needs no approval")
    if found is not None and found.success and not found.dry_run:
        raise CollectionError(f"run {run_id} was approved before: {found.did}")
    was_approved = approval.read(repository.store, run_id) is not None
    if found is None or not (found.success or was_approved):
        raise CollectionError(f"run {run_id} did not come to its end: make a new one")
    return read_manifest(repository, "candidates", run_id)

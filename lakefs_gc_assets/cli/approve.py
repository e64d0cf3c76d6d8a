"""`lakefs-gc approve`: deletes the candidates of an earlier dry run."""

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    VERBOSE,
    YES,
    Target,
    is_confirmed,
    level_of,
    on_repository,
    print_report,
    require_report,
    require_yes,
    show_progress,
)
from lakefs_gc_assets.cli.progress import shown_progress
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.defs.running import Detail, execute_approved, instance
from lakefs_gc_assets.errors import counted


@click.command()
@on_repository
@YES
@QUIET
@VERBOSE
@JSON
@click.argument("run_id", metavar="RUN")
def approve(target: Target, quiet: bool, verbose: bool, as_json: bool, run_id: str) -> None:
    """Deletes the candidates of a dry run, after checking again that nothing uses them.

    The run's own plan and every guard of a sweep apply. The dry run may be at most collection.max_mark_age_hours old.
    In the Dagster UI, the job approve does the same.

    Exit status 0 if every deletion was accepted, 6 if some were not, 7 if a live object is missing because an earlier
    run deleted it; `lakefs-gc --help` lists all of them.
    """
    level = level_of(quiet, verbose)
    collector = target.collector()
    opened = collector.open()
    dry_run = sweeping.require_dry_run(opened.store, run_id)
    objects = f"{counted(dry_run.rows, 'objects')}, {size(dry_run.object_bytes)}"
    if not (is_confirmed() and quiet):
        show_progress(f"run {run_id} of {dry_run.span.ended_at:%F %T}Z found {objects}")
    action = "Move them to quarantine" if opened.settings.quarantines else "Delete them"
    require_yes(f"{action}, except any that are live by now?", "nothing was deleted")
    with instance() as home, shown_progress(level) as (progress, watch):
        execute_approved(target.loaded, run_id, progress, collector.clock, home, Detail(level, watch))
    print_report(require_report(opened.store, run_id), as_json)

"""`lakefs-gc deleted`: the outcomes of a run's candidates."""

from typing import BinaryIO

import click

from lakefs_gc_assets.cli.candidates import (
    FORMAT,
    JSON_LINES,
    OUT,
    Format,
    TextColumn,
    require_file,
    shown_size,
    stored_frame,
    write_frame,
)
from lakefs_gc_assets.cli.common import QUIET, Target, on_repository, progress_unless
from lakefs_gc_assets.collector.incremental import earlier_runs

_COLUMNS = (
    TextColumn("decided_at", 20),
    TextColumn("outcome", 11),
    TextColumn("size", 11, shown_size),
    TextColumn("address"),
    TextColumn("error"),
)


@click.command()
@on_repository
@FORMAT
@JSON_LINES
@OUT
@QUIET
@click.argument("run_id", metavar="[RUN]", required=False)
def deleted(target: Target, form: Format, out: BinaryIO, quiet: bool, run_id: str | None) -> None:
    """Lists the outcome for each candidate of a run.

    Defaults to the newest run that swept. The outcome is accepted (deleted), quarantined, failed, kept_live,
    kept_archived, or deleted_by_another_run; for a dry run it is dry_run.
    """
    require_file(form, out)
    opened = target.open()
    stored = stored_frame(opened, "deleted_report", run_id or earlier_runs.newest_run(opened.store, sweeps=True))
    progress_unless(quiet)(write_frame(stored, _COLUMNS, form, out))

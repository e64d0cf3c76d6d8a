"""`lakefs-gc candidates`: what a run found that nothing references."""

from pathlib import Path
from typing import BinaryIO

import click

from lakefs_gc_assets.cli.frame_output import FORMAT, JSON_LINES, OUT, Format, TextColumn, shown_size, write_frame
from lakefs_gc_assets.cli.opening import open_collector
from lakefs_gc_assets.cli.options import CONFIG, QUIET, REPOSITORY, loaded_configuration, progress_unless

_COLUMNS = (
    TextColumn("last_modified", 20),
    TextColumn("size", 11, shown_size),
    TextColumn("why", 31),
    TextColumn("address"),
)


@click.command()
@CONFIG
@REPOSITORY
@FORMAT
@JSON_LINES
@OUT
@QUIET
@click.argument("run_id", metavar="[RUN]", required=False)
def candidates(
    file: Path | None, repository: str | None, form: Format, out: BinaryIO, quiet: bool, run_id: str | None
) -> None:
    """Lists what a run found to be garbage: what a sweep deletes.

    By default of the newest run that found any or none.
    """
    opened = open_collector(loaded_configuration(file, repository)).open()
    write_frame(opened, "candidates", run_id, _COLUMNS, form, out, progress_unless(quiet))

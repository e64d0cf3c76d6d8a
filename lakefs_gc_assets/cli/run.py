"""`lakefs-gc run`: makes one run."""

import sys
from pathlib import Path

import click

from lakefs_gc_assets.cli.described_report import describe
from lakefs_gc_assets.cli.options import CONFIG, REPOSITORY, Progress, loaded_configuration, show_progress
from lakefs_gc_assets.collection import report
from lakefs_gc_assets.collection.clock import Clock, SystemClock
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.configuration import Loaded
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.running import execute, instance, opened


@click.command()
@CONFIG
@REPOSITORY
@click.option(
    "--sweep/--dry-run",
    default=None,
    help="Delete the candidates, or only report them. By default as the configuration says, which is a dry run.",
)
@click.option(
    "--flow",
    type=click.Choice(["clean", "optimized", "committed", "unified"]),
    default="clean",
    show_default=True,
    help="Look at everything, only at what is new since the last run that deleted, at what only expired commits hold, "
    "or at everything with expired commits.",
)
def run(file: Path | None, repository: str | None, sweep: bool | None, flow: str) -> None:
    """Makes one run: lists what is stored, subtracts everything that is live.

    An optimized run that has nothing to build on becomes a clean one and says why.

    Exit status 0 if the run came to its end and every deletion was accepted, 1 otherwise.
    """
    loaded = loaded_configuration(file, repository)
    succeeded, lines = collect(loaded, sweep, show_progress, SystemClock(), Flow(flow))
    for line in lines:
        click.echo(line)
    if not succeeded:
        sys.exit(1)


def collect(
    loaded: Loaded, sweep: bool | None, progress: Progress, clock: Clock, flow: Flow = Flow.CLEAN
) -> tuple[bool, list[str]]:
    """Opens a run and makes it in this process.

    Args:
        sweep: whether to delete; None for what the settings say.
    Returns:
        Whether the run succeeded, and what to tell of it.
    Raises:
        CollectionError: where the run could not be opened, or a step ended it.
    """
    with instance() as home:
        succeeded, run_id, error = execute(loaded, sweep, progress, clock, home, flow)
    if error is not None:
        raise CollectionError(f"run {run_id} failed: {error}")
    found = report.read(opened(loaded, clock).open().store, run_id)
    if found is None:
        raise CollectionError(f"run {run_id} left no report")
    return succeeded and found.success, describe(found)

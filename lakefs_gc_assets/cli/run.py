"""`lakefs-gc run`: makes one run."""

import json
import logging
import sys
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import CONFIG, JSON, QUIET, REPOSITORY, VERBOSE, answer, level_of, loaded_configuration
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.cli.progress import shown_progress
from lakefs_gc_assets.collector.clock import Clock, SystemClock
from lakefs_gc_assets.collector.described_report import describe
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.running import Watch, execute, instance, opened
from lakefs_gc_assets.errors import CollectionError, LogLine
from lakefs_gc_assets.storage.interface import ObjectStore


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
    "or at both: what nothing references, and what expired.",
)
@QUIET
@VERBOSE
@JSON
def run(
    file: Path | None,
    repository: str | None,
    sweep: bool | None,
    flow: str,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Makes one run: lists what is stored, subtracts everything that is live.

    An optimized run that has nothing to build on becomes a clean one and says why.

    Exit status 0 if the run came to its end and every deletion was accepted, 6 if some were not, 7 if objects are
    lost that earlier runs deleted; `lakefs-gc --help` lists all of them.
    """
    level = level_of(quiet, verbose)
    loaded = loaded_configuration(file, repository)
    with shown_progress(level) as (progress, watch):
        found = collect(loaded, sweep, progress, SystemClock(), Flow(flow), level, watch)
    tell_ended(found, as_json)


def collect(
    loaded: Loaded,
    sweep: bool | None,
    progress: LogLine,
    clock: Clock,
    flow: Flow = Flow.CLEAN,
    level: int = logging.INFO,
    watch: Watch | None = None,
) -> Report:
    """Opens a run and makes it in this process.

    Args:
        sweep, progress, level, watch: as for `execute`.
    Returns:
        The report that the run leaves.
    Raises:
        CollectionError: where the run could not be opened, or a step ended it.
    """
    with instance() as home:
        _, run_id, error = execute(loaded, sweep, progress, clock, home, flow, level, watch)
    if error is not None:
        raise error
    return require_report(opened(loaded, clock).open().store, run_id)


def require_report(store: ObjectStore, run_id: str) -> Report:
    """The report of a run that came to its end. Raises CollectionError where there is none."""
    found = report.read(store, run_id)
    if found is None:
        raise CollectionError(f"run {run_id} left no report")
    return found


def tell_ended(found: Report, as_json: bool) -> None:
    """Says what a run did; ends the process where not every deletion was accepted, or objects are lost."""
    if as_json:
        answer(json.loads(found.to_json()))
    else:
        for line in describe(found):
            click.echo(line)
    if not found.success:
        sys.exit(Status.LOST if found.is_complete else Status.INCOMPLETE)

"""`lakefs-gc run`: runs a garbage collection."""

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    VERBOSE,
    Target,
    level_of,
    on_repository,
    print_report,
    require_report,
)
from lakefs_gc_assets.cli.progress import shown_progress
from lakefs_gc_assets.collector import standing_approvals
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import Clock, SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import AskedRun, Detail, execute, execute_approved, instance
from lakefs_gc_assets.errors import LogLine

_NORMAL = Detail()


@click.command()
@on_repository
@click.option(
    "--sweep/--dry-run",
    default=None,
    help="Delete the candidates, or only report them. Defaults to the configuration file; its default is a dry run.",
)
@click.option(
    "--flow",
    type=click.Choice(["clean", "optimized", "committed", "unified"]),
    default="clean",
    show_default=True,
    help="clean: examine every object. optimized: objects that are new since the last run that deleted. committed: "
    "objects that only expired commits reference. unified: unreferenced and expired objects.",
)
@click.option(
    "--windows",
    default="",
    metavar="FIRST..LAST",
    help="List only these slice windows, such as 2026-10..2026-11, 2026-10 or legacy; a first run on a huge bucket can "
    "thus go month by month. Only for the flows clean and unified.",
)
@click.option(
    "--standing",
    is_flag=True,
    help="Make a dry run, and delete its candidates only if the standing approval for collections covers them.",
)
@QUIET
@VERBOSE
@JSON
def run(
    target: Target,
    sweep: bool | None,
    flow: str,
    windows: str,
    standing: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Starts a run: lists stored objects and subtracts all live ones.

    If an optimized run has no run to build on, it becomes a clean one and says why.

    Exit status 0 if the run finished and every deletion was accepted, 6 if some were not, 7 if a live object is missing
    because an earlier run deleted it, 4 with --standing if the dry run waits for a person; `lakefs-gc --help` lists
    all of them.
    """
    level = level_of(quiet, verbose)
    if standing and sweep:
        raise click.UsageError("--standing and --sweep exclude each other.")
    loaded = target.loaded
    with shown_progress(level) as (progress, watch):
        asked, detail = AskedRun(False if standing else sweep, Flow(flow), windows), Detail(level, watch)
        run_report = collect(loaded, asked, progress, SystemClock(), detail)
        if standing and run_report.statistics.candidates:
            run_report = sweep_if_covered(loaded, run_report, progress, SystemClock(), detail)
    print_report(run_report, as_json)


def sweep_if_covered(loaded: Loaded, dry: Report, progress: LogLine, clock: Clock, detail: Detail = _NORMAL) -> Report:
    """Sweeps the candidates of a finished dry run if a standing approval covers them; returns the report of the sweep.

    Raises:
        GuardTripped: no standing approval covers them; nothing was deleted.
        CollectionError: the sweep failed.
    """
    repository = Collector.from_loaded(loaded, clock).open()
    planned = standing_approvals.planned_sweep(dry.run_id, dry.statistics, dry.known)
    approvers, work = loaded.configuration.launch.approvers, standing_approvals.ApprovedWork.COLLECTION
    approval = standing_approvals.require_covered(repository, work, planned, approvers)
    with instance() as home:
        execute_approved(loaded, dry.run_id, progress, clock, home, detail, approval)
    return require_report(repository.store, dry.run_id)


def collect(
    loaded: Loaded,
    asked: AskedRun,
    progress: LogLine,
    clock: Clock,
    detail: Detail = _NORMAL,
) -> Report:
    """Opens a run and executes it in this process.

    Args:
        progress: called with each log line.
    Returns:
        The report of the run.
    Raises:
        CollectionError: the run could not be opened, or a step failed.
    """
    with instance() as home:
        run_id, error = execute(loaded, asked, progress, clock, home, detail)
    if error is not None:
        raise error
    return require_report(Collector.from_loaded(loaded, clock).open().store, run_id)

"""`lakefs-gc routine`: object lifecycle, stale branches, rules and collection, one after the other."""

import sys
import uuid
from dataclasses import asdict
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    Target,
    level_of,
    on_repository,
    print_answer,
    show_progress,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.cli.progress import shown_progress
from lakefs_gc_assets.cli.run import collect, sweep_if_covered
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report, describe
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.deferred import imported
from lakefs_gc_assets.defs.running import AskedRun, Detail
from lakefs_gc_assets.errors import GuardTripped, LogLine, StorageError
from lakefs_gc_assets.extensions.routine.routine import (
    COLLECTION,
    Host,
    PartOutcome,
    PartState,
    RoutineResult,
    play,
)


@click.command()
@on_repository
@click.option(
    "--skip", multiple=True, metavar="PART", help="Skip lifecycle, stale_branches, rules or collection. Repeatable."
)
@click.option("--act", is_flag=True, help="Delete what standing approvals cover. By default, nothing is deleted.")
@click.option(
    "--flow",
    type=click.Choice([each.value for each in Flow]),
    default=Flow.UNIFIED.value,
    show_default=True,
    help="Flow of the collection, as for `run`.",
)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write the page to this file.")
@QUIET
@JSON
def routine(
    target: Target, skip: tuple[str, ...], act: bool, flow: str, html: Path | None, quiet: bool, as_json: bool
) -> None:
    """Lists what object lifecycle, stale branches and collection would delete, in this order, on one page.

    Each part shows its list and the command that approves it; the collection is a dry run. The retention rules are
    shown between them. A forecast shows the bytes that all parts free together. The page is stored in the bucket.

    With --act, a part deletes if a standing approval covers all that it lists. The collection sweeps if the
    configuration sets `sweep`, or if a standing approval covers its candidates. Other parts wait for a person, and the
    parts behind them go on.

    Exit status 0 if every part ended, 4 if a part waits for a person although --act is given, 6 if a part failed or is
    incomplete, 7 if the collection found lost objects.
    """
    loaded, level = target.loaded, level_of(quiet, verbose=False)
    repository, names = target.open(), target.collector().names
    with shown_progress(level) as (progress, watch):
        detail = Detail(level, watch)

        def collection() -> PartOutcome:
            asked = AskedRun(None if act and repository.settings.sweep else False, Flow(flow))
            report, why = collect(loaded, asked, progress, SystemClock(), detail), ""
            if act and report.dry_run and report.statistics.candidates:
                try:
                    report = sweep_if_covered(loaded, report, progress, SystemClock(), detail)
                except GuardTripped as guard:
                    why = str(guard)
            return describe_collection(report, why)

        note: LogLine = (lambda line: None) if quiet else progress
        approvers = loaded.configuration.launch.approvers if act else None
        deletions = tuple(part(names) for part in imported("lakefs_gc_assets.definitions:ROUTINE"))
        host = Host(repository, deletions, f"routine-{uuid.uuid4().hex}", approvers, note, show_progress, collection)
        result = play(host, skip)
        try:
            page = result.store_page(repository)
            note(f"page: {repository.namespace.uri}{run_folder.ROUTINE_PAGE}")
            if html:
                html.write_bytes(page)
        except StorageError as error:
            show_progress(f"the page could not be stored: {error}")
    print_answer(as_json, lambda: {**asdict(result), "forecast": result.forecast}, result.lines())
    if (status := status_of(result, act)) is not Status.WELL:
        sys.exit(status)


def status_of(result: RoutineResult, act: bool) -> Status:
    """The exit status of a routine."""
    if result.has(PartState.FAILED, PartState.INCOMPLETE):
        return Status.INCOMPLETE
    if result.has(PartState.LOST):
        return Status.LOST
    return Status.REFUSED if act and result.has(PartState.WAITS) else Status.WELL


def describe_collection(report: Report, why_not: str = "") -> PartOutcome:
    """The outcome of a finished collection.

    Args:
        why_not: reason that no standing approval covers its candidates; empty if none was looked for.
    """
    figures, candidates, state, approve = report.statistics, None, PartState.DONE, ""
    result = f"run {report.run_id}: {report.did}"
    if report.dry_run:
        candidates = Amount(figures.candidates or 0, figures.candidates_bytes or 0)
        state, result = PartState.NOTHING, f"dry run {report.run_id}{f'; {why_not}' if why_not else ''}"
        if candidates.objects:
            state, approve = PartState.WAITS, f"lakefs-gc approve {report.run_id}"
    if not report.success:
        state = PartState.LOST if report.is_complete else PartState.INCOMPLETE
    return PartOutcome(
        COLLECTION, state, result=result, next=approve, lines=(*describe(report),), candidates=candidates
    )

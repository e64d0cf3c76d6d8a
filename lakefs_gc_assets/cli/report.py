"""`lakefs-gc report`: the results of a run as lines, as JSON, or as a page."""

import json
import tempfile
from pathlib import Path
from typing import BinaryIO

import click

from lakefs_gc_assets.cli.common import JSON, Target, on_repository, print_answer, readable_report, show_progress
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.page import garbage, page
from lakefs_gc_assets.collector.page.page import Counting
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.report import Report, describe
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import ReportSettings


@click.command()
@on_repository
@click.option(
    "--html", type=click.File("wb", lazy=True, atomic=True), help="File to write the page to; - for standard output."
)
@JSON
@click.option("--open", "opens", is_flag=True, help="Recreate the page and open it in the browser.")
@click.option(
    "--again",
    is_flag=True,
    help="Recreate the page from the run's files and today's settings, even if it is stored.",
)
@click.argument("run_id", metavar="[RUN]", required=False)
def report(target: Target, html: BinaryIO | None, as_json: bool, opens: bool, again: bool, run_id: str | None) -> None:
    """Shows the results of a run as lines, as JSON, or as a page.

    Defaults to the newest run that ended, failed or not. The page is one file that loads nothing else. It shows stored,
    live, kept and garbage objects, the largest objects, the guards' figures and limits, and how to approve and undo.
    """
    if sum((html is not None, as_json, opens)) > 1:
        raise click.UsageError("--html, --json and --open exclude each other.")
    opened, prices = target.open(to_read=True), target.loaded.configuration.report
    run_report = find_report(opened, run_id)
    if html is not None:
        html.write(page_of(opened, run_report, prices, again))
    elif opens:
        # Not the stored page: users who can write to the bucket could put scripts into it.
        open_page(page_of(opened, run_report, prices, again=True), run_report)
    else:
        print_answer(as_json, lambda: json.loads(run_report.to_json()), describe(run_report))


def find_report(repository: OpenRepository, run_id: str | None) -> Report:
    """The report of a run, by default of the newest run with a report. Raises CollectionError if there is none."""
    if run_id:
        if (run_report := reports.read(repository.store, run_id)) is not None:
            return run_report
        plans.read(repository.store, run_id)
        raise CollectionError(
            f"run {run_id} has no report: it has not ended, or its process was killed; `lakefs-gc status` lists all "
            "runs"
        )
    for newest_id in run_folder.newest_runs(repository.store):
        if (run_report := readable_report(repository.store, newest_id)) is not None:
            return run_report
    raise CollectionError("no run has ended yet: `lakefs-gc run` starts a dry run, `lakefs-gc status` lists all runs")


def page_of(repository: OpenRepository, run_report: Report, prices: ReportSettings, again: bool) -> bytes:
    """The page of a run: the stored one, or one made from the run's files. Raises CollectionError.

    Args:
        again: True to make the page even if it is stored.
    """
    stored = None if again else page.read(repository.store, run_report)
    if stored is not None:
        return stored
    now = repository.clock.now()
    counting = Counting(
        lambda candidates: garbage.count_here(repository.store, candidates, now),
        frames=garbage.FrameReader(LocalEngine(), repository.opener),
    )
    facts = page.gather(repository.store, run_report.run_id, repository.settings, prices, now, counting)
    return page.render(facts)


def open_page(content: bytes, run_report: Report) -> None:
    """Writes a page to a temporary folder, which is not deleted, and opens it in the browser."""
    file = Path(tempfile.mkdtemp(prefix="lakefs-gc-")) / f"{run_report.run_id}.html"
    file.write_bytes(content)
    show_progress(f"the page is at {file}")
    click.launch(str(file))

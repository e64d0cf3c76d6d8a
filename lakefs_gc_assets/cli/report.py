"""`lakefs-gc report`: what a run found and did, as lines, as JSON, or as a page."""

import json
import tempfile
from pathlib import Path
from typing import BinaryIO

import click

from lakefs_gc_assets.cli.common import (
    CONFIG,
    JSON,
    REPOSITORY,
    answer,
    loaded_configuration,
    open_collector,
    show_progress,
)
from lakefs_gc_assets.collector.described_report import describe
from lakefs_gc_assets.collector.page import garbage, page
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CollectionError, CorruptFile
from lakefs_gc_assets.settings import ReportSettings


@click.command()
@CONFIG
@REPOSITORY
@click.option("--html", type=click.File("wb", lazy=True, atomic=True), help="File to write the page to; - for here.")
@JSON
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--again",
    is_flag=True,
    help="Make the page again from what the run left and by today's settings, also where it is stored.",
)
@click.argument("run_id", metavar="[RUN]", required=False)
def report(
    file: Path | None,
    repository: str | None,
    html: BinaryIO | None,
    as_json: bool,
    opens: bool,
    again: bool,
    run_id: str | None,
) -> None:
    """Shows what a run found and did: as lines, as JSON, or as a page.

    By default of the newest run that ended, failed ones too. The page is one file that loads nothing: what was stored,
    live, garbage and kept, the largest objects, how near the guards were, what a sweep frees, how to approve and undo.
    """
    if sum((html is not None, as_json, opens)) > 1:
        raise click.UsageError("--html, --json and --open exclude each other.")
    loaded = loaded_configuration(file, repository)
    opened = open_collector(loaded).open_to_read()
    found = find_report(opened, run_id)
    if html is not None:
        html.write(page_of(opened, found, loaded.configuration.report, again))
    elif opens:
        open_page(page_of(opened, found, loaded.configuration.report, again), found)
    elif as_json:
        answer(json.loads(found.to_json()))
    else:
        for line in describe(found):
            click.echo(line)


def find_report(repository: OpenRepository, run_id: str | None) -> Report:
    """The report of a run, by default of the newest that has one. Raises CollectionError where there is none."""
    for each in [run_id] if run_id else run_folder.newest_runs(repository.store):
        try:
            found = reports.read(repository.store, each)
        except CorruptFile as corrupt:
            if run_id:
                raise
            show_progress(f"left out: {corrupt}")
            continue
        if found is not None:
            return found
    if run_id:
        raise CollectionError(f"run {run_id} left no report; `lakefs-gc status` lists all runs")
    raise CollectionError("no run has ended yet")


def page_of(repository: OpenRepository, found: Report, prices: ReportSettings, again: bool) -> bytes:
    """The page of a run: the stored one, or one that is made of what the run left. Raises CollectionError.

    Args:
        again: whether it is made also where it is stored.
    """
    stored = None if again else page.read(repository.store, found)
    if stored is not None:
        return stored
    now = repository.clock.now()
    return page.make_page(
        repository.store,
        found.run_id,
        repository.settings,
        prices,
        now,
        lambda candidates: garbage.count_here(repository.store, candidates, now),
    )


def open_page(made: bytes, found: Report) -> None:
    """Writes a page to a folder of temporary files and opens it in the browser; it stays there."""
    file = Path(tempfile.mkdtemp(prefix="lakefs-gc-")) / f"{found.run_id}.html"
    file.write_bytes(made)
    show_progress(f"the page is at {file}")
    click.launch(str(file))

"""`lakefs-gc purge`: empties the quarantine of what has been there for long enough."""

import sys
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import (
    CONFIG,
    JSON,
    QUIET,
    REPOSITORY,
    answer,
    loaded_configuration,
    open_collector,
    progress_unless,
    show_progress,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.amount import size
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.defs.maintenance import PurgePlan, Totals

_SHOWN = 5


@click.command()
@CONFIG
@REPOSITORY
@click.option("--run-id", help="Only what this run moved there.")
@click.option("--dry-run", is_flag=True, help="Show what is in quarantine and when it may go, and purge nothing.")
@QUIET
@JSON
def purge(
    file: Path | None, repository: str | None, run_id: str | None, dry_run: bool, quiet: bool, as_json: bool
) -> None:
    """Deletes for good what has been in quarantine for collection.quarantine_days.

    What is live is looked at anew first: what became live again is brought back, and then the next run is a clean one.
    Where it cannot be known what is live, nothing goes. May be repeated.

    Exit status 0 if everything that was due is purged or brought back, 6 if not.
    """
    collector = open_collector(loaded_configuration(file, repository))
    if dry_run:
        planned = maintenance.plan_purge(collector.open(), run_id)
        if as_json:
            answer(planned.described())
            return
        for line in _describe(planned):
            click.echo(line)
        return
    totals = Totals()
    owner = f"purge-{uuid.uuid4().hex}"
    for each in totals.counted(maintenance.purge(collector, run_id, owner, progress_unless(quiet), show_progress)):
        if as_json:
            answer({"address": each.address, "fate": each.fate, "why": each.why}, indent=None)
        else:
            click.echo(f"{each.address}: {each.fate.value}{f': {each.why}' if each.why else ''}")
    if as_json:
        answer({"counts": totals.counts, "bytes_freed": totals.freed}, indent=None)
    else:
        click.echo(str(totals))
    if not totals.well:
        sys.exit(Status.INCOMPLETE)


def _describe(planned: PurgePlan) -> Iterator[str]:
    """What is in quarantine, run by run."""
    for each in (*planned.due, *planned.waiting):
        due_at = f"due at {planned.due_at(each):%F %T}Z"
        yield f"run {each.run_id}: {each.copies.num_rows:,} objects, {size(each.size)}, {due_at}"
        yield from (f"  {address}" for address in islice(each.copies.column("address").to_pylist(), _SHOWN))
    yield from planned.describe_unreadable()
    count, total = sum(each.copies.num_rows for each in planned.due), sum(each.size for each in planned.due)
    yield f"{count:,} objects, {size(total)}, would be looked at and go unless they are live; this was a dry run"

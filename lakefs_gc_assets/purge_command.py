"""`lakefs-gc purge`: empties the quarantine of what has been there for long enough."""

import sys
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lakefs_gc_assets import spark_session
from lakefs_gc_assets.command_options import CONFIG, REPOSITORY, loaded_configuration, one_line_errors
from lakefs_gc_assets.sizes import size

if TYPE_CHECKING:
    from lakefs_gc_assets.emptying import ToPurge

_SHOWN = 5


@click.command()
@CONFIG
@REPOSITORY
@click.option("--run-id", help="Only what this run moved there.")
@click.option("--dry-run", is_flag=True, help="Show what is in quarantine and when it may go, and purge nothing.")
def purge(file: Path | None, repository: str | None, run_id: str | None, dry_run: bool) -> None:
    """Deletes for good what has been in quarantine for collection.quarantine_days.

    What is live is looked at anew first: what became live again is brought back, and then the next run is a clean one.
    Where it cannot be known what is live, nothing goes. May be repeated.

    Exit status 0 if everything that was due is purged or brought back, 1 otherwise.
    """
    with one_line_errors():
        loaded = loaded_configuration(file, repository)
        if not dry_run:
            spark_session.start(loaded.configuration.spark)
        from lakefs_gc_assets.collection.clock import SystemClock
        from lakefs_gc_assets.emptying import Totals, purged, to_purge
        from lakefs_gc_assets.running import opened

        collector = opened(loaded, SystemClock())
        if dry_run:
            for line in _described(to_purge(collector.open(), run_id)):
                click.echo(line)
            return
        totals = Totals()
        owner = f"purge-{uuid.uuid4().hex}"
        for each in totals.counted(purged(collector, run_id, owner, _progress, _progress)):
            click.echo(f"{each.address}: {each.fate.value}{f': {each.why}' if each.why else ''}")
        click.echo(str(totals))
        if not totals.well:
            sys.exit(1)


def _described(found: "ToPurge") -> Iterator[str]:
    """What is in quarantine, run by run."""
    for each in (*found.due, *found.waiting):
        due_at = f"due at {found.due_at(each):%F %T}Z"
        yield f"run {each.run_id}: {each.copies.num_rows:,} objects, {size(each.size)}, {due_at}"
        yield from (f"  {address}" for address in islice(each.copies.column("address").to_pylist(), _SHOWN))
    count, total = sum(each.copies.num_rows for each in found.due), sum(each.size for each in found.due)
    yield f"{count:,} objects, {size(total)}, would be looked at and go unless they are live; this was a dry run"


def _progress(line: str) -> None:
    click.echo(line, err=True)

"""`lakefs-gc purge`: deletes objects whose quarantine period has ended."""

import uuid
from collections.abc import Iterator
from itertools import islice

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    YES,
    Target,
    is_confirmed,
    names_run,
    on_repository,
    print_answer,
    print_outcomes,
    require_yes,
    require_yes_or_terminal,
    show_progress,
)
from lakefs_gc_assets.cli.progress import shown_bar, shown_items
from lakefs_gc_assets.collector.quarantine.purge import PurgeFate, PurgePlan, plan_purge
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.defs import maintenance
from lakefs_gc_assets.errors import counted

_SHOWN = 5
_REFUSAL = "nothing was purged"


@click.command()
@on_repository
@names_run
@click.option("--dry-run", is_flag=True, help="Show objects in quarantine and when they are due, and purge nothing.")
@YES
@QUIET
@JSON
def purge(target: Target, run_id: str | None, dry_run: bool, quiet: bool, as_json: bool) -> None:
    """Permanently deletes objects that have been in quarantine for collection.quarantine_days.

    If RUN is given, it deletes only objects that this run moved there. The command asks before it deletes; without a
    terminal, it refuses unless --yes is given.

    It first checks again what is live. Objects that are live again are restored, and then the next run is a clean one.
    If that check fails, nothing is deleted. Can be repeated.

    Prints the objects that were not purged, and the counts; with --json each object.

    Exit status 0 if every object that was due is purged or restored, 6 if not.
    """
    collector = target.collector()
    if dry_run:
        planned = plan_purge(collector.open(), run_id)
        print_answer(as_json, planned.described, _describe(planned))
        return
    require_yes_or_terminal(_REFUSAL)
    if not is_confirmed():
        planned = plan_purge(collector.open(), run_id)
        require_yes(f"Permanently delete {_due(planned)}, except any that are live by now?", _REFUSAL)
    with shown_bar("checking live data", quiet, "objects") as (say, count):
        warn = show_progress if quiet else say
        due: list[int] = []
        purging = maintenance.purge(collector, run_id, f"purge-{uuid.uuid4().hex}", say, warn, due.append)
        print_outcomes(shown_items(purging, count, due), "address", PurgeFate.PURGED, as_json, frees=True)


def _due(planned: PurgePlan) -> str:
    count, total = sum(moved.copies.num_rows for moved in planned.due), sum(moved.size for moved in planned.due)
    return f"{counted(count, 'objects')}, {size(total)}"


def _describe(planned: PurgePlan) -> Iterator[str]:
    """Lines about the objects in quarantine, run by run."""
    for moved in (*planned.due, *planned.waiting):
        due_at = f"due at {planned.due_at(moved):%F %T}Z"
        yield f"run {moved.run_id}: {moved.amount}, {due_at}"
        yield from (f"  {address}" for address in islice(moved.copies.column("address").to_pylist(), _SHOWN))
    yield from planned.describe_unreadable()
    if planned.due:
        yield f"{_due(planned)}, would be checked and, unless live, deleted; this was a dry run"
    else:
        yield "nothing in quarantine is due"

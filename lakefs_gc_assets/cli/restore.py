"""`lakefs-gc restore`: brings back objects that a run deleted."""

import uuid
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    YES,
    Target,
    answer,
    is_confirmed,
    names_run,
    on_repository,
    open_repository,
    print_outcomes,
    print_result,
    require_yes,
    require_yes_or_terminal,
    show_progress,
)
from lakefs_gc_assets.cli.progress import shown_bar, shown_items
from lakefs_gc_assets.collector.quarantine import restore as restore_run
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import counted

if TYPE_CHECKING:
    from lakefs_gc_assets.defs import maintenance
else:
    maintenance = deferred("lakefs_gc_assets.defs.maintenance")

_SHOWN = 20
_REFUSAL = "nothing was restored"


@click.command()
@on_repository
@names_run
@click.option(
    "--address",
    "addresses",
    multiple=True,
    help="Restore only this address: relative to the storage namespace (data/…), or in full. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show the objects that would be restored, and restore nothing.")
@YES
@QUIET
@JSON
def restore(
    target: Target,
    run_id: str | None,
    addresses: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Restores objects that a run deleted, from quarantine or from the bucket's versions.

    The command shows the objects and asks before it restores them; without a terminal, it refuses unless --yes or
    --dry-run is given.

    From quarantine, each object is copied to its address unless an object exists there. In a bucket with versions,
    it removes only delete markers that the run's receipts name, and only if they are still the newest version.
    Can be repeated. The next run is a clean one.

    Prints the objects that already existed or were not restored, and the counts; with --json each object.

    Exit status 0 if every object exists again, 6 if not.
    """
    loaded = target.loaded
    if run_id is None:
        raise click.UsageError("Missing argument RUN, the run whose deletions to undo.")
    if not dry_run:
        require_yes_or_terminal(_REFUSAL)
    if dry_run or not is_confirmed():
        planned = restore_run.plan_restore(open_repository(loaded), run_id, addresses, show_progress)
        if dry_run and as_json:
            answer(planned.to_pylist())
            return
        for line in _describe(planned):
            (print_result if dry_run else show_progress)(line)
        if dry_run:
            return
        require_yes("Restore them?", _REFUSAL)
    owner = f"restore-{uuid.uuid4().hex}"
    with shown_bar("bringing back", quiet, "objects") as (say, count):
        total: list[int] = []
        warn = show_progress if quiet else say
        restoring = maintenance.bring_back(target.collector(), run_id, addresses, owner, warn, total.append)
        print_outcomes(shown_items(restoring, count, total), "address", RestoreFate.RESTORED, as_json)


def _describe(planned: pa.Table) -> Iterator[str]:
    """Lines about the objects that would be brought back: the first ones, and the total."""
    for row in islice(planned.to_pylist(), _SHOWN):
        yield f"{row['address']}: {size(row['size'])}"
    total = size(sum(planned.column("size").to_pylist()))
    yield f"{counted(planned.num_rows, 'objects')}, {total}, would be restored"

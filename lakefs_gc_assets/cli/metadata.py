"""`lakefs-gc metadata`: lists ranges and metaranges that nothing needs."""

from collections.abc import Iterator
from dataclasses import asdict
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
)
from lakefs_gc_assets.collector.fsck.unneeded import Listing, find_unneeded
from lakefs_gc_assets.collector.page.markup import shown
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.spark.faults import errors_of_spark

_SHOWN = 20


@click.command()
@CONFIG
@REPOSITORY
@QUIET
@JSON
def metadata(file: Path | None, repository: str | None, quiet: bool, as_json: bool) -> None:
    """Lists ranges and metaranges that nothing needs. Deletes nothing.

    These are files below _lakefs/ that no commit, expired or not, no compacted base and no younger metarange names, and
    that are older than a week and than collection.min_age_hours. The user needs the rights to dump refs. Whatever
    cannot be read and may name others ends the command, and so does another repository on the storage namespace.
    """
    collector = open_collector(loaded_configuration(file, repository))
    opened = collector.open_to_read()
    with errors_of_spark():
        listing = find_unneeded(opened, collector.engine(opened.settings), progress_unless(quiet))
    if as_json:
        answer({**asdict(listing), "amount": listing.amount._asdict()})
        return
    for line in describe(listing):
        click.echo(shown(line))


def describe(listing: Listing) -> Iterator[str]:
    """A listing as lines: the oldest files, why others stay, and the total last."""
    for file in listing.files[:_SHOWN]:
        yield f"{file.kind:<9}  {file.id}: {size(file.size)}, written {file.written_at:%F}"
    if (more := len(listing.files) - _SHOWN) > 0:
        yield f"{more:,} more are shown with --json"
    yield f"{counted(listing.needed, 'files are')} needed"
    for why, amount in listing.kept.items():
        yield f"kept: {counted(amount.objects, 'files')}, {size(amount.bytes)}: {why}"
    if listing.files and listing.count_as_live:
        yield (
            "what they hold counts as live, since another repository, also one of another server, may have written "
            "them: see collection.keep_old_unnamed_ranges"
        )
    amount = listing.amount
    yield (
        f"{listing.repository}: {counted(amount.objects, 'files of metadata are')} unneeded, {size(amount.bytes)}, all "
        f"written before {listing.cutoff:%F %T}Z"
    )

"""`lakefs-gc metadata`: lists unneeded ranges and metaranges, moves them to quarantine, and purges them."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    YES,
    Target,
    on_repository,
    print_answer,
    print_outcomes,
    require_yes,
    require_yes_or_terminal,
    show_progress,
)
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets.extensions.check.unneeded_metadata import FileFate, FileOutcome, MetadataListing, find_unneeded
from lakefs_gc_assets.spark.faults import errors_of_spark

_SHOWN = 20
_USUAL = {"move": FileFate.MOVED, "restore": FileFate.RESTORED, "purge": FileFate.PURGED}


@click.command()
@on_repository
@click.argument("act", required=False, type=click.Choice([*_USUAL]))
@YES
@QUIET
@JSON
def metadata(target: Target, act: str | None, quiet: bool, as_json: bool) -> None:
    """Lists unneeded ranges and metaranges, and moves them to quarantine, restores and purges them.

    An unneeded file lies below _lakefs/, and no commit (expired or not), compacted base or younger metarange names it.
    It is older than a week and than collection.min_age_hours. The user needs the rights to dump refs. The command ends
    with an error if it cannot read a file that may name others, or if another repository is on the storage namespace.

    `move` waits for collection.wait_before_recheck_seconds, lists the files again, and moves those that are unchanged.
    Then it waits once more, and puts back files that are named by then. `restore` puts back all moved files. `purge`
    permanently deletes files that were moved at least collection.quarantine_days ago, unless they are named by then.

    No other server may use the storage namespace: `move` and `purge` refuse while collection.keep_old_unnamed_ranges is
    on. Each of the three asks before it changes anything; without a terminal, it needs --yes.

    Prints the files that were not moved, put back or purged, and the counts; with --json each file.

    Exit status 0 if everything was done, 6 if something failed, 4 if a guard refuses.
    """
    collector = target.collector()
    looking = "looking for unneeded files"
    if act is None:
        opened = collector.open(to_read=True)
        with shown_bar(looking, quiet) as (say, _), errors_of_spark():
            listing = find_unneeded(opened, collector.engine(opened.settings), say).listing
        encoded = {"amount": listing.amount._asdict()}
        print_answer(as_json, lambda: {**asdict(listing), **encoded}, describe(listing))
        return
    require_yes_or_terminal()
    opened, owner = collector.open(), f"metadata-{uuid.uuid4().hex}"
    engine = collector.engine(opened.settings)
    outcomes: Sequence[FileOutcome] = ()
    with errors_of_spark():
        if act == "move":
            with shown_bar(looking, quiet) as (say, _):
                listing = unneeded_metadata.list_movable(opened, engine, say)
            for line in () if quiet else describe(listing):
                show_progress(line)
            if listing.files:
                require_yes(f"Move {_describe(listing.amount)} to quarantine?")
                with shown_bar("moving", quiet) as (say, _):
                    outcomes = unneeded_metadata.move(opened, engine, listing, owner, say, show_progress)
        elif copies := unneeded_metadata.list_copies(opened.store):
            files = _describe(Amount(len(copies), sum(bytes_ for bytes_, _ in copies.values())))
            if act == "restore":
                require_yes(f"Put back {files}?")
                outcomes = unneeded_metadata.restore(opened, owner, show_progress)
            elif act == "purge":
                days = opened.settings.quarantine_days
                require_yes(f"Permanently delete those of {files}, moved at least {days:g} days ago and unneeded?")
                with shown_bar("purging", quiet) as (say, _):
                    outcomes = unneeded_metadata.purge(opened, engine, owner, say, show_progress)
            else:
                raise ValueError(f"{act!r} is none of {', '.join(_USUAL)}")
    print_outcomes(outcomes, "id", _USUAL[act], as_json, frees=act == "purge")


def _describe(amount: Amount) -> str:
    return f"{counted(amount.objects, 'files of metadata')}, {size(amount.bytes)}"


def describe(listing: MetadataListing) -> Iterator[str]:
    """A listing as lines: the oldest files, reasons why others stay, and the total last."""
    for file in listing.files[:_SHOWN]:
        yield f"{file.kind:<9}  {file.id}: {size(file.size)}, written {file.written_at:%F}"
    if (more := len(listing.files) - _SHOWN) > 0:
        yield f"{more:,} more are shown with --json"
    yield f"{counted(listing.needed, 'files are')} needed"
    for why, amount in listing.kept.items():
        yield f"kept: {counted(amount.objects, 'files')}, {size(amount.bytes)}: {why}"
    if listing.files and listing.count_as_live:
        yield (
            "their objects count as live, since another repository, also one of another server, may have written "
            "them: see collection.keep_old_unnamed_ranges"
        )
    amount = listing.amount
    yield (
        f"{listing.repository}: {counted(amount.objects, 'files of metadata are')} unneeded, {size(amount.bytes)}, all "
        f"written before {listing.cutoff:%F %T}Z"
    )

"""`lakefs-gc orphans`: data of deleted repositories in the bucket of a repository."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import click

from lakefs_gc_assets.cli.common import JSON, QUIET, Target, on_repository, print_answer
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.orphans.orphans import DEPTH, FOLDERS, Orphan, Search, find_orphans

_LATELY = timedelta(days=30)
"""Age of the last write below which something probably still uses a place."""


@click.command()
@on_repository
@click.option("--below", default="", metavar="FOLDER", help="Search only this folder of the bucket, such as `lakes/`.")
@click.option(
    "--depth",
    default=DEPTH,
    show_default=True,
    type=click.IntRange(0, 50),
    help="Levels of folders to look into.",
)
@click.option(
    "--folders",
    default=FOLDERS,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of folders to list, with one request or more for each.",
)
@click.option("--no-sizes", is_flag=True, help="Do not list the objects below each place that is found.")
@QUIET
@JSON
def orphans(target: Target, below: str, depth: int, folders: int, no_sizes: bool, quiet: bool, as_json: bool) -> None:
    """Lists data of deleted repositories: places in the bucket that look like a repository's storage namespace.

    lakeFS leaves a repository's data in the bucket when the repository is deleted. The command lists the folders of the
    repository's bucket, and prints those that have lakeFS's files and belong to no repository of the server: their
    objects and bytes, the first and last write, and names of branches and folders if files there still state them.

    It deletes nothing. Another lakeFS server may own a place: no server knows the repositories of others. So may a
    repository that was only restored elsewhere, or whose entries were imported from there.

    The lakeFS user needs fs:ListRepositories on *, and the store's user the right to list the bucket.
    """
    opened = target.open(to_read=True)
    start = below.strip("/") + "/" if below.strip("/") else ""
    with shown_bar("looking for storage namespaces", quiet) as (say, _):
        search = find_orphans(opened, say, start, depth, folders, measured=not no_sizes)
    print_answer(as_json, lambda: _encoded(search), describe(search, opened.clock.now()))


def _encoded(search: Search) -> dict[str, object]:
    encoded = asdict(search)
    for orphan in encoded["orphans"]:
        orphan["amount"] = orphan["amount"] and Amount(*orphan["amount"])._asdict()
    return encoded


def describe(search: Search, now: datetime) -> Iterator[str]:
    """Lines on the places found, and on the rest of the bucket that was not searched."""
    known = f"none of the {counted(search.repositories, 'repositories')} of the server"
    if not search.listed:
        yield f"{search.start} belongs to a repository of the server: there is nothing beside it to search"
        return
    for orphan in search.orphans:
        yield f"{orphan.uri}: {', '.join(orphan.signs)}"
        yield from (f"  {line}" for line in _facts(orphan, now))
    for uri in search.surrounding:
        yield f"{uri} looks like a storage namespace, but has a repository's storage namespace below it: not an orphan"
    if not search.orphans:
        yield f"no orphans: every storage namespace found in {search.start} belongs to a repository"
    else:
        amounts = [orphan.amount for orphan in search.orphans if orphan.amount is not None]
        total = f", {_amount(Amount.total(amounts))}" if len(amounts) == len(search.orphans) else ""
        yield f"{counted(len(search.orphans), 'places')} in {search.start} that {known} names{total}"
        yield "nothing was deleted: another server may own a place, or another repository's entries may point into it"
    yield f"{counted(search.listed, 'folders')} listed" + (
        f"; {counted(search.unopened, 'folders')} were not: raise --depth or --folders, or search with --below"
        if search.unopened
        else ""
    )


def _facts(orphan: Orphan, now: datetime) -> Iterator[str]:
    if orphan.amount is not None:
        yield _amount(orphan.amount)
    if orphan.first_write is not None and orphan.last_write is not None:
        used = ": written lately, so it is probably in use" if now - orphan.last_write < _LATELY else ""
        yield f"written {orphan.first_write:%F} to {orphan.last_write.astimezone(UTC):%F}{used}"
    if orphan.branches:
        yield f"branches: {', '.join(orphan.branches)}"
    if orphan.entries is not None:
        yield f"newest metarange: {counted(orphan.entries, 'objects')} below {', '.join(orphan.folders)}"


def _amount(amount: Amount) -> str:
    return f"{counted(amount.objects, 'objects')}, {size(amount.bytes)}"

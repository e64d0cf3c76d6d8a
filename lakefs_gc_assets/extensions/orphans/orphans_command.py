"""`lakefs-gc orphans`: data of deleted repositories in the bucket of a repository, found, deleted and restored."""

import uuid
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    YES,
    Target,
    TargetGroup,
    on_repository,
    print_answer,
    print_outcomes,
    require_yes,
    require_yes_or_terminal,
    show_progress,
)
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.collector.quarantine.purge import PurgeFate
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.orphans import deletion
from lakefs_gc_assets.extensions.orphans.deletion import Examined, OrphanFate
from lakefs_gc_assets.extensions.orphans.looks import QUIET as QUIET_PERIOD
from lakefs_gc_assets.extensions.orphans.looks import OrphanPlace
from lakefs_gc_assets.extensions.orphans.orphans import DEPTH, FOLDERS, Orphan, Search, find_orphans

_STATED = "--no-other-server-uses-it"
_PLACE = click.argument("place")


@click.group(cls=TargetGroup, invoke_without_command=True)
@click.pass_context
def orphans(context: click.Context, file: Path | None, repository: str | None) -> None:
    """Lists data of deleted repositories, deletes it if approved, and restores it.

    Without a subcommand, it does the same as `list`.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_places, file=file, repository=repository)


@orphans.command("list")
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
def list_places(
    target: Target, below: str, depth: int, folders: int, no_sizes: bool, quiet: bool, as_json: bool
) -> None:
    """Lists places in the bucket that look like a storage namespace and belong to no repository. Deletes nothing.

    lakeFS leaves a repository's data in the bucket when the repository is deleted. The command lists the folders of the
    repository's bucket, and prints each folder with lakeFS's files that belongs to no repository of the server: its
    objects and bytes, the first and last write, and names of branches and folders if files there still state them.

    Another lakeFS server may own a place: no server knows the repositories of others. So may a repository that was only
    restored elsewhere, or whose entries were imported from there.

    The lakeFS user needs fs:ListRepositories on *, and the store's user the right to list the bucket.
    """
    opened = target.open(to_read=True)
    start = below.strip("/") + "/" if below.strip("/") else ""
    with shown_bar("looking for storage namespaces", quiet) as (say, _):
        search = find_orphans(opened, say, start, depth, folders, measured=not no_sizes)
    print_answer(as_json, lambda: _encoded(search), describe(search, opened.clock.now()))


def _owner() -> str:
    return f"orphans-{uuid.uuid4().hex}"


@orphans.command()
@on_repository
@_PLACE
@click.option(_STATED, "is_sole", is_flag=True, help="State that no other lakeFS server uses PLACE. Required.")
@click.option(
    "--approve", "approver", metavar="NAME", help="Approve the deletion, a day after the first look or later."
)
@YES
@QUIET
@JSON
def delete(target: Target, place: str, is_sole: bool, approver: str | None, quiet: bool, as_json: bool) -> None:
    """Moves the data of the deleted repository at PLACE into quarantine, a day after a first look or later.

    PLACE is one address that `list` prints. Without --approve, the command looks at it, records the look
    and deletes nothing. With --approve, a day later or more, it looks again. If nothing has changed, it moves the
    objects to the quarantine of the configured repository. Before each batch it looks again, and any change keeps all
    objects that are left. Asks for confirmation unless --yes is given. Can be repeated after a failure.

    It refuses if a repository or another storage namespace is there, in it or around it, if a repository's commits
    refer to it, if its newest object is younger than 30 days, or if the server does not list all repositories.

    Exit status 0 if every object is in quarantine, 6 if some are not, 4 if a guard refuses.
    """
    # As with other commands, a configuration that cannot be read is reported first.
    target.loaded.with_secrets()
    if not is_sole:
        raise click.UsageError(f"Give {_STATED} to state that no other lakeFS server uses {place}: no server can tell.")
    if approver is None:
        opened = target.open()
        with shown_bar("looking at the place", quiet) as (say, _):
            examined = deletion.examine(opened, place, _owner(), say, show_progress)
        content = {**asdict(examined.act), "due_at": examined.act.due_at, "changes": examined.changes}
        print_answer(as_json, lambda: content, _describe_look(examined))
        return
    require_yes_or_terminal("nothing was deleted")
    opened = target.open()
    require_yes(f"Move {_recorded(opened, place)} to quarantine?", "nothing was deleted")
    with shown_bar("moving", quiet) as (say, _):
        moving = deletion.move(opened, place, approver, _owner(), say, show_progress)
        print_outcomes(moving, "address", OrphanFate.MOVED, as_json)


@orphans.command()
@on_repository
@_PLACE
@YES
@JSON
def restore(target: Target, place: str, as_json: bool) -> None:
    """Copies the objects that `delete` moved back to PLACE.

    An address that has an object by now is left alone. The copies stay in quarantine. Asks for confirmation unless
    --yes is given. Can be repeated.

    Exit status 0 if every object exists again, 6 if not.
    """
    opened = target.open()
    require_yes(f"Restore {_recorded(opened, place)}?", "nothing was restored")
    restoring = deletion.restore(opened, place, _owner(), show_progress)
    print_outcomes(restoring, "address", RestoreFate.RESTORED, as_json)


@orphans.command()
@on_repository
@_PLACE
@YES
@QUIET
@JSON
def purge(target: Target, place: str, quiet: bool, as_json: bool) -> None:
    """Permanently deletes the objects of PLACE that have been in quarantine for collection.quarantine_days.

    It looks first. If anything was written to PLACE, a repository is there, or one refers to it, nothing is deleted.
    After `restore`, it deletes the copies of objects that are back at their address. Asks for confirmation unless
    --yes is given. Can be repeated.

    Exit status 0 if every copy is deleted, 6 if not, 4 if a guard refuses.
    """
    opened = target.open()
    require_yes(f"Permanently delete {_recorded(opened, place)}, in quarantine?", "nothing was purged")
    with shown_bar("purging", quiet) as (say, _):
        purging = deletion.purge(opened, place, _owner(), say, show_progress)
        print_outcomes(purging, "address", PurgeFate.PURGED, as_json, frees=True)


def _recorded(repository: OpenRepository, uri: str) -> str:
    """Objects and bytes of a place by its record, and its address."""
    act = deletion.read_act(OrphanPlace.open(repository, uri))
    return f"the objects of {uri}" if act is None else f"{Amount(act.objects, act.bytes).shown}, of {act.place}"


def _describe_look(examined: Examined) -> Iterator[str]:
    act = examined.act
    if examined.changes:
        yield f"changed since the last look, so this is the first one: {examined.changes}"
    yield f"{act.place}: {Amount(act.objects, act.bytes).shown}, last written {act.last_write:%F}"
    yield f"none of {counted(len(act.repositories), 'repositories')} of the server is there or refers to it"
    yield f"first look at {act.looked_at:%F %T}Z; nothing was deleted"
    when = "" if examined.is_due else f"from {act.due_at:%F %T}Z, "
    yield f'{when}`lakefs-gc orphans delete {act.place} {_STATED} --approve "YOUR NAME"` moves it to quarantine'


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
        total = f", {Amount.total(amounts).shown}" if len(amounts) == len(search.orphans) else ""
        yield f"{counted(len(search.orphans), 'places')} in {search.start} that {known} names{total}"
        yield "nothing was deleted: another server may own a place, or another repository's entries may point into it"
    yield f"{counted(search.listed, 'folders')} listed" + (
        f"; {counted(search.unopened, 'folders')} were not: raise --depth or --folders, or search with --below"
        if search.unopened
        else ""
    )


def _facts(orphan: Orphan, now: datetime) -> Iterator[str]:
    if orphan.amount is not None:
        yield orphan.amount.shown
    if orphan.first_write is not None and orphan.last_write is not None:
        used = ": written lately, so it is probably in use" if now - orphan.last_write < QUIET_PERIOD else ""
        yield f"written {orphan.first_write:%F} to {orphan.last_write.astimezone(UTC):%F}{used}"
    if orphan.branches:
        yield f"branches: {', '.join(orphan.branches)}"
    if orphan.entries is not None:
        yield f"newest metarange: {counted(orphan.entries, 'objects')} below {', '.join(orphan.folders)}"

"""`lakefs-gc branches`: lists branches that the policy calls stale, deletes them, and recreates them."""

import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
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
    progress_unless,
    require_yes,
    show_progress,
)
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, standing_approver
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.branches.stale_branches import BranchFate, BranchListing, BranchStatus

_SHOWN = 20
"""Maximum branches printed as kept although a rule matches them."""


@click.group(cls=TargetGroup, invoke_without_command=True)
@click.pass_context
def branches(context: click.Context, file: Path | None, repository: str | None) -> None:
    """Lists stale branches, deletes them if approved, and recreates deleted ones.

    Without a subcommand, it does the same as `list`.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_stale, file=file, repository=repository, quiet=False, as_json=False)


@branches.command("list")
@on_repository
@QUIET
@JSON
def list_stale(target: Target, quiet: bool, as_json: bool) -> None:
    """Lists branches that are stale by the policy, and the reasons why others stay. Deletes nothing.

    The rules are the list stale_branches in the file of collection.retention_policy. The last line of the output is the
    command that approves the deletion of exactly these branches.

    Exit status 6 if the server failed for a branch; that branch stays.
    """
    opened = target.open()
    listing = stale_branches.list_branches(opened, progress_unless(quiet))
    print_answer(as_json, lambda: {**asdict(listing), "digest": listing.digest}, describe(listing))
    if listing.unknown:
        sys.exit(Status.INCOMPLETE)


@branches.command()
@on_repository
@YES
@QUIET
@JSON
@click.option(
    "--standing", is_flag=True, help="List stale branches now, and delete them if the standing approval covers them."
)
@click.argument("digest", default="")
def approve(target: Target, quiet: bool, as_json: bool, standing: bool, digest: str) -> None:
    """Deletes the branches that `list` showed with this digest, except branches that have changed since.

    Each branch is checked again right before its deletion. Its uncommitted changes are lost. The branch can be
    recreated at its commit, whose objects stay for as long as `list` says. Asks for confirmation unless --yes or
    --standing is given. Can be repeated.

    Exit status 0 if all of these branches are deleted, 6 if some are not, 4 if a guard refuses or no standing approval
    covers them.
    """
    if standing == bool(digest):
        raise click.UsageError("Give either DIGEST or --standing.")
    opened, note = target.open(), progress_unless(quiet)
    approver: Callable[[], str] = str
    if standing:
        listing = stale_branches.list_branches(opened, note)
        if listing.stale:
            approvers = target.loaded.configuration.launch.approvers
            planned, digest = stale_branches.planned_deletion(listing), listing.digest
            approver = standing_approver(opened, ApprovedWork.BRANCHES, lambda paths: planned, approvers)
            note(f"{approver()} covers {counted(len(listing.stale), 'stale branches')}")
    else:
        require_yes(f"Delete the unchanged branches of list {digest}?")
    owner = f"branches-{uuid.uuid4().hex}"
    deleting = stale_branches.delete(opened, digest, owner, note, show_progress, approver) if digest else ()
    print_outcomes(deleting, "branch", BranchFate.DELETED, as_json)


@branches.command()
@on_repository
@YES
@JSON
@click.argument("names", metavar="[BRANCH]...", nargs=-1)
def restore(target: Target, as_json: bool, names: tuple[str, ...]) -> None:
    """Recreates branches that `approve` deleted, each at its commit: the named ones, or all.

    If a user has created a branch of that name at another commit since, that branch is not changed. Objects that
    runs have deleted since do not come back: this command counts them, and `lakefs-gc fsck` names them. Asks for
    confirmation unless --yes is given. Can be repeated.

    Exit status 0 if every branch exists with all of its data, 6 otherwise.
    """
    opened = target.open()
    planned = stale_branches.list_deleted(opened, names, show_progress)
    for record in planned:
        show_progress(f"{record.branch}: commit {record.commit_id}, {record.state} at {record.at:%F %T}Z")
    if planned:
        require_yes("Recreate these branches?")
    owner = f"branches-{uuid.uuid4().hex}"
    restoring = stale_branches.restore(opened, names, owner, show_progress)
    print_outcomes(restoring, "branch", BranchFate.RESTORED, as_json)


def describe(listing: BranchListing) -> Iterator[str]:
    """A listing as lines: stale branches, other branches that a rule matches, and how to approve."""
    for standing in listing.stale:
        yield from _describe(standing, listing)
    kept = [each for each in listing.standings if each.kept and each.rule]
    # Undecided branches come first: the number of lines is limited.
    kept.sort(key=lambda each: not each.is_unknown)
    yield from (f"kept: {each.identity.branch}: {each.kept}" for each in kept[:_SHOWN])
    if len(kept) > _SHOWN:
        yield f"{len(kept) - _SHOWN:,} more branches are in the output of --json"
    yield f"{listing.repository}: {len(listing.stale):,} of {counted(len(listing.standings), 'branches are')} stale"
    if listing.unknown:
        yield f"undecided, since the server failed: {counted(listing.unknown, 'branches')}"
    yield from listing.unfinished
    if any(each.alone is None for each in listing.stale):
        yield "run `lakefs-gc forecast` to see here how many bytes only each branch references"
    if listing.refused_by:
        yield f"this deletion would be refused: {listing.refused_by}"
    elif listing.stale:
        yield f"`lakefs-gc branches approve {listing.digest}` deletes them"


def _describe(standing: BranchStatus, listing: BranchListing) -> Iterator[str]:
    own = standing.first_own_commit
    first = "no own commit" if own is None else f"first own commit {own:%F}"
    yield f"{standing.identity.branch}: {first}, {standing.last_use}, stale by the {standing.rule}"
    if standing.sharing:
        yield f"    shares its commits with {counted(standing.sharing, 'other stale branches')}"
    if standing.changes:
        yield f"    {standing.changes:,} uncommitted changes are lost with it"
    if standing.alone is not None and listing.forecast_made_at is not None:
        freed = f"; deleting it makes {size(standing.freed.bytes)} garbage at once" if standing.freed else ""
        yield (
            f"    it alone references {counted(standing.alone.objects, 'objects')}, "
            f"{size(standing.alone.bytes)}{freed} (forecast of {listing.forecast_made_at:%F})"
        )
    yield f"    can be recreated with its data {standing.undo}"

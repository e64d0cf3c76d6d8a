"""`lakefs-gc lifecycle approve` and `revert`: delete listed entries, and bring back what a run deleted."""

import uuid
from collections.abc import Callable

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    YES,
    Target,
    on_repository,
    print_outcomes,
    progress_unless,
    require_yes,
    show_progress,
)
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, standing_approver
from lakefs_gc_assets.extensions.lifecycle import acting, expired, reverting
from lakefs_gc_assets.extensions.lifecycle.acts import LifecycleFate


@click.command()
@on_repository
@YES
@QUIET
@JSON
@click.option(
    "--standing", is_flag=True, help="List expired objects now, and delete them if the standing approval covers them."
)
@click.argument("digest", default="")
def approve(target: Target, quiet: bool, as_json: bool, standing: bool, digest: str) -> None:
    """Deletes the entries that `list` showed with this digest, except entries that have changed since.

    Each branch gets one commit for each rule, by a squash merge. A protected branch gets a pull request instead. A
    branch with uncommitted changes stays. Asks for confirmation unless --yes or --standing is given. Can be repeated.

    Exit status 0 if all of these entries are deleted or wait for review, 6 if some are not, 4 if a guard refuses or no
    standing approval covers them.
    """
    if standing == bool(digest):
        raise click.UsageError("Give either DIGEST or --standing.")
    opened, note = target.open(), progress_unless(quiet)
    approver: Callable[[], str] = str
    if standing:
        listing = expired.list_expired(opened, note)
        if digest := listing.digest:
            approvers = target.loaded.configuration.launch.approvers
            approver = standing_approver(
                opened, ApprovedWork.LIFECYCLE, lambda paths: acting.count_planned(opened, listing, paths), approvers
            )
            note(f"{approver()} covers the entries of list {digest}")
    else:
        require_yes(f"Delete the unchanged entries of list {digest}?")
    owner = f"lifecycle-{uuid.uuid4().hex}"
    deleting = acting.approve(opened, digest, owner, note, show_progress, approver) if digest else ()
    print_outcomes(deleting, "group", LifecycleFate.DELETED, as_json)


@click.command()
@on_repository
@YES
@QUIET
@JSON
@click.argument("run")
def revert(target: Target, quiet: bool, as_json: bool, run: str) -> None:
    """Brings back the entries that a RUN of `approve` deleted, in one commit for each branch and rule.

    Paths that were written again stay as they are. Data that runs have deleted since does not come back: this command
    counts it. Pull requests of the run that are not merged are closed. Asks for confirmation unless --yes is given.
    Can be repeated.

    Exit status 0 if everything came back or waits for review, 6 otherwise.
    """
    opened = target.open()
    require_yes(f"Bring back the entries that run {run} deleted?")
    owner, note = f"lifecycle-{uuid.uuid4().hex}", progress_unless(quiet)
    print_outcomes(reverting.revert(opened, run, owner, note, show_progress), "group", LifecycleFate.REVERTED, as_json)

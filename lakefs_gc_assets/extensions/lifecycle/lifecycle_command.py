"""`lakefs-gc lifecycle`: lists objects of branches that expire by the rules of the policy, and acts on the list."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lakefs_gc_assets.cli.common import (
    JSON,
    QUIET,
    Target,
    TargetGroup,
    on_repository,
    print_answer,
    progress_unless,
)
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.lifecycle import acting_command, expired
from lakefs_gc_assets.extensions.lifecycle.listing import Group, LifecycleListing

_SHOWN = 50
"""Maximum groups, and reasons to keep entries, that are printed."""


@click.group(cls=TargetGroup, invoke_without_command=True)
@click.pass_context
def lifecycle(context: click.Context, file: Path | None, repository: str | None) -> None:
    """Lists objects of branches that expire by the rules of the policy, deletes them if approved, and brings them back.

    Without a subcommand, it does the same as `list`.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_objects, file=file, repository=repository, quiet=False, as_json=False)


@lifecycle.command("list")
@on_repository
@QUIET
@JSON
def list_objects(target: Target, quiet: bool, as_json: bool) -> None:
    """Lists objects that expire, by branch, rule and folder, and the reasons why others stay. Deletes nothing.

    The rules are the list lifecycle in the file of collection.retention_policy. The last line of the output is the
    command that approves the deletion of exactly these objects from their branches.
    """
    opened = target.open(to_read=True)
    listing = expired.list_expired(opened, progress_unless(quiet))
    print_answer(as_json, lambda: _encoded(listing), describe(listing))


lifecycle.add_command(acting_command.approve)
lifecycle.add_command(acting_command.revert)


def _encoded(listing: LifecycleListing) -> dict[str, Any]:
    groups = [
        {
            **asdict(group),
            "expired": group.expired._asdict(),
            "freed": group.freed and group.freed._asdict(),
            "folders": [{"folder": folder, **amount._asdict()} for folder, amount in group.folders],
        }
        for group in listing.groups
    ]
    return {**asdict(listing), "groups": groups, "digest": listing.digest}


def describe(listing: LifecycleListing) -> Iterator[str]:
    """A listing as lines: expired objects by branch and rule, reasons why others stay, and how to approve."""
    for group in listing.groups[:_SHOWN]:
        yield from _describe_group(group)
    yield from (f"kept: {each.branch}, rule {each.rule}: {each.why}" for each in listing.kept[:_SHOWN])
    if (more := max(len(listing.groups) - _SHOWN, 0) + max(len(listing.kept) - _SHOWN, 0)) > 0:
        yield f"{more:,} more are in the output of --json"
    if not listing.groups:
        yield f"{listing.repository}: nothing expires"
        return
    branches = {group.branch for group in listing.groups}
    yield f"{listing.repository}: {listing.expired.shown} expire on {counted(len(branches), 'branches')}"
    freed = [group.freed for group in listing.groups if group.freed is not None]
    if len(freed) == len(listing.groups):
        total = Amount.total(freed).shown
        yield f"collection can free {total} of these, once the commits before have expired"
    yield f"`lakefs-gc lifecycle approve {listing.digest}` deletes them, in a commit for each branch and rule"


def _describe_group(group: Group) -> Iterator[str]:
    freed = "" if group.freed is None else f"; collection can free {group.freed.shown}"
    yield f"{group.branch}, rule {group.rule}: {group.expired.shown}{freed}"
    yield from (f"    {folder or '/'}: {amount.shown}" for folder, amount in group.folders)

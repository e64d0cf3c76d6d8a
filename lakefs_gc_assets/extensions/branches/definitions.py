"""The asset and job `stale_branches`, and its schedules, which are off by default.

The job lists stale branches, and deletes the branches of an approved listing.
"""

from typing import Any

from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.listings import ListedDeletion, ListingShown
from lakefs_gc_assets.defs.pages import bullets
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import LogLine, counted
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.branches.branches_command import describe
from lakefs_gc_assets.extensions.branches.stale_branches import BranchFate, BranchListing

_BRANCHES_SHOWN = 100


def define(names: Names, loaded: Loaded) -> Additions:
    """Definitions of stale branches for a repository."""
    cron = loaded.configuration.automation.stale_branches_cron
    return stale_branches_deletion(names).define(
        names, loaded, "find_stale_branches", "retire_stale_branches", cron, "automation.stale_branches_cron"
    )


def stale_branches_deletion(names: Names) -> ListedDeletion:
    """The list of stale branches, and their deletion."""
    return ListedDeletion(
        asset="stale_branches",
        job="stale_branches",
        op="retire_branches",
        check="branch_deletions_are_complete",
        things="branches",
        work=ApprovedWork.BRANCHES,
        reason="a stale branch keeps all of its commits; by now, lifecycle has deleted from the branches that stay",
        command="lakefs-gc branches approve",
        description=f"Branches of {names.repository} that are stale by the policy, and the reasons why others stay. "
        "`lakefs-gc branches restore` recreates deleted ones.",
        usual=BranchFate.DELETED,
        name=lambda outcome: f"{outcome.branch} on commit {outcome.commit_id}",
        is_set_up=lambda settings: bool(retention.policy_of(settings).stale),
        show=show,
        delete=stale_branches.delete,
    )


def show(repository: OpenRepository, note: LogLine) -> ListingShown:
    """Lists stale branches for the UI. Raises as `stale_branches.list_branches`."""
    listing = stale_branches.list_branches(repository, note)
    for each in (each for each in listing.standings if each.is_unknown):
        note(f"WARNING: {each.identity.branch}: kept: {each.kept}")
    return ListingShown(
        listing.digest,
        describe_planned(listing),
        describe_branches(listing),
        lambda paths: stale_branches.planned_deletion(listing),
        listing.refused_by,
        listing.unknown,
        listing.unfinished,
        tuple(describe(listing)),
        {each.identity.branch: each.freed for each in listing.stale},
        describe_freed(listing),
    )


def describe_freed(listing: BranchListing) -> str:
    """Describes the branches' freed objects."""
    if listing.forecast_made_at is None:
        return "what stale branches free is unknown: run `lakefs-gc forecast`"
    return (
        f"garbage as soon as a branch is deleted, by the forecast of {listing.forecast_made_at:%F %T}Z; it is unknown "
        "for a branch that has changed since, and runs since may have freed a part"
    )


def describe_planned(listing: BranchListing) -> str:
    """Describes the planned deletion."""
    changes = sum(each.changes for each in listing.stale)
    lost = f" with {changes:,} uncommitted changes" if changes else ""
    return f"{counted(len(listing.stale), 'branches')}{lost}"


def describe_branches(listing: BranchListing) -> dict[str, Any]:
    """Metadata of a listing for the UI: numbers, which are plotted, and the branches."""
    stale = listing.stale
    alone = [each.alone.bytes for each in stale if each.alone is not None]
    return {
        "stale": len(stale),
        "branches": len(listing.standings),
        **({"held_alone_bytes": sum(alone)} if len(alone) == len(stale) else {}),
        "stale_branches": bullets(
            f"{each.identity.branch}: {each.last_use}, {each.rule}; undo {each.undo}"
            for each in stale[:_BRANCHES_SHOWN]
        ),
        "kept": bullets(
            f"{each.identity.branch}: {each.kept}"
            for each in [each for each in listing.standings if each.kept and each.rule][:_BRANCHES_SHOWN]
        ),
    }

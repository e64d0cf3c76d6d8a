"""The asset `lifecycle_report`, the job `lifecycle`, and its schedules, which are off by default.

The job lists expired objects, and deletes the objects of an approved listing from their branches.
"""

from typing import Any

from lakefs_gc_assets.collector.records.outcomes import Amount, size
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.listings import ListedDeletion, ListingShown
from lakefs_gc_assets.defs.pages import bullets
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import LogLine, counted
from lakefs_gc_assets.extensions.lifecycle import acting, expired
from lakefs_gc_assets.extensions.lifecycle.acts import LifecycleFate, describe_unfinished
from lakefs_gc_assets.extensions.lifecycle.lifecycle_command import describe
from lakefs_gc_assets.extensions.lifecycle.listing import LifecycleListing

_SHOWN = 100
_FREED_NOTE = (
    "objects that no head or tag has at a path that stays, once older commits expire; includes objects that are also "
    "staged or at another path"
)


def define(names: Names, loaded: Loaded) -> Additions:
    """Definitions of object lifecycle for a repository."""
    cron = loaded.configuration.automation.lifecycle_cron
    return lifecycle_deletion(names).define(
        names, loaded, "find_expired_entries", "delete_expired_entries", cron, "automation.lifecycle_cron"
    )


def lifecycle_deletion(names: Names) -> ListedDeletion:
    """The list of expired objects, and their deletion from branches."""
    return ListedDeletion(
        asset="lifecycle_report",
        job="lifecycle",
        op="expire_entries",
        check="lifecycle_is_complete",
        things="expired objects",
        work=ApprovedWork.LIFECYCLE,
        reason="it deletes objects from branch heads, which no retention rule lets expire",
        command="lakefs-gc lifecycle approve",
        description=f"Objects on branches of {names.repository} that expire by the policy's rules of lifecycle. "
        "Approved ones go in a commit for each branch and rule, which `lakefs-gc lifecycle revert` brings back.",
        usual=LifecycleFate.DELETED,
        name=lambda outcome: outcome.group,
        is_set_up=lambda settings: retention.policy_of(settings).lifecycle is not None,
        show=show,
        delete=acting.approve,
    )


def show(repository: OpenRepository, note: LogLine) -> ListingShown:
    """Lists expired objects for the UI. Raises as `expired.list_expired`."""
    listing = expired.list_expired(repository, note)
    return ListingShown(
        listing.digest,
        describe_planned(listing),
        describe_metadata(listing),
        lambda paths: acting.count_planned(repository, listing, paths),
        unfinished=(*describe_unfinished(repository),),
        lines=(*describe(listing),),
        freed=freed_by_branch(listing),
        freed_note=_FREED_NOTE,
    )


def freed_by_branch(listing: LifecycleListing) -> dict[str, Amount | None]:
    """Objects that collection frees later, by branch; None if a group of the branch does not know its own."""
    freed: dict[str, Amount | None] = {}
    for group in listing.groups:
        before = freed.get(group.branch, Amount())
        freed[group.branch] = None if before is None or group.freed is None else before.plus(*group.freed)
    return freed


def describe_planned(listing: LifecycleListing) -> str:
    """Describes the planned deletion."""
    total, branches = listing.expired, {group.branch for group in listing.groups}
    return f"{counted(total.objects, 'entries')} of {counted(len(branches), 'branches')}, {size(total.bytes)}"


def describe_metadata(listing: LifecycleListing) -> dict[str, Any]:
    """Metadata of a listing for the UI: numbers, which are plotted, the groups, and reasons why others stay."""
    freed = freed_by_branch(listing)
    known = [each for each in freed.values() if each is not None]
    return {
        "expired_objects": listing.expired.objects,
        "expired_bytes": listing.expired.bytes,
        **({"freed_later_bytes": Amount.total(known).bytes} if len(known) == len(freed) else {}),
        "groups": bullets(f"{each.branch}, rule {each.rule}: {each.expired.shown}" for each in listing.groups[:_SHOWN]),
        "kept": bullets(f"{each.branch}, rule {each.rule}: {each.why}" for each in listing.kept[:_SHOWN]),
    }

"""The asset and job `stale_branches`: which branches the policy calls stale, and their deletion if approved.

The asset has no partitions, so Dagster plots its numbers over time. The job shows; with the digest of what it showed, a
second launch deletes exactly that. The schedule, which is off, only shows.
"""

from typing import Any

import dagster as dg
from pydantic import Field

from lakefs_gc_assets.collector import stale_branches
from lakefs_gc_assets.collector.stale_branches import Listing
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.failures import collector_op
from lakefs_gc_assets.defs.pages import bullets
from lakefs_gc_assets.defs.partitions import Names, one_op_job
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import ConfigurationError, counted
from lakefs_gc_assets.settings import LaunchSettings

NAME = "stale_branches"
_OP = "retire_branches"
_SHOWN = 100


class StaleBranchesConfig(dg.Config):
    """What to delete; by default stale branches are only shown."""

    approve: str = Field(
        default="",
        description="The digest that an earlier launch showed: deletes these branches, as far as nothing of them has "
        "changed. Empty to show which are stale.",
    )
    approved_by: str = Field(default="", max_length=100, description="Who approves it, as in the job approve.")


def define(names: Names) -> dg.AssetSpec:
    """The asset of one repository, which the job reports."""
    return dg.AssetSpec(
        key=names.asset(NAME),
        description=f"Branches of {names.repository} that the policy calls stale, and why others stay. The job "
        f"{names.qualified(NAME)} reports it, and deletes them if approved.",
        kinds={"lakefs"},
    )


def stale_branches_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """The job of one op, which takes the repository's lock if it deletes."""

    @collector_op(names, _OP, "Shows stale branches, or deletes those that were shown.", StaleBranchesConfig)
    def retire(context: dg.OpExecutionContext, collector: Collector, config: StaleBranchesConfig) -> None:
        repository, log = collector.open(), context.log
        failed = 0
        if config.approve:
            require_approvable(policy, config.approve)
            approver = launching.approver(context.instance, context.run_id, config.approved_by, policy)
            log.info(f"approved by {approver}")
            deleting = stale_branches.delete(repository, config.approve, context.run_id, log.info, log.warning)
            for outcome in deleting:
                failed += not outcome.is_well
                log.warning(f"{outcome.branch} on commit {outcome.commit_id}: {outcome.fate} {outcome.why}".strip())
        listing = stale_branches.list_branches(repository, log.info)
        context.log_event(dg.AssetMaterialization(names.asset(NAME), metadata=described(listing)))
        if failed:
            raise dg.Failure(
                description=f"{counted(failed, 'branches were')} not deleted: see the log", allow_retries=False
            )

    description = (
        f"Shows which branches of {names.repository} are stale by the policy, and why others stay. With the digest of "
        "what it showed in `approve`, it deletes exactly these, after looking at each again. `lakefs-gc branches "
        "restore` makes them again."
    )
    return one_op_job(names, NAME, retire, description)


def require_approvable(policy: LaunchSettings, digest: str) -> None:
    """Raises ConfigurationError where the file does not let one launch delete."""
    if policy.sweep == "never" or policy.approvers == 2:
        setting = "launch.sweep never" if policy.sweep == "never" else "launch.approvers 2"
        raise ConfigurationError(
            f"a launch may not delete branches, by {setting}: run `lakefs-gc branches approve {digest}`"
        )


def described(listing: Listing) -> dict[str, Any]:
    """Metadata of a listing for the UI: numbers, which are plotted, and the branches."""
    stale = listing.stale
    alone = [each.alone.bytes for each in stale if each.alone is not None]
    return {
        "stale": len(stale),
        "branches": len(listing.standings),
        **({"digest": listing.digest} if stale else {}),
        **({"refused_by": listing.refused_by} if listing.refused_by else {}),
        **({"held_alone_bytes": sum(alone)} if len(alone) == len(stale) else {}),
        "stale_branches": bullets(
            f"{each.identity.branch}: last commit {each.head_made_at:%F}, {each.rule}; undo {each.undo}"
            for each in stale[:_SHOWN]
        ),
        "kept": bullets(
            f"{each.identity.branch}: {each.kept}"
            for each in [each for each in listing.standings if each.kept and each.rule][:_SHOWN]
        ),
    }

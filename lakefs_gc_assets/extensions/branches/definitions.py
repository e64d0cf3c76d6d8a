"""The asset and job `stale_branches`, and the schedule that lists stale branches.

The job lists stale branches, and deletes the branches of an approved listing. The schedule only lists, and is off by
default.
"""

from typing import Any

import dagster as dg
from pydantic import Field

from lakefs_gc_assets.collector.records.outcomes import Tally
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.automation import off_schedule
from lakefs_gc_assets.defs.jobs import one_op_job
from lakefs_gc_assets.defs.pages import bullets
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import ConfigurationError, counted
from lakefs_gc_assets.extensions.branches import stale_branches
from lakefs_gc_assets.extensions.branches.stale_branches import BranchListing
from lakefs_gc_assets.settings import AutomationSettings, LaunchSettings

STALE_BRANCHES = "stale_branches"
_RETIRE_OP = "retire_branches"
_BRANCHES_SHOWN = 100


def define(names: Names, loaded: Loaded) -> Additions:
    """Definitions of stale branches for a repository."""
    job = stale_branches_job(names, loaded.configuration.launch)
    return Additions(
        assets=[stale_branches_asset(names)],
        jobs=[job],
        schedules=[find_stale_branches(names, loaded.configuration.automation, job)],
    )


def find_stale_branches(names: Names, settings: AutomationSettings, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """The schedule that lists stale branches; off by default."""
    return off_schedule(
        names,
        settings,
        "find_stale_branches",
        settings.stale_branches_cron,
        job,
        {},
        f"Lists branches of {names.repository} that are stale by the policy; deletes nothing. Cron: "
        "automation.stale_branches_cron.",
    )


class StaleBranchesConfig(dg.Config):
    """Approval of a deletion of stale branches; by default they are only shown."""

    approve: str = Field(
        default="",
        description="Digest of an earlier launch's list: deletes its branches, except any that have "
        "changed since. Empty: list stale branches.",
    )
    approved_by: str = Field(default="", max_length=100, description="Name of the approver, as in the job approve.")


def stale_branches_asset(names: Names) -> dg.AssetSpec:
    """The asset of one repository, which the job `stale_branches` reports.

    It has no partitions, so Dagster plots its numbers over time.
    """
    return dg.AssetSpec(
        key=names.asset(STALE_BRANCHES),
        description=f"Branches of {names.repository} that are stale by the policy, and the reasons why others stay. "
        f"Launch the job {names.qualified(STALE_BRANCHES)} to list them here, and again to delete approved ones.",
        kinds={"lakefs"},
    )


def stale_branches_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """The job `stale_branches`: one op, which takes the repository's lock if it deletes.

    It lists stale branches. A second launch with the digest of that listing deletes exactly the listed branches.
    """
    description = (
        f"Lists branches of {names.repository} that are stale by the policy, and the reasons why others stay. With the "
        "digest of that list in `approve`, it checks each listed branch again and deletes it unless it has changed. "
        "`lakefs-gc branches restore` recreates them."
    )

    @one_op_job(names, STALE_BRANCHES, _RETIRE_OP, StaleBranchesConfig, description)
    def retire(context: dg.OpExecutionContext, collector: Collector, config: StaleBranchesConfig) -> None:
        """Lists stale branches, or deletes the branches of an approved list."""
        repository, log = collector.open(), context.log
        tally = Tally(stale_branches.BranchFate.DELETED)
        if config.approve:
            require_approvable(policy, config.approve)
            approver = launching.approver(context.instance, context.run_id, config.approved_by, policy)
            log.info(f"approved by {approver}")
            deleting = stale_branches.delete(repository, config.approve, context.run_id, log.info, log.warning)
            for outcome in tally.counted(deleting):
                log.warning(f"{outcome.branch} on commit {outcome.commit_id}: {outcome.fate} {outcome.why}".strip())
        listing = stale_branches.list_branches(repository, log.info)
        for each in (each for each in listing.standings if each.is_unknown):
            log.warning(f"{each.identity.branch}: kept: {each.kept}")
        context.log_event(dg.AssetMaterialization(names.asset(STALE_BRANCHES), metadata=describe_branches(listing)))
        if tally.failed or listing.unknown:
            undecided = f"; undecided, since the server failed: {listing.unknown:,}" if listing.unknown else ""
            raise dg.Failure(
                description=f"{counted(tally.failed, 'branches were')} not deleted{undecided}: see the log",
                allow_retries=False,
            )

    return retire


def require_approvable(policy: LaunchSettings, digest: str) -> None:
    """Raises ConfigurationError if the configuration does not let a single launch delete."""
    if policy.sweep == "never" or policy.approvers == 2:
        setting = "launch.sweep is never" if policy.sweep == "never" else "launch.approvers is 2"
        raise ConfigurationError(
            f"a launch may not delete branches, since {setting}: run `lakefs-gc branches approve {digest}`"
        )


def describe_branches(listing: BranchListing) -> dict[str, Any]:
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
            f"{each.identity.branch}: {each.last_use}, {each.rule}; undo {each.undo}"
            for each in stale[:_BRANCHES_SHOWN]
        ),
        "kept": bullets(
            f"{each.identity.branch}: {each.kept}"
            for each in [each for each in listing.standings if each.kept and each.rule][:_BRANCHES_SHOWN]
        ),
    }

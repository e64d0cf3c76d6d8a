"""Jobs that list what may be deleted, and delete exactly what an approved list has.

A launch without an approval shows the list, its digest and a link to the launch that approves it. Every launch is a
partition of the asset, as every run is one of the five assets. Its key begins with the time, so Dagster's plots over
partitions are plots over time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from pydantic import Field

from lakefs_gc_assets.collector.records.outcomes import Amount, BaseFate, Result, Tally, describe_result
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, PlannedDeletion, standing_approver
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import history, launching
from lakefs_gc_assets.defs.automation import off_schedule
from lakefs_gc_assets.defs.history import APPROVED_BY_TAG, CheckVerdict
from lakefs_gc_assets.defs.jobs import one_op_job
from lakefs_gc_assets.defs.pages import launchpad, link
from lakefs_gc_assets.defs.partitions import RUN_TAG, Names, key_of, newest_metadata, run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LogLine
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import CollectionSettings, LaunchSettings

_COMPLETE, _WHY = "is_complete", "why"
"""Metadata with the verdict of the check, and its reason."""


class ListingConfig(dg.Config):
    """Approval of a list; by default a launch only shows what it would delete."""

    approve: str = Field(
        default="",
        description="Digest of an earlier launch's list: deletes what that list has, except what has changed since. "
        "Empty: only list.",
    )
    approved_by: str = Field(default="", max_length=100, description="Name of the approver, as in the job approve.")
    standing: bool = Field(
        default=False, description="True: list, and delete the list if a standing approval covers all of it."
    )


@dataclass(frozen=True)
class ListingShown:
    """A list as the UI shows it.

    Attributes:
        digest: digest of everything that would be deleted; empty for nothing.
        planned: what would be deleted, in words.
        figures: figures for a standing approval that limits a deletion to these prefixes of paths; empty for none.
        refused_by: the guard that would refuse the deletion, in words; empty for none.
        lines: the list as lines.
        freed: by branch, objects that collection frees later, as far as known; None if unknown.
        freed_note: what these figures mean, and from when they are.
        undecided: number of items that stay because the server failed at them.
        unfinished: approved deletions that neither succeeded nor were refused, in words.
    """

    digest: str
    planned: str
    metadata: Mapping[str, Any]
    figures: Callable[[tuple[str, ...]], PlannedDeletion]
    refused_by: str = ""
    undecided: int = 0
    unfinished: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    freed: Mapping[str, Amount | None] = field(default_factory=dict)
    freed_note: str = ""

    @property
    def verdict(self) -> CheckVerdict:
        """The verdict of the check: whether anything is left to do that a person has approved or cannot see."""
        undecided = [f"undecided, since the server failed: {self.undecided:,}"] if self.undecided else []
        return CheckVerdict(not (undecided or self.unfinished), "; ".join((*undecided, *self.unfinished)) or "complete")


@dataclass(frozen=True)
class ListedDeletion:
    """An asset with a list of what may be deleted, and the job that lists and deletes it.

    Attributes:
        asset, job, op, check: names in a code location with one repository.
        things: what it deletes, in the plural.
        work: kind of standing approval that covers its deletions.
        reason: why it comes at its place in the routine.
        command: command that approves a digest.
        usual: the fate of an item that was deleted.
        name: the text that names an item in the log.
        is_set_up: True if the settings have rules for it.
        show: lists; called with the repository and a function for lines of the log.
        delete: deletes what the list with this digest has, during iteration. Called with the repository, the digest,
            the owner of the lock, functions for lines and warnings of the log, and a function that returns the
            approver. It calls that function before each deletion, which raises GuardTripped once the approval no
            longer counts.
    """

    asset: str
    job: str
    op: str
    check: str
    things: str
    work: ApprovedWork
    reason: str
    command: str
    description: str
    usual: BaseFate
    name: Callable[[Any], str]
    is_set_up: Callable[[CollectionSettings], bool]
    show: Callable[[OpenRepository, LogLine], ListingShown]
    delete: Callable[[OpenRepository, str, str, LogLine, LogLine, Callable[[], str]], Iterator[Result]]

    def partitions(self, names: Names) -> dg.DynamicPartitionsDefinition:
        """One key for each launch."""
        return dg.DynamicPartitionsDefinition(name=f"gc_{self.asset}_{names.repository}")

    def define(self, names: Names, loaded: Loaded, finding: str, deleting: str, cron: str, setting: str) -> Additions:
        """The asset, check and job of a repository, and two schedules, which are off by default.

        Args:
            finding, deleting: names of the schedule that lists, and of the one that deletes by a standing approval.
            cron, setting: when they launch the job, and the setting that has it.
        """
        settings, job, of = loaded.configuration.automation, self.define_job(names, loaded), names.repository
        lists = f"Lists {self.things} of {of} that the policy lets go; deletes nothing. Cron: {setting}."
        deletes = (
            f"Deletes {self.things} of {of} that the policy lets go if the standing approval for {self.work} covers "
            "all of them. Otherwise it fails with the limit that was met, and deletes nothing. Turn on this schedule "
            f"or {names.qualified(finding)}. Cron: {setting}."
        )
        return Additions(
            assets=[self.define_asset(names)],
            checks=[self.define_check(names)],
            jobs=[job],
            schedules=[
                off_schedule(names, settings, finding, cron, job, {}, lists),
                off_schedule(names, settings, deleting, cron, job, {"standing": True}, deletes),
            ],
        )

    def define_asset(self, names: Names) -> dg.AssetSpec:
        """The asset, which the job reports."""
        return dg.AssetSpec(
            key=names.asset(self.asset),
            description=f"{self.description} Launch the job {names.qualified(self.job)} to list them here, and again "
            "to delete approved ones.",
            kinds={"lakefs"},
            partitions_def=self.partitions(names),
        )

    def define_check(self, names: Names) -> dg.AssetChecksDefinition:
        """The asset's check, which the job evaluates; evaluated alone, it repeats the newest verdict."""

        def judge(instance: dg.DagsterInstance) -> CheckVerdict:
            shown = newest_metadata(instance, names.asset(self.asset))
            if _COMPLETE not in shown:
                return CheckVerdict(True, f"the job {names.qualified(self.job)} has listed nothing yet")
            return CheckVerdict(bool(shown[_COMPLETE]), str(shown[_WHY]))

        description = "Everything was decided, and no approved deletion is left unfinished."
        return history.define_check(names, self.asset, self.check, description, judge)

    def define_job(self, names: Names, loaded: Loaded) -> dg.JobDefinition:
        """The job: one op, which takes the repository's lock if it deletes."""
        policy, keep = loaded.configuration.launch, loaded.configuration.automation.keep_runs
        description = (
            f"{self.description} With the digest of that list in `approve`, it checks each one again and deletes it "
            "unless it has changed."
        )

        @one_op_job(names, self.job, self.op, ListingConfig, description)
        def listing(context: dg.OpExecutionContext, collector: Collector, config: ListingConfig) -> None:
            """Lists what may be deleted, or deletes what an approved list has."""
            repository, tally = collector.open(), Tally(self.usual)
            if config.approve and config.standing:
                raise ConfigurationError("set either approve or standing")
            if config.approve:
                self.require_approvable(policy, config.approve)
                approver = launching.approver(context.instance, context.run_id, config.approved_by, policy)
                self._delete(context, names, repository, config.approve, lambda: approver, tally)
            shown = self.show(repository, context.log.info)
            self.report(context, collector, shown, keep)
            if config.standing and shown.digest:
                require_sweeping(policy)
                # If no approval covers it, a person decides about the list, which is recorded.
                standing = standing_approver(repository, self.work, shown.figures, policy.approvers)
                self._delete(context, names, repository, shown.digest, standing, tally)
                shown = self.show(repository, context.log.info)
                self.report(context, collector, shown, keep)
            if tally.failed or shown.undecided:
                undecided = f"; undecided, since the server failed: {shown.undecided:,}" if shown.undecided else ""
                raise dg.Failure(
                    description=f"{self.things}: {tally.describe(frees=False)}{undecided}: see the log",
                    allow_retries=False,
                )

        return listing

    def _delete(
        self,
        context: dg.OpExecutionContext,
        names: Names,
        repository: OpenRepository,
        digest: str,
        approver: Callable[[], str],
        tally: Tally,
    ) -> None:
        log, name = context.log, approver()
        log.info(f"approved by {name}")
        context.instance.add_run_tags(context.run_id, {APPROVED_BY_TAG: name})
        try:
            deleting = self.delete(repository, digest, context.run_id, log.info, log.warning, approver)
            for outcome in tally.counted(deleting):
                log.warning(describe_result(self.name(outcome), outcome))
        except CollectionError as error:
            if sum(tally.counts.values()):
                why = f"the deletion approved by {digest} ended early: approve it again: {error}"
                history.report_check(context.instance, names, self.asset, self.check, CheckVerdict(False, why))
            raise

    def report(self, context: dg.OpExecutionContext, collector: Collector, shown: ListingShown, keep: int) -> None:
        """Records a list as a partition of the asset, and its verdict; removes the keys of all but the newest launches.

        Users can add partitions of any name in the UI. Keys that no launch made are removed too.
        """
        instance, names, log = context.instance, collector.names, context.log
        run_id = layout.issue_run_id(collector.clock.now())
        key, partitions = key_of(run_id), self.partitions(names).name or ""
        instance.add_dynamic_partitions(partitions, [key])
        keys = instance.get_dynamic_partitions(partitions)
        # Later ids sort first.
        newest = sorted(filter(None, map(run_id_in, keys)))[:keep]
        for each in keys:
            if run_id_in(each) not in newest:
                instance.delete_dynamic_partition(partitions, each)
        instance.add_run_tags(context.run_id, {RUN_TAG: run_id})
        verdict = shown.verdict
        if not verdict.passed:
            log.warning(verdict.why)
        metadata = {
            "run_id": run_id,
            **({"digest": shown.digest} if shown.digest else {}),
            **({"refused_by": shown.refused_by} if shown.refused_by else {}),
            **self._approval(context, collector, shown),
            **shown.metadata,
            _COMPLETE: verdict.passed,
            _WHY: verdict.why,
        }
        context.log_event(dg.AssetMaterialization(names.asset(self.asset), partition=key, metadata=metadata))
        history.report_check(instance, names, self.asset, self.check, verdict)

    def _approval(
        self, context: dg.OpExecutionContext, collector: Collector, shown: ListingShown
    ) -> Mapping[str, dg.MarkdownMetadataValue]:
        """The pending decision about a list, with a link to the launch that approves it if the UI has one."""
        names, policy = collector.names, collector.configuration.launch
        if not shown.digest or shown.refused_by:
            return {}
        name = "" if launching.is_named_by_proxy(context.instance) else " Enter your name in approved_by."
        address = (
            None
            if _forbids(policy)
            else launchpad(
                collector,
                context.run,
                names.qualified(self.job),
                names.qualified(self.op),
                {"approve": shown.digest, "approved_by": ""},
                f"Deletes {shown.planned} of {names.repository}, except what has changed since it was listed.{name}",
                {},
            )
        )
        by_command = dg.MetadataValue.md(f"Approve by `{self.command} {shown.digest}`: {shown.planned}")
        return link(f"Approve: {shown.planned}", address) or {"next": by_command}

    def require_approvable(self, policy: LaunchSettings, digest: str) -> None:
        """Raises ConfigurationError if the configuration does not let a single launch delete."""
        if setting := _forbids(policy):
            raise ConfigurationError(
                f"a launch may not delete {self.things}, since {setting}: run `{self.command} {digest}`"
            )


def require_sweeping(policy: LaunchSettings) -> None:
    """Raises ConfigurationError if no launch may delete, not even by a standing approval."""
    if policy.sweep == "never":
        raise ConfigurationError(
            "a launch may not delete, since launch.sweep is never: call the command with --standing"
        )


def _forbids(policy: LaunchSettings) -> str:
    """The setting that does not let a single launch delete, in words; empty if none does."""
    if policy.sweep == "never":
        return "launch.sweep is never"
    return "launch.approvers is 2" if policy.approvers == 2 else ""

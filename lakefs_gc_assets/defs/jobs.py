"""The builder of jobs with one op, and the jobs open_run and approve.

Opening a run adds its id and its slice windows as partitions. The jobs open_run and approve set tags on their own
Dagster runs; the sensor launch_opened_runs reads these tags and launches the job collect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, assert_never

import dagster as dg
from pydantic import Field, create_model

from lakefs_gc_assets.collector.incremental import earlier_runs, planning
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.outcomes import share, size
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.failures import readable
from lakefs_gc_assets.defs.history import APPROVED_BY_TAG, APPROVED_SWEEP, MODE_TAG
from lakefs_gc_assets.defs.launching import Overrides, Permit, overrides_of
from lakefs_gc_assets.defs.pages import launchpad
from lakefs_gc_assets.defs.partitions import REPOSITORY_TAG, RUN_TAG, WHY_CLEAN_TAG, Names, key_of, run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import ConfigurationError, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import FlowName, LaunchSettings
from lakefs_gc_assets.spark.work_names import named

OPENED_TAG_PREFIX = ".dagster/lakefs-opened/"
"""Prefix of tags on a Dagster run of open_run or approve; the sensor launches a run of collect with these tags.

The UI hides tags that begin with `.dagster/`.
"""
_OPENING_OP, _APPROVING_OP = "open_new_run", "approve_dry_run"
_TAG_LENGTH = 500
_RELAX = "Settings of `collection` for this run alone. Only settings in launch.may_relax of the file may be set."
LaunchConfig = TypeVar("LaunchConfig", bound=dg.Config)
Work: TypeAlias = Callable[[dg.OpExecutionContext, Collector, LaunchConfig], None]
"""The work of an op, with its repository and the configuration of its launch."""


def one_op_job(
    names: Names,
    name: str,
    op_name: str,
    config_type: type[LaunchConfig],
    description: str,
    in_pool: bool = True,
    tags: Mapping[str, str] | None = None,
) -> Callable[[Work[LaunchConfig]], dg.JobDefinition]:
    """Decorates a function that becomes the only op of a job, with its docstring as description.

    The job runs in the process of the Dagster run. Our own errors fail the run with one-line messages.

    Args:
        name, op_name: names of the job and its op in a code location with one repository.
        config_type: configuration of a launch.
        in_pool: True if the op and runs of the repository wait for each other.
        tags: tags of its runs; by default the repository's.
    """

    def decorate(work: Work[LaunchConfig]) -> dg.JobDefinition:
        @dg.op(name=names.qualified(op_name), description=work.__doc__, pool=names.pool if in_pool else None)
        @names.bound
        def op(
            context: dg.OpExecutionContext,
            collector: dg.ResourceParam[Collector],
            config: config_type,  # type: ignore[valid-type]
        ) -> None:
            with readable(), named(name, collector.repository):
                work(context, collector, config)

        @dg.job(
            name=names.qualified(name),
            description=description,
            executor_def=dg.in_process_executor,
            tags={REPOSITORY_TAG: names.repository} if tags is None else tags,
        )
        def job() -> None:
            op()

        return job

    return decorate


@dataclass(frozen=True)
class OpenedRun:
    """A run that is ready to be launched: its id, its windows in order, and the tags of the Dagster run.

    Attributes:
        why_clean: reason why the run will be clean although an optimized one was requested; None if it will be as
            requested. The run decides again once it holds the lock.
    """

    run_id: str
    windows: tuple[str, ...]
    tags: dict[str, str]
    why_clean: str | None = None


def open_run(
    instance: dg.DagsterInstance,
    collector: Collector,
    flow: Flow = Flow.CLEAN,
    permit: Permit | None = None,
    windows: str = "",
) -> OpenedRun:
    """Adds the partitions of a new run over every window that it needs, or over a user's choice.

    Args:
        permit: the run's permit; None if its own process decides, as on the command line.
        windows: the choice, as `slices.select_windows` takes it; empty for all.
    Raises:
        ConfigurationError, LakeFSError or StorageError: the repository cannot be read, the configuration file does not
            allow the launch, or there are no such windows.
    """
    repository = collector.open() if permit is None else collector.open_for(permit)
    needed, chosen, why_clean = planning.choose_windows(repository, flow, windows)
    run_id = layout.issue_run_id(repository.clock.now())
    partitions, key = collector.names.partitions, key_of(run_id)
    covered = partitions.add(instance, key, needed)
    if windows:
        covered = partitions.add(instance, key, chosen)
        if between := {*covered} & {*needed} - {*chosen}:
            partitions.forget(instance, key)
            raise ConfigurationError(
                f"the UI keeps windows in the order in which runs found them, so other windows lie between those of "
                f"{windows}: {', '.join(sorted(between)[:5])}. Choose smaller ranges, one run for each"
            )
    tags = partitions.tags(key, covered, flow.value)
    if permit is not None:
        tags |= {RUN_TAG: run_id, **launching.tags(instance, collector.name, run_id, permit)}
    if why_clean is not None:
        tags[WHY_CLEAN_TAG] = why_clean[:_TAG_LENGTH]
    return OpenedRun(run_id, covered, tags, why_clean)


class RunConfig(dg.Config):
    """The kind of run to make."""

    flow: FlowName = Field(
        default="clean",
        description="clean: examines every object, and keeps all that a commit references. optimized: does the "
        "same, but only for objects that are new since the last run that deleted; without a run to build on, it is a "
        "clean run and says why. committed: finds objects that only expired commits reference, by retention rules; "
        "lists nothing. unified: finds unreferenced objects and those that only expired commits reference. It examines "
        "every object once in collection.full_listing_days, and in between only new and expired ones.",
    )
    windows: str = Field(
        default="",
        description="Slice windows to collect; other windows are not listed, so a first run on a huge bucket can go "
        "month by month. FIRST..LAST or a single window, such as 2026-10..2026-11, 2026-10, or legacy for objects "
        "outside of slices. Only for the flows clean and unified. Empty: all windows.",
    )
    sweep: bool | None = Field(
        default=None,
        description="True: delete at once; false: dry run. May be set only if launch.sweep is any in the configuration "
        "file. If left out, `collection.sweep` in the file decides if launch.sweep is any; otherwise it is a dry run.",
    )


class OpenRunConfig(RunConfig):
    """The kind of run to open."""

    relax: Overrides = Field(default=Overrides(), description=_RELAX)


class ApproveConfig(dg.Config):
    """The dry run to approve."""

    run_id: str = Field(
        description="Id of the dry run whose candidates to delete, except any that are live by now: the tag "
        "lakefs/run_id on the page Runs, not Dagster's own run id."
    )
    approved_by: str = Field(
        default="",
        max_length=100,
        description="Name of the approver, for the report, which says that the launch gave it. Required unless a proxy "
        "names the user who launched this; then the proxy's name counts instead.",
    )
    relax: Overrides = Field(default=Overrides(), description=_RELAX)


@dataclass(frozen=True)
class ApprovableGarbage:
    """Garbage of a dry run whose deletion a person is asked to approve.

    Attributes:
        known: number of objects that the run knows, the whole for the share, as in `guards.Mark`.
    """

    objects: int
    bytes: int
    known: int

    @classmethod
    def from_report(cls, report: Report) -> "ApprovableGarbage":
        """The garbage that the report of a dry run counts."""
        statistics = report.statistics
        return cls(statistics.candidates or 0, statistics.candidates_bytes or 0, report.known)

    def __str__(self) -> str:
        of_known = f"{share(self.objects, self.known):.1%} of the objects that the run knows"
        return f"{counted(self.objects, 'objects')}, {size(self.bytes)}, {of_known}"


def approval_address(
    collector: Collector, run: dg.DagsterRun, plan: Plan, found: ApprovableGarbage, *, asks_name: bool
) -> str | None:
    """Address of the launchpad that approves a dry run; None if a launch may approve nothing.

    Args:
        run: a Dagster run of the same code location.
        asks_name: True if the launch has to name the approver.
    """
    names, policy = collector.names, collector.configuration.launch
    if plan.sweep or not plan.opened or not found.objects or policy.sweep == "never":
        return None
    does = "Moves to quarantine" if collector.configuration.collection.quarantines else "Deletes"
    second = " Two people must approve it, under different names." if policy.approvers == 2 else ""
    if asks_name:
        second += " Enter your name in approved_by."
    return launchpad(
        collector,
        run,
        names.qualified("approve"),
        names.qualified(_APPROVING_OP),
        {"run_id": plan.run_id, "approved_by": ""},
        f"{does} the candidates of dry run {plan.run_id} of {names.repository}, except any that are live by now: "
        f"{found}.{second}",
        {RUN_TAG: plan.run_id},
    )


def open_run_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """The job open_run: one op, which sets the tags of the new run on its own Dagster run for the sensor."""
    description = (
        f"Opens a run of repository {names.repository}: choose the flow and, if not all, the slice windows. "
        f"{_what_a_launch_deletes(names, policy)} The sensor {names.qualified('launch_opened_runs')} soon starts it."
    )
    config_type = _with_relaxable(OpenRunConfig, policy)

    @one_op_job(names, "open_run", _OPENING_OP, config_type, description, in_pool=False, tags={})
    def opening(context: dg.OpExecutionContext, collector: Collector, config: OpenRunConfig) -> None:
        """Lists slice windows, adds them and a new run id as partitions, and requests the run."""
        permit = launching.find_ticket(context.instance, collector.name, context.run_tags)
        if permit is None:
            permit = Permit(names.qualified("open_run"), sweep=config.sweep, relaxed=config.relax.relaxed)
        settings, _ = launching.settle(collector.configuration.collection, policy, permit, Flow(config.flow))
        opened = open_run(context.instance, collector, Flow(config.flow), permit, config.windows)
        launching.use_ticket(context.instance, context.run_tags)
        if opened.why_clean:
            context.log.warning(f"a clean run instead of an optimized one: {opened.why_clean}")
        if collector.configuration.collection.sweep and not settings.sweep:
            context.log.info(f"a dry run, since a launch may not delete at once: {launching.how_to_sweep(policy)}")
        context.log.info(f"opened run {opened.run_id} over {plans.describe_windows(opened.windows)}")
        context.add_output_metadata(
            {
                "run_id": opened.run_id,
                "flow": Flow.CLEAN.value if opened.why_clean else config.flow,
                **({"why_clean": opened.why_clean} if opened.why_clean else {}),
                "sweep": settings.sweep,
                "windows": plans.describe_windows(opened.windows),
            }
        )
        hand_on(context, opened.tags)

    return opening


def _what_a_launch_deletes(names: Names, policy: LaunchSettings) -> str:
    match policy.sweep:
        case "any":
            return "It deletes if `sweep` is true; if `sweep` is left out, the configuration file decides."
        case "approved":
            approve = names.qualified("approve")
            return f"It is a dry run: review its candidates, then launch the job {approve} with its id to delete them."
        case "never":
            return "It is a dry run."
        case other:
            assert_never(other)


def approve_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """The job approve: one op, which stores the approval, and sets tags for the sensor to repeat the last step."""
    description = (
        f"Deletes the candidates of a dry run of {names.repository}: give its id. The log and the page of the run "
        "show how many objects and bytes these are. The run's own plan and every guard of a sweep apply, and objects "
        f"that are live by now stay. The sensor {names.qualified('launch_opened_runs')} starts the deletion within "
        f"seconds, as a run of {names.qualified('collect')} that makes deleted_report again."
        + (" Two launches must approve it, with different names in approved_by." if policy.approvers == 2 else "")
    )

    @one_op_job(names, "approve", _APPROVING_OP, _with_relaxable(ApproveConfig, policy), description)
    def approving(context: dg.OpExecutionContext, collector: Collector, config: ApproveConfig) -> None:
        """Logs the garbage of the dry run, approves it, and requests its last step."""
        run_id = run_id_in(config.run_id) or config.run_id
        if policy.sweep == "never":
            raise ConfigurationError(
                f"a launch may not approve run {run_id}: run `lakefs-gc approve {run_id}`, or set launch.sweep to "
                "approved in the configuration file"
            )
        permit = Permit(names.qualified("approve"), relaxed=config.relax.relaxed)
        repository = collector.open_for(permit)
        manifest = sweeping.require_dry_run(repository.store, run_id)
        objects = f"{counted(manifest.rows, 'objects')}, {size(manifest.object_bytes)}"
        goes = "moved to quarantine" if repository.settings.quarantines else "deleted"
        context.log.info(
            f"dry run {run_id} of {manifest.span.ended_at:%F %T}Z found {objects}: they will be {goes} after "
            "checking again that nothing uses them"
        )
        plan = plans.read(repository.store, run_id)
        launching.require_opened(plan)
        approver = launching.approver(context.instance, context.run_id, config.approved_by, policy)
        context.add_output_metadata({"run_id": run_id, "objects": manifest.rows, "bytes": manifest.object_bytes})
        if policy.approvers == 2:
            first = sweeping.store_first_approval(repository.store, manifest, repository.clock.now(), approver)
            if first is None:
                context.log.warning(f"nothing is deleted yet: run {run_id} needs a second approval, under another name")
                context.instance.add_run_tags(context.run_id, {RUN_TAG: run_id, APPROVED_BY_TAG: approver})
                return
            approver = f"{first}; {approver}"
        sweeping.store_approval(repository.store, manifest, repository.clock.now(), approver)
        earlier_runs.forget(repository.store, run_id)
        tags = names.partitions.add_again(context.instance, plan)
        approval = {RUN_TAG: run_id, MODE_TAG: APPROVED_SWEEP, APPROVED_BY_TAG: approver}
        context.instance.add_run_tags(context.run_id, approval)
        permitted = launching.tags(context.instance, collector.name, run_id, permit)
        hand_on(context, {**tags, **permitted, **approval})

    return approving


def _with_relaxable(config: type[LaunchConfig], policy: LaunchSettings) -> type[LaunchConfig]:
    """A launchpad configuration with the settings that a launch may change."""
    kind = overrides_of(policy)
    relax: Any = (kind, Field(default=kind(), description=_RELAX))
    return create_model(config.__name__, __base__=config, __doc__=config.__doc__, relax=relax)


def hand_on(context: dg.OpExecutionContext | dg.AssetExecutionContext, tags: Mapping[str, str]) -> None:
    """Sets tags for the run that the sensor launches. Its permit is found by those that this Dagster run shares."""
    shared = {name: tags[name] for name in (RUN_TAG, launching.PERMIT_TAG) if name in tags}
    handed_on = {OPENED_TAG_PREFIX + name: value for name, value in tags.items()}
    context.instance.add_run_tags(context.run.run_id, shared | handed_on)

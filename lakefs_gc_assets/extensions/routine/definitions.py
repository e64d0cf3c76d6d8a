"""The job `routine` and its schedules, which are off by default.

The job lists what each part would delete and opens a dry run, which the sensor of opened runs launches. Its lists are
partitions of their assets, and its page has all parts.
"""

from collections.abc import Callable, Sequence

import dagster as dg
from pydantic import Field

from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import history, launching
from lakefs_gc_assets.defs.automation import ACTING_ROUTINE, off_schedule
from lakefs_gc_assets.defs.history import CheckVerdict
from lakefs_gc_assets.defs.jobs import hand_on, one_op_job, open_run
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.listings import ListedDeletion, ListingShown, require_sweeping
from lakefs_gc_assets.defs.pages import bullets, stored_page
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.extensions.routine.routine import COLLECTION, Host, PartOutcome, PartState, play
from lakefs_gc_assets.settings import FlowName

ROUTINE = "routine"


class RoutineConfig(dg.Config):
    """Parts to play."""

    skip: list[str] = Field(default=[], description="Parts to skip: lifecycle, stale_branches, rules or collection.")
    act: bool = Field(default=False, description="True: delete what standing approvals cover. False: delete nothing.")
    flow: FlowName = Field(default="unified", description="The flow of the collection, as in the job open_run.")


def define(parts: Sequence[Callable[[Names], ListedDeletion]], names: Names, loaded: Loaded) -> Additions:
    """Definitions of the routine for a repository.

    Args:
        parts: functions that give the parts that list and delete, in order.
    """
    deletions = tuple(part(names) for part in parts)
    settings, job, of = loaded.configuration.automation, routine_job(deletions, names, loaded), names.repository
    proposing = (
        f"Lists what object lifecycle and stale branches of {of} would delete, and opens a dry run. Deletes nothing. "
        "Cron: automation.routine_cron."
    )
    acting = (
        f"Does the same as {names.qualified(ROUTINE)}, and deletes what standing approvals of {of} cover. The sensor "
        "sweep_by_standing_approval sweeps its dry run if it is on. Cron: automation.routine_cron."
    )
    permit = Permit(names.qualified(ACTING_ROUTINE), automatic=True, sweep=False, flow=Flow.UNIFIED.value)
    cron = settings.routine_cron
    return Additions(
        jobs=[job],
        schedules=[
            off_schedule(names, settings, ROUTINE, cron, job, {}, proposing),
            off_schedule(names, settings, ACTING_ROUTINE, cron, job, {"act": True}, acting, permit),
        ],
    )


def routine_job(deletions: tuple[ListedDeletion, ...], names: Names, loaded: Loaded) -> dg.JobDefinition:
    """The job `routine`: one op, which sets the tags of the opened run on its own Dagster run for the sensor."""
    policy, keep = loaded.configuration.launch, loaded.configuration.automation.keep_runs
    description = (
        f"Lists what object lifecycle and stale branches of {names.repository} would delete, shows the rules of "
        "retention, and opens a dry run, in this order. Each asset links to its approval. With `act`, it deletes what "
        "standing approvals cover."
    )

    @one_op_job(names, ROUTINE, "play_routine", RoutineConfig, description)
    def routine(context: dg.OpExecutionContext, collector: Collector, config: RoutineConfig) -> None:
        """Plays the parts in order, and stores their page."""
        repository, log, instance = collector.open(), context.log, context.instance
        if config.act:
            require_sweeping(policy)

        def collection() -> PartOutcome:
            permit = launching.find_ticket(instance, collector.name, context.run_tags)
            permit = permit or Permit(names.qualified(ROUTINE), sweep=False)
            launching.settle(collector.configuration.collection, policy, permit, Flow(config.flow))
            opened = open_run(instance, collector, Flow(config.flow), permit)
            launching.use_ticket(instance, context.run_tags)
            hand_on(context, opened.tags)
            return PartOutcome(COLLECTION, PartState.DONE, result=f"opened dry run {opened.run_id}")

        def report(deletion: ListedDeletion, shown: ListingShown) -> None:
            deletion.report(context, collector, shown, keep)

        def fail(deletion: ListedDeletion, why: str) -> None:
            history.report_check(instance, names, deletion.asset, deletion.check, CheckVerdict(False, why))

        approvers = policy.approvers if config.act else None
        host = Host(repository, deletions, context.run_id, approvers, log.info, log.warning, collection, report, fail)
        result = play(host, config.skip)
        result.store_page(repository)
        page = stored_page(collector, repository.namespace.uri + run_folder.ROUTINE_PAGE, ROUTINE)
        parts = bullets(f"{each.name}: {each.state} {each.result}" for each in result.parts)
        context.add_output_metadata({"parts": parts, "forecast": bullets(result.forecast), "page": page})
        # Other failures are verdicts of checks: the sensor launches opened runs only of jobs that succeeded.
        if result.parts[-1].state is PartState.FAILED:
            raise dg.Failure(description=f"no run was opened: {result.parts[-1].result}", allow_retries=False)

    return routine

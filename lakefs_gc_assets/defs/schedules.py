"""Schedules: clean runs, dry runs, removal of old runs and of quarantined objects. All are off until turned on."""

from collections.abc import Callable

import dagster as dg

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.defs import jobs, launching, maintenance
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.settings import AutomationSettings


def define(
    names: Names,
    settings: AutomationSettings,
    opening: dg.JobDefinition,
    expire: dg.JobDefinition,
    purge: dg.JobDefinition,
) -> list[dg.ScheduleDefinition]:
    """The schedules of one repository. The job open_run opens runs, so that Dagster's page Runs shows its failures."""

    def schedule(
        name: str,
        cron: str,
        job: dg.JobDefinition,
        config: dict[str, object],
        description: str,
        decides: Callable[[dg.ScheduleEvaluationContext], dict[str, str]] = lambda _: {},
    ) -> dg.ScheduleDefinition:
        return dg.ScheduleDefinition(
            name=names.qualified(name),
            cron_schedule=cron,
            execution_timezone=settings.time_zone,
            job=job,
            run_config=config,
            tags_fn=decides,
            default_status=dg.DefaultScheduleStatus.STOPPED,
            description=description,
        )

    def by_the_file(context: dg.ScheduleEvaluationContext) -> dict[str, str]:
        permit = Permit(names.qualified("clean_runs"), automatic=True, flow=Flow.CLEAN.value)
        return launching.issue_ticket(context.instance, names.repository, permit)

    def by_this_schedule(context: dg.ScheduleEvaluationContext) -> dict[str, str]:
        permit = Permit(names.qualified(maintenance.PURGING_SCHEDULE))
        return launching.issue_ticket(context.instance, names.repository, permit)

    flow = settings.dry_run_flow
    return [
        schedule(
            "clean_runs",
            settings.clean_cron,
            opening,
            jobs.opening_config(names, "clean"),
            f"Opens a clean run of repository {names.repository}: every object is looked at. It deletes if the "
            "configuration says sweep, and is a dry run otherwise. Optimized runs may follow it by the sensor "
            f"{names.qualified('follow_deleted_report')}. Cron: automation.clean_cron.",
            by_the_file,
        ),
        schedule(
            "dry_runs",
            settings.dry_run_cron,
            opening,
            jobs.opening_config(names, flow, sweep=False),
            f"Opens a dry run of repository {names.repository}, flow {flow}: it reports what would go and deletes "
            "nothing, whatever the configuration says. Cron: automation.dry_run_cron; flow: automation.dry_run_flow.",
        ),
        schedule(
            "expire_old_runs",
            settings.expiry_cron,
            expire,
            maintenance.removing_config(names),
            f"Removes the frames and partitions of all but the newest {settings.keep_runs} runs of {names.repository}, "
            "and old forecasts; plans, reports and receipts stay. Launch the job "
            f"{names.qualified('expire_runs')} first to see what would go. Cron: automation.expiry_cron.",
        ),
        schedule(
            maintenance.PURGING_SCHEDULE,
            settings.purge_cron,
            purge,
            maintenance.purging_config(names),
            f"Deletes for good what runs of {names.repository} moved to quarantine collection.quarantine_days ago, and "
            f"brings back objects that are live again. Launch the job {names.qualified('purge')} first to see the "
            "quarantine. Cron: automation.purge_cron.",
            by_this_schedule,
        ),
    ]

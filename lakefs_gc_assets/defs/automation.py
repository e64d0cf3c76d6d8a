"""Schedules, and sensors that launch opened runs, and an optimized run after each sweep.

All schedules are off until turned on: clean runs, dry runs, removal of old runs and of quarantined objects.
"""

import time
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.incremental.planning import report_to_follow
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.defs import history, launching, maintenance
from lakefs_gc_assets.defs.history import (
    BEGINS_OTHER,
    HISTORY,
    MODE_TAG,
    SWEEPS,
    SWEPT_IN_TIME,
    Historian,
    judge_sweeps,
    report_check,
)
from lakefs_gc_assets.defs.jobs import OPENED_TAG_PREFIX, open_run
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import (
    FLOW_TAG,
    FOLLOWED_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    REPOSITORY_TAG,
    UNFINISHED,
    Names,
    for_each_ended_run,
    run_id_in,
    run_key_of,
)
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import AutomationSettings

_SENSOR_SECONDS = 4
"""Minimum seconds between two ticks of launch_opened_runs. It is below the 5 s of a round of Dagster's daemon.

With 5, every second round comes a few milliseconds too early, and ticks are 10 s apart.
"""
DRY_RUNS = "dry_runs"
"""Name of the schedule that opens dry runs."""
ACTING_ROUTINE = "routine_within_approvals"
"""Name of the schedule of routines whose dry runs may be swept by a standing approval, like scheduled ones."""
_COLLECTING = ("collect", "collect_on_emr_serverless")
"""Names of jobs whose runs collect, and belong to the history even if their process was killed."""
_WATCH_SECONDS = 600
"""Seconds between two ticks of watch_sweeps."""


def launch_opened_runs(names: Names, collecting: Any, last: dg.AssetsDefinition) -> dg.SensorDefinition:
    """Launches each run that open_run opened and each deletion that approve approved, once.

    It also launches the five assets under a new name if a user materialized only later ones.

    Args:
        collecting: the job of the five assets.
        last: the last of them, which an approval makes again.
    """
    opening, approving, routine = (names.qualified(name) for name in ("open_run", "approve", "routine"))

    def react(_: dg.SensorEvaluationContext, run: dg.DagsterRun, __: str) -> dg.RunRequest | dg.SkipReason | None:
        begins_other = run.tags.get(MODE_TAG) == BEGINS_OTHER and run.tags.get(REPOSITORY_TAG) == names.repository
        if run.job_name not in (opening, approving, routine) and not begins_other:
            return None
        tags = {
            name.removeprefix(OPENED_TAG_PREFIX): value
            for name, value in run.tags.items()
            if name.startswith(OPENED_TAG_PREFIX)
        }
        if RANGE_START_TAG not in tags:
            return dg.SkipReason("nothing was opened")
        if begins_other:
            own = (RANGE_START_TAG, RANGE_END_TAG, REPOSITORY_TAG, FLOW_TAG)
            tags = {name: value for name, value in tags.items() if name in own}
            # The name may be launched again, over other windows.
            return dg.RunRequest(run_key=f"{tags[RANGE_START_TAG]}|{run.run_id}", tags=tags)
        if run.job_name == approving:
            # A second approval, after a failed sweep, requests another run.
            key = f"{tags[RANGE_START_TAG]}|{run.run_id}"
            return dg.RunRequest(run_key=key, tags=tags, asset_selection=[last.key])
        return dg.RunRequest(run_key=tags[RANGE_START_TAG], tags=tags)

    launch = for_each_ended_run(dg.DagsterEventType.RUN_SUCCESS, react)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        history.forget_refused(context.instance, names)
        return launch(context)

    return dg.SensorDefinition(
        name=names.qualified("launch_opened_runs"),
        evaluation_fn=evaluate,
        job=collecting,
        minimum_interval_seconds=_SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches each run that the jobs {opening} and {routine} or a schedule opened, and the deletion "
        f"of each dry run that the job {approving} has approved. It opens no runs itself. While it is turned off, "
        "opened runs are not launched.",
    )


def note_failures(names: Names, clock: Clock) -> dg.SensorDefinition:
    """Records failed runs, also those whose process was killed: they report nothing themselves."""

    def react(context: dg.SensorEvaluationContext, run: dg.DagsterRun, message: str) -> dg.SkipReason | None:
        if not is_collection(names, run):
            return None
        historian = Historian(context.instance, names, run, context.log.warning)
        key = run_key_of(run)
        historian.failed(None, key and (run_id_in(key) or key), clock.now(), message or "failed")
        return dg.SkipReason(f"Dagster run {run.run_id} is recorded")

    return dg.SensorDefinition(
        name=names.qualified("note_failures"),
        evaluation_fn=for_each_ended_run(dg.DagsterEventType.RUN_FAILURE, react),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Records each failed run of {names.repository} in {HISTORY}, also if its process was killed. It "
        "starts no runs.",
    )


def is_collection(names: Names, run: dg.DagsterRun) -> bool:
    """True if a Dagster run collects this repository: as one of its jobs, or as some of its assets."""
    ours = {names.asset(step) for step in STEPS}
    return run.job_name in map(names.qualified, _COLLECTING) or bool(ours & set(run.asset_selection or ()))


def follow_deleted_report(
    names: Names, settings: AutomationSettings, watched: dg.AssetsDefinition, collecting: Any
) -> dg.SensorDefinition:
    """Opens an optimized run after each run that deleted objects, once the cadence is over.

    This is a plain sensor. `asset_sensor` moves its cursor past an event even if its function skips, so an early report
    would be lost. It also sees only events of this instance, in their order. This sensor reads the reports in the
    store, including reports of runs on the command line. A report has the time when its run began.

    Its cursor is the id of the last followed run, which contains its time. Without a cursor, the run key still prevents
    a second launch. Users can set any cursor in the UI. An invalid cursor, or one in the future, is dropped, since
    Dagster stores the cursor again at each tick, however large it is.

    Args:
        watched: the asset of reports.
        collecting: the job that makes it.
    """

    hours = settings.optimized_every_hours
    cadence = counted(hours, "hours") if hours >= 1 else counted(hours * 60, "minutes")

    @dg.sensor(
        name=names.qualified(f"follow_{watched.key.path[-1]}"),
        job=collecting,
        minimum_interval_seconds=settings.sensor_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Opens and launches an optimized run of repository {names.repository} "
        f"{cadence} after the start of each run that deleted and succeeded. It "
        "does not follow dry runs. It follows a failed run only if nothing failed but deletions of objects that the "
        "run recorded as undeletable; after any other failure, launch that run again or a clean one. Its runs are dry "
        "runs unless the configuration file sets `sweep`. The interval is automation.optimized_every_hours.",
    )
    @names.bound
    def sensor(
        context: dg.SensorEvaluationContext, collector: dg.ResourceParam[Collector]
    ) -> dg.RunRequest | dg.SkipReason:
        repository = collector.open()
        now = repository.clock.now()
        followed = context.cursor or None
        if followed and (not layout.is_xid(followed) or layout.is_to_come(followed, now)):
            context.update_cursor("")
            followed = None
        report = report_to_follow(repository.store, timedelta(hours=hours), now, followed)
        if isinstance(report, str):
            return dg.SkipReason(report)
        collecting_now = dg.RunsFilter(statuses=UNFINISHED, tags={REPOSITORY_TAG: names.repository})
        if waiting := context.instance.get_runs(collecting_now, limit=1):
            return dg.SkipReason(f"Dagster run {waiting[0].run_id} is collecting this repository, or waits to do so")
        permit = Permit(names.qualified("follow_deleted_report"), automatic=True, flow=Flow.OPTIMIZED.value)
        opened = open_run(context.instance, collector, Flow.OPTIMIZED, permit)
        tags = {**opened.tags, FOLLOWED_TAG: report.run_id}
        context.update_cursor(report.run_id)
        return dg.RunRequest(run_key=f"after-{report.run_id}", tags=tags)

    return sensor


def watch_sweeps(names: Names, sweep_within: timedelta) -> dg.SensorDefinition:
    """Reports to the check of the asset `sweeps` that a sweep is overdue, or no longer is.

    Its cursor is the last reported verdict.
    """

    @dg.sensor(
        name=names.qualified("watch_sweeps"),
        minimum_interval_seconds=_WATCH_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Fails the check {SWEPT_IN_TIME} of the asset {SWEEPS} when {names.repository} has had no sweep "
        "for automation.sweep_within_days. It starts no runs.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        verdict = judge_sweeps(context.instance, names, sweep_within, time.time())
        cursor = f"{verdict.passed} {verdict.why}"
        if context.cursor != cursor:
            report_check(context.instance, names, SWEEPS, SWEPT_IN_TIME, verdict)
        return dg.SensorResult(skip_reason=verdict.why, cursor=cursor)

    return sensor


def off_schedule(
    names: Names,
    settings: AutomationSettings,
    name: str,
    cron: str,
    job: dg.JobDefinition,
    config: dict[str, object],
    description: str,
    permit: Permit | None = None,
) -> dg.ScheduleDefinition:
    """A schedule in the time zone of the settings, off until turned on; its launches get a ticket for the permit.

    Args:
        config: configuration of the only op of the job.
    """

    def tags(context: dg.ScheduleEvaluationContext) -> dict[str, str]:
        return launching.issue_ticket(context.instance, names.repository, permit) if permit else {}

    return dg.ScheduleDefinition(
        name=names.qualified(name),
        cron_schedule=cron,
        execution_timezone=settings.time_zone,
        job=job,
        run_config={"ops": {job.top_level_node_defs[0].name: {"config": config}}} if config else {},
        tags_fn=tags,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=description,
    )


def define_schedules(
    names: Names,
    settings: AutomationSettings,
    opening: dg.JobDefinition,
    expire: dg.JobDefinition,
    purge: dg.JobDefinition,
) -> list[dg.ScheduleDefinition]:
    """The schedules of a repository. The job open_run opens their runs, so the page Runs shows its failures."""

    schedule, flow = partial(off_schedule, names, settings), settings.dry_run_flow
    return [
        schedule(
            "clean_runs",
            settings.clean_cron,
            opening,
            {"flow": "clean"},
            f"Opens a clean run of repository {names.repository}, which examines every object. It deletes if the "
            "configuration file sets `sweep`; otherwise it is a dry run. Optimized runs can follow it (sensor "
            f"{names.qualified('follow_deleted_report')}). Cron: automation.clean_cron.",
            Permit(names.qualified("clean_runs"), automatic=True, flow=Flow.CLEAN.value),
        ),
        schedule(
            DRY_RUNS,
            settings.dry_run_cron,
            opening,
            {"flow": flow, "sweep": False},
            f"Opens a dry run of repository {names.repository}, flow {flow}: it reports candidates and deletes "
            "nothing, whatever the configuration says. Cron: automation.dry_run_cron; flow: automation.dry_run_flow.",
            Permit(names.qualified(DRY_RUNS), automatic=True, sweep=False, flow=flow),
        ),
        schedule(
            "expire_old_runs",
            settings.expiry_cron,
            expire,
            {"dry": False},
            f"Removes the frames and partitions of all but the newest {settings.keep_runs} runs of {names.repository}, "
            "and old forecasts; plans, reports and receipts stay. Launch the job "
            f"{names.qualified('expire_runs')} first to see what it would remove. Cron: automation.expiry_cron.",
        ),
        schedule(
            maintenance.PURGING_SCHEDULE,
            settings.purge_cron,
            purge,
            {"confirm": True},
            f"Permanently deletes objects that runs of {names.repository} moved to quarantine at least "
            "collection.quarantine_days ago, and restores objects that are live again. Launch the job "
            f"{names.qualified('purge')} first to see the quarantine. Cron: automation.purge_cron.",
            Permit(names.qualified(maintenance.PURGING_SCHEDULE)),
        ),
    ]

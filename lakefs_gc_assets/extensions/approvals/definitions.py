"""The sensor that acts on the standing approval for collections."""

import dagster as dg

from lakefs_gc_assets.collector import standing_approvals
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.automation import ACTING_ROUTINE, DRY_RUNS
from lakefs_gc_assets.defs.history import APPROVED_BY_TAG, APPROVED_SWEEP, MODE_TAG
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import RUN_TAG, Names, for_each_ended_run
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import CollectionError, LakeFSError, StorageError
from lakefs_gc_assets.settings import LaunchSettings

SENSOR = "sweep_by_standing_approval"


def define(names: Names, loaded: Loaded) -> Additions:
    """The sensor of a repository; off by default."""
    sensor = sweep_by_standing_approval(names, loaded.configuration.launch)
    return Additions(sensors=lambda clock, jobs: [sensor])


def sweep_by_standing_approval(names: Names, policy: LaunchSettings) -> dg.SensorDefinition:
    """The sensor that sweeps a scheduled dry run that the standing approval covers. It looks at each dry run once.

    Dry runs that a user launched are left to people: no user expects them to delete.
    """

    @names.bound
    def evaluate(context: dg.SensorEvaluationContext, collector: dg.ResourceParam[Collector]) -> dg.SensorResult:
        def react(
            context: dg.SensorEvaluationContext, run: dg.DagsterRun, _: str
        ) -> dg.RunRequest | dg.SkipReason | None:
            run_id = run.tags.get(RUN_TAG)
            if run_id is None or run.job_name != names.qualified("collect"):
                return None
            permit = launching.find(context.instance, names.repository, run_id, run)
            schedules = names.qualified(DRY_RUNS), names.qualified(ACTING_ROUTINE)
            if permit is None or not permit.automatic or permit.opened_by not in schedules:
                return None
            try:
                return _sweep(context.instance, collector, names, policy, run_id)
            except (LakeFSError, StorageError):
                raise  # The tick fails, and the next one looks at the same run.
            except CollectionError as refusal:
                return dg.SkipReason(f"run {run_id}: {refusal}")

        return for_each_ended_run(dg.DagsterEventType.RUN_SUCCESS, react)(context)

    return dg.SensorDefinition(
        name=names.qualified(SENSOR),
        evaluation_fn=evaluate,
        job_name=names.qualified("collect"),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Sweeps each dry run of the schedules {names.qualified(DRY_RUNS)} and "
        f"{names.qualified(ACTING_ROUTINE)} that the standing approval for "
        "collection covers; other dry runs wait for a person. `lakefs-gc approvals grant` grants it.",
    )


def _sweep(
    instance: dg.DagsterInstance, collector: Collector, names: Names, policy: LaunchSettings, run_id: str
) -> dg.RunRequest | dg.SkipReason:
    """The request to sweep the candidates of a dry run. Raises CollectionError if nothing permits that."""
    if policy.sweep == "never":
        return dg.SkipReason(f"run {run_id}: launch.sweep is never: run `lakefs-gc approve {run_id}`")
    repository = collector.open()
    report = reports.read(repository.store, run_id)
    if report is None or not report.dry_run or not report.statistics.candidates:
        return dg.SkipReason(f"run {run_id} has nothing to approve")
    manifest = sweeping.require_dry_run(repository.store, run_id)
    approval = standing_approvals.require_covered(
        repository,
        standing_approvals.ApprovedWork.COLLECTION,
        standing_approvals.planned_sweep(run_id, report.statistics, report.known),
        policy.approvers,
    )
    plan = plans.read(repository.store, run_id)
    sweeping.store_approval(repository.store, manifest, repository.clock.now(), approval)
    permit = launching.tags(instance, names.repository, run_id, Permit(names.qualified(SENSOR), automatic=True))
    approved = {RUN_TAG: run_id, MODE_TAG: APPROVED_SWEEP, APPROVED_BY_TAG: str(approval)}
    return dg.RunRequest(
        run_key=f"{run_id}-{approval.approval_id}",
        tags={**names.partitions.add_again(instance, plan), **permit, **approved},
        asset_selection=[names.asset(STEPS[-1])],
    )

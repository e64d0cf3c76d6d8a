"""The jobs that collect: two open a run or approve one, a third makes it, and a sensor hands on what was opened."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.metadata import RawMetadataMapping
from dagster._core.definitions.run_status_sensor_definition import RunStatusSensorCursor
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.definitions.target import ExecutableDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX
from pydantic import Field, create_model

from lakefs_gc_assets.collector import earlier_runs
from lakefs_gc_assets.collector.frame.kinds import STEPS
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.sizes import size
from lakefs_gc_assets.collector.sweep import approval
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.failures import readable
from lakefs_gc_assets.defs.launching import Permit, Relaxing, relaxing
from lakefs_gc_assets.defs.naming import Names
from lakefs_gc_assets.defs.opening import open_run
from lakefs_gc_assets.defs.partitions import RANGE_START_TAG, REPOSITORY_TAG
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import FlowName, LaunchSettings

_OPENING_OP = "open_new_run"
_APPROVING_OP = "approve_dry_run"
_OPENED_TAG_PREFIX = f"{HIDDEN_TAG_PREFIX}lakefs-opened/"
_SENSOR_SECONDS = 5
_RELAX = "Settings of collection for this run alone, of those that launch.may_relax lists in the configuration file."


def opening_config(names: Names, flow: FlowName, sweep: bool | None = None) -> dict[str, Any]:
    """Run configuration of the job open_run that chooses the flow and, unless None, whether to delete."""
    chosen = {"flow": flow} if sweep is None else {"flow": flow, "sweep": sweep}
    return {"ops": {names.of(_OPENING_OP): {"config": chosen}}}


class Opening(dg.Config):
    """What kind of run to open."""

    flow: FlowName = Field(
        default="clean",
        description="clean: look at every object; what any commit holds stays. optimized: the same, but look only at "
        "what is new since the last run that deleted; where none can be built on, it is a clean run and says why. "
        "committed: what only commits hold that retention rules let expire; nothing is listed. unified: what "
        "nothing references and what expired commits hold may go; every object is looked at once in "
        "collection.full_listing_days, in between only what is new and what expired.",
    )
    sweep: bool | None = Field(
        default=None,
        description="Delete at once, or not; only where launch.sweep is any in the configuration file. Left out, that "
        "file decides where it is any, and it is a dry run otherwise.",
    )
    relax: Relaxing = Field(default=Relaxing(), description=_RELAX)


class Approving(dg.Config):
    """Which dry run to approve."""

    run_id: str = Field(
        description="Id of the dry run whose candidates are to be deleted, unless they are live by now: its tag "
        "lakefs/run_id on the page Runs, which is not Dagster's own id."
    )
    relax: Relaxing = Field(default=Relaxing(), description=_RELAX)


def collect_job(names: Names) -> UnresolvedAssetJobDefinition:
    """All five assets and their checks, in one process and one Spark session."""
    return dg.define_asset_job(
        names.of("collect"),
        selection=dg.AssetSelection.assets(*map(names.asset, STEPS)),
        description=f"Collects one run id of repository {names.repository} over its windows. The job "
        f"{names.of('open_run')}, the schedules and the sensor launch it; so does materializing a range of cells.",
        executor_def=dg.in_process_executor,
        tags={REPOSITORY_TAG: names.repository},
    )


def open_run_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """One op, which leaves what the new run needs as tags of its own run, where the sensor finds it."""

    @dg.op(
        name=names.of(_OPENING_OP),
        description="Lists slice windows, adds them and a new run id as partitions, and asks for the run.",
        config_schema=_schema(Opening, policy),
        required_resource_keys={names.of("collector")},
    )
    def opening(context: dg.OpExecutionContext) -> None:
        collector: Collector = names.resource(context.resources, "collector")
        config = Opening.model_validate(context.op_config)
        with readable():
            permit = launching.find_ticket(context.instance, collector.name, context.run_tags)
            if permit is None:
                relaxed = launching.relaxed_by(config.relax, policy)
                permit = Permit(names.of("open_run"), sweep=config.sweep, relaxed=relaxed)
            launching.require_flow(permit, Flow(config.flow))
            settings, _ = launching.settle(collector.collection.settings(), policy, permit)
            opened = open_run(context.instance, collector, Flow(config.flow), permit)
        launching.use_ticket(context.instance, collector.name, context.run_tags)
        if opened.why_clean:
            context.log.warning(f"a clean run instead of an optimized one: {opened.why_clean}")
        if collector.collection.sweep and not settings.sweep:
            context.log.info(f"a dry run, since it was launched here: {launching.how_to_sweep(policy)}")
        context.log.info(f"opened run {opened.run_id} over {len(opened.windows)} windows: {', '.join(opened.windows)}")
        context.add_output_metadata(
            {
                "run_id": opened.run_id,
                "flow": Flow.CLEAN.value if opened.why_clean else config.flow,
                **({"why_clean": opened.why_clean} if opened.why_clean else {}),
                "sweep": settings.sweep,
                "windows": ", ".join(opened.windows),
            }
        )
        _hand_on(context, opened.tags)

    @dg.job(
        name=names.of("open_run"),
        description=f"Opens a run of the whole repository {names.repository}: choose the flow. "
        f"{_what_a_launch_deletes(names, policy)} The sensor {names.of('launch_opened_runs')} starts it within "
        "seconds.",
        executor_def=dg.in_process_executor,
    )
    def open_run_() -> None:
        opening()

    return open_run_


def _what_a_launch_deletes(names: Names, policy: LaunchSettings) -> str:
    if policy.sweep == "any":
        return "It deletes if `sweep` says so, and without that if the configuration does."
    if policy.sweep == "approved":
        approve = names.of("approve")
        return f"It is a dry run: look at what it finds, and launch the job {approve} with its id to delete that."
    return "It is a dry run."


def approve_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """One op, which stores the approval of a dry run, and leaves what the sensor needs to make its last step again."""

    @dg.op(
        name=names.of(_APPROVING_OP),
        description="Says how much the dry run found, approves it, and asks for its last step.",
        config_schema=_schema(Approving, policy),
        required_resource_keys={names.of("collector")},
        pool=names.pool,
    )
    def approving(context: dg.OpExecutionContext) -> None:
        collector: Collector = names.resource(context.resources, "collector")
        config = Approving.model_validate(context.op_config)
        run_id = config.run_id
        with readable():
            if policy.sweep == "never":
                raise ConfigurationError(
                    f"a launch may not approve run {run_id}: run `lakefs-gc approve {run_id}`, or set launch.sweep to "
                    "approved in the configuration file"
                )
            relaxed = launching.relaxed_by(config.relax, policy)
            permit = Permit(names.of("approve"), relaxed=relaxed)
            repository = collector.open_for(permit)
            found = approval.require_dry_run(repository.store, run_id)
            objects = f"{found.rows:,} objects, {size(found.object_bytes)}"
            goes = "moved to quarantine" if repository.settings.quarantines else "deleted"
            context.log.info(
                f"dry run {run_id} of {found.span.ended_at:%F %T}Z found {objects}: they are {goes} after a look "
                "whether they are live by now"
            )
            plan = plans.read(repository.store, run_id)
            launching.require_opened(plan)
            launching.write(context.instance, collector.name, run_id, permit)
            approval.give(repository.store, found, repository.clock.now())
            earlier_runs.forget(repository.store, run_id)
            windows = names.partitions.add(context.instance, run_id, plan.windows)
        context.add_output_metadata({"run_id": run_id, "objects": found.rows, "bytes": found.object_bytes})
        _hand_on(context, {**names.partitions.tags(run_id, windows, plan.flow.value), **permit.tags})

    @dg.job(
        name=names.of("approve"),
        description=f"Deletes what a dry run of {names.repository} found: give its id. The log and the page of the run "
        "say how many objects and bytes that is. The run's own plan and every guard of a sweep hold; what is live by "
        f"now stays. The sensor {names.of('launch_opened_runs')} starts the deletion within seconds, as a run of "
        f"{names.of('collect')} that makes deleted_report again.",
        executor_def=dg.in_process_executor,
        tags={REPOSITORY_TAG: names.repository},
    )
    def approve() -> None:
        approving()

    return approve


def _schema(config: type[dg.Config], policy: LaunchSettings) -> dg.Field:
    """What the launchpad shows of a configuration, with the settings that a launch may change."""
    kind = relaxing(policy)
    shown = create_model(
        config.__name__,
        __base__=config,
        __doc__=config.__doc__,
        relax=(kind, Field(default=kind(), description=_RELAX)),
    )
    return dg.Field(shown.to_config_schema().as_field().config_type)


class EndedRunSensor(dg.RunStatusSensorDefinition):
    """A sensor of runs that succeeded, which begins anew where its cursor lies beyond every event that there is.

    The UI can set any cursor. With such a one Dagster's own sensor would wait for ever, and show nothing.
    """

    def evaluate_tick(self, context: dg.SensorEvaluationContext) -> SensorExecutionData:
        """See SensorDefinition.evaluate_tick."""
        if context.cursor and RunStatusSensorCursor.is_valid(context.cursor):
            cursor = RunStatusSensorCursor.from_json(context.cursor)
            newest = context.instance.fetch_run_status_changes(dg.DagsterEventType.RUN_SUCCESS, limit=1).records
            last = newest[0].storage_id if newest else -1
            # Dagster writes no times any more, and goes by one that it finds.
            if cursor.record_id > last or cursor.update_timestamp:
                context.update_cursor("")  # Dagster makes a new one, of the newest event.
        return super().evaluate_tick(context)

    def with_attributes(
        self, *, jobs: Sequence[ExecutableDefinition] | None = None, metadata: RawMetadataMapping | None = None
    ) -> "EndedRunSensor":
        """See SensorDefinition.with_attributes."""
        plain = super().with_attributes(jobs=jobs, metadata=metadata)
        return EndedRunSensor(
            name=plain.name,
            run_status=dg.DagsterRunStatus.SUCCESS,
            run_status_sensor_fn=plain._run_status_sensor_fn,
            monitored_jobs=plain._monitored_jobs,
            request_jobs=plain.jobs,
            minimum_interval_seconds=plain.minimum_interval_seconds,
            default_status=plain.default_status,
            description=plain.description,
        )


def _hand_on(context: dg.OpExecutionContext, tags: Mapping[str, str]) -> None:
    """Leaves tags for the run that the sensor is to launch."""
    context.instance.add_run_tags(context.run_id, {_OPENED_TAG_PREFIX + name: value for name, value in tags.items()})


def launch_opened_runs(
    names: Names, opening: dg.JobDefinition, approving: dg.JobDefinition, collecting: UnresolvedAssetJobDefinition
) -> dg.SensorDefinition:
    """Starts what the job open_run has opened and the job approve has approved, once each."""

    def sensor(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tags = {
            name.removeprefix(_OPENED_TAG_PREFIX): value
            for name, value in context.dagster_run.tags.items()
            if name.startswith(_OPENED_TAG_PREFIX)
        }
        if RANGE_START_TAG not in tags:
            yield dg.SkipReason("nothing was opened")
            return
        if context.dagster_run.job_name == approving.name:
            # Whoever approves again, after a sweep that failed, asks for another run.
            key = f"{tags[RANGE_START_TAG]}|{context.dagster_run.run_id}"
            yield dg.RunRequest(run_key=key, tags=tags, asset_selection=[names.asset(STEPS[-1])])
            return
        yield dg.RunRequest(run_key=tags[RANGE_START_TAG], tags=tags)

    return EndedRunSensor(
        name=names.of("launch_opened_runs"),
        run_status=dg.DagsterRunStatus.SUCCESS,
        run_status_sensor_fn=sensor,
        monitored_jobs=[opening, approving],
        request_job=collecting,
        minimum_interval_seconds=_SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches each run that the job {names.of('open_run')} has opened, for a person or a schedule, "
        f"and the deletion of each dry run that the job {names.of('approve')} has approved. It starts nothing of its "
        "own accord; turned off, what is opened is not launched.",
    )

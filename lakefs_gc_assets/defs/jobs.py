"""The jobs that collect: one opens a run, the other makes it, and a sensor hands on what was opened."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX
from pydantic import Field

from lakefs_gc_assets.collector.frame.kinds import STEPS
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.defs.failures import readable
from lakefs_gc_assets.defs.naming import Names
from lakefs_gc_assets.defs.opening import open_run
from lakefs_gc_assets.defs.partitions import RANGE_START_TAG, REPOSITORY_TAG
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.settings import FlowName

_OPENING_OP = "open_new_run"
_OPENED_TAG_PREFIX = f"{HIDDEN_TAG_PREFIX}lakefs-opened/"
_RESOURCES = "resources"
_SENSOR_SECONDS = 5


def opening_config(names: Names, flow: FlowName) -> dict[str, Any]:
    """Run configuration of the job open_run that chooses the flow."""
    return {"ops": {names.of(_OPENING_OP): {"config": {"flow": flow}}}}


class Opening(dg.Config):
    """What kind of run to open."""

    flow: FlowName = Field(
        default="clean",
        description="clean: look at every object; what any commit holds stays. optimized: the same, but look only at "
        "what is new since the last run that deleted; where none can be built on, it is a clean run and says why. "
        "committed: what only commits hold that retention rules let expire; nothing is listed. unified: look at every "
        "object; what expired commits hold may go.",
    )


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


def open_run_job(names: Names) -> dg.JobDefinition:
    """One op, which leaves what the new run needs as tags of its own run, where the sensor finds it."""

    @dg.op(
        name=names.of(_OPENING_OP),
        description="Lists slice windows, adds them and a new run id as partitions, and asks for the run.",
        required_resource_keys={names.of("collector")},
    )
    def opening(context: dg.OpExecutionContext, config: Opening) -> None:
        collector: Collector = names.resource(context.resources, "collector")
        with readable():
            opened = open_run(context.instance, collector, Flow(config.flow))
        if opened.why_clean:
            context.log.warning(f"a clean run instead of an optimized one: {opened.why_clean}")
        context.log.info(f"opened run {opened.run_id} over {len(opened.windows)} windows: {', '.join(opened.windows)}")
        context.add_output_metadata(
            {
                "run_id": opened.run_id,
                "flow": Flow.CLEAN.value if opened.why_clean else config.flow,
                **({"why_clean": opened.why_clean} if opened.why_clean else {}),
                "sweep": collector.collection.sweep,
                "windows": dg.MetadataValue.md(", ".join(opened.windows)),
            }
        )
        settings = {
            "collection": {"config": collector.collection.settings().model_dump(mode="json")},
            "spark": {"config": collector.spark.settings().model_dump(mode="json")},
        }
        tags = {**opened.tags, _RESOURCES: json.dumps(names.all_of(settings))}
        context.instance.add_run_tags(
            context.run_id, {_OPENED_TAG_PREFIX + name: value for name, value in tags.items()}
        )

    @dg.job(
        name=names.of("open_run"),
        description=f"Opens a run of the whole repository {names.repository}: choose the flow and, under "
        f"resources.{names.of('collection')}.config, whether to sweep; without that it does what the settings say, "
        f"which is a dry run by default. The sensor {names.of('launch_opened_runs')} starts it within seconds.",
        executor_def=dg.in_process_executor,
    )
    def open_run_() -> None:
        opening()

    return open_run_


def launch_opened_runs(
    names: Names, opening: dg.JobDefinition, collecting: UnresolvedAssetJobDefinition
) -> dg.SensorDefinition:
    """Starts what the job open_run has opened, once each."""

    @dg.run_status_sensor(
        name=names.of("launch_opened_runs"),
        run_status=dg.DagsterRunStatus.SUCCESS,
        monitored_jobs=[opening],
        request_job=collecting,
        minimum_interval_seconds=_SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches each run that the job {names.of('open_run')} has opened, for a person or a schedule. It "
        "starts nothing of its own accord; turned off, what is opened is not launched.",
    )
    def sensor(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tags = {
            name.removeprefix(_OPENED_TAG_PREFIX): value
            for name, value in context.dagster_run.tags.items()
            if name.startswith(_OPENED_TAG_PREFIX)
        }
        if RANGE_START_TAG not in tags:
            yield dg.SkipReason("nothing was opened")
            return
        settings = json.loads(tags.pop(_RESOURCES))
        yield dg.RunRequest(run_key=tags[RANGE_START_TAG], tags=tags, run_config={"resources": settings})

    return sensor

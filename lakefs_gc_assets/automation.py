"""Starting runs: one function opens a run for everybody, and the jobs of the UI call it.

A run is opened by finding the slice windows of the repository, adding them and a new run id as partitions, and asking
for one Dagster run over all of the run id's cells.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from lakefs_gc_assets.assets.graph import ORDER
from lakefs_gc_assets.collection import planning
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.partitions import RANGE_START_TAG, WHY_CLEAN_TAG, RunPartitions
from lakefs_gc_assets.resources import Collector

_OPENED_TAG_PREFIX = "lakefs/opened-"
_RESOURCES = "resources"
_SENSOR_SECONDS = 5
_TAG_LENGTH = 500


@dataclass(frozen=True)
class OpenedRun:
    """A run that is ready to be launched: its id, its windows in order, and the tags of the Dagster run."""

    run_id: str
    windows: tuple[str, ...]
    tags: dict[str, str]


def open_run(instance: dg.DagsterInstance, collector: Collector, flow: Flow = Flow.CLEAN) -> OpenedRun:
    """Adds the partitions of a new run over every window that it needs.

    Raises ConfigurationError, LakeFSError or StorageError where the repository cannot be looked at.
    """
    repository = collector.open()
    needed, why_clean = planning.windows_to_collect(repository, flow)
    run_id = xids.Generator().descending(repository.clock.now())
    partitions = RunPartitions(collector.repository)
    windows = partitions.add(instance, run_id, needed)
    tags = partitions.tags(run_id, windows, flow.value)
    return OpenedRun(run_id, windows, tags if why_clean is None else {**tags, WHY_CLEAN_TAG: why_clean[:_TAG_LENGTH]})


def run_config(sweep: bool) -> dict[str, object]:
    """Run configuration that decides whether candidates are deleted, whatever the settings say."""
    return {"resources": {"collection": {"config": {"sweep": sweep}}}}


def collect_job() -> UnresolvedAssetJobDefinition:
    """All five assets and their checks, in one process and one Spark session."""
    return dg.define_asset_job(
        "collect",
        selection=dg.AssetSelection.assets(*ORDER),
        description="Collects one run id over its windows. Launch it by open_run, or materialize a range of cells.",
        executor_def=dg.in_process_executor,
    )


@dg.op(description="Lists slice windows, adds them and a new run id as partitions, and asks for the run.")
def open_new_run(context: dg.OpExecutionContext, collector: Collector) -> None:
    """Leaves what the new run needs as tags of this run, where the sensor finds it: its cells, and these settings."""
    opened = open_run(context.instance, collector)
    context.log.info(f"opened run {opened.run_id} over {len(opened.windows)} windows: {', '.join(opened.windows)}")
    settings = {
        name: {"config": resource.settings().model_dump()}
        for name, resource in (("collection", collector.collection), ("spark", collector.spark))
    }
    tags = {**opened.tags, _RESOURCES: json.dumps(settings)}
    context.instance.add_run_tags(context.run_id, {_OPENED_TAG_PREFIX + name: value for name, value in tags.items()})


@dg.job(
    name="open_run",
    description="Opens a collection of the whole repository, with the settings that this run is given; the sensor "
    "launch_opened_runs starts it within seconds. It is a dry run unless resources.collection.config.sweep is true.",
    executor_def=dg.in_process_executor,
)
def open_run_job() -> None:
    """One op."""
    open_new_run()


def launch_opened_runs(job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Starts what the job open_run has opened, once each."""

    @dg.run_status_sensor(
        name="launch_opened_runs",
        run_status=dg.DagsterRunStatus.SUCCESS,
        monitored_jobs=[open_run_job],
        request_job=job,
        minimum_interval_seconds=_SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Launches each run that the job open_run has opened. It starts nothing of its own accord.",
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

import json
from collections.abc import Iterator
from typing import get_args

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.defs import jobs, launching
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import RANGE_END_TAG, RANGE_START_TAG, RunPartitions
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.settings import FlowName
from lakefs_gc_assets_tests.defs.automated import Automated, automated, server
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, replaying
from lakefs_gc_assets_tests.replayed_runs import truth_classes

__all__ = ["automated", "replaying", "server"]


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1")


def sensed(runs: GraphRuns, definitions: dg.Definitions, event: dg.DagsterEvent, run: dg.DagsterRun) -> object:
    """The one thing that the sensor answers to the end of a run."""
    sensor = definitions.resolve_sensor_def("launch_opened_runs")
    assert isinstance(sensor, dg.RunStatusSensorDefinition)
    context = dg.build_run_status_sensor_context(
        sensor_name=sensor.name, dagster_event=event, dagster_instance=runs.instance, dagster_run=run
    )
    found = sensor(context)
    assert isinstance(found, Iterator)
    (only,) = found
    return only


@pytest.mark.parametrize(("record_id", "update_timestamp"), [(2**70, None), (1, "2999-01-01T00:00:00"), (1, "no time")])
def test_a_cursor_beyond_every_event_is_left(
    automated: Automated, record_id: int, update_timestamp: str | None
) -> None:
    """Whoever reaches the UI can set it: nothing that is opened would ever be launched again."""
    instance, definitions = automated.instance, automated.definitions
    sensor = definitions.resolve_sensor_def("launch_opened_runs")

    def tick(cursor: str | None) -> SensorExecutionData:
        repository = definitions.get_repository_def()
        with dg.build_sensor_context(instance, cursor, repository_def=repository) as context:
            return sensor.evaluate_tick(context)

    given = {"record_id": record_id, "update_timestamp": update_timestamp, "record_timestamp": None}
    first = tick(json.dumps({"__class__": "RunStatusSensorCursor", **given}))
    assert first.cursor is not None and (first.run_requests or []) == []
    definitions.resolve_job_def("open_run").execute_in_process(instance=instance)

    (request,) = tick(first.cursor).run_requests or []

    (run_id,) = automated.run_ids
    assert request.tags[RANGE_START_TAG].startswith(f"{run_id}|")


@pytest.mark.parametrize("sweep", [False, True])
def test_what_the_job_opens_the_sensor_launches(runs: GraphRuns, sweep: bool) -> None:
    runs.launch["sweep"] = "any"
    definitions = build(runs.loaded, runs.clock)
    job = definitions.resolve_job_def("open_run")
    config = {"ops": {"open_new_run": {"config": {"sweep": sweep}}}}
    ended = job.execute_in_process(instance=runs.instance, run_config=config)
    run = runs.instance.get_run_by_id(ended.run_id)
    assert run is not None

    request = sensed(runs, definitions, ended.get_run_success_event(), run)

    assert isinstance(request, dg.RunRequest)
    (run_id,) = runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "")
    assert request.run_key == f"{run_id}|legacy"
    assert request.run_config == {}
    permit = launching.read(runs.instance, runs.server.repository, run_id)
    assert permit == Permit("open_run", sweep=sweep)
    assert {name: value for name, value in request.tags.items() if name.startswith(("lakefs/", "dagster/asset"))} == {
        RANGE_START_TAG: f"{run_id}|legacy",
        RANGE_END_TAG: f"{run_id}|2026-11",
        "lakefs/repository": runs.server.repository,
        "lakefs/flow": "clean",
        **({"lakefs/loosened": "sweep=true"} if sweep else {}),
    }


def test_what_was_opened_can_be_collected(runs: GraphRuns) -> None:
    """The request of the sensor, made in this process."""
    definitions = build(runs.loaded, runs.clock)
    ended = definitions.resolve_job_def("open_run").execute_in_process(instance=runs.instance)
    run = runs.instance.get_run_by_id(ended.run_id)
    assert run is not None
    request = sensed(runs, definitions, ended.get_run_success_event(), run)
    assert isinstance(request, dg.RunRequest)

    collected = definitions.resolve_job_def("collect").execute_in_process(
        instance=runs.instance, tags=request.tags, run_config=request.run_config
    )

    assert collected.success
    run_id = (request.run_key or "").split("|")[0]
    assert set(runs.addresses(run_id, "candidates")) == truth_classes("chain/1")["unreferenced"]
    assert runs.server.refused_deletes == set()


def test_a_run_that_opened_nothing_launches_nothing(runs: GraphRuns) -> None:
    definitions = build(runs.loaded, runs.clock)
    ended = definitions.resolve_job_def("open_run").execute_in_process(instance=runs.instance)
    untagged = dg.DagsterRun(job_name="open_run")

    skipped = sensed(runs, definitions, ended.get_run_success_event(), untagged)

    assert isinstance(skipped, dg.SkipReason)


def test_every_flow_can_be_asked_for_and_is_explained(runs: GraphRuns) -> None:
    field = jobs.OpenRunConfig.model_fields["flow"]

    assert set(get_args(FlowName)) == set(Flow)
    assert all(f"{flow}: " in (field.description or "") for flow in Flow)


def test_the_page_of_the_job_says_what_was_opened_and_why_it_is_a_clean_run(runs: GraphRuns) -> None:
    job = build(runs.loaded, runs.clock).resolve_job_def("open_run")
    config = {"ops": {"open_new_run": {"config": {"flow": "optimized"}}}}

    ended = job.execute_in_process(instance=runs.instance, run_config=config)

    (output,) = [event.step_output_data for event in ended.all_node_events if event.is_successful_output]
    shown = {name: value.value for name, value in output.metadata.items()}
    (run_id,) = runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "")
    assert shown == {
        "run_id": run_id,
        "flow": "clean",
        "why_clean": "there is no earlier run",
        "sweep": False,
        "windows": "legacy, 2026-11",
    }
    run = runs.instance.get_run_by_id(ended.run_id)
    assert run is not None
    request = sensed(runs, build(runs.loaded, runs.clock), ended.get_run_success_event(), run)
    assert isinstance(request, dg.RunRequest)
    assert request.tags["lakefs/flow"] == "optimized"
    assert request.tags["lakefs/why_clean"] == "there is no earlier run"

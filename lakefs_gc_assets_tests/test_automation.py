from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
import pytest

from lakefs_gc_assets.definitions import build
from lakefs_gc_assets.errors import AccessDenied
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.partitions import RANGE_END_TAG, RANGE_START_TAG, RunPartitions
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, refused, replaying
from lakefs_gc_assets_tests.recordings import needs_recordings

__all__ = ["replaying"]

pytestmark = needs_recordings


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1")


def old_slice(runs: GraphRuns, days: int) -> str:
    """A slice that was opened so many days ago, with one object in it."""
    then = runs.clock.now() - timedelta(days=days)
    generator = xids.Generator()
    name = generator.descending(then)
    runs.server.place(f"data/{name}/{generator.ascending(then)}", written_at=then)
    return name


def test_opening_a_run_adds_its_partitions(runs: GraphRuns) -> None:
    old_slice(runs, days=40)

    opened = runs.open()

    assert opened.windows == ("legacy", "2026-10", "2026-11")
    assert xids.as_datetime(xids.created_at(opened.run_id)) == runs.clock.now().replace(microsecond=0)
    partitions = RunPartitions(runs.server.repository)
    assert runs.instance.get_dynamic_partitions(partitions.windows.name or "") == list(opened.windows)
    assert runs.instance.get_dynamic_partitions(partitions.run_ids.name or "") == [opened.run_id]
    assert opened.tags == {
        RANGE_START_TAG: f"{opened.run_id}|legacy",
        RANGE_END_TAG: f"{opened.run_id}|2026-11",
        "lakefs/repository": runs.server.repository,
        "lakefs/flow": "clean",
    }


def test_a_window_that_turns_up_later_is_covered_too(runs: GraphRuns) -> None:
    assert runs.open().windows == ("legacy", "2026-11")
    old_slice(runs, days=40)

    opened = runs.open()

    assert opened.windows == ("legacy", "2026-11", "2026-10")
    assert opened.tags[RANGE_END_TAG] == f"{opened.run_id}|2026-10"


def test_run_ids_of_one_moment_differ(runs: GraphRuns) -> None:
    assert runs.open().run_id != runs.open().run_id


def test_a_repository_that_cannot_be_looked_at_opens_nothing(runs: GraphRuns) -> None:
    runs.server.fault = lambda method, target: refused(401, "error authenticating request")

    with pytest.raises(AccessDenied):
        runs.open()

    runs.server.fault = lambda method, target: None
    assert runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "") == []


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


@pytest.mark.parametrize("sweep", [False, True])
def test_what_the_job_opens_the_sensor_launches(runs: GraphRuns, sweep: bool) -> None:
    definitions = build(runs.loaded, runs.clock)
    job = definitions.resolve_job_def("open_run")
    config = {"resources": {"collection": {"config": {"sweep": sweep}}}}
    ended = job.execute_in_process(instance=runs.instance, run_config=config)
    run = runs.instance.get_run_by_id(ended.run_id)
    assert run is not None

    request = sensed(runs, definitions, ended.get_run_success_event(), run)

    assert isinstance(request, dg.RunRequest)
    (run_id,) = runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "")
    assert request.run_key == f"{run_id}|legacy"
    resources = request.run_config["resources"]
    assert resources["collection"]["config"] == {**runs.loaded.configuration.collection.model_dump(), "sweep": sweep}
    assert resources["spark"]["config"] == runs.loaded.configuration.spark.model_dump()
    assert resources.keys() == {"collection", "spark"}
    assert {name: value for name, value in request.tags.items() if name.startswith(("lakefs/", "dagster/asset"))} == {
        RANGE_START_TAG: f"{run_id}|legacy",
        RANGE_END_TAG: f"{run_id}|2026-11",
        "lakefs/repository": runs.server.repository,
        "lakefs/flow": "clean",
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
    assert len(runs.addresses(request.run_key.split("|")[0] if request.run_key else "", "candidates")) == 11
    assert runs.server.refused_deletes == set()


def test_a_run_that_opened_nothing_launches_nothing(runs: GraphRuns) -> None:
    definitions = build(runs.loaded, runs.clock)
    ended = definitions.resolve_job_def("open_run").execute_in_process(instance=runs.instance)
    untagged = dg.DagsterRun(job_name="open_run")

    skipped = sensed(runs, definitions, ended.get_run_success_event(), untagged)

    assert isinstance(skipped, dg.SkipReason)

"""The sensor on an embedded server: real partitions, requests and cursors; plans and reports are put into the store."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from lakefs_gc_assets import running
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.configuration import AutomationSettings, Configuration, Loaded
from lakefs_gc_assets.definitions import build
from lakefs_gc_assets.demo import configuration
from lakefs_gc_assets.embedded.sample import make_sample_repository
from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.errors import ServerUnavailable
from lakefs_gc_assets.partitions import RANGE_START_TAG, RunPartitions
from lakefs_gc_assets_tests.collection.past_runs import DAY, HOUR, NOW, began, ended
from lakefs_gc_assets_tests.collection.scripted import HandClock


@dataclass
class Sensed:
    """A repository, the instance, and the sensor that looks at both."""

    server: EmbeddedServer
    loaded: Loaded
    clock: HandClock
    instance: dg.DagsterInstance

    @property
    def repository(self) -> OpenRepository:
        return running.opened(self.loaded, self.clock).open()

    @property
    def run_ids(self) -> Sequence[str]:
        return self.instance.get_dynamic_partitions(RunPartitions("sample").run_ids.name or "")

    def tick(self, cursor: str | None = None) -> SensorExecutionData:
        """What the sensor asks of Dagster."""
        sensor = build(self.loaded, self.clock).resolve_sensor_def("follow_deleted_report")
        given = {"collector": running.opened(self.loaded, self.clock)}
        with dg.build_sensor_context(instance=self.instance, cursor=cursor, resources=given) as context:
            return sensor.evaluate_tick(context)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("lakefs")) as server:
        make_sample_repository(server, objects=40, repository="sample")
        yield server


@pytest.fixture
def sensed(server: EmbeddedServer) -> Iterator[Sensed]:
    content = configuration(server, "sample").model_dump()
    content["automation"] = AutomationSettings(optimized_every_hours=6).model_dump()
    with ExitStack() as stack:
        instance = stack.enter_context(dg.DagsterInstance.ephemeral())
        found = Sensed(server, Loaded(Configuration.model_validate(content), {}), HandClock(NOW), instance)
        yield found
        store = found.repository.store
        for batch in store.list("_lakefs/retention/gc/uncommitted/"):
            store.delete(batch.column("key").to_pylist())


def test_a_report_that_is_due_opens_an_optimized_run(sensed: Sensed) -> None:
    report = ended(sensed.repository, began(sensed.repository, DAY))

    found = sensed.tick()

    assert (found.cursor, found.skip_message) == (report.run_id, None)
    (request,) = found.run_requests or []
    (run_id,) = sensed.run_ids
    assert run_id < report.run_id
    assert request.run_key == f"after-{report.run_id}"
    assert request.run_config == {}
    assert request.tags["lakefs/flow"] == "optimized"
    assert request.tags["lakefs/followed_run_id"] == report.run_id
    assert request.tags["lakefs/repository"] == "sample"
    assert request.tags[RANGE_START_TAG].startswith(f"{run_id}|")


def assert_nothing_asked(found: SensorExecutionData, reason: str) -> None:
    """The tick was skipped, and the cursor stays where it was."""
    assert (found.run_requests or [], found.skip_message) == ([], reason)
    assert not found.cursor


def test_it_is_followed_at_most_once(sensed: Sensed) -> None:
    report = ended(sensed.repository, began(sensed.repository, DAY))
    first = sensed.tick()

    again = sensed.tick(first.cursor)

    assert (again.run_requests or [], again.skip_message) == ([], f"run {report.run_id} was followed already")
    assert again.cursor == first.cursor
    assert len(sensed.run_ids) == 1
    # Somebody resets the cursor: Dagster launches no second run for the same key.
    assert [request.run_key for request in sensed.tick().run_requests or []] == [f"after-{report.run_id}"]


def test_nothing_is_opened_before_the_cadence_is_over(sensed: Sensed) -> None:
    report = ended(sensed.repository, began(sensed.repository, 5 * HOUR))
    reason = f"run {report.run_id} is followed from {NOW + HOUR:%F %T}Z on"

    assert_nothing_asked(sensed.tick(), reason)
    sensed.clock.moment += timedelta(minutes=59)
    assert_nothing_asked(sensed.tick(), reason)
    assert sensed.run_ids == []

    sensed.clock.moment += timedelta(minutes=1)
    assert sensed.tick().run_requests


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_a_dagster_run_of_the_same_repository_is_waited_for(sensed: Sensed, status: dg.DagsterRunStatus) -> None:
    ended(sensed.repository, began(sensed.repository, DAY))
    waiting = dg.DagsterRun("collect", status=status, tags={"lakefs/repository": "sample"})
    sensed.instance.add_run(waiting)

    assert_nothing_asked(sensed.tick(), f"Dagster run {waiting.run_id} collects this repository or is about to")
    assert sensed.run_ids == []


def test_runs_that_ended_or_are_of_others_are_not_waited_for(sensed: Sensed) -> None:
    ended(sensed.repository, began(sensed.repository, DAY))
    for status, repository in ((dg.DagsterRunStatus.SUCCESS, "sample"), (dg.DagsterRunStatus.STARTED, "other")):
        sensed.instance.add_run(dg.DagsterRun("collect", status=status, tags={"lakefs/repository": repository}))

    assert sensed.tick().run_requests


def test_dry_runs_are_not_followed(sensed: Sensed) -> None:
    plan = began(sensed.repository, DAY, sweep=False)
    ended(sensed.repository, plan, dry_run=True, carry=None)

    assert_nothing_asked(
        sensed.tick(), "no run was to delete yet: open a clean run that sweeps, optimized runs follow it"
    )
    assert sensed.run_ids == []


def test_a_server_that_is_down_fails_the_tick_and_moves_nothing(sensed: Sensed) -> None:
    ended(sensed.repository, began(sensed.repository, DAY))
    content = sensed.loaded.configuration.model_dump()
    content["lakefs"] |= {"endpoint": "http://127.0.0.1:9", "retries": 0, "connect_timeout_seconds": 1}
    broken = Sensed(sensed.server, Loaded(Configuration.model_validate(content), {}), sensed.clock, sensed.instance)

    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:9"):
        broken.tick()

    assert sensed.run_ids == []

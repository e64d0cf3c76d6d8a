"""The sensor on an embedded server, with real partitions and cursors; tests put plans and reports into the store."""

from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.definitions import EXTENSIONS
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import RANGE_START_TAG, key_of
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import ConfigurationError, ServerUnavailable
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import CollectionSettings, LaunchSettings
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began, ended
from lakefs_gc_assets_tests.defs.automated import REPOSITORY, Automated, automated, server

__all__ = ["automated", "server"]


@pytest.fixture(autouse=True)
def every_six_hours(automated: Automated) -> None:
    automated.changes["automation"] = {"optimized_every_hours": 6}


def tick(automated: Automated, cursor: str | None = None) -> SensorExecutionData:
    """Requests of a sensor tick."""
    sensor = automated.definitions.resolve_sensor_def("follow_deleted_report")
    given = {"collector": automated.collector}
    with dg.build_sensor_context(instance=automated.instance, cursor=cursor, resources=given) as context:
        return sensor.evaluate_tick(context)


def test_a_report_that_is_due_opens_an_optimized_run(automated: Automated) -> None:
    report = ended(automated.repository, began(automated.repository, DAY))

    found = tick(automated)

    assert (found.cursor, found.skip_message) == (report.run_id, None)
    (request,) = found.run_requests or []
    (run_id,) = automated.run_ids
    assert run_id < report.run_id
    assert request.run_key == f"after-{report.run_id}"
    assert request.run_config == {}
    assert request.tags["lakefs/flow"] == "optimized"
    assert request.tags["lakefs/followed_run_id"] == report.run_id
    assert request.tags["lakefs/repository"] == "sample"
    assert request.tags[RANGE_START_TAG].startswith(f"{key_of(run_id)}|")


def assert_nothing_asked(found: SensorExecutionData, reason: str) -> None:
    """The tick was skipped, and the cursor stays where it was."""
    assert (found.run_requests or [], found.skip_message) == ([], reason)
    assert not found.cursor


def test_it_is_followed_at_most_once(automated: Automated) -> None:
    report = ended(automated.repository, began(automated.repository, DAY))
    first = tick(automated)

    again = tick(automated, first.cursor)

    assert (again.run_requests or [], again.skip_message) == ([], f"run {report.run_id} was already followed")
    assert again.cursor == first.cursor
    assert len(automated.run_ids) == 1
    # If a user resets the cursor, Dagster launches no second run for the same key.
    assert [request.run_key for request in tick(automated).run_requests or []] == [f"after-{report.run_id}"]


def test_nothing_is_opened_before_the_cadence_is_over(automated: Automated) -> None:
    report = ended(automated.repository, began(automated.repository, 5 * HOUR))
    reason = f"run {report.run_id} will be followed from {NOW + HOUR:%F %T}Z"

    assert_nothing_asked(tick(automated), reason)
    automated.clock.moment += timedelta(minutes=59)
    assert_nothing_asked(tick(automated), reason)
    assert automated.run_ids == []

    automated.clock.moment += timedelta(minutes=1)
    assert tick(automated).run_requests


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_a_dagster_run_of_the_same_repository_is_waited_for(automated: Automated, status: dg.DagsterRunStatus) -> None:
    ended(automated.repository, began(automated.repository, DAY))
    waiting = dg.DagsterRun("collect", status=status, tags={"lakefs/repository": "sample"})
    automated.instance.add_run(waiting)

    assert_nothing_asked(
        tick(automated), f"Dagster run {waiting.run_id} is collecting this repository, or waits to do so"
    )
    assert automated.run_ids == []


def test_runs_that_ended_or_are_of_others_are_not_waited_for(automated: Automated) -> None:
    ended(automated.repository, began(automated.repository, DAY))
    for status, repository in ((dg.DagsterRunStatus.SUCCESS, "sample"), (dg.DagsterRunStatus.STARTED, "other")):
        automated.instance.add_run(dg.DagsterRun("collect", status=status, tags={"lakefs/repository": repository}))

    assert tick(automated).run_requests


def test_what_the_sensor_may_is_no_permit_for_another_flow(automated: Automated) -> None:
    ended(automated.repository, began(automated.repository, DAY))

    (request,) = tick(automated).run_requests or []

    (run_id,) = automated.run_ids
    permit = launching.find(automated.instance, REPOSITORY, run_id, dg.DagsterRun("collect", tags=dict(request.tags)))
    assert permit == Permit("follow_deleted_report", automatic=True, flow="optimized")
    settings, policy = CollectionSettings(), LaunchSettings()
    launching.settle(settings, policy, permit, Flow.OPTIMIZED)
    with pytest.raises(
        ConfigurationError, match="opened a run of flow optimized, and a launch cannot change it to unified"
    ):
        launching.settle(settings, policy, permit, Flow.UNIFIED)


def test_dry_runs_are_not_followed(automated: Automated) -> None:
    plan = began(automated.repository, DAY, sweep=False)
    ended(automated.repository, plan, dry_run=True, checkpoint=None)

    assert_nothing_asked(
        tick(automated), "there was no sweep yet: open a clean run that sweeps; optimized runs follow it"
    )
    assert automated.run_ids == []


def test_a_server_that_is_down_fails_the_tick_and_moves_nothing(automated: Automated) -> None:
    ended(automated.repository, began(automated.repository, DAY))
    automated.changes["lakefs"] = {"endpoint": "http://127.0.0.1:9", "retries": 0, "connect_timeout_seconds": 1}

    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:9"):
        tick(automated)

    assert automated.run_ids == []


USELESS_CURSORS = [
    *map(str, (2**40, 2**70, -2, -(2**70), "1.0", "9" * 10_000)),
    '{"__class__": "RunStatusSensorCursor", "record_id": 1, "update_timestamp": null, "record_timestamp": null}',
    *(
        "0" * 20,
        "!",
        layout.issue_run_id(NOW + 2 * HOUR),
        "v" * 21,
        "{",
        "{}",
        "[]",
        '{"__class__": "DagsterRun"}',
        "[" * 10_000,
    ),
]


def test_no_cursor_silences_any_sensor(automated: Automated) -> None:
    """Any user of the UI can set any cursor: each sensor continues as if it had none.

    New sensors are tested as well.
    """
    instance = automated.instance
    ended(automated.repository, began(automated.repository, DAY))
    webhooks = {("notifications", name): "SET_IN_NO_TEST" for name in ("failure_webhook", "ended_webhook")}
    definitions = build(replace(automated.loaded, secret_variables=webhooks), automated.clock, EXTENSIONS)
    repository = definitions.get_repository_def()

    @dg.job
    def work() -> None:
        pass

    @dg.op
    def failing() -> None:
        raise dg.Failure

    @dg.job
    def failed() -> None:
        failing()

    for job in (work, failed, work):
        job.execute_in_process(instance=instance, raise_on_error=False)

    def tick(sensor: dg.SensorDefinition, cursor: str | None) -> tuple[object, ...]:
        given = {"collector": automated.collector}
        with dg.build_sensor_context(instance, cursor, repository_def=repository, resources=given) as context:
            found = sensor.evaluate_tick(context)
            return found.cursor, found.skip_message, [request.run_key for request in found.run_requests or []]

    assert {sensor.name for sensor in repository.sensor_defs} == {
        "launch_opened_runs",
        "follow_deleted_report",
        "follow_runs",
        "note_failures",
        "sweep_by_standing_approval",
        "tell_of_failures",
        "tell_of_runs",
    }
    for sensor in repository.sensor_defs:
        usual = tick(sensor, None)
        # One that sets no cursor keeps that of a user, and reads none.
        kept = 1 if sensor.name == "follow_runs" else 0
        assert kept or usual[0], "each other one has a cursor"
        for cursor in USELESS_CURSORS:
            assert tick(sensor, cursor)[kept:] == usual[kept:], (sensor.name, cursor[:80])


@pytest.mark.parametrize("cursor", ["0" * 20, "x" * 1000])
def test_a_useless_cursor_is_not_kept_while_nothing_is_followed(automated: Automated, cursor: str) -> None:
    """Dagster stores the cursor with each tick: a cursor of some megabytes would fill its database."""
    assert_nothing_asked(
        tick(automated, cursor), "there was no sweep yet: open a clean run that sweeps; optimized runs follow it"
    )


def test_a_project_of_ones_own_can_add_attributes_to_each_sensor(automated: Automated) -> None:
    """Components do that; a sensor that launches nothing has no job to copy."""
    webhooks = {("notifications", name): "SET_IN_NO_TEST" for name in ("failure_webhook", "ended_webhook")}
    definitions = build(replace(automated.loaded, secret_variables=webhooks), automated.clock, EXTENSIONS)

    for sensor in definitions.get_repository_def().sensor_defs:
        copied = sensor.with_attributes(metadata={"owner": "data"})
        assert (type(copied), copied.name, copied.has_jobs) == (type(sensor), sensor.name, sensor.has_jobs)

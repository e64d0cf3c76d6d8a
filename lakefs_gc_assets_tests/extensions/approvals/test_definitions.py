"""The sensor that acts on the standing approval for collections: ended runs of an instance, and reports in a store."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest, Span
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, Limits, StandingApproval
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import RUN_TAG
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.extensions.approvals import definitions, granting
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES
from lakefs_gc_assets_tests.collector.past_runs import HOUR, NOW, began, ended
from lakefs_gc_assets_tests.defs.automated import REPOSITORY, Automated, automated, server

__all__ = ["automated", "server"]

SCHEDULED = Permit("dry_runs", automatic=True, sweep=False, flow="clean")
OPENED = Permit("open_run")


@dataclass
class Sensed:
    """The sensor, beside a dry run that found ten objects among 200 and has ended."""

    automated: Automated
    cursor: str | None = None

    def dry_run(self, permit: Permit, **tags: str) -> str:
        """A dry run that a schedule or user opened, and its Dagster run."""
        instance, repository = self.automated.instance, self.automated.repository
        plan = began(repository, HOUR, sweep=False)
        counts = {"listed": 200, "candidates": 10}
        ended(repository, plan, dry_run=True, counts=counts, object_bytes={"candidates": 1_000})
        span = Span(CANDIDATES_DF.name, plan.run_id, plan.attempt, NOW, NOW)
        files.write_manifest(repository.store, Manifest(span, (), CANDIDATE_FIGURES))

        @dg.job(name="collect")
        def collect() -> None:
            _nothing()

        permitted = {RUN_TAG: plan.run_id, **launching.tags(instance, REPOSITORY, plan.run_id, permit), **tags}
        assert collect.execute_in_process(instance=instance, tags=permitted).success
        return plan.run_id

    def tick(self) -> SensorExecutionData:
        """A tick of the sensor, after the cursor of the tick before."""
        built = build(self.automated.loaded, self.automated.clock, [definitions.define]).get_repository_def()
        given = {"collector": self.automated.collector}
        with dg.build_sensor_context(
            self.automated.instance, self.cursor, repository_def=built, resources=given
        ) as context:
            result = built.get_sensor_def(definitions.SENSOR).evaluate_tick(context)
        self.cursor = result.cursor
        return result

    def grant(self, limits: Limits) -> StandingApproval:
        """Grants the standing approval for collections."""
        repository, work = self.automated.repository, ApprovedWork.COLLECTION
        return granting.grant(repository, work, limits, NOW + timedelta(days=30), "Ada", 1)

    def refusal(self, permit: Permit = SCHEDULED, **tags: str) -> str:
        """The reason that a new dry run waits for a person."""
        run_id = self.dry_run(permit, **tags)
        result = self.tick()
        assert not result.run_requests
        assert plans.read_approval(self.automated.repository.store, run_id) is None
        return result.skip_message or ""


@dg.op
def _nothing() -> None:
    """Work that succeeds."""


@pytest.fixture
def sensed(automated: Automated) -> Iterator[Sensed]:
    sensed = Sensed(automated)
    sensed.tick()
    yield sensed
    automated.changes.clear()


def test_a_scheduled_dry_run_within_the_limits_is_swept_once(sensed: Sensed) -> None:
    approval = sensed.grant(Limits(objects=10, bytes=1_000, share=0.05))
    run_id = sensed.dry_run(SCHEDULED)

    (request,) = sensed.tick().run_requests or []

    assert request.run_key == f"{run_id}-{approval.approval_id}"
    assert request.asset_selection == [dg.AssetKey("deleted_report")]
    approved_by = request.tags["lakefs/approved_by"]
    assert approved_by == str(approval) and request.tags["lakefs/mode"] == "approved sweep"
    stored = plans.read_approval(sensed.automated.repository.store, run_id)
    assert stored is not None
    assert (stored.approved_by, stored.standing) == (str(approval), approval.approval_id)
    launched = dg.DagsterRun("collect", tags=dict(request.tags))
    permit = launching.find(sensed.automated.instance, REPOSITORY, run_id, launched)
    assert permit == Permit(definitions.SENSOR, automatic=True)
    assert sensed.tick().skip_message == "no run has ended"


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (None, "there is none"),
        (Limits(objects=9), "10 objects would be deleted, more than the limit of 9 objects"),
        (Limits(objects=10, share=0.04), "5.00% would be deleted, more than the limit of 4.00%"),
    ],
)
def test_one_beyond_the_limits_waits_for_a_person(sensed: Sensed, limits: Limits | None, why: str) -> None:
    if limits is not None:
        sensed.grant(limits)
    assert why in sensed.refusal()
    sensed.grant(Limits(objects=10))
    assert sensed.tick().skip_message == "no run has ended"


@pytest.mark.parametrize(
    "permit",
    [OPENED, Permit("dry_runs"), Permit("clean_runs", automatic=True, flow="clean"), Permit("approve")],
)
def test_a_dry_run_that_the_schedule_did_not_open_is_left_to_people(sensed: Sensed, permit: Permit) -> None:
    sensed.grant(Limits(objects=10))
    assert sensed.refusal(permit, **{"dagster/schedule_name": "dry_runs"}) == "no run has ended"


def test_it_goes_by_the_limits_of_launches(sensed: Sensed) -> None:
    sensed.grant(Limits(objects=10))
    sensed.automated.changes["launch"] = {"sweep": "never"}
    assert "launch.sweep is never" in sensed.refusal()
    sensed.automated.changes["launch"] = {"approvers": 2}
    assert "a second person has to grant the same limits" in sensed.refusal()


def test_a_server_that_is_down_fails_the_tick_which_is_repeated(sensed: Sensed) -> None:
    sensed.grant(Limits(objects=10))
    sensed.dry_run(SCHEDULED)
    down: dict[str, Any] = {"endpoint": "http://127.0.0.1:9", "retries": 0, "connect_timeout_seconds": 1}
    sensed.automated.changes["lakefs"] = down
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        sensed.tick()
    sensed.automated.changes.clear()
    assert sensed.tick().run_requests


def test_a_run_that_was_swept_meanwhile_is_left(sensed: Sensed) -> None:
    sensed.grant(Limits(objects=10))
    run_id = sensed.dry_run(SCHEDULED)
    ended(sensed.automated.repository, plans.read(sensed.automated.repository.store, run_id), dry_run=False)
    assert sensed.tick().skip_message == f"run {run_id} has nothing to approve"

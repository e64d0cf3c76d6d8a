"""Requests of schedules, made by the jobs that they launch."""

from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg
import pytest

from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets_tests.defs.automated import REPOSITORY, Automated, automated, failure_in, output_of, server

__all__ = ["automated", "server"]


def request(automated: Automated, schedule: str) -> dg.RunRequest:
    found = automated.definitions.resolve_schedule_def(schedule)
    moment = datetime(2026, 11, 21, 2, tzinfo=UTC)
    with dg.build_schedule_context(instance=automated.instance, scheduled_execution_time=moment) as context:
        ticked = found.evaluate_tick(context)
    (only,) = ticked.run_requests or []
    return only


def opened(automated: Automated, schedule: str) -> dict[str, object]:
    """Metadata of the open_run output after a schedule launched it."""
    asked = request(automated, schedule)
    job = automated.definitions.resolve_job_def("open_run")
    result = job.execute_in_process(instance=automated.instance, run_config=asked.run_config, tags=asked.tags)
    return output_of(result)


@pytest.mark.parametrize("sweep", [False, True])
def test_clean_runs_do_what_the_configuration_says(automated: Automated, sweep: bool) -> None:
    automated.changes["collection"] = {"sweep": sweep}

    page = opened(automated, "clean_runs")

    assert (page["flow"], page["sweep"]) == ("clean", sweep)
    assert page["run_id"] in automated.run_ids
    permit = launching.find(automated.instance, REPOSITORY, str(page["run_id"]))
    assert permit == Permit("clean_runs", automatic=True, flow="clean")


def test_what_a_schedule_may_nobody_else_may_by_its_tags(automated: Automated) -> None:
    """Tags of a scheduled run are readable; a user who launches it again with these tags gets no permit."""
    automated.changes["collection"] = {"sweep": True}
    asked = request(automated, "clean_runs")
    job = automated.definitions.resolve_job_def("open_run")

    swept = []
    for _ in range(2):
        result = job.execute_in_process(instance=automated.instance, run_config=asked.run_config, tags=asked.tags)
        swept.append(output_of(result)["sweep"])

    assert swept == [True, False]


def test_what_a_schedule_may_is_no_permit_for_another_flow(automated: Automated) -> None:
    """The ticket of a schedule can be read before it is used: in a test tick, or while its run waits."""
    automated.changes["collection"] = {"sweep": True}
    asked = request(automated, "clean_runs")
    job = automated.definitions.resolve_job_def("open_run")
    config = {"ops": {"open_new_run": {"config": {"flow": "unified"}}}}

    result = job.execute_in_process(
        instance=automated.instance, run_config=config, tags=asked.tags, raise_on_error=False
    )

    assert "clean_runs opened a run of flow clean, and a launch cannot change it to unified" in failure_in(result)
    assert automated.run_ids == []


class TestPurging:
    @pytest.fixture(autouse=True)
    def no_launch_deletes(self, automated: Automated) -> None:
        automated.changes["launch"] = {"sweep": "never"}

    def purged(self, automated: Automated, asked: dg.RunRequest, tags: Mapping[str, str]) -> dg.ExecuteInProcessResult:
        job = automated.definitions.resolve_job_def("purge")
        return job.execute_in_process(
            instance=automated.instance, run_config=asked.run_config, tags=tags, raise_on_error=False
        )

    def test_the_schedule_purges_where_no_launch_may(self, automated: Automated) -> None:
        asked = request(automated, "empty_quarantine")

        assert asked.run_config == {"ops": {"empty_quarantine": {"config": {"confirm": True}}}}
        assert self.purged(automated, asked, asked.tags).success
        again = failure_in(self.purged(automated, asked, asked.tags))

        assert "a launch may not purge: run `lakefs-gc purge`, turn on the schedule empty_quarantine" in again

    def test_nobody_else_does(self, automated: Automated) -> None:
        asked = request(automated, "empty_quarantine")
        for tags in ({"lakefs/ticket": ""}, {"lakefs/ticket": "guessed"}, request(automated, "clean_runs").tags):
            assert "a launch may not purge" in failure_in(self.purged(automated, asked, tags))

    def test_what_purges_opens_no_run_that_deletes(self, automated: Automated) -> None:
        automated.changes["collection"] = {"sweep": True}
        job = automated.definitions.resolve_job_def("open_run")

        result = job.execute_in_process(
            instance=automated.instance, tags=request(automated, "empty_quarantine").tags, raise_on_error=False
        )

        assert output_of(result)["sweep"] is False

    def test_everybody_may_look(self, automated: Automated) -> None:
        job = automated.definitions.resolve_job_def("purge")

        assert job.execute_in_process(instance=automated.instance).success


def test_dry_runs_never_delete_whatever_the_configuration_says(automated: Automated) -> None:
    automated.changes |= {"collection": {"sweep": True}, "automation": {"dry_run_flow": "unified"}}

    page = opened(automated, "dry_runs")

    assert (page["flow"], page["sweep"]) == ("unified", False)
    permit = launching.find(automated.instance, REPOSITORY, str(page["run_id"]))
    assert permit == Permit("dry_runs", automatic=True, sweep=False, flow="unified")


def test_dry_runs_look_at_what_is_new(automated: Automated) -> None:
    page = opened(automated, "dry_runs")

    assert (page["flow"], page["why_clean"]) == ("clean", "there is no earlier run")


def test_the_schedule_that_expires_runs_removes(automated: Automated) -> None:
    config = request(automated, "expire_old_runs").run_config

    assert config == {"ops": {"remove_old_frames": {"config": {"dry": False}}}}
    job = automated.definitions.resolve_job_def("expire_runs")
    assert job.execute_in_process(instance=automated.instance, run_config=config).success


def test_when_is_configured(automated: Automated) -> None:
    automated.changes["automation"] = {"clean_cron": "30 4 1 * *", "time_zone": "Europe/Berlin"}

    schedule = automated.definitions.resolve_schedule_def("clean_runs")

    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 4 1 * *", "Europe/Berlin")

"""The history of runs and its checks: the newest run succeeded, and no sweep is overdue."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.defs import automation
from lakefs_gc_assets.defs.history import HISTORY, SWEEPS, SWEPT_IN_TIME, judge_newest, judge_sweeps, run_metadata
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets_tests.collector.records.test_report import REPORT

NAMES, WEEK = Names("repo"), timedelta(days=7)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.mark.parametrize(
    ("shown", "passed", "why"),
    [
        ({}, True, "no run has ended yet"),
        ({"run_id": "a", "ending": "deleted", "success": True}, True, "run a: deleted"),
        (
            {"run_id": "a", "ending": "failed", "success": False, "error": "no", "mode": "dry run"},
            False,
            "a: failed, no",
        ),
        ({"ending": "failed", "success": False, "error": "no"}, False, "a run without an id: failed, no"),
        ({"ending": "failed", "success": False, "error": "interrupted", "mode": "dry run"}, True, "interrupted"),
        ({"ending": "failed", "success": False, "error": "interrupted", "mode": "sweep"}, False, "interrupted"),
        ({"run_id": "a", "ending": "some deletions failed", "success": False}, False, "run a: some deletions failed"),
    ],
)
def test_the_newest_run_succeeded(shown: dict[str, Any], passed: bool, why: str) -> None:
    verdict = judge_newest(shown)

    assert (verdict.passed, verdict.why.endswith(why)) == (passed, True)


def test_a_sweep_is_overdue_after_its_time(instance: dg.DagsterInstance) -> None:
    now = time.time()

    def judge(days: float, within: timedelta = WEEK) -> bool:
        return judge_sweeps(instance, NAMES, within, now + days * 86_400).passed

    assert judge(99), "nothing ever ran"
    instance.report_runless_asset_event(dg.AssetMaterialization(NAMES.asset(HISTORY)))
    assert (judge(6), judge(8)) == (True, False)
    instance.report_runless_asset_event(dg.AssetMaterialization(NAMES.asset(SWEEPS)))
    assert (judge(6), judge(8), judge(8, timedelta())) == (True, False, True)


def test_a_sensor_reports_each_verdict_once(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = automation.watch_sweeps(NAMES, WEEK)

    def tick(days: float, cursor: str | None) -> str | None:
        now = time.time() + days * 86_400
        with monkeypatch.context() as later:
            later.setattr(time, "time", lambda: now)
            result = sensor(dg.build_sensor_context(instance, cursor=cursor))
        assert isinstance(result, dg.SensorResult)
        return result.cursor

    def reported() -> list[bool]:
        filter_ = dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        events = [
            record.event_log_entry.dagster_event for record in instance.get_event_records(filter_, ascending=True)
        ]
        data = [event.asset_check_evaluation_data for event in events if event is not None]
        assert {(each.asset_key, each.check_name) for each in data} <= {(NAMES.asset(SWEEPS), SWEPT_IN_TIME)}
        return [each.passed for each in data]

    instance.report_runless_asset_event(dg.AssetMaterialization(NAMES.asset(SWEEPS)))
    overdue = tick(8, tick(1, tick(0, None)))
    assert reported() == [True, False]
    tick(9, overdue)
    instance.report_runless_asset_event(dg.AssetMaterialization(NAMES.asset(SWEEPS)))
    tick(1, overdue)
    assert reported() == [True, False, True]


def test_the_time_until_an_approval_is_no_part_of_the_duration_of_a_run() -> None:
    report = replace(
        REPORT,
        ended_at=REPORT.started_at + timedelta(days=2),
        worked_seconds={"candidates": 4.5, "deleted_report": 2},
        waited_seconds={"deleted_report": 600},
    )
    shown = run_metadata(report)
    assert (shown["seconds"], shown["seconds_waited"], shown["seconds_deleted_report"]) == (606.5, 600, 2)


def test_what_a_report_does_not_say_is_absent() -> None:
    shown = run_metadata(REPORT)
    assert not {"seconds", "seconds_waited", "stored_objects", "quarantined_objects"} & shown.keys()

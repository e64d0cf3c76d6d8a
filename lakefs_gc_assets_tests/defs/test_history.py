from dataclasses import replace
from datetime import timedelta

from lakefs_gc_assets.defs.history import run_metadata
from lakefs_gc_assets_tests.collector.records.test_report import REPORT


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

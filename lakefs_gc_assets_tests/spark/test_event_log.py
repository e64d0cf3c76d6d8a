"""Spark's event log, from which its UI and history server are made, names the work of a run."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets_tests.clusters.spark_clusters import EventLog
from lakefs_gc_assets_tests.runs.sample_runs import SampleRuns, sample_runs

__all__ = ["sample_runs"]
_START = "spark/session.py"
"""Place of the job that starts a session in the background."""
_TASKS = 8
"""Tasks that a session on two cores makes from much work; less work makes fewer."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_shows_what_each_job_of_a_clean_run_does_and_gives_small_work_few_tasks(
    sample_runs: SampleRuns, tmp_path: Path
) -> None:
    events = EventLog(tmp_path / "events")
    # Spark's default, which a session of spark-submit or Spark Connect has.
    properties = {**events.properties, "spark.sql.shuffle.partitions": "200"}
    lines: list[str] = []

    sample_runs.run("clean", {"master": "local[2]", "config": properties}, reported=lines.append)

    run_id = next(line for line in lines if line.startswith("run ")).split()[1].rstrip(":")
    jobs = [job for job in events.read("SparkListenerJobStart") if not _starts_session(job)]
    shown = [(job["Properties"]["spark.jobGroup.id"], job["Properties"]["spark.job.description"]) for job in jobs]
    steps = [description.split(": ")[0] for _, description in shown]
    assert {group for group, _ in shown} == {f"sample {run_id}"}
    assert {"store_df", "committed_df", "candidates"} <= {*steps} <= {*STEPS}
    assert all(description.partition(": ")[2] for _, description in shown)
    assert steps == sorted(steps, key=STEPS.index), "stages of a step stand together"

    started = events.read("org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart")
    plans = [event["physicalPlanDescription"] for event in started]
    assert any("list_as_task(" in plan for plan in plans) and any("read_ranges > cut_first(" in plan for plan in plans)
    assert not any("<lambda>" in plan for plan in plans)

    stages = events.read("SparkListenerStageCompleted")
    assert max(stage["Stage Info"]["Number of Tasks"] for stage in stages) <= _TASKS
    by_stage: dict[int, list[int]] = {}
    for task in events.read("SparkListenerTaskEnd"):
        by_stage.setdefault(task["Stage ID"], []).append(_bytes(task["Task Metrics"]))
    assert all(max(sizes) <= 4096 + 4 * fmean(sizes) for sizes in by_stage.values()), by_stage


def _starts_session(job: dict[str, Any]) -> bool:
    return _START in json.dumps(job["Stage Infos"][0]["Stage Name"])


def _bytes(metrics: dict[str, Any]) -> int:
    """Bytes that a task read and passed on."""
    read, written = metrics["Shuffle Read Metrics"], metrics["Shuffle Write Metrics"]
    return sum((read["Remote Bytes Read"], read["Local Bytes Read"], written["Shuffle Bytes Written"]))

"""Runs on a cluster and over Spark Connect, from the command line, with only the `spark` settings changed."""

import os
import re
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import lakefs_gc_assets
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets_tests.clusters import spark_clusters as clusters
from lakefs_gc_assets_tests.clusters.spark_clusters import EventLog, SampleRuns, sample_runs
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

__all__ = ["sample_runs"]
pytestmark = pytest.mark.timeout(900)
_PHASES = ("store_df: cutoff", "uncommitted_df: prepare", "committed_df: ", "candidates: ", "deleted_report: recheck")
"""Output of the command when a phase begins."""
_TASKS = 8
"""Tasks that a session on two cores makes from much work; less work makes fewer."""
_HALTED = "TEST_HALTED"
_IN_EVERY_PYTHON = f"""
import io, os, re, sys, time
from pathlib import Path

if "lakefs_gc_assets.spark.start.worker_daemon" in sys.orig_argv:
    from pyspark import worker
    from lakefs_gc_assets.storage.local import LocalStore

    work, put, written = worker.main, LocalStore.put, set()

    def note_and_put(self, key, data):
        written.update(re.findall("/({"|".join(STEPS)})/slice_window=", key))
        return put(self, key, data)

    def work_and_halt(infile, outfile):
        answer = io.BytesIO()
        written.clear()
        work(infile, answer)
        for frame in written:
            try:
                Path(os.environ["{_HALTED}"], frame).touch(exist_ok=False)
            except FileExistsError:
                continue
            time.sleep(120)
        outfile.write(answer.getvalue())

    worker.main, LocalStore.put = work_and_halt, note_and_put
else:
    from lakefs_gc_assets.collector.frame import files
    from lakefs_gc_assets.spark import engine

    # Else the driver itself would do everything with so few objects.
    files.LOCAL_ROWS = engine.LOCAL_ROWS = -1
"""
"""Loaded when Python starts: in each frame, one task that writes rows is slow to report that it finished."""


@pytest.mark.slow
def test_a_standalone_cluster_that_loses_executors_and_runs_tasks_twice(
    sample_runs: SampleRuns, tmp_path: Path
) -> None:
    halted = tmp_path / "halted"
    halted.mkdir()
    (tmp_path / "sitecustomize.py").write_text(_IN_EVERY_PYTHON)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    everywhere = {"PYTHONPATH": path, _HALTED: str(halted)}
    log = EventLog(tmp_path / "events")
    properties = {
        **log.properties,
        "spark.driver.host": "127.0.0.1",
        "spark.python.daemon.module": "lakefs_gc_assets.spark.start.worker_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",
        "spark.speculation.efficiency.enabled": "false",
        # However long other tasks of a stage take, and even if it has only one.
        "spark.speculation.task.duration.threshold": "2s",
    }
    killed: list[str] = []
    configuration = demo.configuration(sample_runs.server, sample_runs.sample.repository)
    before = sample_runs.objects()
    plain = ArrowRuns(Loaded(configuration, {})).collect()

    with clusters.standalone(tmp_path, [everywhere] * 2) as cluster:

        def kill(line: str) -> None:
            for phase in _PHASES:
                if line.strip().startswith(phase) and phase not in killed and cluster.kill_an_executor():
                    killed.append(phase)

        spark = {"master": cluster.master, "config": properties}
        table = sample_runs.run("clean", spark, everywhere, reported=kill)

    assert killed == list(_PHASES)
    assert f"{len(sample_runs.sample.garbage)} objects" in table

    made, marked = (lakefs_gc_assets.open(configuration).run(run_id) for run_id in ("latest", plain.run_id))
    candidates = marked.candidates.to_arrow().sort_by("address")
    garbage = candidates.column("address").to_pylist()
    assert made.candidates.to_arrow().sort_by("address") == candidates
    deleted = made.deleted.to_arrow().sort_by("address")
    assert deleted.column("address").to_pylist() == garbage
    assert deleted.column("outcome").unique().to_pylist() == [Outcome.ACCEPTED]
    assert made.report is not None and _figures(made.report) == _figures(plain)
    assert before - sample_runs.objects() == set(garbage)
    sample_runs.require_collected()

    # Each step ran one task twice, and one of the two attempts never answered. So objects were deleted twice.
    assert {file.name for file in halted.iterdir()} == set(STEPS)
    started = log.read("SparkListenerTaskStart")
    attempts = Counter((event["Stage ID"], event["Task Info"]["Index"]) for event in started)
    assert sum(count > 1 for count in attempts.values()) >= len(STEPS)
    assert any(event["Task Info"]["Speculative"] for event in started)
    assert receipts.read(sample_runs.store, made.id).num_rows > made.deleted.rows
    executors = [event["Event"] for event in log.read("SparkListenerExecutorAdded", "SparkListenerExecutorRemoved")]
    assert "SparkListenerExecutorAdded" in executors[executors.index("SparkListenerExecutorRemoved") :]


def _figures(report: Report) -> dict[str, Any]:
    """Figures of a mark in a report, which a dry run and a sweep share."""
    counts = {name: count for name, count in report.counts.items() if name != "deleted"}
    object_bytes = {name: size for name, size in report.object_bytes.items() if name != "deleted"}
    return {"counts": counts, "object_bytes": object_bytes, "kept": report.kept, "source": report.commit_source}


@pytest.mark.slow
def test_spark_connect_names_its_work_and_gives_small_work_few_tasks(sample_runs: SampleRuns, tmp_path: Path) -> None:
    log, lines = EventLog(tmp_path / "events"), list[str]()
    # Spark's default of partitions is too many for small work.
    properties = {**log.properties, "spark.sql.shuffle.partitions": "200", "spark.default.parallelism": "2"}
    with clusters.connect_server(tmp_path, properties) as address:
        assert "clean: deleted" in sample_runs.run("clean", {"remote": address}, reported=lines.append)
    sample_runs.require_collected()

    run_id = next(line for line in lines if line.startswith("run ")).split()[1].rstrip(":")
    tags = [job["Properties"]["spark.job.tags"] for job in log.read("SparkListenerJobStart")]
    of_run = [text for text in tags if f"sample {run_id}" in text]
    assert any("store_df: list " in text for text in of_run)
    steps = [name for text in of_run for name in re.findall(rf"_Tag_({'|'.join(STEPS)}): ", text)]
    assert len(steps) == len(of_run)
    assert steps == sorted(steps, key=STEPS.index), "stages of a step stand together"

    started = log.read("org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart")
    plans = [event["physicalPlanDescription"] for event in started]
    assert any("list_as_task(" in plan for plan in plans) and any("read_ranges > cut_first(" in plan for plan in plans)
    assert not any("<lambda>" in plan for plan in plans)

    stages = log.read("SparkListenerStageCompleted")
    assert max(stage["Stage Info"]["Number of Tasks"] for stage in stages) <= _TASKS
    by_stage: dict[int, list[int]] = {}
    for task in log.read("SparkListenerTaskEnd"):
        by_stage.setdefault(task["Stage ID"], []).append(_bytes(task["Task Metrics"]))
    assert all(max(sizes) <= 4096 + 4 * fmean(sizes) for sizes in by_stage.values()), by_stage


def _bytes(metrics: dict[str, Any]) -> int:
    """Bytes that a task read and passed on."""
    read, written = metrics["Shuffle Read Metrics"], metrics["Shuffle Write Metrics"]
    return sum((read["Remote Bytes Read"], read["Local Bytes Read"], written["Shuffle Bytes Written"]))

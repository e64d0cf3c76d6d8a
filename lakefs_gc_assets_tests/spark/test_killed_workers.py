"""Spark's Python workers are killed in each step of a run, which goes on in the same step."""

import os
import signal
import threading
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.spark import engine
from lakefs_gc_assets_tests.harness import process_tree
from lakefs_gc_assets_tests.runs.graph_runs import Replaying, failures, made, replaying

__all__ = ["replaying"]


class Killer:
    """Kills all Python workers of a session once in each step, while a worker writes rows or deletes objects.

    Attributes:
        killed: steps in which workers were killed.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        self.killed: list[str] = []
        self._one_at_a_time = threading.Lock()

    def strike(self, step: str) -> None:
        """Kills the workers once per step, even if requests of several workers trigger it at the same time."""
        with self._one_at_a_time:
            if step in self.killed:
                return
            self.killed.append(step)
        workers = [worker for daemon in process_tree.children(self._jvm) for worker in process_tree.children(daemon)]
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_whose_workers_are_killed_ends_with_an_error_and_goes_on_in_the_same_step(
    spark: SparkSession, replaying: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the driver itself would delete so few objects.
    for module in (files, engine):
        monkeypatch.setattr(module, "LOCAL_ROWS", -1)
    runs = replaying("chain/1", deletes="overlay", sweep=True, max_candidate_share=1)
    killer, overlay = Killer(spark), runs.server._overlay
    put, delete = overlay.put, overlay.delete

    def putting(key: str, *arguments: Any) -> Any:
        for step in STEPS[:-1]:
            if f"/{step}/slice_window=" in key:
                killer.strike(step)
        return put(key, *arguments)

    def deleting(key: str, *arguments: Any) -> None:
        delete(key, *arguments)
        if key.startswith("data/"):
            killer.strike(STEPS[-1])

    monkeypatch.setattr(overlay, "put", putting)
    monkeypatch.setattr(overlay, "delete", deleting)
    opened = runs.open()

    result: dg.ExecuteInProcessResult | dg.JobExecutionResult = runs.make(opened)
    for number, step in enumerate(STEPS, 1):
        assert killer.killed == list(STEPS[:number])
        assert list(failures(result)) == [step], failures(result)
        assert step not in made(result)
        shown = runs.instance.get_run_by_id(result.run_id)
        assert shown is not None and shown.status is dg.DagsterRunStatus.FAILURE
        reported = runs.report(opened.run_id)
        assert (reported.success, reported.ending) == (False, Ending.FAILED)
        assert "worker" in str(reported.error)
        assert runs.lock_holder() is None
        result = runs.again(result)

    assert result.success, failures(result)
    assert runs.server.deleted == set(runs.addresses(opened.run_id, "candidates")) != set()
    reported = runs.report(opened.run_id)
    assert (reported.success, reported.counts["deleted"]) == (True, len(runs.server.deleted))
    assert runs.lock_holder() is None

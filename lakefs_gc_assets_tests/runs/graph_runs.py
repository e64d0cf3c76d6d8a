"""Runs of the real graph in this process, on replayed recordings."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.defs import jobs, running
from lakefs_gc_assets.defs.jobs import OpenedRun
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets_tests.replay.recording import Deletes
from lakefs_gc_assets_tests.runs.replayed_runs import ReplayedRuns, served


@dataclass
class GraphRuns(ReplayedRuns):
    """Opens runs of the graph and makes them, on Spark."""

    instance: dg.DagsterInstance = field(kw_only=True)

    def job(self, sweep: bool | None = None) -> dg.JobDefinition:
        """The job that collects, in a process that decides itself whether the run may sweep.

        Args:
            sweep: True to delete; None for the value in the settings.
        """
        loggers = {"console": running.line_logger(self.lines.append)}
        decided = running.decided_here(self.loaded, **({} if sweep is None else {"sweep": sweep}))
        return build(decided, self.clock, loggers=loggers).resolve_job_def("collect")

    def open(self, flow: Flow = Flow.CLEAN) -> OpenedRun:
        """Opens a run over every window that it needs."""
        return jobs.open_run(self.instance, Collector.from_loaded(self.loaded, self.clock), flow)

    def make(
        self,
        opened: OpenedRun,
        *,
        assets: Sequence[str] = STEPS,
        tags: Mapping[str, str] | None = None,
        sweep: bool | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Makes assets of an opened run in one Dagster run."""
        return self.job(sweep).execute_in_process(
            instance=self.instance,
            tags={**opened.tags, **(tags or {})},
            run_config={"loggers": {"console": {}}},
            asset_selection=None if tuple(assets) == STEPS else [dg.AssetKey(name) for name in assets],
            raise_on_error=False,
        )

    def again(self, failed: dg.ExecuteInProcessResult | dg.JobExecutionResult) -> dg.JobExecutionResult:
        """Re-executes a Dagster run from its failure."""
        return dg.execute_job(
            _reconstructable(self),
            self.instance,
            run_config=failed.dagster_run.run_config,
            tags=failed.dagster_run.tags,
            reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, self.instance),
        )


_runs: list[GraphRuns] = []


def job_of(number: int) -> dg.JobDefinition:
    """The job of runs that are re-executed; Dagster caches it by number."""
    return _runs[number].job()


def _reconstructable(runs: GraphRuns) -> ReconstructableJob:
    """Makes a job that Dagster can re-execute: one that a module's function returns."""
    _runs.append(runs)
    return dg.build_reconstructable_job(__name__, job_of.__name__, (len(_runs) - 1,))


def failures(result: dg.ExecuteInProcessResult | dg.JobExecutionResult) -> dict[str, str]:
    """Error messages of the failed steps, by name."""
    found = {}
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            error = data.error
            while error is not None and error.cause is not None:
                error = error.cause
            said = data.user_failure_data.description if data.user_failure_data else None
            found[event.step_key or ""] = said or (error.message if error else "")
    return found


def made(result: dg.ExecuteInProcessResult | dg.JobExecutionResult) -> list[str]:
    """Assets that a run materialized, in order, each once."""
    keys = [
        event.asset_key.path[-1]
        for event in result.all_events
        if event.is_step_materialization and event.asset_key is not None
    ]
    return list(dict.fromkeys(keys))


class Replaying(Protocol):
    """Opens a recording for runs of the graph, from its beginning or in the state after other runs."""

    def __call__(
        self, folder: str, *, deletes: Deletes = "refuse", after: GraphRuns | None = None, **settings: Any
    ) -> GraphRuns: ...


@contextmanager
def replays() -> Iterator[Replaying]:
    """Serves recordings, aged by two days, while the context is open."""
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).delenv("DAGSTER_HOME", raising=False)

        def opened(
            folder: str, *, deletes: Deletes = "refuse", after: GraphRuns | None = None, **settings: Any
        ) -> GraphRuns:
            server, clock = served(folder, deletes, after)
            stack.enter_context(server)
            return GraphRuns(server, clock, settings, instance=stack.enter_context(running.instance()))

        yield opened


@pytest.fixture
def replaying(spark: SparkSession) -> Iterator[Replaying]:
    """Serves recordings until the test ends; all runs share the session's Spark."""
    with replays() as opened:
        yield opened

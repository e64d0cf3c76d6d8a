"""Runs of the real graph in this process, on a replayed recording whose clock, objects and answers tests can change."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector import lock, report
from lakefs_gc_assets.collector.frame.kinds import FRAMES, STEPS
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.report import Report
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.defs import opening, running
from lakefs_gc_assets.defs.opening import OpenedRun
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.settings import Configuration, Loaded
from lakefs_gc_assets_tests.moving_clock import MovingClock
from lakefs_gc_assets_tests.recordings import folder_of
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.replay.overlay import DeleteRefused, Deletes
from lakefs_gc_assets_tests.replay.recording import RecordedObject
from lakefs_gc_assets_tests.replay.s3_endpoint import S3Answer
from lakefs_gc_assets_tests.replay.server import ReplayServer

AGED = timedelta(days=2)
"""Recorded objects are hours old: this makes all of them old enough."""

ApiFault = Callable[[str, str], ApiAnswer | None]


class ChangedServer(ReplayServer):
    """A replay whose objects and answers a test can change.

    Attributes:
        fault: is asked for an answer before the recording is, with method and target.
        undeletable: keys whose deletion is refused although others are deleted.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime],
        deletes: Deletes = "refuse",
        continues: "ChangedServer | None" = None,
    ) -> None:
        super().__init__(folder, now=now, deletes=deletes, continues=continues)
        self.fault: ApiFault = lambda method, target: None
        self.undeletable: set[str] = set()
        delete = self._overlay.delete

        def refusing(key: str, if_match: str | None = None) -> None:
            if key in self.undeletable:
                raise DeleteRefused(key)
            delete(key, if_match)

        self._overlay.delete = refusing  # type: ignore[method-assign]

    def place(self, key: str, *, written_at: datetime, etag: str | None = None, content: bytes = b"content") -> None:
        """Puts an object as if it had been written at some moment."""
        facts = self._overlay.put(key, content)
        self._overlay._objects[key] = RecordedObject(facts.size, written_at, etag or facts.etag)

    def stored(self) -> set[str]:
        """Every key that is there now."""
        return set(self._overlay._objects)

    def _api(self, method: str, target: str, headers: dict[str, str], body: bytes) -> S3Answer:
        answer = self.fault(method, target)
        if answer is not None:
            return S3Answer(answer.status, answer.body, {"Content-Type": answer.content_type})
        return super()._api(method, target, headers, body)


def refused(status: int, message: str) -> ApiAnswer:
    """An error as lakeFS words it."""
    return ApiAnswer(status, b'{"message": "%s"}' % message.encode())


@dataclass
class GraphRuns:
    """Opens runs of one replayed repository and makes them.

    Attributes:
        lines: everything that runs told.
        settings: changes of the section `collection`.
        launch: changes of the section `launch`.
    """

    server: ChangedServer
    clock: MovingClock
    instance: dg.DagsterInstance
    settings: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> Loaded:
        """The configuration."""
        content = self.server.configuration().model_dump()
        content["collection"] |= self.settings
        content["lakefs"] |= {"retries": 0}
        content["launch"] |= self.launch
        return Loaded(Configuration.model_validate(content), {})

    @property
    def repository(self) -> OpenRepository:
        """The repository, past any run."""
        return running.opened(self.loaded, self.clock).open()

    def job(self, sweep: bool | None = None) -> dg.JobDefinition:
        """The job that collects, as a process makes it that decides itself what the run may do.

        Args:
            sweep: whether to delete; None for what the settings say.
        """
        loggers = {"console": running.line_logger(self.lines.append)}
        decided = running.decided_here(self.loaded, **({} if sweep is None else {"sweep": sweep}))
        return build(decided, self.clock, loggers).resolve_job_def("collect")

    def open(self, flow: Flow = Flow.CLEAN) -> OpenedRun:
        """Opens a run over every window that it needs."""
        return opening.open_run(self.instance, running.opened(self.loaded, self.clock), flow)

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
        """Re-executes a Dagster run from where it failed."""
        return dg.execute_job(
            _reconstructable(self),
            self.instance,
            run_config=failed.dagster_run.run_config,
            tags=failed.dagster_run.tags,
            reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, self.instance),
        )

    def report(self, run_id: str) -> Report:
        """The report of a run, which must have one."""
        found = report.read(self.repository.store, run_id)
        assert found is not None
        return found

    def frame(self, run_id: str, name: str) -> StoredFrame[Any]:
        """A frame as stored."""
        repository = self.repository
        return StoredFrame.of(repository.store, repository.opener, run_id, FRAMES[name])

    def table(self, run_id: str, name: str) -> pa.Table:
        """All rows of a frame."""
        return self.frame(run_id, name).table()

    def addresses(self, run_id: str, name: str) -> list[str]:
        """The addresses of a frame, sorted."""
        return sorted(self.table(run_id, name).column("address").to_pylist())

    def lock_holder(self) -> str | None:
        """Who holds the repository's lock."""
        return lock.holder(self.repository.store)


_runs: list[GraphRuns] = []


def job_of(number: int) -> dg.JobDefinition:
    """The job of runs that are re-executed; Dagster keeps what it got for a number."""
    return _runs[number].job()


def _reconstructable(runs: GraphRuns) -> ReconstructableJob:
    """Dagster re-executes jobs that a function of a module makes."""
    _runs.append(runs)
    return dg.build_reconstructable_job(__name__, job_of.__name__, (len(_runs) - 1,))


def failures(result: dg.ExecuteInProcessResult | dg.JobExecutionResult) -> dict[str, str]:
    """What each failed step said, by its name."""
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


def truth_classes(folder: str) -> dict[str, set[str]]:
    """Addresses of a recording by the class that its own bookkeeping gives them."""
    plain = folder_of(folder) / "truth.json"
    text = plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())
    classes: dict[str, set[str]] = {}
    for entry in json.loads(text)["objects"]:
        classes.setdefault(entry["class"], set()).add(entry["address"])
    return classes


class Replaying(Protocol):
    """Opens a recording for runs of the graph, from its beginning or as other runs left it."""

    def __call__(
        self, folder: str, *, deletes: Deletes = "refuse", after: GraphRuns | None = None, **settings: Any
    ) -> GraphRuns: ...


@contextmanager
def replays() -> Iterator[Replaying]:
    """Serves recordings, aged by two days, until the exit."""
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).delenv("DAGSTER_HOME", raising=False)

        def opened(
            folder: str, *, deletes: Deletes = "refuse", after: GraphRuns | None = None, **settings: Any
        ) -> GraphRuns:
            clock = MovingClock(datetime.now(UTC))
            continued = after.server if after else None
            server = ChangedServer(folder_of(folder), now=clock.now, deletes=deletes, continues=continued)
            stack.enter_context(server)
            clock.moment = after.clock.moment if after else server.recorded_at + AGED
            return GraphRuns(server, clock, stack.enter_context(running.instance()), settings)

        yield opened


@pytest.fixture
def replaying(spark: SparkSession) -> Iterator[Replaying]:
    """Serves recordings until the test ends; all runs share the session's Spark."""
    with replays() as opened:
        yield opened

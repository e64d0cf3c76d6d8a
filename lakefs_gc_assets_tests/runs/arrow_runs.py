"""Whole runs on the engine of plain Arrow tables, in this process and without Dagster, for any server and store."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count
from typing import Any

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.make_step import StepHost, StepRequest, end_between_steps, step
from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, Purged, purge_by
from lakefs_gc_assets.collector.quarantine.restore import Restored
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import Clock, OpenRepository, SystemClock
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.failures import summary
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.runs.plain_steps import INPUTS, make_frame, require_passed_checks

Between = Callable[[str], None]
_OPENED = count()


@dataclass(frozen=True)
class Opened:
    """A run that can be made.

    Attributes:
        why_clean: the reason for a clean run in place of a requested optimized one, or None.
    """

    run_id: str
    windows: tuple[str, ...]
    flow: Flow
    why_clean: str | None = None


@dataclass
class Made:
    """Result of some steps of a run.

    Attributes:
        asked: the requested steps, in order.
        done: the completed steps.
        error: the error that ended the next step, or None.
    """

    opened: Opened
    owner: str
    asked: tuple[str, ...]
    done: list[str] = field(default_factory=list)
    error: Exception | None = None

    @property
    def success(self) -> bool:
        """True if all steps were made."""
        return self.error is None

    @property
    def failures(self) -> dict[str, str]:
        """The error message of the failed step, by its name."""
        return {} if self.error is None else {self.asked[len(self.done)]: summary(self.error)}


@dataclass
class ArrowRuns:
    """Makes runs of a configuration; `lines` collects all their log lines.

    Attributes:
        between: called with the name of each step after it was made.
    """

    loaded: Loaded
    clock: Clock = field(default_factory=SystemClock)
    lines: list[str] = field(default_factory=list)
    between: Between = lambda name: None
    _store: ObjectStore | None = field(default=None, init=False)

    @property
    def host(self) -> StepHost[ArrowRows]:
        """The host that steps of this process run on."""
        return StepHost(
            self.open, self.last_opened, self.engine, self.now, self.log, self.warn, self.explain, self.collector.locks
        )

    def open(self) -> OpenRepository:
        """See StepHost.open."""
        found = self.collector.open()
        self._store = found.store
        return found

    @cached_property
    def collector(self) -> Collector:
        """The repository, and the frames that this process knows."""
        return Collector.from_loaded(self.loaded, self.clock)

    def last_opened(self) -> ObjectStore | None:
        """See StepHost.last_opened."""
        return self._store

    def engine(self, repository: OpenRepository) -> LocalEngine:
        """See StepHost.engine."""
        return LocalEngine()

    def now(self) -> datetime:
        """See StepHost.now."""
        return self.clock.now()

    def log(self, line: str) -> None:
        """See StepHost.log."""
        self.lines.append(line)

    def warn(self, line: str) -> None:
        """See StepHost.warn."""
        self.lines.append(line)

    def explain(self, error: BaseException) -> str:
        """See StepHost.explain."""
        return summary(error)

    def open_run(self, flow: Flow, run_id: str) -> Opened:
        """Opens a run over every window that it needs."""
        windows, why_clean = planning.windows_to_collect(self.open(), flow)
        return Opened(run_id, windows, flow, why_clean)

    def collect(self, flow: Flow = Flow.CLEAN) -> Report:
        """Makes one run over every window that it needs. Raises the error that ends it."""
        # If a test's clock stands still, ids must still tell which run is newer.
        run_id = layout.issue_run_id(self.now() + timedelta(microseconds=next(_OPENED)))
        made = self.make(self.open_run(flow, run_id), STEPS, "owner")
        if made.error is not None:
            raise made.error
        found = report.read(self.open().store, run_id)
        if found is None:
            raise CollectionError(f"run {run_id} left no report")
        return found

    def purge(self) -> list[Purged]:
        """Purges due copies in quarantine; returns the result for each copy."""
        repository = self.open()

        def check(plan: Plan, lock: Lock) -> LiveCheck[Any]:
            return LiveCheck(Step(self.log, self.warn, repository, LocalEngine(), plan, lock))

        return [*purge_by(repository, None, "purge", check, self.warn)]

    def restore(self, run_id: str, *addresses: str) -> list[Restored]:
        """Restores objects that a run deleted, all of them if no addresses are named; returns the result for each."""
        return [*restore.restore(self.open(), run_id, addresses, "restore", self.warn)]

    def make(self, opened: Opened, asked: Sequence[str], owner: str) -> Made:
        """Makes some steps of a run, as one Dagster run does, up to the first failure. Interrupts are raised."""
        made = Made(opened, owner, tuple(asked))
        try:
            for name in asked:
                self._make(name, made)
                made.done.append(name)
                self.between(name)
        except Exception as error:
            made.error = error
        return made

    def _make(self, name: str, made: Made) -> None:
        opened, run_id = made.opened, made.opened.run_id
        request = StepRequest(
            run_id,
            opened.windows,
            made.owner,
            begins=opened.flow if name == STEPS[0] else None,
            has_earlier_step=bool(made.done),
            has_later_step=name != made.asked[-1],
        )
        with self._between_steps(run_id, holds_lock=request.has_earlier_step):
            inputs = [self.collector.stored(run_id, FRAMES[given]) for given in INPUTS[name]]
        with step(request, self.host) as this:
            frame = make_frame(name, this, inputs)
        self.collector.keep(frame)
        if name == STEPS[3]:
            with self._between_steps(run_id, holds_lock=request.has_later_step):
                require_passed_checks(LocalEngine(), frame, inputs, this.plan.cutoff)

    @contextmanager
    def _between_steps(self, run_id: str, *, holds_lock: bool) -> Iterator[None]:
        """As `failures.between_steps`."""
        try:
            yield
        except BaseException as error:
            if holds_lock:
                end_between_steps(run_id, self.last_opened(), self.now(), self.explain(error))
            raise

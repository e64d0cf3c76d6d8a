"""The shipped run in the simulated world: one collector process that makes its steps as Dagster does.

The run is the product's own code: `collector.run` and `collector.step`, on the engine of plain Arrow tables. This
module adds Dagster's part only: it hands frames from step to step, runs the blocking checks of the candidates, and
remembers finished steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.make_step import StepHost, StepRequest, end_between_steps, step
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.runs.plain_steps import INPUTS, make_frame, require_passed_checks
from lakefs_gc_assets_tests.simulation.clocks import CollectorClock
from lakefs_gc_assets_tests.simulation.exactness import Exactness
from lakefs_gc_assets_tests.simulation.refusals import Refusals
from lakefs_gc_assets_tests.simulation.retention_exactness import RetentionExactness
from lakefs_gc_assets_tests.simulation.server_answers import ServerAnswers

TASKS = 2


class Killed(BaseException):
    """The process of a collector ends at once, without a chance to clean up."""


Reached = tuple[LakeFSApi, ObjectStore]
"""API and store through which a collector reaches another repository."""


@dataclass(frozen=True)
class Opener:
    """Reopens the simulated store in this process."""

    store: ObjectStore
    namespace_uri: str

    def open(self) -> ObjectStore:
        return self.store


@dataclass(frozen=True)
class Watch:
    """Observers of a run; none changes it.

    Attributes:
        began_listing, marked, rechecking, rechecked: notify the oracle.
        exactness: compares optimized runs with clean ones.
        retention: compares runs by retention rules with the commits that must stay, if such runs occur.
        reported: the servers' last answers to the collector.
        refusals: knows the reasons for which a run refuses to delete.
        dump_refused: True if the last requested dump was refused.
    """

    began_listing: Callable[[str], None]
    marked: Callable[[str, Sequence[str]], None]
    rechecking: Callable[[], None]
    rechecked: Callable[[], None]
    exactness: Exactness
    retention: RetentionExactness | None = None
    reported: Callable[[], ServerAnswers] = ServerAnswers
    refusals: Refusals | None = None
    dump_refused: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class WatchedRepository(OpenRepository):
    """An open repository that knows which run it was opened for."""

    run: "Run | None" = None


def open_repository(
    api: LakeFSApi,
    store: ObjectStore,
    settings: CollectionSettings,
    clock: CollectorClock,
    run: "Run | None" = None,
    others: Sequence[Reached] = (),
) -> WatchedRepository:
    """Does the work of `Collector.open`: asks the server for the repository and for those in `also_live`."""
    opened = tuple(open_repository(*other, settings, clock) for other in others)
    facts = api.repository()
    namespace = Namespace.parse(facts.storage_namespace)
    opener = cast(StoreOpener, Opener(store, namespace.uri))
    return WatchedRepository(facts, namespace, api, store, opener, settings, clock, opened, run=run)


@dataclass
class Run:
    """One run in a collector process. A resumed run is another object with the same run id and owner.

    Attributes:
        only_windows: number of newest needed windows to collect, if limited; 0 for all. A negative number drops as many
            of the oldest windows, beginning with `legacy`.
        windows: the windows that the run was opened for; all needed ones unless limited.
        others: the repositories that `also_live` names.
        completed: steps that Dagster considers done; outlives processes, as Dagster's storage does.
        ended: called when all steps are done, before Dagster records the last one.
        this: the current step.
    """

    api: LakeFSApi
    store: ObjectStore
    settings: CollectionSettings
    clock: CollectorClock
    run_id: str
    owner: str
    watch: Watch
    note: Callable[[str], None]
    completed: list[str]
    flow: Flow = Flow.CLEAN
    windows: tuple[str, ...] = ()
    only_windows: int = 0
    others: Sequence[Reached] = ()
    ended: Callable[[], None] = lambda: None
    at: str = STEPS[0]
    this: Step[ArrowRows] | None = None
    plan: Plan = field(init=False)
    started_at: datetime = field(init=False)
    _kept: bool = False
    _opened: bool = False

    def collect(self, done: Sequence[str] = ()) -> None:
        """Makes all steps that are not yet done."""
        for name in STEPS:
            if name not in done:
                self.make(name)

    def make(self, name: str) -> None:
        """Makes one step, with Dagster's part before and after it."""
        self.at = name
        if name == STEPS[0]:
            self.completed.clear()
            self._choose_windows()
        inputs = [self._load(given) for given in INPUTS[name]]
        request = StepRequest(
            self.run_id,
            self.windows,
            self.owner,
            begins=self.flow if name == STEPS[0] else None,
            continues=self._kept,
            goes_on=name != STEPS[-1],
        )
        with step(request, self.host) as this, self._renewing(this):
            self.plan, self.started_at = this.plan, this.started_at
            frame = make_frame(name, this, inputs)
        self._kept = request.goes_on
        with self._between_steps(holds_lock=True):
            frame.sample(20)
        if name == STEPS[3]:
            self._check(frame, inputs)
        if name == STEPS[-1]:
            self.ended()
        self.completed.append(name)

    @contextmanager
    def _renewing(self, this: Step[ArrowRows]) -> Iterator[None]:
        """As `lock.renewed`: the world may renew the lock meanwhile, but not while it is released."""
        self.this = this
        try:
            yield
        finally:
            self.this = None

    def _choose_windows(self) -> None:
        """Chooses the windows as `partitions.open_run` does; later attempts keep them."""
        if not self.windows:
            needed, _ = planning.windows_to_collect(self.open(), self.flow)
            self.windows = needed[-self.only_windows :] or needed[-1:]

    def _load(self, name: str) -> StoredFrame[Any]:
        """Loads an input frame as the IO manager does."""
        with self._between_steps(holds_lock=self._kept):
            repository = self.open()
            return StoredFrame.from_run(repository.store, repository.opener, self.run_id, FRAMES[name])

    def _check(self, candidates: StoredFrame[Any], inputs: Sequence[StoredFrame[Any]]) -> None:
        """Runs the blocking checks of the candidates. A failed one ends the run."""
        with self._between_steps(holds_lock=True):
            require_passed_checks(self.engine(self.open()), candidates, inputs, self.plan.cutoff)

    @contextmanager
    def _between_steps(self, *, holds_lock: bool) -> Iterator[None]:
        """As `failures.between_steps`."""
        try:
            yield
        except BaseException as error:
            if holds_lock:
                end_between_steps(self.run_id, self.last_opened(), self.now(), self.explain(error))
            raise

    @property
    def host(self) -> StepHost[ArrowRows]:
        """The host that steps of this process run on."""
        return StepHost(self.open, self.last_opened, self.engine, self.now, self.log, self.warn, self.explain)

    def open(self) -> OpenRepository:
        """See StepHost.open."""
        found = open_repository(self.api, self.store, self.settings, self.clock, self, self.others)
        self._opened = True
        return found

    def last_opened(self) -> ObjectStore | None:
        """See StepHost.last_opened."""
        return self.store if self._opened else None

    def engine(self, repository: OpenRepository) -> LocalEngine:
        """See StepHost.engine."""
        return LocalEngine(TASKS)

    def now(self) -> datetime:
        """See StepHost.now."""
        return self.clock.now()

    def log(self, line: str) -> None:
        """See StepHost.log."""

    def warn(self, line: str) -> None:
        """See StepHost.warn."""

    def explain(self, error: BaseException) -> str:
        """See StepHost.explain."""
        return str(error)

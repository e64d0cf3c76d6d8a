"""The shipped run in the simulated world: one process of a collector, which makes its steps as Dagster does.

Everything that a run does is the product's own code: `collector.run` and `collector.step`, on the engine of plain Arrow
tables. Here is only what Dagster does around a step: it hands frames from step to step, makes the blocking checks of
the candidates, and remembers which steps are done.
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
"""How a collector reaches another repository."""


@dataclass(frozen=True)
class Opener:
    """Opens the simulated store again, in this process."""

    store: ObjectStore
    namespace_uri: str

    def open(self) -> ObjectStore:
        return self.store


@dataclass(frozen=True)
class Watch:
    """Who is told what a run does; nothing of it changes the run.

    Attributes:
        began_listing, marked, rechecking, rechecked: tell the oracle.
        exactness: compares optimized runs with clean ones.
        retention: compares runs by retention rules with what must stay, where there are such runs.
        reported: what servers told the collector last.
        refusals: knows what keeps a run from deleting.
        dump_refused: whether the last dump that was asked for was refused.
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
    """What `Collector.open` does: asks the server for the repository, and for those that count as well."""
    opened = tuple(open_repository(*other, settings, clock) for other in others)
    facts = api.repository()
    namespace = Namespace.parse(facts.storage_namespace)
    opener = cast(StoreOpener, Opener(store, namespace.uri))
    return WatchedRepository(facts, namespace, api, store, opener, settings, clock, opened, run=run)


@dataclass
class Run:
    """One run of one collector process; a resumed run is another object with the same run id and owner.

    Attributes:
        only_windows: so many of the newest windows that it needs, where somebody chooses; 0 for all, and a negative
            number for all but so many, `legacy` and the oldest.
        windows: the windows that the run was opened for; all that it needs where nobody chose any.
        others: the repositories that `also_live` names.
        completed: steps that Dagster takes for done; it outlives processes as Dagster's own storage does.
        ended: is called when all is done, before Dagster knows.
        this: the step under way.
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
        """All steps but those that are done already."""
        for name in STEPS:
            if name not in done:
                self.make(name)

    def make(self, name: str) -> None:
        """One step with what Dagster does before and after it."""
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
        """As `lock.renewed`: the world may renew the lock meanwhile, and not while it is released."""
        self.this = this
        try:
            yield
        finally:
            self.this = None

    def _choose_windows(self) -> None:
        """What `partitions.open_run` does: chooses the windows, which later attempts keep."""
        if not self.windows:
            needed, _ = planning.windows_to_collect(self.open(), self.flow)
            self.windows = needed[-self.only_windows :] or needed[-1:]

    def _load(self, name: str) -> StoredFrame[Any]:
        """What the IO manager does before a step."""
        with self._between_steps(holds_lock=self._kept):
            repository = self.open()
            return StoredFrame.from_run(repository.store, repository.opener, self.run_id, FRAMES[name])

    def _check(self, candidates: StoredFrame[Any], inputs: Sequence[StoredFrame[Any]]) -> None:
        """The blocking checks of the candidates. A failed one ends the run."""
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
        """This process as its steps see it."""
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

"""What all steps of the simulated collector have in common: plan, lock, frames, and how a failure ends a run.

What `assets.step` does around the work of an asset, on plain rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lakefs_gc_assets.collection import (
    failing,
    planning,
)
from lakefs_gc_assets.collection import plan as plans
from lakefs_gc_assets.collection.live_files import LiveFiles
from lakefs_gc_assets.collection.lock import Lock
from lakefs_gc_assets.collection.order import Span
from lakefs_gc_assets.collection.plan import Flow, Plan
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, OrderViolation
from lakefs_gc_assets_tests.simulation.exactness import Exactness
from lakefs_gc_assets_tests.simulation.frames import Frame, Shelf
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.retention_exactness import RetentionExactness
from lakefs_gc_assets_tests.simulation.told import Told

STEPS = ("store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report")


class Killed(BaseException):
    """The process of a collector ends at once, without a chance to clean up."""


@dataclass
class Stepping:
    """One run of one collector process; a resumed run is another object with the same run id and owner.

    Attributes:
        shelf: frames stored so far, of all runs.
        flow: what is asked for.
        windows: the windows that the run was opened for; all that it needs where nobody chose any.
        exactness: compares optimized runs with clean ones.
        retention: compares runs by retention rules with what must stay, where there are such runs.
        told: what servers told the collector last.
        began_listing, marked, rechecked: tell the oracle.
        lock: held by the step under way.
        kept: whether an earlier step of this process kept the lock for those to come.
    """

    repository: OpenRepository
    run_id: str
    owner: str
    shelf: Shelf
    began_listing: Callable[[str], None]
    marked: Callable[[str, Sequence[str]], None]
    rechecked: Callable[[], None]
    exactness: Exactness
    flow: Flow = Flow.CLEAN
    windows: tuple[str, ...] = ()
    only_windows: int = 0
    retention: RetentionExactness | None = None
    told: Callable[[], Told] = Told
    lock: Lock | None = None
    kept: bool = False
    started_at: datetime = field(init=False)
    plan: Plan = field(init=False)

    def collect(self, done: Sequence[str] = ()) -> None:
        """All steps but those that are done already."""
        for name in STEPS:
            if name not in done:
                with self.step(name):
                    getattr(self, f"make_{name}")()

    def open(self) -> None:
        """What `partitions.open_run` does: chooses the windows, which later attempts keep."""
        if not self.windows:
            needed, _ = planning.windows_to_collect(self.repository, self.flow)
            self.windows = needed[-self.only_windows :]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What `assets.step.step` does around the work of an asset."""
        repository = self.repository
        plan: Plan | None = None
        lock: Lock | None = None
        try:
            self.reach()
            if name == STEPS[0]:
                self.open()
            else:
                plan = plans.read(repository.store, self.run_id)
                self.owner = plan.owner
            lock = Lock.acquire(
                repository.store,
                run_id=self.run_id,
                owner=self.owner,
                now=latest_clock(repository),
                expiry=timedelta(minutes=repository.settings.lock_expiry_minutes),
            )
            if plan is None:
                plan = planning.begin(
                    repository=repository,
                    run_id=self.run_id,
                    windows=self.windows,
                    owner=self.owner,
                    lock=lock,
                    flow=self.flow,
                )
            self.plan, self.lock = plan, lock
            self.started_at = repository.clock.now()
            yield
            self.lock = None
            self.kept = name != STEPS[-1]
            if not self.kept:
                lock.release()
        except Killed:
            raise
        except BaseException as error:
            self.lock = None
            if plan is not None:
                with suppress(CollectionError):
                    failing.store_report(repository.store, plan, repository.clock.now(), str(error))
            if lock is not None:
                with suppress(CollectionError):
                    lock.release()
            elif self.kept:
                self.end_between_steps(error)
            raise

    def reach(self) -> None:
        """Each step opens the repository anew."""

    def end_between_steps(self, error: BaseException) -> None:
        """The run ends with an error while no step has its lock."""
        with suppress(CollectionError):
            self.repository.api.repository()
            failing.end_between_steps(self.repository.store, self.run_id, self.repository.clock.now(), str(error))

    def stored(self, name: str) -> Frame:
        """A frame of this run. Raises OrderViolation where it was not made."""
        if (self.run_id, name) not in self.shelf:
            raise OrderViolation(f"{name} of run {self.run_id} does not exist: materialize it first")
        return self.shelf[self.run_id, name]

    def store(
        self,
        name: str,
        rows: Sequence[Row],
        inputs: tuple[Frame, ...] = (),
        figures: Mapping[str, object] | None = None,
        started_at: datetime | None = None,
    ) -> Frame:
        """Stores a frame of this run. Raises OrderViolation where an input is of another attempt."""
        self.shelf[self.run_id, name] = frame = self.made(name, rows, inputs, figures, started_at)
        return frame

    def made(
        self,
        name: str,
        rows: Sequence[Row],
        inputs: tuple[Frame, ...] = (),
        figures: Mapping[str, object] | None = None,
        started_at: datetime | None = None,
    ) -> Frame:
        """A frame that is yet to be stored."""
        for given in inputs:
            if given.span.attempt != self.plan.attempt:
                raise OrderViolation(f"{given.span.frame} is of another attempt")
        span = Span(name, self.run_id, self.plan.attempt, started_at or self.started_at, self.repository.clock.now())
        return Frame(span, tuple(rows), inputs, figures or {})

    def carried(self, run_id: str, name: str, digest: str) -> tuple[Row, ...]:
        """Rows of a frame that a run left to those that build on it."""
        return self.shelf[run_id, f"{name} {digest}"].rows

    def live_files(self) -> LiveFiles:
        return LiveFiles(
            store=self.repository.store, namespace=self.repository.namespace, window_size=self.plan.slice_window
        )


def latest_clock(repository: OpenRepository) -> datetime:
    """As `assets.step.latest_clock`: others' locks have expired by the clock that is ahead."""
    own = repository.clock.now()
    return max(own, own + (repository.api.server_clocks.latest or timedelta()))

"""One step of a run: the repository opened, its lock held, the frame stored, a failure reported.

A process makes some steps of a run one after the other and keeps the lock between them. Whatever ends a step before its
end also ends the run in the store: its report says why, and the lock is given back, without asking the server again.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Protocol

import pyarrow as pa

from lakefs_gc_assets.collector import failing, planning
from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import STEPS, F, Frame
from lakefs_gc_assets.collector.frame.manifest import FrameFile, Manifest
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.lock import Lock, LockToken
from lakefs_gc_assets.collector.order import Span
from lakefs_gc_assets.collector.plan import Flow, Plan
from lakefs_gc_assets.collector.references import References
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CollectionError, LockLost, OrderViolation, StorageError
from lakefs_gc_assets.lakefs import names
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore

Note = Callable[[str], None]


class Process(Protocol[R]):
    """What a step needs of the process that makes it."""

    def open(self) -> OpenRepository:
        """Asks the server for the repository and opens its store. Raises CollectionError."""
        ...

    def last_opened(self) -> ObjectStore | None:
        """The store that this process opened last, without asking anybody; None where it never did."""
        ...

    def engine(self, repository: OpenRepository) -> Engine[R]:
        """The engine that the step works with."""
        ...

    def now(self) -> datetime:
        """The present, UTC."""
        ...

    def log(self, line: str) -> None:
        """Tells what happens."""
        ...

    def warn(self, line: str) -> None:
        """Tells what a person should know."""
        ...

    def explain(self, error: BaseException) -> str:
        """What a report says of an error."""
        ...


@dataclass(frozen=True)
class Turn:
    """Which step of which run a process makes.

    Attributes:
        windows: the slice windows that it was asked for.
        owner: the first process of this collection; the plan of a later step knows better.
        begins: the flow that is asked for where this is the first step of an attempt; None for later steps.
        continues: whether this process made an earlier step of the run, which kept the lock for this one.
        goes_on: whether this process makes a later step of the run, for which the lock is kept.
    """

    run_id: str
    windows: tuple[str, ...]
    owner: str
    begins: Flow | None = None
    continues: bool = False
    goes_on: bool = False


@dataclass
class Step(Generic[R]):
    """One step of a run while its lock is held.

    Attributes:
        lock: None for work that only reads, like a step.
        started_at: when the step began, UTC.
    """

    log: Note
    warn: Note
    repository: OpenRepository
    engine: Engine[R]
    plan: Plan
    lock: Lock | None
    started_at: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.repository.clock.now()

    @property
    def lock_token(self) -> LockToken:
        """What batches prove by that the lock is held. Raises LockLost where this step has none: it deletes nothing."""
        if self.lock is None:
            raise LockLost(f"{self.plan.run_id} has no lock, and may delete nothing")
        return self.lock.token

    def tasks(self, setting: int) -> int:
        """A number of tasks: the setting, or the usual one."""
        return setting or self.engine.tasks

    def references(self, repository: OpenRepository | None = None) -> References[R]:
        """Reads references with the settings' number of tasks.

        Args:
            repository: whose files are read, this one's by default; addresses are always read relative to this one.
        """
        return References(
            self.engine,
            (repository or self.repository).opener,
            self.repository.namespace,
            self.plan.slice_window,
            self.tasks(self.repository.settings.range_partitions),
        )

    def stored(self, frame: Frame[F]) -> StoredFrame[F]:
        """A frame of this run. Raises OrderViolation where it was not made."""
        return self.stored_of(self.plan.run_id, frame)

    def stored_of(self, run_id: str, frame: Frame[F]) -> StoredFrame[F]:
        """A frame of any run. Raises OrderViolation where it was not made."""
        return StoredFrame.of(self.repository.store, self.repository.opener, run_id, frame)

    def require_attempt(self, *inputs: StoredFrame[Any]) -> None:
        """Raises OrderViolation where an input was made by another attempt than this one."""
        for each in inputs:
            if each.manifest.span.attempt != self.plan.attempt:
                raise OrderViolation(
                    f"{each.name} is of attempt {each.manifest.span.attempt}, the run is at attempt "
                    f"{self.plan.attempt}. Materialize {each.name} and what follows it again"
                )

    def write(self, frame: Frame[Any], rows: R) -> tuple[FrameFile, ...]:
        """Writes rows as files of a frame, which exists when `complete` is told the files.

        Rows outside of this run's windows go to the window `other`.
        """
        return self._write(frame, rows, self._place)

    def write_everywhere(self, frame: Frame[Any], rows: R) -> tuple[FrameFile, ...]:
        """Writes rows of a frame that outlives this run's windows: each goes to the window of its own address."""
        return self._write(frame, rows, partial(place_by_address, window_size=self.plan.slice_window))

    def write_distinct(self, frame: Frame[Any], rows: Sequence[R], count: int) -> tuple[FrameFile, ...]:
        """The same as `write` for rows of several tables, those of one address once.

        Args:
            count: how many rows there are, about.
        """
        written = self.engine.map_distinct(rows, self._writer(frame, self._place), files.WRITTEN, count)
        return _files(self.engine.collect(written))

    def complete(
        self,
        frame: Frame[F],
        figures: F,
        written: Sequence[FrameFile],
        inputs: Sequence[StoredFrame[Any]] = (),
        started_at: datetime | None = None,
    ) -> StoredFrame[F]:
        """Writes the manifest of a frame, with which the frame exists.

        Args:
            inputs: the frames that it was made from.
            started_at: when its making began; by default when the step did.
        Raises:
            OrderViolation: an input is of another attempt.
        """
        self.require_attempt(*inputs)
        made = self._of_files(frame, figures, written, inputs, started_at)
        manifests.write(self.repository.store, made.manifest)
        if frame.name in STEPS:
            seconds = (made.manifest.span.ended_at - made.manifest.span.started_at).total_seconds()
            self.log(f"{made.count:,} rows in {seconds:.1f} s")
        return made

    def _of_files(
        self,
        frame: Frame[F],
        figures: F,
        written: Sequence[FrameFile],
        inputs: Sequence[StoredFrame[Any]],
        started_at: datetime | None,
    ) -> StoredFrame[F]:
        span = Span(
            frame.name, self.plan.run_id, self.plan.attempt, started_at or self.started_at, self.repository.clock.now()
        )
        ordered = sorted(written, key=lambda file: (file.slice_window, file.key))
        digests = {each.name: each.manifest.digest for each in inputs}
        return StoredFrame(frame, Manifest(span, tuple(ordered), figures, digests), self.repository.opener)

    def unfinished(self, frame: Frame[F], figures: F, written: Sequence[FrameFile]) -> StoredFrame[F]:
        """The rows of files of a frame that does not exist yet."""
        return self._of_files(frame, figures, written, (), None)

    def _write(self, frame: Frame[Any], rows: R, place: files.Placed) -> tuple[FrameFile, ...]:
        written = self.engine.map_batches(rows, self._writer(frame, place), files.WRITTEN)
        return _files(self.engine.collect(written))

    def _writer(self, frame: Frame[Any], place: files.Placed) -> Callable[..., Iterator[pa.RecordBatch]]:
        folder = run_folder.frame(self.plan.run_id, frame.name)
        return files.write_task(self.repository.opener.open, folder, frame.schema, place)

    @property
    def _place(self) -> files.Placed:
        return partial(files.in_windows, windows=self.plan.windows)


def place_by_address(batch: pa.RecordBatch, window_size: WindowSize) -> pa.RecordBatch:
    """The same rows with the window that each address itself belongs to, also where a run did not collect it."""
    position = batch.schema.get_field_index("slice_window")
    windows = names.read(batch.column("address"), window_size).windows
    return batch.set_column(position, batch.schema.field(position), windows)


def _files(written: pa.Table) -> tuple[FrameFile, ...]:
    return tuple(FrameFile(**row) for row in written.to_pylist())


@contextmanager
def step(turn: Turn, process: Process[R]) -> Iterator[Step[R]]:
    """Makes one step of a run under the repository's lock.

    Raises whatever ends it; by then the failed run's report is stored and the lock released.
    """
    repository: OpenRepository | None = None
    plan: Plan | None = None
    lock: Lock | None = None
    try:
        repository = process.open()
        owner = turn.owner
        if turn.begins is None:
            plan = plans.read(repository.store, turn.run_id)
            owner = plan.owner
            require_windows(plan, turn.windows)
        lock = acquire(repository, turn.run_id, owner)
        if turn.begins is not None:
            plan = planning.begin(repository, turn.run_id, turn.windows, owner, lock, turn.begins)
        assert plan is not None
        with renewed(lock, repository, process.warn):
            yield Step(process.log, process.warn, repository, process.engine(repository), plan, lock)
        if not turn.goes_on:
            lock.release()
    except BaseException as error:
        # An interrupt as well ends the run: the next one need not wait until the lock expires.
        if repository is not None and plan is not None:
            with suppress(CollectionError):
                failing.store_report(repository.store, plan, repository.clock.now(), process.explain(error))
        if lock is not None:
            with suppress(CollectionError):
                lock.release()
        elif turn.continues:
            end_between_steps(turn.run_id, process, process.explain(error))
        raise


def end_between_steps(run_id: str, process: Process[R], why: str) -> None:
    """Ends a run whose lock the steps of this process hand on to each other: its report says why.

    The store that was opened last is used, so that a server which is gone does not leave the lock behind.
    """
    store = process.last_opened()
    if store is not None:
        with suppress(CollectionError):
            failing.end_between_steps(store, run_id, process.now(), why)


def acquire(repository: OpenRepository, work: str, owner: str) -> Lock:
    """The repository's lock, for as long as its settings say. Raises LockHeld.

    Args:
        work: a run's id, or what else the lock is held for.
    """
    return Lock.acquire(
        repository.store,
        run_id=work,
        owner=owner,
        now=latest_clock(repository),
        expiry=timedelta(minutes=repository.settings.lock_expiry_minutes),
    )


def latest_clock(repository: OpenRepository) -> datetime:
    """Our clock or the server's, whichever is ahead: somebody else's lock has expired by it at the earliest."""
    own = repository.clock.now()
    return max(own, own + (repository.api.server_clocks.latest or timedelta()))


def require_windows(plan: Plan, windows: tuple[str, ...]) -> None:
    """Raises OrderViolation where a later step is asked for other windows than the plan has."""
    if set(windows) != set(plan.windows):
        raise OrderViolation(
            f"run {plan.run_id} covers the windows {', '.join(plan.windows)}, the selection {', '.join(windows)}: "
            "select the same windows, or open a new run"
        )


@contextmanager
def locked(repository: OpenRepository, work: str, owner: str, warn: Note) -> Iterator[Lock]:
    """Holds the lock for work that is no collection, renewed in the background; no run can be under way meanwhile.

    Args:
        work: what the lock is held for; it stands where a run's id does.
        owner: who holds it; the same owner takes it over at once.
    Raises:
        LockHeld.
    """
    lock = acquire(repository, work, owner)
    try:
        with renewed(lock, repository, warn):
            yield lock
    finally:
        lock.release()


@contextmanager
def renewed(lock: Lock, repository: OpenRepository, warn: Note) -> Iterator[None]:
    """Renews the lock in the background for as long as a step works; a store that fails is asked again."""
    ended = threading.Event()
    pause = repository.settings.lock_expiry_minutes * 60 / 4

    def renew() -> None:
        while not ended.wait(pause):
            try:
                lock.renew(repository.clock.now())
            except LockLost as lost:
                warn(str(lost))
                return
            except StorageError as error:
                warn(f"the lock could not be renewed: {error}")

    thread = threading.Thread(target=renew, name="lock renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

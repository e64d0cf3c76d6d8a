"""One step of a run: opens the repository, holds its lock, stores frames, and reports a failure.

A process makes some steps of a run one after the other and keeps the lock between them. A step that fails or is
interrupted ends the run in the store as well: the report says why, and the lock is released. Neither needs the server.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypedDict

import pyarrow as pa

from lakefs_gc_assets.collector import failing, planning
from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import STEPS, F, Frame
from lakefs_gc_assets.collector.frame.manifest import FrameFile, Manifest
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.lock import Lock, LockToken
from lakefs_gc_assets.collector.order import Span
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import restoration
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.references import References
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CollectionError, LockLost, NotOffered, OrderViolation, StorageError
from lakefs_gc_assets.lakefs import names
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.saying import Say
from lakefs_gc_assets.storage.interface import ObjectStore

_NO_LOCK = (
    "dry runs need no lock; where no other run can be at work, collection.no_lock_reason says why, and a sweep goes "
    "without one"
)


class Process(Protocol[R]):
    """What a step needs of the process that makes it."""

    def open(self) -> OpenRepository:
        """Asks the server for the repository and opens its store. Raises CollectionError."""
        ...

    def last_opened(self) -> ObjectStore | None:
        """The store that this process opened last, without any request; None where it opened none."""
        ...

    def engine(self, repository: OpenRepository) -> Engine[R]:
        """The engine that the step works with."""
        ...

    def now(self) -> datetime:
        """The present, UTC."""
        ...

    def log(self, line: str) -> None:
        """Writes a line about the progress of the step to its log."""
        ...

    def warn(self, line: str) -> None:
        """Writes a warning, which a person should read, to the log of the step."""
        ...

    def explain(self, error: BaseException) -> str:
        """The text by which a report describes an error."""
        ...


@dataclass(frozen=True)
class Turn:
    """Which step of which run a process makes.

    Attributes:
        windows: the slice windows that the process was asked to collect.
        owner: id of the first Dagster run of this collection. Later steps take the owner from the plan instead.
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
        waited: for how many seconds it has waited so far because that protects; it is no work.
    """

    log: Say
    warn: Say
    repository: OpenRepository
    engine: Engine[R]
    plan: Plan
    lock: Lock | None
    started_at: datetime = field(init=False)
    waited: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.started_at = self.repository.clock.now()

    @property
    def lock_token(self) -> LockToken:
        """What batches prove by that the lock is held.

        Raises LockLost where this step has none, or NotOffered where it has one that anybody can take unnoticed and
        nobody said why that is enough: it deletes nothing.
        """
        if self.lock is None:
            raise LockLost(f"{self.plan.run_id} has no lock, and may delete nothing")
        if self.lock.why_unfenced is not None and not self.repository.settings.no_lock_reason:
            raise NotOffered(f"{self.plan.run_id} has no lock that holds, and may delete nothing: {_NO_LOCK}")
        return self.lock.token

    def tasks(self, setting: int) -> int:
        """How many tasks a setting asks for; 0 stands for the engine's own number."""
        return setting or self.engine.tasks

    def references(self, repository: OpenRepository | None = None) -> References[R]:
        """A reader of references, with as many tasks as `collection.range_partitions` says.

        Args:
            repository: the one whose files are read, by default this step's. The addresses that are read are relative
                to the storage namespace of this step's repository in either case.
        """
        return References(
            self.engine,
            (repository or self.repository).opener,
            self.repository.namespace,
            self.plan.slice_window,
            self.tasks(self.repository.settings.range_partitions),
        )

    def stored(self, frame: Frame[F]) -> StoredFrame[F]:
        """A frame of this run. Raises OrderViolation where it was not made, or CorruptFile."""
        return self.stored_of(self.plan.run_id, frame)

    def stored_of(self, run_id: str, frame: Frame[F]) -> StoredFrame[F]:
        """A frame of any run. Raises OrderViolation where it was not made, or CorruptFile."""
        return StoredFrame.of(self.repository.store, self.repository.opener, run_id, frame)

    def require_attempt(self, *inputs: StoredFrame[Any]) -> None:
        """Raises OrderViolation where an input was made by another attempt than this one."""
        for each in inputs:
            if each.manifest.span.attempt != self.plan.attempt:
                raise OrderViolation(
                    f"{each.name} is of attempt {each.manifest.span.attempt}, the run is at attempt "
                    f"{self.plan.attempt}. Materialize {each.name} and what follows it again"
                )

    def write(self, frame: Frame[Any], rows: R, add: files.Placed | None = None) -> tuple[FrameFile, ...]:
        """Writes rows as files of a frame. The frame exists once `complete` has stored a manifest of these files.

        Rows outside of this run's windows go to the window `other`.

        Args:
            add: adds to each batch the columns of the frame that the rows lack; it runs in a worker.
        """
        return self._write(frame, rows, partial(_add_and_place, add, self._place) if add else self._place)

    def write_everywhere(self, frame: Frame[Any], rows: R) -> tuple[FrameFile, ...]:
        """Writes rows as `write` does, but each to the window of its address, whichever windows this run collects."""
        return self._write(frame, rows, partial(place_by_address, window_size=self.plan.slice_window))

    def write_distinct(self, frame: Frame[Any], rows: Sequence[R], count: int) -> tuple[FrameFile, ...]:
        """Writes the rows of several tables as `write` does, one row for each address.

        Args:
            count: how many rows the tables have together, about.
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
            inputs: the frames that this one was made from.
            started_at: when the making of the frame began, UTC; by default when the step began.
        Raises:
            OrderViolation: an input is of another attempt.
        """
        self.require_attempt(*inputs)
        made = self._of_files(frame, figures, written, inputs, started_at)
        manifests.write(self.repository.store, made.manifest)
        if frame.name in STEPS:
            span = made.manifest.span
            seconds, waits = span.worked_seconds, span.waited_seconds
            rate = f", {made.count / seconds:,.0f} a second" if made.count and seconds >= 1 else ""
            waited = f", and {waits:.1f} s of waiting" if waits else ""
            self.log(f"{made.count:,} rows in {seconds:.1f} s{rate}{waited}")
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
            frame.name,
            self.plan.run_id,
            self.plan.attempt,
            started_at or self.started_at,
            self.repository.clock.now(),
            self.waited,
        )
        ordered = sorted(written, key=lambda file: (file.slice_window, file.key))
        digests = {each.name: each.manifest.digest for each in inputs}
        return StoredFrame(frame, Manifest(span, tuple(ordered), figures, digests), self.repository.opener)

    def unfinished(self, frame: Frame[F], figures: F, written: Sequence[FrameFile]) -> StoredFrame[F]:
        """A frame of these files that can be read, although no manifest of it is stored yet."""
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
    """Puts each row into the window that its address belongs to, also where the run does not collect that window."""
    position = batch.schema.get_field_index("slice_window")
    windows = names.read(batch.column("address"), window_size).windows
    return batch.set_column(position, batch.schema.field(position), windows)


def _add_and_place(add: files.Placed, place: files.Placed, batch: pa.RecordBatch) -> pa.RecordBatch:
    return place(add(batch))


def _files(written: pa.Table) -> tuple[FrameFile, ...]:
    return tuple(FrameFile(**row) for row in written.to_pylist())


@contextmanager
def step(turn: Turn, process: Process[R]) -> Iterator[Step[R]]:
    """Makes one step of a run under the repository's lock.

    Raises whatever ends the step. Before that it stores the report of the failed run, if there is a plan, and
    releases the lock, as far as the store can be reached.
    """
    repository: OpenRepository | None = None
    plan: Plan | None = None
    lock: Lock | None = None
    try:
        repository = process.open()
        owner = turn.owner
        if turn.begins is None:
            plan = plans.read(repository.store, turn.run_id)
            require_own_plan(plan, repository)
            owner = plan.owner
            require_windows(plan, turn.windows)
        asked = repository.settings
        deletes = asked.sweep if plan is None else plan.sweep or asked.approve_run == plan.run_id
        lock = acquire(repository, turn.run_id, owner, deletes=deletes)
        _warn_of(lock, process.warn)
        if turn.begins is not None:
            if replaced := restoration.replace_unreadable(repository.store, repository.clock.now()):
                process.warn(replaced)
            plan = planning.begin(repository, turn.run_id, turn.windows, owner, lock, turn.begins)
        assert plan is not None
        with renewed(lock, repository, process.warn):
            yield Step(process.log, process.warn, repository, process.engine(repository), plan, lock)
        if not turn.goes_on:
            lock.release()
    except BaseException as error:
        # An interrupt ends the run as well, so that the next run need not wait until the lock expires.
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
    """Ends a run that failed between two steps of this process: stores its report, and releases its lock.

    It uses the store that was opened last, so that the lock is released even where the server cannot be reached.
    """
    store = process.last_opened()
    if store is not None:
        with suppress(CollectionError):
            failing.end_between_steps(store, run_id, process.now(), why)


def acquire(repository: OpenRepository, work: str, owner: str, *, deletes: bool = True) -> Lock:
    """Takes the repository's lock, which expires after `collection.lock_expiry_minutes` unless renewed.

    Args:
        work: the run's id, or a name for other work that needs the lock.
        owner: who takes the lock; a lock of the same owner is taken over at once.
        deletes: whether that work deletes or moves objects. Where it does not, it needs no lock that holds.
    Raises:
        LockHeld: another owner holds the lock.
        NotOffered: the store does not honour conditional puts, and `collection.no_lock_reason` is empty.
        StorageError: the store cannot be reached.
    """
    asked: _Asked = {
        "run_id": work,
        "owner": owner,
        "now": latest_clock(repository),
        "expiry": timedelta(minutes=repository.settings.lock_expiry_minutes),
    }
    try:
        return Lock.acquire(repository.store, **asked)
    except NotOffered as error:
        reason = repository.settings.no_lock_reason or ("" if deletes else "a dry run deletes nothing")
        if not reason:
            raise NotOffered(f"{error}; {_NO_LOCK}") from None
        why = f"{reason} (the store has no conditional writes)"
        return Lock.acquire_unfenced(repository.store, **asked, why=why)


def _warn_of(lock: Lock, warn: Say) -> None:
    if lock.why_unfenced is not None:
        warn(f"no lock is held: {lock.why_unfenced}")


class _Asked(TypedDict):
    """What both ways of taking the lock are asked for."""

    run_id: str
    owner: str
    now: datetime
    expiry: timedelta


def latest_clock(repository: OpenRepository) -> datetime:
    """This machine's time or the server's, whichever is later, UTC: by it a lock expires and a mark ages soonest."""
    own = repository.clock.now()
    return max(own, own + (repository.api.server_clocks.latest or timedelta()))


def require_own_plan(plan: Plan, repository: OpenRepository) -> None:
    """Raises OrderViolation where a run was planned for another repository, or for another storage namespace.

    Repositories can share a storage namespace, and a namespace can be copied with all that runs left there. What the
    run found to be live is not what is live here.
    """
    if (plan.repository, plan.storage_namespace) != (repository.facts.id, repository.namespace.uri):
        raise OrderViolation(
            f"run {plan.run_id} is of repository {plan.repository} at {plan.storage_namespace}, not of "
            f"{repository.facts.id} at {repository.namespace.uri}: open a new run for this repository"
        )


def require_windows(plan: Plan, windows: tuple[str, ...]) -> None:
    """Raises OrderViolation where a later step is asked for other windows than the plan has."""
    if set(windows) != set(plan.windows):
        raise OrderViolation(
            f"run {plan.run_id} covers the windows {', '.join(plan.windows)}, the selection {', '.join(windows)}: "
            "select the same windows, or open a new run"
        )


@contextmanager
def locked(repository: OpenRepository, work: str, owner: str, warn: Say) -> Iterator[Lock]:
    """Holds the repository's lock for work that is no run, and renews it in the background.

    Args:
        work: a name for the work; the lock states it in place of a run's id.
        owner: who takes the lock; a lock of the same owner is taken over at once.
    Raises:
        LockHeld: another owner holds the lock.
        LockLost: at the exit, where another process has taken the lock over.
        NotOffered: the store does not honour conditional puts, and `collection.no_lock_reason` is empty.
        StorageError: the store cannot be reached.
    """
    lock = acquire(repository, work, owner)
    _warn_of(lock, warn)
    try:
        with renewed(lock, repository, warn):
            yield lock
    finally:
        lock.release()


@contextmanager
def renewed(lock: Lock, repository: OpenRepository, warn: Say) -> Iterator[None]:
    """Renews the lock in a thread until the exit, four times in the span after which it would expire.

    What fails is warned of: a renewal that the store failed at is tried again at the next time, a lock that was lost is
    not renewed any more. The check before each batch of deletes is what stops a sweep then.
    """
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

"""A step of a run: its repository, engine, plan, lock and frames."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Generic

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest, Span, StoredFrame
from lakefs_gc_assets.collector.frame.frames import EXPIRED_DF, STEPS, CommittedFigures, F, Frame, StoredFigures
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.repository.lock import NO_LOCK, Lock, LockToken
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import LockLost, LogLine, NotOffered, OrderViolation, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import WindowSize

_MANIFESTS_AT_ONCE = 8


@dataclass
class Step(Generic[R]):
    """One step of a run while its lock is held.

    Attributes:
        lock: the repository's lock; None for work outside of a run, which only reads.
        started_at: when the step began, UTC.
        waited: seconds spent so far on protective waits; they do not count as work.
    """

    log: LogLine
    warn: LogLine
    repository: OpenRepository
    engine: Engine[R]
    plan: Plan
    lock: Lock | None
    started_at: datetime = field(init=False)
    waited: float = field(default=0.0, init=False)
    _frames: dict[tuple[str, str], StoredFrame[Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.started_at = self.repository.clock.now()

    @property
    def lock_token(self) -> LockToken:
        """Proof for batches that the lock is held.

        Raises:
            LockLost: this step has no lock.
            NotOffered: another process could take the lock unnoticed, and the setting `no_lock_reason` is empty.
        """
        if self.lock is None:
            raise LockLost(f"run {self.plan.run_id} has no lock, so it may not delete")
        if self.lock.why_unfenced is not None and not self.repository.settings.no_lock_reason:
            raise NotOffered(f"run {self.plan.run_id} has no enforced lock, so it may not delete: {NO_LOCK}")
        return self.lock.token

    def tasks(self, setting: int) -> int:
        """Number of tasks by a setting; 0 means the engine's own number."""
        return setting or self.engine.tasks

    def stored(self, frame: Frame[F]) -> StoredFrame[F]:
        """A frame of this run. Raises OrderViolation if it does not exist, or CorruptFile."""
        return self.stored_of(self.plan.run_id, frame)

    def stored_of(self, run_id: str, frame: Frame[F]) -> StoredFrame[F]:
        """A frame of any run; the step reads each manifest once, since the lock keeps other runs from storing another.

        Raises OrderViolation if it does not exist, or CorruptFile.
        """
        stored = self._frames.get((run_id, frame.name))
        return self._read_frame(run_id, frame) if stored is None else stored

    def stored_now(self, *chosen: Frame[Any]) -> list[StoredFrame[Any]]:
        """Frames of this run, with their manifests read now, all at once. Raises OrderViolation or CorruptFile."""
        return [*work_ahead(partial(self._read_frame, self.plan.run_id), chosen, _MANIFESTS_AT_ONCE)]

    def _read_frame(self, run_id: str, frame: Frame[F]) -> StoredFrame[F]:
        stored = StoredFrame.from_run(self.repository.store, self.repository.opener, run_id, frame)
        self._frames[run_id, frame.name] = stored
        return stored

    def remember(self, *inputs: StoredFrame[Any]) -> None:
        """Uses these frames as this run's, in place of reading their manifests."""
        self._frames |= {(self.plan.run_id, stored.name): stored for stored in inputs}

    def require_attempt(self, *inputs: StoredFrame[Any]) -> None:
        """Raises OrderViolation if an input belongs to another attempt."""
        for stored in inputs:
            if stored.manifest.span.attempt != self.plan.attempt:
                raise OrderViolation(
                    f"{stored.name} is of attempt {stored.manifest.span.attempt}, but the run is at attempt "
                    f"{self.plan.attempt}. Materialize {stored.name} and the later assets again"
                )

    def write(self, frame: Frame[Any], rows: R, add: files.Placed | None = None) -> tuple[FrameFile, ...]:
        """Writes rows as files of a frame. The frame exists once `complete` has stored a manifest that names them.

        Rows outside of this run's windows go to the window `other`.

        Args:
            add: adds to each batch the columns of the frame that the rows lack; it runs in a worker.
        """
        place = self._place
        return self._write(frame, rows, (lambda batch: place(add(batch))) if add else place)

    def write_everywhere(self, frame: Frame[Any], rows: R) -> tuple[FrameFile, ...]:
        """Writes rows as `write` does, but keeps the addresses' own windows, even if this run does not collect them."""
        return self._write(frame, rows, partial(place_by_address, window_size=self.plan.slice_window))

    def write_distinct(self, frame: Frame[Any], rows: Sequence[R], count: int) -> tuple[FrameFile, ...]:
        """Writes the rows of several tables as `write` does, one row per address.

        Args:
            count: approximate number of rows in all tables.
        """
        written = self.engine.map_distinct(rows, self._writer(frame, self._place), files.WRITTEN, count)
        return self._written(frame, written)

    def complete(
        self,
        frame: Frame[F],
        figures: F,
        written: Sequence[FrameFile],
        inputs: Sequence[StoredFrame[Any]] = (),
        started_at: datetime | None = None,
    ) -> StoredFrame[F]:
        """Writes the manifest of a frame. From then on the frame exists.

        Args:
            inputs: the frames that this one was made from.
            started_at: when work on the frame began, UTC; by default when the step began.
        Raises:
            OrderViolation: an input is of another attempt.
        """
        self.require_attempt(*inputs)
        completed = self.unfinished(frame, figures, written, inputs, started_at)
        files.write_manifest(self.repository.store, completed.manifest)
        self._frames[self.plan.run_id, frame.name] = completed
        if frame.name in STEPS:
            span = completed.manifest.span
            seconds, waits = span.worked_seconds, span.waited_seconds
            rate = f", {completed.count / seconds:,.0f} a second" if completed.count and seconds >= 1 else ""
            waited = f", and {waits:.1f} s of waiting" if waits else ""
            self.log(f"{counted(completed.count, 'rows')} in {seconds:.1f} s{rate}{waited}, by {self.engine.ran_on}")
        return completed

    def unfinished(
        self,
        frame: Frame[F],
        figures: F,
        written: Sequence[FrameFile],
        inputs: Sequence[StoredFrame[Any]] = (),
        started_at: datetime | None = None,
    ) -> StoredFrame[F]:
        """A readable frame of files whose manifest is not stored yet. The arguments are those of `complete`."""
        plan, began = self.plan, started_at or self.started_at
        span = Span(frame.name, plan.run_id, plan.attempt, began, self.repository.clock.now(), self.waited)
        ordered = sorted(written, key=lambda file: (file.slice_window, file.key))
        digests = {stored.name: stored.manifest.digest for stored in inputs}
        return StoredFrame(frame, Manifest(span, tuple(ordered), figures, digests), self.repository.opener)

    def _write(self, frame: Frame[Any], rows: R, place: files.Placed) -> tuple[FrameFile, ...]:
        written = self.engine.map_batches(rows, self._writer(frame, place), files.WRITTEN)
        return self._written(frame, written)

    def _written(self, frame: Frame[Any], written: R) -> tuple[FrameFile, ...]:
        with self.engine.name_work(f"write {frame.name}"):
            return files.frame_files(self.engine.collect(written))

    def _writer(self, frame: Frame[Any], place: files.Placed) -> Callable[..., Iterator[pa.RecordBatch]]:
        folder = run_folder.frame(self.plan.run_id, frame.name)
        return files.write_task(self.repository.opener.open, folder, frame.schema, place)

    @property
    def _place(self) -> files.Placed:
        return partial(files.in_windows, windows=self.plan.windows)


@dataclass(frozen=True)
class Universe(Generic[R]):
    """The objects that a run decides about. No object is in two frames."""

    engine: Engine[R]
    frames: tuple[StoredFrame[Any], ...]

    def rows(self, *columns: str) -> R:
        """The objects (LISTED), or some of their columns."""
        first, *more = (frame.rows(self.engine, *columns) for frame in self.frames)
        return self.engine.union(first, *more)

    @property
    def count(self) -> int:
        """Number of objects."""
        return sum(frame.count for frame in self.frames)

    @property
    def files(self) -> tuple[FrameFile, ...]:
        """The files that store the objects."""
        return tuple(file for frame in self.frames for file in frame.manifest.files)


def require_own_plan(plan: Plan, repository: OpenRepository) -> None:
    """Raises OrderViolation if a run was planned for another repository or another storage namespace.

    Repositories can share a storage namespace, and a namespace can be copied with its runs. Objects that are live there
    may not be live here, and the reverse.
    """
    if (plan.repository, plan.storage_namespace) != (repository.facts.id, repository.namespace.uri):
        raise OrderViolation(
            f"run {plan.run_id} is of repository {plan.repository} at {plan.storage_namespace}, not of "
            f"{repository.facts.id} at {repository.namespace.uri}: open a new run for this repository"
        )


def universe_of(
    step: Step[R], listed: StoredFrame[StoredFigures], committed: StoredFrame[CommittedFigures]
) -> Universe[R]:
    """The universe of this run.

    Raises OrderViolation if a frame was stored again after `committed_df`, which may then miss addresses of new rows.
    """
    frames: tuple[StoredFrame[Any], ...] = (listed,)
    if step.plan.follows_expiry:
        frames = (listed, step.stored(EXPIRED_DF))
    elif step.plan.flow is not Flow.COMMITTED or committed.figures.tracked_sha256 is None:
        return Universe(step.engine, frames)
    for frame in frames:
        if committed.manifest.inputs.get(frame.name) != frame.manifest.digest:
            raise OrderViolation(
                f"{frame.name} was materialized again after {committed.name}, which refers to it. Materialize "
                f"{committed.name} again"
            )
    return Universe(step.engine, frames)


def place_by_address(batch: pa.RecordBatch, window_size: WindowSize) -> pa.RecordBatch:
    """Sets each row's window to that of its address, even if the run does not collect that window."""
    position = batch.schema.get_field_index("slice_window")
    windows = layout.read_names(batch.column("address"), window_size).windows
    return batch.set_column(position, batch.schema.field(position), windows)

"""What every asset does around its own work: open the repository, hold the lock, store the frame, report a failure."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.assets.graph import ORDER
from lakefs_gc_assets.collection import failing
from lakefs_gc_assets.collection import plan as plans
from lakefs_gc_assets.collection.lock import Lock
from lakefs_gc_assets.collection.order import Span
from lakefs_gc_assets.collection.plan import Plan
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, LockLost, OrderViolation, StorageError
from lakefs_gc_assets.failures import explained, summary
from lakefs_gc_assets.frames import manifest as manifests
from lakefs_gc_assets.frames import spark as frames
from lakefs_gc_assets.frames.files import in_windows
from lakefs_gc_assets.frames.manifest import FrameFile, Manifest
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.partitions import chosen, selected
from lakefs_gc_assets.resources import Collector
from lakefs_gc_assets.sources import carrying
from lakefs_gc_assets.sources.references import References
from lakefs_gc_assets.sources.tasks import Rows


@dataclass
class Step:
    """One step of a collection while its lock is held."""

    log: Callable[[str], None]
    repository: OpenRepository
    spark: SparkSession
    plan: Plan
    lock: Lock
    tasks: int
    note_cells: Callable[[Manifest], None]
    started_at: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.repository.clock.now()

    def partitions(self, setting: int) -> int:
        """A number of Spark partitions: the setting, or the usual one."""
        return setting or self.tasks

    def references(self, repository: OpenRepository | None = None) -> References:
        """Reads references with the settings' number of tasks.

        Args:
            repository: whose files are read, this one's by default; addresses are always read relative to this one.
        """
        return References(
            self.spark,
            (repository or self.repository).opener,
            self.repository.namespace,
            self.plan.slice_window,
            self.partitions(self.repository.settings.range_partitions),
        )

    def stored(self, frame: str) -> StoredFrame:
        """A frame of this run as stored."""
        return self.stored_of(self.plan.run_id, frame)

    def stored_of(self, run_id: str, frame: str) -> StoredFrame:
        """A frame of any run as stored. Raises OrderViolation where it was not made."""
        manifest = manifests.read(self.repository.store, run_id, frame)
        return StoredFrame(manifest, self.repository.opener, self.partitions(0))

    def store_everywhere(self, frame: str, rows: Rows) -> StoredFrame:
        """Stores a frame that outlives this run's windows: each row in the window that its address belongs to."""
        began = self.repository.clock.now()
        placed = partial(carrying.in_windows, window_size=self.plan.slice_window)
        files = frames.store(rows, self.repository.opener, self.plan.run_id, frame, placed)
        return self._finish(self._of_files(frame, files, began))

    def store(
        self,
        frame: str,
        dataframe: DataFrame | None,
        inputs: tuple[StoredFrame, ...] = (),
        figures: Mapping[str, Any] | None = None,
        started_at: datetime | None = None,
        further: Callable[[], Sequence[FrameFile]] = tuple,
    ) -> StoredFrame:
        """Stores a frame of this run; rows outside of its windows go to the window `other`.

        Args:
            dataframe: the rows; None for a frame without any.
            further: stores further rows itself, and tells the files.

        Raises OrderViolation where an input is of another attempt.
        """
        for given in inputs:
            if given.manifest.span.attempt != self.plan.attempt:
                raise OrderViolation(
                    f"{given.name} is of attempt {given.manifest.span.attempt}, the run is at attempt "
                    f"{self.plan.attempt}. Materialize {given.name} and what follows it again"
                )
        began = time.monotonic()
        files = [*further()]
        if dataframe is not None:
            files += self.store_part(frame, dataframe).manifest.files
        digests = {given.name: given.manifest.digest for given in inputs}
        stored = self._finish(self._of_files(frame, files, started_at or self.started_at, digests, figures))
        if frame in ORDER:
            self.note_cells(stored.manifest)
        rows, seconds = stored.manifest.rows, time.monotonic() - began
        self.log(f"{frame}: {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 1e-3):,.0f}/s)")
        return stored

    def store_part(self, frame: str, dataframe: DataFrame) -> StoredFrame:
        """Stores rows of a frame, which does not exist before `store` is told the files."""
        began = self.repository.clock.now()
        files = frames.store(dataframe, self.repository.opener, self.plan.run_id, frame, self._placed)
        return self._of_files(frame, files, began)

    def store_distinct(self, frame: str, rows: Sequence[Rows], count: int) -> Sequence[FrameFile]:
        """Stores rows of a frame, those of one address once; the frame does not exist before `store` is told the files.

        Args:
            count: how many rows there are, about.
        """
        return frames.store_distinct(rows, count, self.repository.opener, self.plan.run_id, frame, self._placed)

    @property
    def _placed(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Puts rows outside of this run's windows into the window `other`."""
        return partial(in_windows, windows=self.plan.windows)

    def _of_files(
        self,
        frame: str,
        files: Sequence[FrameFile],
        started_at: datetime,
        inputs: Mapping[str, str] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> StoredFrame:
        span = Span(frame, self.plan.run_id, self.plan.attempt, started_at, self.repository.clock.now())
        ordered = sorted(files, key=lambda file: (file.slice_window, file.key))
        manifest = Manifest(span, tuple(ordered), inputs or {}, figures or {})
        return StoredFrame(manifest, self.repository.opener, self.partitions(0))

    def _finish(self, stored: StoredFrame) -> StoredFrame:
        """Writes the manifest, with which the frame exists."""
        manifests.write(self.repository.store, stored.manifest)
        return stored


@contextmanager
def step(
    context: dg.AssetExecutionContext,
    collector: Collector,
    begin: Callable[[OpenRepository, str, tuple[str, ...], str, Lock], Plan] | None = None,
) -> Iterator[Step]:
    """Runs the body of an asset under the repository's lock.

    Args:
        begin: makes and stores the plan of a new attempt, for the first step; later ones read it.
    Raises:
        dagster.Failure: with the one line that says what happened; the failed run's report is stored before.
    """
    run_id = ""
    repository: OpenRepository | None = None
    plan: Plan | None = None
    lock: Lock | None = None
    try:
        run_id, windows = selected(context.partition_keys)
        repository = collector.open()
        owner = context.run.root_run_id or context.run.run_id
        if begin is None:
            plan = plans.read(repository.store, run_id)
            owner = plan.owner
            require_windows(plan, windows)
        lock = acquired(repository, run_id, owner)
        if begin is not None:
            plan = begin(repository, run_id, windows, owner, lock)
        assert plan is not None
        with renewed(lock, repository, context.log.warning):
            spark = collector.spark.session()
            if repository.settings.address_partitions:
                spark.conf.set("spark.sql.shuffle.partitions", repository.settings.address_partitions)
            note_cells = partial(_note_cells, context)
            yield Step(context.log.info, repository, spark, plan, lock, collector.tasks(), note_cells)
        if not steps_to_come(context):
            lock.release()
    except BaseException as error:
        # An interrupt as well ends the run: the next one need not wait until the lock expires.
        if repository is not None and plan is not None:
            with suppress(CollectionError):
                failing.store_report(repository.store, plan, repository.clock.now(), summary(error))
        if lock is not None:
            with suppress(CollectionError):
                lock.release()
        elif run_id and lock_was_kept(context):
            with suppress(CollectionError):
                failing.end_between_steps(collector.open().store, run_id, collector.clock.now(), summary(error))
        failure = explained(error)
        if failure is None:
            raise
        raise failure from error


def _note_cells(context: dg.AssetExecutionContext, manifest: Manifest) -> None:
    """Tells the UI how many rows each cell has; everything else that it shows is about the whole frame."""
    rows = manifest.rows_by_window()
    for cell in context.partition_keys:
        assert isinstance(cell, dg.MultiPartitionKey)
        count = rows.get(cell.keys_by_dimension["slice"], 0)
        context.add_asset_metadata({"dagster/partition_row_count": count}, context.asset_key, cell)


def steps_to_come(context: dg.AssetExecutionContext) -> bool:
    """Whether this Dagster run makes a later asset of the graph: then the lock is kept for it."""
    later = ORDER[ORDER.index(context.asset_key.path[-1]) + 1 :]
    return any(chosen(context.run, later))


def lock_was_kept(context: dg.AssetExecutionContext) -> bool:
    """Whether this Dagster run made an earlier asset of the graph, which kept the lock for this one."""
    earlier = ORDER[: ORDER.index(context.asset_key.path[-1])]
    return any(chosen(context.run, earlier))


def acquired(repository: OpenRepository, run_id: str, owner: str) -> Lock:
    """The repository's lock, for as long as its settings say. Raises LockHeld."""
    return Lock.acquire(
        repository.store,
        run_id=run_id,
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
def renewed(lock: Lock, repository: OpenRepository, warn: Callable[[str], None]) -> Iterator[None]:
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

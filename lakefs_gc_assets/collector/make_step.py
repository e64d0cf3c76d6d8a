"""Runs one step: opens the repository, holds its lock, reads or makes the plan, and reports a failure.

A process runs consecutive steps of a run and keeps the lock between them. If a step fails or is interrupted, the run
also ends in the store: the report gives the reason, and the lock is released. Neither needs the server.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.records import across_runs, report
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.reporting import report_failure
from lakefs_gc_assets.collector.repository.lock import (
    Lock,
    acquire_again,
    is_held_by,
    release_owned,
    renewed,
    warn_if_unfenced,
)
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step, require_own_plan
from lakefs_gc_assets.errors import CollectionError, LockLost, LogLine, OrderViolation, RunEnded
from lakefs_gc_assets.storage.interface import ObjectStore


def store_report(store: ObjectStore, plan: Plan, now: datetime, error: str) -> None:
    """Stores the report of a failed run, unless the run already ended well.

    A dry run with receipts was approved later. If that sweep fails, the dry run's report no longer holds.
    """
    earlier = report.read(store, plan.run_id)
    swept = plan.sweep or bool(receipts.keys(store, plan.run_id))
    if earlier is None or not earlier.is_complete or (earlier.dry_run and swept):
        report.write(store, replace(report_failure(store, plan, now, error), dry_run=not swept))


def end_in_store(store: ObjectStore, run_id: str, now: datetime, error: str) -> None:
    """Stores the report and releases the lock that the run's steps share.

    Raises CollectionError if the run has no plan or the store cannot be reached.
    """
    plan = plans.read(store, run_id)
    store_report(store, plan, now, error)
    release_owned(store, plan.owner)


def end_if_locked(run_id: str, last_opened: ObjectStore | None, owner: str, now: datetime, why: str) -> None:
    """Ends a run that still holds its lock, because no step could end it: for example, Dagster's code was interrupted.

    Args:
        last_opened: as for `end_between_steps`.
        owner: owner of the lock for this run.
    """
    with suppress(CollectionError):
        if last_opened is not None and is_held_by(last_opened, owner):
            try:
                store_report(last_opened, plans.read(last_opened, run_id), now, why)
            finally:
                # The lock is taken before the plan is written, so there may be no plan yet.
                release_owned(last_opened, owner)


@dataclass(frozen=True)
class StepHost(Generic[R]):
    """The process in which a step runs.

    Attributes:
        open: asks the server for the repository and opens its store. Raises CollectionError.
        last_opened: the store that this process opened last, returned without any request; None if it opened none.
        engine: the engine that the step works with.
        now: the present, UTC.
        log: logs a line about the progress of the step.
        warn: logs a warning that a person should read.
        explain: the text that describes an error in a report.
        locks: the lock that the last step of this process kept, by run; `step` changes it.
    """

    open: Callable[[], OpenRepository]
    last_opened: Callable[[], ObjectStore | None]
    engine: Callable[[OpenRepository], Engine[R]]
    now: Callable[[], datetime]
    log: LogLine
    warn: LogLine
    explain: Callable[[BaseException], str]
    locks: dict[str, Lock] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRequest:
    """A request to run one step of a run.

    Attributes:
        windows: the slice windows to collect.
        owner: id of the first Dagster run of this collection. Later steps take the owner from the plan instead.
        begins: the requested flow if this is the first step of an attempt; None for later steps.
        has_earlier_step: True if this process ran an earlier step of the run, which kept the lock for this one.
        has_later_step: True if this process runs a later step of the run, for which the lock is kept.
        from_start: True if this process also runs the first step. A run that ended well is then refused. Without its
            first step, it is run again from its stored frames.
        name: the name under which the run is opened, if any.
        frame: name of the frame that the step makes; the engine shows it.
    """

    run_id: str
    windows: tuple[str, ...]
    owner: str
    begins: Flow | None = None
    has_earlier_step: bool = False
    has_later_step: bool = False
    from_start: bool = False
    name: str | None = None
    frame: str = ""


@contextmanager
def step(request: StepRequest, host: StepHost[R]) -> Iterator[Step[R]]:
    """Runs one step under the repository's lock.

    Reraises the error that ends the step. Before that, it stores the report of the failed run if there is a plan, and
    releases the lock. Both are skipped if the store cannot be reached. RunEnded is raised before the lock is taken.
    """
    repository: OpenRepository | None = None
    plan: Plan | None = None
    lock: Lock | None = None
    try:
        repository = host.open()
        if request.from_start or request.begins is not None:
            report.require_not_ended(repository.store, request.run_id, request.windows)
        owner = request.owner
        if request.begins is None:
            plan = plans.read(repository.store, request.run_id)
            require_own_plan(plan, repository)
            owner = plan.owner
            require_windows(plan, request.windows)
        settings = repository.settings
        deletes = settings.sweep if plan is None else plan.sweep or settings.approve_run == plan.run_id
        # A run begins with the store's time of writing its lock, so its first step writes a new one.
        kept = host.locks.pop(request.run_id, None) if request.begins is None else None
        lock = acquire_again(kept, repository, request.run_id, owner, deletes=deletes)
        warn_if_unfenced(lock, host.warn)
        if request.begins is not None:
            if replaced := across_runs.replace_unreadable_restoration(repository.store, repository.clock.now()):
                host.warn(replaced)
            plan = planning.begin(repository, request.run_id, request.windows, lock, request.begins, request.name)
        assert plan is not None
        engine, run = host.engine(repository), f"{plan.repository} {plan.run_id}"
        with renewed(lock, repository, host.warn), engine.name_work(request.frame or "step", run):
            yield Step(host.log, host.warn, repository, engine, plan, lock)
        if request.has_later_step:
            host.locks[request.run_id] = lock
        else:
            lock.release()
    except BaseException as error:
        # An interrupt also ends the run. Otherwise the next run would wait until the lock expires.
        if repository is not None and plan is not None:
            with suppress(CollectionError):
                store_report(repository.store, plan, repository.clock.now(), host.explain(error))
        if lock is not None:
            _release_or_warn(lock, request.run_id, host.warn)
        elif request.has_earlier_step and not isinstance(error, RunEnded):
            end_between_steps(request.run_id, host.last_opened(), host.now(), host.explain(error))
        raise


def _release_or_warn(lock: Lock, run_id: str, warn: LogLine) -> None:
    """Releases the lock of a failed run. If that fails too, warns until when the lock keeps other runs out."""
    try:
        lock.release()
    except LockLost:
        # Another collection holds the lock.
        return
    except CollectionError as refusal:
        warn(
            f"the lock of run {run_id} was not released, and blocks other runs until {lock.held_until}: "
            f"{refusal}. Correct that, then `lakefs-gc unlock {run_id}` releases it"
        )


def end_between_steps(run_id: str, last_opened: ObjectStore | None, now: datetime, why: str) -> None:
    """Ends a run that failed between two steps of this process: stores its report and releases its lock.

    Args:
        last_opened: the store that this process opened last, so that the lock is released even if the server cannot be
            reached; None if it opened none.
    """
    if last_opened is not None:
        with suppress(CollectionError):
            end_in_store(last_opened, run_id, now, why)


def require_windows(plan: Plan, windows: tuple[str, ...]) -> None:
    """Raises OrderViolation if a later step requests other windows than the plan has."""
    if set(windows) != set(plan.windows):
        raise OrderViolation(
            f"run {plan.run_id} covers the windows {', '.join(plan.windows)}, but the selection is "
            f"{', '.join(windows)}: select the same windows, or open a new run"
        )

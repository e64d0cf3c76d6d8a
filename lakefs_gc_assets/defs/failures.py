"""Failures as Dagster shows them: one line that says what happened."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dagster as dg
from dagster._core.execution.plan.objects import UserFailureData

from lakefs_gc_assets import errors
from lakefs_gc_assets.collector import make_step
from lakefs_gc_assets.defs import pages
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.spark.tasks import from_worker

_log = logging.getLogger(__name__)

KIND = "error"
"""In a failure's metadata, the class of our own error."""


def explained(error: BaseException) -> dg.Failure | None:
    """The failure with our own message and class, wherever it was raised; None for what nobody foresaw."""
    ours = error if isinstance(error, CollectionError) else from_worker(error)
    if ours is None:
        return None
    name = type(ours).__name__
    return dg.Failure(description=f"{name}: {ours}", metadata={KIND: name}, allow_retries=False)


def kind_of(failure: UserFailureData) -> type[CollectionError]:
    """The class of the error that a failure stands for; CollectionError where it is not told."""
    told = failure.metadata.get(KIND)
    kind = getattr(errors, str(told.value), CollectionError) if told else CollectionError
    return kind if isinstance(kind, type) and issubclass(kind, CollectionError) else CollectionError


def summary(error: BaseException) -> str:
    """What a report says of an error."""
    if was_interrupted(error):
        return "interrupted"
    failure = explained(error)
    return (failure.description if failure else str(error).strip()) or type(error).__name__


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an error is an interrupt, or is what went wrong while something that was interrupted gave up."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt | dg.DagsterExecutionInterruptedError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def between_steps(collector: Collector, run_id: str, holds_lock: bool = True) -> Iterator[None]:
    """Work on a run outside of its steps, such as checks: what fails ends the run in the store as well.

    Args:
        holds_lock: whether an earlier step of the same Dagster run handed the lock on; otherwise nothing is ended.
    Raises:
        dagster.Failure: with our own message.
    """
    try:
        yield
    except BaseException as error:
        if holds_lock:
            end_run(collector, run_id, summary(error), leaves_page=not was_interrupted(error))
        failure = explained(error)
        if failure is None:
            raise
        raise failure from error


def end_run(collector: Collector, run_id: str, why: str, leaves_page: bool = True) -> None:
    """Ends a run between its steps: its report says why, and its lock is given back. Asks no server.

    Args:
        leaves_page: whether there is time to make its page.
    """
    store = collector.last_opened()
    if store is not None:
        with suppress(CollectionError):
            make_step.end_in_store(store, run_id, collector.clock.now(), why)
        if leaves_page:
            pages.keep_failed(collector, run_id, _log.warning)


@contextmanager
def readable() -> Iterator[None]:
    """Work of a job that is no collection. Raises dagster.Failure with our own message, where it is ours."""
    try:
        yield
    except CollectionError as error:
        failure = explained(error)
        assert failure is not None
        raise failure from error

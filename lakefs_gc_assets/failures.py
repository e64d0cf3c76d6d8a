"""Failures as Dagster shows them: one line that says what happened."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dagster as dg

from lakefs_gc_assets.collection import failing
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.resources import Collector
from lakefs_gc_assets.sources.failures import from_worker


def explained(error: BaseException) -> dg.Failure | None:
    """The failure with our own message, wherever it was raised; None for what nobody foresaw."""
    ours = error if isinstance(error, CollectionError) else from_worker(error)
    if ours is None:
        return None
    return dg.Failure(description=f"{type(ours).__name__}: {ours}", allow_retries=False)


def summary(error: BaseException) -> str:
    """What a report says of an error."""
    failure = explained(error)
    return (failure.description if failure else str(error).strip()) or type(error).__name__


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
            end_run(collector, run_id, summary(error))
        failure = explained(error)
        if failure is None:
            raise
        raise failure from error


def end_run(collector: Collector, run_id: str, why: str) -> None:
    """Ends a run between its steps: its report says why, and its lock is given back. Asks no server."""
    store = collector.last_opened()
    if store is not None:
        with suppress(CollectionError):
            failing.end_between_steps(store, run_id, collector.clock.now(), why)


@contextmanager
def readable() -> Iterator[None]:
    """Work of a job that is no collection. Raises dagster.Failure with our own message, where it is ours."""
    try:
        yield
    except CollectionError as error:
        failure = explained(error)
        assert failure is not None
        raise failure from error

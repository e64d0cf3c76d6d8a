"""Failures in Dagster: one-line messages, and the end of a run outside of its steps."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dagster as dg

from lakefs_gc_assets import errors
from lakefs_gc_assets.collector import make_step
from lakefs_gc_assets.collector.records.report import INTERRUPTED
from lakefs_gc_assets.defs import pages
from lakefs_gc_assets.defs.history import Historian
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError, error_chain, exhausted
from lakefs_gc_assets.spark.faults import from_spark

_log = logging.getLogger(__name__)

KIND = "error"
"""Metadata name of a failure for the class of our own error."""


def explained(error: BaseException) -> dg.Failure | None:
    """The failure with our own message: of this program, Spark, a full disk or a lack of memory; None if unexpected."""
    ours = error if isinstance(error, CollectionError) else from_spark(error) or exhausted(error)
    return _failure(ours) if ours else None


def _failure(ours: CollectionError) -> dg.Failure:
    return dg.Failure(description=str(ours), metadata={KIND: type(ours).__name__}, allow_retries=False)


def kind_of(metadata: Mapping[str, dg.MetadataValue]) -> type[CollectionError]:
    """The error class of a failure, from its metadata; CollectionError if the metadata names none."""
    noted_kind = metadata.get(KIND)
    kind = getattr(errors, str(noted_kind.value), CollectionError) if noted_kind else CollectionError
    return kind if isinstance(kind, type) and issubclass(kind, CollectionError) else CollectionError


def summary(error: BaseException) -> str:
    """The text of an error for a report."""
    if was_interrupted(error):
        return INTERRUPTED
    failure = explained(error)
    return (failure.description if failure else str(error).strip()) or type(error).__name__


def was_interrupted(error: BaseException | None) -> bool:
    """True if an error is an interrupt, or happened while interrupted work was ending."""
    interrupts = KeyboardInterrupt | dg.DagsterExecutionInterruptedError
    return any(isinstance(each, interrupts) for each in error_chain(error))


@contextmanager
def readable() -> Iterator[None]:
    """Context that raises our own errors as dagster.Failure; others propagate unchanged."""
    try:
        yield
    except CollectionError as error:
        raise _failure(error) from error


@contextmanager
def between_steps(
    collector: Collector, run_id: str, holds_lock: bool = True, historian: Historian | None = None
) -> Iterator[None]:
    """Runs work on a run outside of its steps, such as checks: a failure ends the run in the store as well.

    Args:
        holds_lock: True if an earlier step of the same Dagster run kept the lock; otherwise nothing is ended.
        historian: as for `end_run`.
    Raises:
        dagster.Failure: with our own message.
    """
    try:
        yield
    except BaseException as error:
        if holds_lock:
            end_run(collector, run_id, summary(error), historian, leaves_page=not was_interrupted(error))
        if (failure := explained(error)) is None:
            raise
        raise failure from error


def end_run(
    collector: Collector, run_id: str, why: str, historian: Historian | None = None, leaves_page: bool = True
) -> None:
    """Ends a run between its steps: writes the reason to its report and releases its lock. Asks no server.

    Args:
        historian: records the end in Dagster; None to leave that to the sensor note_failures.
        leaves_page: True if there is time to make its page.
    """
    store, now = collector.last_opened(), collector.clock.now()
    make_step.end_between_steps(run_id, store, now, why)
    if leaves_page:
        pages.keep_failed(collector, run_id, _log.warning)
    if historian is not None:
        historian.failed(store, run_id, now, why)

"""How a command ends that could not do what it was asked for: one line on standard error, and an exit status."""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

from lakefs_gc_assets.errors import (
    CollectionError,
    ConfigurationError,
    GuardTripped,
    Interrupted,
    LockHeld,
    LockLost,
    RunFailed,
)


class Status(IntEnum):
    """Exit statuses of the command line."""

    WELL = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    REFUSED = 4
    LOCKED = 5
    INCOMPLETE = 6
    LOST = 7
    INTERRUPTED = 130


MEANINGS = {
    Status.WELL: "all was done that was asked for",
    Status.FAILED: "it failed for a reason that no other status stands for",
    Status.USAGE: "the command line was not understood",
    Status.CONFIGURATION: "a setting is missing or wrong",
    Status.REFUSED: "a guard refused: nothing more was deleted",
    Status.LOCKED: "somebody else holds the repository's lock",
    Status.INCOMPLETE: "it came to its end, but not for every object: the lines say for which not",
    Status.LOST: "a run ended well and found that objects are lost: earlier runs deleted what is referenced now",
    Status.INTERRUPTED: "it was interrupted",
}
"""What each status says to the one who calls the command."""

_STATUSES: dict[type[CollectionError], Status] = {
    ConfigurationError: Status.CONFIGURATION,
    GuardTripped: Status.REFUSED,
    LockHeld: Status.LOCKED,
    LockLost: Status.LOCKED,
    Interrupted: Status.INTERRUPTED,
}


def status_of(error: CollectionError) -> Status:
    """The exit status that stands for an error, also for one that ended a run."""
    kind = error.kind if isinstance(error, RunFailed) else type(error)
    return next((status for known, status in _STATUSES.items() if issubclass(kind, known)), Status.FAILED)


@contextmanager
def one_line_errors(as_json: bool = False) -> Iterator[None]:
    """Turns what went wrong into one line on standard error and an exit status; SIGTERM interrupts as Ctrl-C does.

    Args:
        as_json: whether a line with the error and the exit status is answered in JSON as well.
    """
    if "DAGSTER_HOME" not in os.environ:
        logging.getLogger("dagster").setLevel(logging.ERROR)
    try:
        with _terminated_as_interrupted():
            yield
    except CollectionError as error:
        _end(str(error), status_of(error), as_json)
    except KeyboardInterrupt:
        _end("interrupted", Status.INTERRUPTED, as_json)
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        if as_json:
            _answer_error(error.format_message(), error.exit_code)
        raise
    except Exception as error:
        # Click ends the process with status 1 for an abort at a question, Python for any other error.
        if as_json:
            _answer_error(str(error) or type(error).__name__, Status.FAILED)
        raise


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Lets SIGTERM raise KeyboardInterrupt, so that what is held is released."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _answer_error(line: str, status: int) -> None:
    click.echo(json.dumps({"error": line, "status": int(status)}, ensure_ascii=False))


def _end(line: str, status: Status, as_json: bool) -> None:
    if as_json:
        _answer_error(line, status)
    click.echo(f"lakefs-gc: {line}", err=True)
    sys.exit(status)

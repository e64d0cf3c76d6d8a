"""The command group: imports a command when it is called, and turns its errors into one line and an exit status."""

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem

from lakefs_gc_assets.deferred import imported
from lakefs_gc_assets.errors import (
    CollectionError,
    ConfigurationError,
    GuardTripped,
    Interrupted,
    LockHeld,
    LockLost,
    RunFailed,
    exhausted,
    printable,
)
from lakefs_gc_assets.spark.start import process

SECONDS_TO_LEAVE = 8.0
"""Maximum time for a command to end after SIGTERM."""
SECONDS_TO_RELEASE = 1.0
"""Maximum time to release the lock after that."""


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
    DAMAGED = 8
    INTERRUPTED = 130


MEANINGS = {
    Status.WELL: "success",
    Status.FAILED: "other failure",
    Status.USAGE: "invalid command line",
    Status.CONFIGURATION: "a setting is missing or invalid",
    Status.REFUSED: "a guard refused; nothing more was deleted",
    Status.LOCKED: "the repository's lock is held by another run or command",
    Status.INCOMPLETE: "finished, but not for every object; the output names the others",
    Status.LOST: "a run succeeded, but found lost objects: earlier runs deleted objects that are live now",
    Status.DAMAGED: "fsck found a needed object or metadata file that is missing or wrong",
    Status.INTERRUPTED: "interrupted",
}
"""Meanings of exit statuses, for `--help`."""

_STATUSES: dict[type[CollectionError], Status] = {
    ConfigurationError: Status.CONFIGURATION,
    GuardTripped: Status.REFUSED,
    LockHeld: Status.LOCKED,
    LockLost: Status.LOCKED,
    Interrupted: Status.INTERRUPTED,
}


def status_of(error: CollectionError) -> Status:
    """The exit status for an error, or for the error that ended a run (RunFailed)."""
    kind = error.kind if isinstance(error, RunFailed) else type(error)
    return next((status for error_class, status in _STATUSES.items() if issubclass(kind, error_class)), Status.FAILED)


@contextmanager
def one_line_errors(as_json: bool = False) -> Iterator[None]:
    """Context that turns errors into one line on standard error and an exit status. SIGTERM interrupts like Ctrl-C.

    Args:
        as_json: True to print the error and the exit status as JSON too.
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
        if ours := exhausted(error):
            _end(str(ours), Status.FAILED, as_json)
        # The exit status is 1: Click sets it for an abort at a question, Python for any other error.
        if as_json:
            _answer_error(str(error) or type(error).__name__, Status.FAILED)
        raise


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, so that locks are released."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _ended_in_time(as_json: bool) -> Iterator[None]:
    """Ends the process a few seconds after SIGTERM, even if it is still waiting.

    Native code that waits for a store does not notice the signal, and releasing the lock takes minutes if the store
    does not answer. A hard exit is safe, because runs survive an interruption at any point, as by a power failure. The
    lock is released if its store answers.
    """
    # If standard error is replaced, this process runs a test, and must not be ended with the command.
    if threading.current_thread() is not threading.main_thread() or sys.stderr is not sys.__stderr__:
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def leave() -> None:
        while reader.recv(1) != bytes([signal.SIGTERM]):
            pass
        time.sleep(SECONDS_TO_LEAVE)
        locks = sys.modules.get("lakefs_gc_assets.collector.repository.lock")
        line = (
            f"interrupted; gave up after {SECONDS_TO_LEAVE:.0f} s, since the server or the store did not answer"
            f"{locks.release_taken(SECONDS_TO_RELEASE) if locks else ''}"
        )
        if as_json:
            _answer_error(line, Status.INTERRUPTED)
        click.echo(f"lakefs-gc: {printable(line)}", err=True)
        os._exit(Status.INTERRUPTED)

    threading.Thread(target=leave, name="leave in time", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)


def _answer_error(line: str, status: int) -> None:
    click.echo(json.dumps({"error": printable(line), "status": int(status)}, ensure_ascii=False))


def _end(line: str, status: Status, as_json: bool) -> None:
    if as_json:
        _answer_error(line, status)
    click.echo(f"lakefs-gc: {printable(line)}", err=True)
    sys.exit(status)


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is not imported yet.

    Attributes:
        target: module and name of the command, as `module:name`.
        short_help: text in the list of commands: the first sentence of its help.
        before: module and name of a function, as `module:name`, to call with the command's arguments before its module
            is imported; None for no such function.
        serves: True if it runs servers until it is interrupted, and ends its own processes then.
        others: names of commands that answer in place of this one, by the option that asks for it.
    """

    target: str
    short_help: str
    before: str | None = None
    serves: bool = False
    others: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> click.Command:
        """Imports the command."""
        command = imported(self.target)
        assert isinstance(command, click.Command)
        known = {option for each in command.params for option in each.opts}
        for option, name in self.others.items():
            if option not in known:
                shown = f"Call `lakefs-gc {name}` in place of this command."
                command.params.append(click.Option([option], is_flag=True, expose_value=False, help=shown))
        return command

    def begin(self, arguments: list[str]) -> None:
        """Calls `before`, which starts work in the background during the import of the command's module.

        A command without it uses neither Spark nor Dagster, so pandas is hidden, except in the process of a test.
        """
        if self.before is not None:
            begin: Callable[[list[str]], None] = imported(self.before)
            begin(arguments)
        elif not self.serves and sys.stderr is sys.__stderr__:
            process.exclude_pandas()


class LazyGroup(click.Group):
    """Commands whose modules are imported when they are called; listing the commands imports no module."""

    def __init__(self, *args: Any, lazy_commands: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy_commands = lazy_commands

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """See click.Group.main. Redirects standard error at the end: threads of Spark and Dagster may still write."""
        try:
            return super().main(*args, **kwargs)
        except SystemExit:
            if sys.stderr is sys.__stderr__:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in order."""
        return sorted(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command; returns None if there is none of this name."""
        command = self._lazy_commands.get(cmd_name)
        return None if command is None else command.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy_commands[name].short_help) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands with this prefix, without importing them, and completions of the base class."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self._lazy_commands[name].short_help) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Starts the command's background work, then imports the command; shell completion starts nothing.

        Raises NoSuchCommand, which suggests similar names.
        """
        if not ctx.resilient_parsing:
            if args[0] not in self._lazy_commands:
                raise NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx)
            command = self._lazy_commands[args[0]]
            for option, name in command.others.items():
                if option in args:
                    command = self._lazy_commands[name]
                    args = [name, *(word for word in args[1:] if word != option)]
            if not command.serves:
                ctx.with_resource(_ended_in_time(as_json="--json" in args))
            command.begin(args[1:])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error is one line on standard error, and with --json on standard output too."""
        process.collect_cycles_rarely()
        # Dagster warns about unstable APIs, but pyproject.toml pins its version.
        warnings.filterwarnings("ignore", message=r".* is currently in (beta|preview)")
        # The command may fail before click has read its options.
        with one_line_errors(as_json="--json" in ctx.args):
            return super().invoke(ctx)

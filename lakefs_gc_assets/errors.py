"""Exceptions with messages for users, and helpers for messages.

The message of an exception names the failure, the object and a remedy. It never contains credentials: it is built from
names of settings, keys of objects and figures. Quoted names and values may contain anything, so a message is escaped to
one line of limited length. Locations from environment variables are replaced by the variable's name.
"""

import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile

LogLine = Callable[[str], None]
"""Callback for a line of progress, or a warning, for the user who started the work."""

_LONGEST_TEXT = 2000
_SHOWN_END = 400
_STACK = ("\tat ", "  File ", "Traceback ")
_LONGEST_LINE = 1000


_LOCATION, _HOST = re.compile(r".*[/:@.].*"), re.compile(r"(?<=//)(?!127\.)[\w-]+(?:\.[\w-]+)+")
_SHORTEST_LOCATION = 8
_variables: dict[str, str] = {}


def show_by_variable(value: str, variable: str) -> None:
    """Makes errors show the name of an environment variable instead of a location from its value.

    Host names in the location are replaced too. Short values, and values that are not locations, such as a repository's
    name, are shown unchanged.
    """
    for part in (value, *_HOST.findall(value)):
        if len(part) >= _SHORTEST_LOCATION and _LOCATION.fullmatch(part):
            _variables[part] = variable


def printable(text: str) -> str:
    """Untrusted text on one line, with line breaks, control characters and invisible characters escaped.

    All text for a terminal or a page must pass here: an object's name could clear the screen or forge a line.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _printable(text: str) -> str:
    """The text with unprintable characters escaped and variables' locations replaced; a long one loses its middle."""
    for value in sorted(_variables, key=len, reverse=True):
        text = text.replace(value, f"{{env: {_variables[value]}}}")
    text = printable(text)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - _SHOWN_END]} … {text[-_SHOWN_END:]}"
    return text


def one_line(text: str) -> str:
    """A message on one line, without a stack trace, cut at 1,000 characters."""
    lines = takewhile(lambda line: not line.startswith(_STACK), text.strip().splitlines())
    return " ".join(line.strip() for line in lines)[:_LONGEST_LINE]


_NOUNS = (
    "base byte candidate commit day deletion file forecast hour key lookup metarange minute object page path question "
    "range request row run second"
)
_OF_ONE = {
    **{f"{noun}s": noun for noun in (*_NOUNS.split(), "rule", "shard", "slice", "tag", "version")},
    **{
        "addresses": "address",
        "branches": "branch",
        "copies": "copy",
        "entries": "entry",
        "repositories": "repository",
    },
    **{"are": "is", "were": "was", "have": "has", "hold": "holds", "stay": "stays", "keep": "keeps"},
}
"""Singular forms by plural: nouns and verbs."""


def counted(count: float, things: str, width: int = 0) -> str:
    """A number with a phrase in agreement: for 1, "objects that runs delete are" becomes "1 object … is".

    Args:
        things: phrase in the plural. The first known noun, and the last word if it is a known verb, are changed.
        width: minimum width of the right-aligned number.
    """
    if count == 1:
        words = things.split()
        noun = next((place for place, word in enumerate(words) if word in _OF_ONE), 0)
        for place in {noun, len(words) - 1}:
            words[place] = _OF_ONE.get(words[place], words[place])
        things = " ".join(words)
    shown = f"{count:g}" if isinstance(count, float) else f"{count:,}"
    return f"{shown:>{width}} {things}"


class CollectionError(Exception):
    """Base of all intentional errors of the collector; the text is safe to show to users."""

    def __str__(self) -> str:
        return _printable(super().__str__())


class ConfigurationError(CollectionError):
    """A setting is missing, malformed or contradicts another one."""


class LakeFSError(CollectionError):
    """A call to the lakeFS server failed, was refused, or got an invalid answer."""


class AccessDenied(LakeFSError):
    """The server answered 401 or 403."""


class WrongKeys(AccessDenied):
    """The server answered 401: the access key is unknown, or the secret is wrong."""


class NotFound(LakeFSError):
    """The server answered 404: the repository, branch, path or endpoint does not exist."""


class UnknownPath(NotFound):
    """The server does not know the path of this call: it is too old, or serves only a part of lakeFS."""


class NotSupported(LakeFSError):
    """The server answered 501: it does not support this call."""


class Conflict(LakeFSError):
    """The server answered 409: another client changed the same paths differently, or the name is taken."""


class HookFailed(LakeFSError):
    """The server answered 412: a hook of the repository failed, so the server changed nothing."""


class ServerUnavailable(LakeFSError):
    """The server could not be reached, timed out, or kept answering 429 or 5xx."""


class ReadOnlyRepository(LakeFSError):
    """The repository is read-only, so lakeFS refuses to prepare a garbage collection."""


class StorageError(CollectionError):
    """A request to the object store failed or was refused."""


class DeletesOver(StorageError):
    """A delete stops without further requests, because its deadline has passed."""


class PermissionMissing(StorageError):
    """The credentials are valid, but lack the permission for this request."""


class ObjectNotFound(StorageError):
    """There is no object at this key."""


class ObjectArchived(StorageError):
    """The object is in an archive tier: it can be deleted, but not read or copied until it is restored from there."""


class AlreadyExists(StorageError):
    """A conditional put found an unexpected object."""


class PreconditionFailed(StorageError):
    """A conditional put did not find the expected version of the object."""


class NotOffered(StorageError):
    """The service lacks the feature; more permissions do not help."""


class UnlistableKey(StorageError):
    """The listing library cannot represent a key below this prefix (`//`, `.` segments, control characters)."""


class CorruptFile(CollectionError):
    """A file that a run depends on is missing, truncated, corrupt, modified, or inconsistent with its own counts.

    Attributes:
        file: key or name of the file.
        check: short name of the failed check, such as `magic` or `block checksum`.
    """

    def __init__(self, file: str, check: str, detail: str) -> None:
        super().__init__(file, check, detail)
        self.file = file
        self.check = check
        self.detail = detail

    @classmethod
    def missing(cls, file: str, remedy: str = "") -> "CorruptFile":
        """The error for a file that is missing from the store; `remedy` restores it from quarantine, if given."""
        detail = "the file is missing from the object store"
        return cls(file, "existence", f"{detail}, but is in quarantine: {remedy}" if remedy else detail)

    def __str__(self) -> str:
        return _printable(
            f"{self.file}: {self.check}: {self.detail}. "
            "An unreadable file may be the one that lists live data, so nothing is deleted."
        )


class OrderViolation(CollectionError):
    """A step was requested out of order: its run, its attempt or its frames do not allow it."""


class RunEnded(OrderViolation):
    """The run has already finished successfully: there is nothing to do."""


class EngineFault(CollectionError):
    """Spark violated a guarantee about the rows of tasks: the results must not be used."""


class SparkNotStarted(CollectionError):
    """Spark's session could not be started: its Java ended, or refused the properties of the session."""


class SparkFailed(CollectionError):
    """A Spark job failed, or its Java ended, for a reason outside this program: memory, disk, a crash."""


class DiskFull(CollectionError):
    """A disk of this machine has no space left for Dagster's events or for temporary files."""


class OutOfMemory(CollectionError):
    """The system gave this process no more memory."""


_FULL = {errno.ENOSPC, errno.EDQUOT}
_IN_SQLITE = ("database or disk is full", "disk I/O error")
"""Messages of SQLite. The second one means that its journal or its shared memory found no space."""


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and its causes and contexts; nothing for None."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def exhausted(failure: BaseException | None) -> DiskFull | OutOfMemory | None:
    """Our error for an exception that a full disk or a lack of memory caused; None for any other."""
    for error in error_chain(failure):
        # Errors of Arrow and numpy are of this class, too.
        if isinstance(error, MemoryError):
            return OutOfMemory(
                "the system gave this process no more memory. Give the machine or the container more, or raise the "
                "limit that `ulimit -v` shows"
            )
        if isinstance(error, sqlite3.OperationalError) and str(error) in _IN_SQLITE:
            home = os.environ.get("DAGSTER_HOME")
            what = f"Dagster cannot store events in DAGSTER_HOME, {home}" if home else "SQLite cannot write its files"
            return DiskFull(
                f"{what}: {error}. Free space on that disk. If Dagster goes on to show a run as started, restart its "
                "code location and terminate the run in the UI, by force"
            )
        if isinstance(error, OSError) and error.errno in _FULL:
            where = f"{error.filename}: " if error.filename else ""
            why = f"{where}{os.strerror(error.errno)}. Free space on that disk"
            return DiskFull(f"{why}. Temporary files go to the folder that TMPDIR names")
    return None


class GuardTripped(CollectionError):
    """A guard stopped the run or its sweep; the message has the guard, its figures and the setting that lifts it."""

    def __init__(self, guard: str, figures: str, lifted_by: str) -> None:
        super().__init__(guard, figures, lifted_by)
        self.guard = guard
        self.figures = figures
        self.lifted_by = lifted_by

    def __str__(self) -> str:
        return _printable(f"guard {self.guard}: {self.figures}. {self.lifted_by}")


class LockHeld(CollectionError):
    """Another run, or other work such as a restore or a purge, holds the repository's lock."""


class LockLost(CollectionError):
    """Another process took over, released or removed this process's lock: nothing more may be deleted."""


class RunFailed(CollectionError):
    """A run did not finish.

    Attributes:
        kind: class of the error that ended it; CollectionError itself for an unexpected error.
    """

    def __init__(self, message: str, kind: type[CollectionError] = CollectionError) -> None:
        super().__init__(message)
        self.kind = kind


class Interrupted(CollectionError):
    """A user or the system asked the process to end before its work was done."""


@contextmanager
def requiring(extra: str, what: str) -> Iterator[None]:
    """Context for importing libraries of an extra. Raises ConfigurationError if they are not installed.

    Args:
        what: subject of the message, which needs the libraries.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{what} needs {error.name}, which is not installed: install this package's wheel with its extra [{extra}]"
        ) from None

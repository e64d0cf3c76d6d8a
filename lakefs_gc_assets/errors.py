"""Messages to people: one hierarchy of exceptions, and lines of progress.

The message of an exception says what happened, to what, and what to do. It never holds credentials: it is built from
names of settings, keys of objects and figures. Names and values that it quotes may be anything, so it shows as one line
of limited length. A location that came from an environment variable is shown by the variable's name.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile

LogLine = Callable[[str], None]
"""Takes a line of progress, or a warning, for whoever started the work."""

_LONGEST_TEXT = 2000
_SHOWN_END = 400
_STACK = ("\tat ", "  File ", "Traceback ")
_LONGEST_LINE = 1000


_LOCATION, _HOST = re.compile(r".*[/:@.].*"), re.compile(r"(?<=//)(?!127\.)[\w-]+(?:\.[\w-]+)+")
_SHORTEST_LOCATION = 8
_variables: dict[str, str] = {}


def show_by_variable(value: str, variable: str) -> None:
    """From now on, errors show the name of an environment variable in place of a location that came from it.

    So does the name of a host in it. What is short or no location, such as a repository's name, is shown as it is.
    """
    for part in (value, *_HOST.findall(value)):
        if len(part) >= _SHORTEST_LOCATION and _LOCATION.fullmatch(part):
            _variables[part] = variable


def printable(text: str) -> str:
    """A text from outside with line breaks, control characters and invisible characters escaped, on one line.

    Whatever reaches a terminal or a page passes here: a name of an object could clear the screen or forge a line.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _printable(text: str) -> str:
    """The text with whatever is not printable escaped, and its middle left out where it is long."""
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
    "base byte candidate commit day deletion file forecast hour key metarange minute object path question range "
    "request row run second"
)
_OF_ONE = {
    **{f"{noun}s": noun for noun in (*_NOUNS.split(), "rule", "shard", "slice", "tag", "version")},
    **{"addresses": "address", "branches": "branch", "copies": "copy", "entries": "entry"},
    **{"are": "is", "were": "was", "have": "has", "hold": "holds", "stay": "stays", "keep": "keeps"},
}
"""Words of phrases about several things, as they are about one."""


def counted(count: float, things: str, width: int = 0) -> str:
    """A number of things, in words that agree with it: of "objects that runs delete are", 1 makes "1 object … is".

    Args:
        things: a noun first, after adjectives, and perhaps its verb last.
        width: of the number, which is put to the right.
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
    """Base of everything the collector raises on purpose; its text is fit to be shown to a person."""

    def __str__(self) -> str:
        return _printable(super().__str__())


class ConfigurationError(CollectionError):
    """A setting is missing, malformed or contradicts another one."""


class LakeFSError(CollectionError):
    """The lakeFS server could not be asked, or refused, or answered nonsense."""


class AccessDenied(LakeFSError):
    """The server answered 401 or 403."""


class WrongKeys(AccessDenied):
    """The server answered 401: it does not know the access key, or the secret is another one."""


class NotFound(LakeFSError):
    """The server answered 404: the repository, branch, path or endpoint does not exist."""


class UnknownPath(NotFound):
    """The server does not know the path of this call: it is older than the call, or serves a part of lakeFS alone."""


class NotSupported(LakeFSError):
    """The server answered 501: it does not offer this call."""


class ServerUnavailable(LakeFSError):
    """The server could not be reached, timed out, or kept answering 429 or 5xx."""


class ReadOnlyRepository(LakeFSError):
    """The repository is read-only: lakeFS refuses to prepare a collection of it."""


class StorageError(CollectionError):
    """The object store could not be asked, or refused."""


class DeletesOver(StorageError):
    """A delete ends without a further request, as the time for it is over."""


class PermissionMissing(StorageError):
    """The store knows the credentials, and they lack the permission for this request."""


class ObjectNotFound(StorageError):
    """There is no object at this key."""


class ObjectArchived(StorageError):
    """The object is in an archive tier: it can be deleted, and neither read nor copied before it is brought back."""


class AlreadyExists(StorageError):
    """A conditional put found an object where none was expected."""


class PreconditionFailed(StorageError):
    """A conditional put found another version of the object than the expected one."""


class NotOffered(StorageError):
    """The service has no such feature, whoever asks: other rights do not help."""


class UnlistableKey(StorageError):
    """The listing library cannot represent a key below this prefix (`//`, `.` segments, control characters)."""


class CorruptFile(CollectionError):
    """A file that a run depends on is missing, short, corrupt, not what was written, or disagrees with its own counts.

    Attributes:
        file: key or name of the file.
        check: short name of the check that failed, such as `magic` or `block checksum`.
    """

    def __init__(self, file: str, check: str, detail: str) -> None:
        super().__init__(file, check, detail)
        self.file = file
        self.check = check
        self.detail = detail

    @classmethod
    def missing(cls, file: str, remedy: str = "") -> "CorruptFile":
        """One that the object store does not have, and what brings it back, if that is known."""
        detail = "the file is missing from the object store"
        return cls(file, "existence", f"{detail}, and lies in quarantine: {remedy}" if remedy else detail)

    def __str__(self) -> str:
        return _printable(
            f"{self.file}: {self.check}: {self.detail}. "
            "What cannot be read may be what keeps live data, so nothing is done on its strength."
        )


class OrderViolation(CollectionError):
    """A step was asked for out of order: its run, its attempt or its frames are not such that it may be made."""


class RunEnded(OrderViolation):
    """The run has ended well already: there is nothing to do."""


class EngineFault(CollectionError):
    """Spark gave tasks other rows than it promises: what was made of them must not be used."""


class SparkNotStarted(CollectionError):
    """Spark's session could not be started: its Java ended, or refused the properties of the session."""


class SparkFailed(CollectionError):
    """A job of Spark failed, or its Java ended, for a reason outside of this program: memory, disk, a crash."""


class DiskFull(CollectionError):
    """A disk of this machine has no space left for Dagster's events or for temporary files."""


class GuardTripped(CollectionError):
    """A guard stopped the run or its sweep; names the guard, its figures and the setting that lifts it."""

    def __init__(self, guard: str, figures: str, lifted_by: str) -> None:
        super().__init__(guard, figures, lifted_by)
        self.guard = guard
        self.figures = figures
        self.lifted_by = lifted_by

    def __str__(self) -> str:
        return _printable(f"guard {self.guard}: {self.figures}. {self.lifted_by}")


class LockHeld(CollectionError):
    """Another run holds the repository's lock, or other work that needs it, such as a restoration or a purge."""


class LockLost(CollectionError):
    """The lock that was held was taken over, released or removed by another process: nothing more may be deleted."""


class RunFailed(CollectionError):
    """A run did not come to its end.

    Attributes:
        kind: of the error that ended it; CollectionError itself where nobody foresaw it.
    """

    def __init__(self, message: str, kind: type[CollectionError] = CollectionError) -> None:
        super().__init__(message)
        self.kind = kind


class Interrupted(CollectionError):
    """A person or the machine asked the process to end before its work was done."""


@contextmanager
def requiring(extra: str, what: str) -> Iterator[None]:
    """Around an import of libraries that an extra brings. Raises ConfigurationError where they are not installed.

    Args:
        what: cannot be done without them, in a person's words.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{what} needs {error.name}, which is not installed: install this package's wheel with its extra [{extra}]"
        ) from None

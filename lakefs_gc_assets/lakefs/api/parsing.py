"""Reading lakeFS's JSON strictly: what is missing or of another type ends the run instead of becoming a default."""

import json
from datetime import timedelta
from typing import Any

from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    Commit,
    DiffEntry,
    ObjectStats,
    PrepareCommitsTask,
    PreparedCommits,
    RefsDump,
    Repository,
    RetentionRules,
    UncommittedPage,
)

_LONGEST_GRACE_SECONDS = 100 * 365 * 86400
_CHANGES = frozenset({"added", "changed", "removed", "conflict"})


class Fields:
    """One JSON object of an answer. Its methods raise LakeFSError that names the call, the field and what was found."""

    def __init__(self, call: object, content: object, place: str = "") -> None:
        self._call = call
        self._place = place
        if not isinstance(content, dict):
            raise self.wrong("", f"is {_kind(content)}, not an object")
        self._content: dict[str, Any] = content

    @classmethod
    def read(cls, call: object, body: str) -> "Fields":
        """The object that a body holds."""
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise LakeFSError(
                f"{call}: the answer is not JSON ({error}). Check that lakefs.endpoint is a lakeFS server"
            ) from None
        return cls(call, content)

    def wrong(self, name: str, problem: str) -> LakeFSError:
        """The error for a field that cannot be believed."""
        where = ".".join(part for part in (self._place, name) if part) or "the answer"
        return LakeFSError(f"{self._call}: {where} {problem}. Check that server and collector fit together")

    def has(self, name: str) -> bool:
        """Whether there is a value other than null."""
        return self._content.get(name) is not None

    def text(self, name: str, empty: bool = False) -> str:
        """A string; an empty one only where `empty` allows it."""
        value = self._value(name, str)
        if not value and not empty:
            raise self.wrong(name, "is empty")
        return self._unicode(name, value)

    def number(self, name: str) -> int:
        """A whole number."""
        value = self._value(name, int)
        if isinstance(value, bool):
            raise self.wrong(name, "is true or false, not a number")
        if not -(1 << 63) <= value < 1 << 63:
            raise self.wrong(name, "is a number of more than 64 bits")
        return int(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        return bool(self._value(name, bool))

    def fields(self, name: str) -> "Fields":
        """A nested object."""
        return Fields(self._call, self._value(name, dict), self._within(name))

    def items(self, name: str) -> "list[Fields]":
        """A list of objects."""
        items = self._value(name, list)
        return [Fields(self._call, item, self._within(f"{name}[{index}]")) for index, item in enumerate(items)]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; null is how Go spells an empty one."""
        if name in self._content and self._content[name] is None:
            return ()
        values = self._value(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(name, "holds something other than strings")
        return tuple(self._unicode(name, value) for value in values)

    def _unicode(self, name: str, value: str) -> str:
        """The value, unless it holds half of a surrogate pair, which JSON can spell and no file or frame can hold."""
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(name, "is no Unicode text") from None
        return value

    def _within(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _value(self, name: str, expected: type) -> Any:
        if name not in self._content:
            raise self.wrong(name, "is missing")
        value = self._content[name]
        if not isinstance(value, expected):
            raise self.wrong(name, f"is {_kind(value)}, not {_KINDS[expected]}")
        return value


_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a fraction",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


def repository(answer: Fields) -> Repository:
    """`read_only` and `storage_id` are absent on servers that do not know them."""
    return Repository(
        id=answer.text("id"),
        storage_namespace=answer.text("storage_namespace"),
        default_branch=answer.text("default_branch"),
        read_only=answer.flag("read_only") if answer.has("read_only") else False,
        creation_date=answer.number("creation_date"),
        storage_id=answer.text("storage_id", empty=True) if answer.has("storage_id") else "",
    )


def grace_period(answer: Fields) -> timedelta:
    """`grace_period` in seconds."""
    seconds = answer.number("grace_period")
    if seconds < 0:
        raise answer.wrong("grace_period", f"is negative ({seconds})")
    if seconds > _LONGEST_GRACE_SECONDS:
        raise answer.wrong("grace_period", f"is {seconds} seconds, which cannot be meant")
    return timedelta(seconds=seconds)


def uncommitted_page(answer: Fields) -> UncommittedPage:
    """An absent, null or blank token ends the preparation."""
    token = answer.text("continuation_token", empty=True) if answer.has("continuation_token") else ""
    return UncommittedPage(
        run_id=answer.text("run_id"),
        location=answer.text("gc_uncommitted_location", empty=True),
        continuation_token=token if token.strip() else None,
    )


def branch(answer: Fields) -> Branch:
    """One entry of a list of branches or tags."""
    return Branch(id=answer.text("id"), commit_id=answer.text("commit_id"))


def change(answer: Fields) -> DiffEntry:
    """One entry of a diff."""
    kind = answer.text("type")
    if kind not in _CHANGES:
        raise answer.wrong("type", f"is {kind!r}, which is no known kind of change")
    return DiffEntry(path=answer.text("path"), type=kind)


def stats(answer: Fields) -> ObjectStats:
    """`size_bytes` is absent where lakeFS does not know it."""
    return ObjectStats(
        path=answer.text("path"),
        physical_address=answer.text("physical_address"),
        size=answer.number("size_bytes") if answer.has("size_bytes") else None,
    )


def listed_object(answer: Fields) -> ObjectStats:
    """One object of a listing without a delimiter, in which nothing but objects can be."""
    kind = answer.text("path_type")
    if kind != "object":
        raise answer.wrong("path_type", f"is {kind!r} in a listing of objects")
    return stats(answer)


def refs_dump(answer: Fields) -> RefsDump:
    """State of a task: `refs` is there once it is done, and may lack some of its ids when it failed."""
    ids = answer.fields("refs") if answer.has("refs") else None

    def id_of(name: str) -> str:
        return ids.text(name, empty=True) if ids is not None and ids.has(name) else ""

    return RefsDump(
        done=answer.flag("done"),
        error=answer.text("error", empty=True) if answer.has("error") else None,
        commits_meta_range_id=id_of("commits_meta_range_id"),
        branches_meta_range_id=id_of("branches_meta_range_id"),
        tags_meta_range_id=id_of("tags_meta_range_id"),
    )


def commit(answer: Fields) -> Commit:
    """A commit; `meta_range_id` is empty for one without objects."""
    return Commit(
        id=answer.text("id"),
        metarange_id=answer.text("meta_range_id", empty=True),
        parents=answer.texts("parents"),
        creation_date=answer.number("creation_date"),
        version=answer.number("version"),
        generation=answer.number("generation"),
    )


def retention_rules(answer: Fields) -> RetentionRules:
    """`branches` is null or absent where no branch has a rule of its own."""
    branches: dict[str, int] = {}
    for rule in answer.items("branches") if answer.has("branches") else []:
        name = rule.text("branch_id")
        if name in branches:
            raise rule.wrong("branch_id", f"is {name!r}, which has a rule already")
        branches[name] = rule.number("retention_days")
    return RetentionRules(answer.number("default_retention_days"), branches)


def prepared_commits(answer: Fields) -> PreparedCommits:
    """Where a list of commits was written."""
    return PreparedCommits(answer.text("run_id"), answer.text("gc_commits_location"))


def prepare_commits_task(answer: Fields) -> PrepareCommitsTask:
    """State of a task: a completed one has a result, or an error that may lack words."""
    if not answer.flag("completed"):
        return PrepareCommitsTask(False)
    if answer.has("error"):
        error = answer.fields("error")
        words = error.text("message", empty=True) if error.has("message") else ""
        return PrepareCommitsTask(True, error=words or "no reason given")
    return PrepareCommitsTask(True, result=prepared_commits(answer.fields("result")))

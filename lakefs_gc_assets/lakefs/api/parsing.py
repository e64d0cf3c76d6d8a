"""Strict parsing of a lakeFS server's answers: their JSON, and the errors for refused calls.

A missing field, or one of another type, ends the run instead of becoming a default. A refused call becomes an error
class and one line with a remedy. Errors of the REST API have a body `{"message": …}`. A read-only repository answers
403; an unknown path answers 404, and 500 on servers built before 2025-12-27.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, TypeGuard
from urllib.parse import quote

from lakefs_gc_assets.errors import (
    AccessDenied,
    Conflict,
    HookFailed,
    LakeFSError,
    NotFound,
    NotSupported,
    ReadOnlyRepository,
    ServerUnavailable,
    UnknownPath,
    WrongKeys,
)
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    Commit,
    DiffEntry,
    ObjectStats,
    PrepareCommitsTask,
    PreparedCommits,
    PullRequest,
    RefsDump,
    RepositoryFacts,
    RetentionRules,
    UncommittedPage,
)

_LONGEST_GRACE_SECONDS = 100 * 365 * 86400
_CHANGES = frozenset({"added", "changed", "removed", "conflict"})


class Fields:
    """One JSON object of an answer. Its methods raise LakeFSError with the call, the field and the unexpected value."""

    def __init__(self, call: object, content: object, place: str = "") -> None:
        self._call = call
        self._place = place
        if not isinstance(content, dict):
            raise self.wrong("", f"is {_kind(content)}, not an object")
        self._content: dict[str, Any] = content

    @classmethod
    def read(cls, call: object, body: str) -> "Fields":
        """The JSON object in a body."""
        try:
            content = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise LakeFSError(
                f"{call}: the answer is not JSON ({error}). Check that lakefs.endpoint is a lakeFS server"
            ) from None
        return cls(call, content)

    def wrong(self, name: str, problem: str) -> LakeFSError:
        """The error for an invalid field."""
        where = ".".join(part for part in (self._place, name) if part) or "the answer"
        return LakeFSError(f"{self._call}: {where} {problem}. Check that server and collector fit together")

    def has(self, name: str) -> bool:
        """True if the field is present and not null."""
        return self._content.get(name) is not None

    def text(self, name: str, empty: bool = False) -> str:
        """A string; an empty one only if `empty` allows it."""
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
        """A list of strings; null counts as empty, because Go encodes empty lists so."""
        if name in self._content and self._content[name] is None:
            return ()
        values = self._value(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(name, "holds something other than strings")
        return tuple(self._unicode(name, value) for value in values)

    def label(self, name: str) -> str:
        """A string that only people read: empty if it is missing or no Unicode text, since no decision needs it."""
        value = self._content.get(name)
        return value if _is_text(value) else ""

    def labels(self, name: str) -> tuple[tuple[str, str], ...]:
        """The pairs of a nested object of strings that only people read, by key; others are left out."""
        value = self._content.get(name)
        pairs = value.items() if isinstance(value, dict) else ()
        return tuple(sorted((key, each) for key, each in pairs if _is_text(key) and _is_text(each)))

    def _unicode(self, name: str, value: str) -> str:
        """The value. Raises for half a surrogate pair, which JSON can express but no file or frame can hold."""
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


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


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


def repository(answer: Fields) -> RepositoryFacts:
    """Parses a repository; older servers omit `read_only` and `storage_id`."""
    return RepositoryFacts(
        id=answer.text("id"),
        storage_namespace=answer.text("storage_namespace"),
        default_branch=answer.text("default_branch"),
        read_only=answer.flag("read_only") if answer.has("read_only") else False,
        creation_date=answer.number("creation_date"),
        storage_id=answer.text("storage_id", empty=True) if answer.has("storage_id") else "",
    )


def grace_period(answer: Fields) -> timedelta:
    """Parses `grace_period`, in seconds."""
    seconds = answer.number("grace_period")
    if seconds < 0:
        raise answer.wrong("grace_period", f"is negative ({seconds})")
    if seconds > _LONGEST_GRACE_SECONDS:
        raise answer.wrong("grace_period", f"is {seconds} seconds, which cannot be meant")
    return timedelta(seconds=seconds)


def uncommitted_page(answer: Fields) -> UncommittedPage:
    """Parses a page of a preparation; an absent, null or blank token means the last page."""
    token = answer.text("continuation_token", empty=True) if answer.has("continuation_token") else ""
    return UncommittedPage(
        run_id=answer.text("run_id"),
        location=answer.text("gc_uncommitted_location", empty=True),
        continuation_token=token if token.strip() else None,
    )


def branch(answer: Fields) -> Branch:
    """Parses one entry of a list of branches or tags."""
    return Branch(id=answer.text("id"), commit_id=answer.text("commit_id"))


def protection_patterns(call: object, body: str) -> tuple[str, ...]:
    """Parses the branch protection rules, whose JSON is a list, not an object."""
    return tuple(rule.text("pattern") for rule in Fields.read(call, f'{{"rules": {body}}}').items("rules"))


def open_pull_request(answer: Fields) -> PullRequest | None:
    """Parses one entry of a list of pull requests; None if it is closed or merged."""
    if answer.text("status") in ("closed", "merged"):
        return None
    return PullRequest(answer.text("id"), answer.text("source_branch"), answer.text("destination_branch"))


def pull_request(answer: Fields) -> PullRequest:
    """Parses one pull request of any status."""
    merged = answer.text("merged_commit_id") if answer.has("merged_commit_id") else ""
    branches = answer.text("source_branch"), answer.text("destination_branch")
    return PullRequest(answer.text("id"), *branches, answer.text("status"), merged)


def action_run_started_at(answer: Fields) -> datetime:
    """When a run of hooks began, UTC."""
    text = answer.text("start_time")
    try:
        started_at = datetime.fromisoformat(text)
    except ValueError:
        raise answer.wrong("start_time", f"is {text!r}, which is no time") from None
    if started_at.tzinfo is None:
        raise answer.wrong("start_time", f"is {text!r}, without a time zone")
    return started_at.astimezone(UTC)


def refused_path(answer: Fields) -> tuple[str, str]:
    """Parses one error of a batch of deletions: the path, and the reason. The path may be missing."""
    path = answer.text("path", empty=True) if answer.has("path") else ""
    return path, f"{answer.number('status_code')} {answer.text('message', empty=True)}"


def change(answer: Fields) -> DiffEntry:
    """Parses one entry of a diff."""
    kind = answer.text("type")
    if kind not in _CHANGES:
        raise answer.wrong("type", f"is {kind!r}, which is no known kind of change")
    return DiffEntry(path=answer.text("path"), type=kind)


def stats(answer: Fields) -> ObjectStats:
    """Parses an object's stats. lakeFS omits unknown `size_bytes` and `mtime`; only old servers omit `checksum`."""
    return ObjectStats(
        path=answer.text("path"),
        physical_address=answer.text("physical_address"),
        size=answer.number("size_bytes") if answer.has("size_bytes") else None,
        mtime=answer.number("mtime") if answer.has("mtime") else None,
        checksum=answer.text("checksum", empty=True) if answer.has("checksum") else None,
    )


def listed_object(answer: Fields) -> ObjectStats:
    """Parses one entry of a listing without a delimiter, which contains only objects."""
    kind = answer.text("path_type")
    if kind != "object":
        raise answer.wrong("path_type", f"is {kind!r} in a listing of objects")
    return stats(answer)


def refs_dump(answer: Fields) -> RefsDump:
    """Parses the state of a dump task: `refs` is present when it is done, and may lack ids if it failed."""
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
    """Parses a commit; `meta_range_id` is empty for a commit without objects."""
    return Commit(
        id=answer.text("id"),
        metarange_id=answer.text("meta_range_id", empty=True),
        parents=answer.texts("parents"),
        creation_date=answer.number("creation_date"),
        version=answer.number("version"),
        generation=answer.number("generation"),
        committer=answer.label("committer"),
        metadata=answer.labels("metadata"),
    )


def retention_rules(answer: Fields) -> RetentionRules:
    """Parses retention rules; `branches` is null or absent if no branch has its own rule."""
    branches: dict[str, int] = {}
    for rule in answer.items("branches") if answer.has("branches") else []:
        name = rule.text("branch_id")
        if name in branches:
            raise rule.wrong("branch_id", f"is {name!r}, which has a rule already")
        branches[name] = rule.number("retention_days")
    return RetentionRules(answer.number("default_retention_days"), branches)


def prepared_commits(answer: Fields) -> PreparedCommits:
    """Parses the location of a list of commits."""
    return PreparedCommits(answer.text("run_id"), answer.text("gc_commits_location"))


def prepare_commits_task(answer: Fields) -> PrepareCommitsTask:
    """Parses the state of a preparation task: a completed one has a result, or an error with an optional message."""
    if not answer.flag("completed"):
        return PrepareCommitsTask(False)
    if answer.has("error"):
        error = answer.fields("error")
        words = error.text("message", empty=True) if error.has("message") else ""
        return PrepareCommitsTask(True, error=words or "no reason given")
    return PrepareCommitsTask(True, result=prepared_commits(answer.fields("result")))


_UNKNOWN_PATH = "invalid API endpoint"
_MESSAGE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as messages name it, and the lakeFS permission that it needs."""

    method: str
    path: str
    permission: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a server; header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: str = field(repr=False)

    @property
    def message(self) -> str | None:
        """lakeFS's error message; None if the body is not the JSON of a lakeFS error."""
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        message = content.get("message") if isinstance(content, dict) else None
        return message if isinstance(message, str) else None

    @property
    def meaning(self) -> int:
        """The status; 404 instead of the 500 with which older servers answer unknown paths."""
        return 404 if self.status == 500 and self.message == _UNKNOWN_PATH else self.status


def is_transient(answer: Answer) -> bool:
    """True if a retry may succeed."""
    return answer.meaning == 429 or (answer.meaning >= 500 and answer.meaning != 501)


def refusal(call: Call, answer: Answer, endpoint: str, secrets: Sequence[str]) -> LakeFSError:
    """The error for a refused call. It never shows `secrets`, even if the server repeats them."""
    kind, advice = _judged(call, answer, endpoint)
    message = answer.message
    words = "an answer that is not lakeFS's" if message is None else _without(secrets, message)
    return kind(f"{call}: {_named(answer.status)}: {' '.join(words.split())[:_MESSAGE_LIMIT]}. {advice}")


def _without(secrets: Sequence[str], words: str) -> str:
    """Redacts secrets, including URL-escaped ones. Needs the uncut text, because a part of a secret would not match."""
    spellings = {spelling for secret in secrets if secret for spelling in (secret, quote(secret), quote(secret, ""))}
    for spelling in sorted(spellings, key=len, reverse=True):
        words = re.sub(re.escape(spelling), "***", words, flags=re.IGNORECASE)
    return words


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _judged(call: Call, answer: Answer, endpoint: str) -> tuple[type[LakeFSError], str]:
    status, said = answer.meaning, answer.message or ""
    if status == 401:
        return WrongKeys, "Check lakefs.access_key_id and lakefs.secret_access_key"
    if status == 403 and "read-only" in said:
        return ReadOnlyRepository, "lakeFS prepares no collection of a read-only repository: collect another one"
    if status == 403 and answer.message is None:
        return AccessDenied, f"Check lakefs.endpoint: {endpoint} may be another service, or behind a proxy that refuses"
    if status == 403:
        return AccessDenied, f"Grant the user of lakefs.access_key_id the permission {call.permission}"
    if status == 404 and "repository not found" in said:
        return NotFound, f"Check the setting repository, and that {endpoint} is the server that has it"
    if status == 404:
        kind = UnknownPath if said == _UNKNOWN_PATH else NotFound
        return kind, f"Check that it exists and that {endpoint} is a lakeFS server that offers this call"
    if status == 407:
        return LakeFSError, "Write http://user:password@host:port into HTTP_PROXY or HTTPS_PROXY"
    if status == 409:
        return Conflict, "Another client changed the same paths, or the name is taken: list again"
    if status == 412:
        return HookFailed, "A hook of the repository refused it: see its run in the repository's tab Actions"
    if status == 501:
        return NotSupported, "This lakeFS server does not offer the call"
    if is_transient(answer):
        return ServerUnavailable, "The server is overloaded or failing: see its log, and start the collection again"
    if 300 <= status < 400:
        return LakeFSError, "Set lakefs.endpoint to the address that the server redirects to"
    if answer.message is None:
        return (
            LakeFSError,
            f"Check lakefs.endpoint: {endpoint} is another service, or a proxy answered for lakeFS",
        )
    return LakeFSError, "The server's log tells more; check that lakeFS and this collector fit together"

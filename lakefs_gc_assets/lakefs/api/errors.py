"""What a lakeFS server's refusal means: the error class, and one line that says what to do.

Status codes and messages are those of lakeFS's REST API: errors carry `{"message": …}`; a read-only repository answers
403; an unknown path answers 404, and 500 on servers built before 2025-12-27.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import quote

from lakefs_gc_assets.errors import (
    AccessDenied,
    LakeFSError,
    NotFound,
    NotSupported,
    ReadOnlyRepository,
    ServerUnavailable,
)

_UNKNOWN_PATH = "invalid API endpoint"
_MESSAGE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Call:
    """One call as messages name it, and the lakeFS permission that it needs."""

    method: str
    path: str
    permission: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered; header names are compared without case."""

    status: int
    headers: Mapping[str, str]
    body: str = field(repr=False)

    @property
    def message(self) -> str | None:
        """lakeFS's own words; None where the body is not the JSON that lakeFS sends with an error."""
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        message = content.get("message") if isinstance(content, dict) else None
        return message if isinstance(message, str) else None

    @property
    def meaning(self) -> int:
        """The status, with 404 for the 500 by which older servers said that they do not know a path."""
        return 404 if self.status == 500 and self.message == _UNKNOWN_PATH else self.status


def is_transient(answer: Answer) -> bool:
    """Whether the same call may succeed a little later."""
    return answer.meaning == 429 or (answer.meaning >= 500 and answer.meaning != 501)


def refusal(call: Call, answer: Answer, endpoint: str, secrets: Sequence[str]) -> LakeFSError:
    """The error that a refused call raises; `secrets` never show, not even where the server repeats them."""
    kind, advice = _judged(call, answer, endpoint)
    said = answer.message
    words = "an answer that is not lakeFS's" if said is None else _without(secrets, said)
    return kind(f"{call}: {_named(answer.status)}: {' '.join(words.split())[:_MESSAGE_LIMIT]}. {advice}")


def _without(secrets: Sequence[str], words: str) -> str:
    """The words with secrets left out, escaped ones too; whole, since a part of a secret could not be recognised."""
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
        return AccessDenied, "Check lakefs.access_key_id and lakefs.secret_access_key"
    if status == 403 and "read-only" in said:
        return ReadOnlyRepository, "lakeFS prepares no collection of a read-only repository: collect another one"
    if status == 403:
        return AccessDenied, f"Grant the user of lakefs.access_key_id the permission {call.permission}"
    if status == 404 and "repository not found" in said:
        return NotFound, f"Check the setting repository, and that {endpoint} is the server that has it"
    if status == 404:
        return NotFound, f"Check that it exists and that {endpoint} is a lakeFS server that offers this call"
    if status == 407:
        return LakeFSError, "Write http://user:password@host:port into HTTP_PROXY or HTTPS_PROXY"
    if status == 501:
        return NotSupported, "This lakeFS server does not offer the call"
    if is_transient(answer):
        return ServerUnavailable, "The server is overloaded or failing: see its log, and start the collection again"
    if 300 <= status < 400:
        return LakeFSError, "Set lakefs.endpoint to the address that the server redirects to"
    return LakeFSError, "The server's log tells more; check that lakeFS and this collector fit together"

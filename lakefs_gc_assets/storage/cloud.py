"""Shared by the clients of all clouds: timeouts and retries, answers, errors, and deletes in batches.

Clients retry with exponential backoff while the service is busy or unreachable. A bulk delete is retried for the keys
that the service throttled, at an adaptive rate (`Throttle`). Slow calls are logged.
"""

import json
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from email.parser import BytesParser
from email.policy import HTTP
from enum import Enum, auto
from pathlib import Path
from random import uniform
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from obstore.exceptions import BaseError

from lakefs_gc_assets.errors import (
    AlreadyExists,
    DeletesOver,
    ObjectArchived,
    ObjectNotFound,
    PermissionMissing,
    PreconditionFailed,
    StorageError,
)
from lakefs_gc_assets.storage import traffic
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, are_deletes_over
from lakefs_gc_assets.waits import Waits, limit_answers

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, RetryConfig

ATTEMPTS = 10
"""Maximum attempts for a request that is answered 408, 429 or 5xx, times out or loses its connection."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 20.0
"""Seconds. The pause doubles with each attempt, with random jitter."""
RETRY_FOR = timedelta(minutes=3)
"""Period in which Google's client and obstore begin attempts."""
CONNECT_TIMEOUT = timedelta(seconds=10)
READ_TIMEOUT = timedelta(minutes=1)
"""Maximum time without any received bytes."""
REQUEST_TIMEOUT = timedelta(minutes=10)
"""Maximum time for one whole answer that obstore reads."""
CONNECTIONS = 32
_FIRST_CONTACT = ContextVar("first contact", default=False)
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses of temporary failures, which are retried."""
_OBSTORE_BACKOFF: "BackoffConfig" = {
    "init_backoff": timedelta(seconds=0.1),
    "max_backoff": timedelta(seconds=15),
    # Each pause is drawn between the first one and the last one times this base. With 2, pauses would shrink.
    "base": 8,
}
"""Pauses between attempts. Their sum is usually 90 seconds, and at least 8 seconds in 999 of 1,000 cases."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """Answer of the service, with header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def from_headers(cls, status: int, headers: Mapping[str, str], body: bytes) -> "StoreAnswer":
        """An answer whose headers have names in any case."""
        return cls(status, {name.lower(): value for name, value in headers.items()}, body)


@contextmanager
def first_contact() -> Iterator[None]:
    """Context with short timeouts and few retries: a request to a store fails within seven seconds."""
    token = _FIRST_CONTACT.set(True)
    try:
        yield
    finally:
        _FIRST_CONTACT.reset(token)


def attempts() -> int:
    """Maximum attempts for a request, including the first."""
    return min(2, ATTEMPTS) if _FIRST_CONTACT.get() else ATTEMPTS


def retry_for() -> timedelta:
    """Period in which attempts begin."""
    return min(timedelta(seconds=5), RETRY_FOR) if _FIRST_CONTACT.get() else RETRY_FOR


def connect_timeout() -> timedelta:
    """Maximum time to connect."""
    return min(timedelta(seconds=2), CONNECT_TIMEOUT) if _FIRST_CONTACT.get() else CONNECT_TIMEOUT


def read_timeout() -> timedelta:
    """Maximum time without any received bytes."""
    return min(timedelta(seconds=3), READ_TIMEOUT) if _FIRST_CONTACT.get() else READ_TIMEOUT


def pause_after(failed: int) -> float:
    """Seconds to wait after `failed` attempts (at least one)."""
    longest: float = min(FIRST_PAUSE * 2.0 ** (failed - 1), LONGEST_PAUSE)
    return uniform(longest / 2, longest)  # noqa: S311


waits = Waits("the store")


class LimitedAdapter:
    """Mixin for requests' HTTPAdapter in Google's and Azure's clients: limits answers, and counts requests."""

    def send(self, *arguments: Any, **named: Any) -> Any:
        """See HTTPAdapter.send."""
        traffic.count(1)
        return super().send(*arguments, **named)  # type: ignore[misc]

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
        """See HTTPAdapter.get_connection_with_tls_context."""
        return limit_answers(super().get_connection_with_tls_context(*arguments, **named))  # type: ignore[misc]


def obstore_options(ca_bundle: str) -> "ClientConfig":
    """Timeouts, and a PEM file of trusted certificates, if any. Raises OSError if the file cannot be read."""
    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": connect_timeout(),
        "read_timeout": read_timeout(),
        "timeout": REQUEST_TIMEOUT,
    }
    return {**options, "root_certificate": Path(ca_bundle).read_bytes()} if ca_bundle else options


def obstore_retries() -> "RetryConfig":
    """Maximum attempts and the pauses between them."""
    return {"max_retries": attempts() - 1, "retry_timeout": retry_for(), "backoff": _OBSTORE_BACKOFF}


class _WithoutDoctype(TreeBuilder):
    def doctype(self, *_: object) -> None:
        raise ParseError("the document has a DOCTYPE, which may declare entities: it is not read")


def parse_xml(body: bytes) -> Element:
    """The root of a document. Raises ParseError if it is not XML, or has a DOCTYPE.

    XML entities can expand without bound and refer to files and hosts. They need a DOCTYPE, which neither the S3 API
    nor Azure's ever sends.
    """
    # The attacks that this rule warns about need a DOCTYPE.
    parser = XMLParser(target=_WithoutDoctype())  # noqa: S314
    parser.feed(body)
    return parser.close()


_PART_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_PART_NUMBER = re.compile(r"(\d+)\D*$")


def batch_of_deletes(targets: Sequence[str]) -> tuple[str, bytes]:
    """Content type and body of a batch request that deletes targets; the first part has Content-ID 0."""
    boundary = f"batch_{uuid.uuid4()}"
    lines = []
    for number, target in enumerate(targets):
        lines += [f"--{boundary}", "Content-Type: application/http", "Content-Transfer-Encoding: binary"]
        lines += [f"Content-ID: {number}", "", f"DELETE {target} HTTP/1.1"]
        lines += ["Content-Length: 0", "", ""]
    lines += [f"--{boundary}--", ""]
    return f"multipart/mixed; boundary={boundary}", "\r\n".join(lines).encode()


def batch_answers(batch: StoreAnswer) -> dict[int, StoreAnswer]:
    """The answers in a batch response, by number of the request. Unreadable parts are skipped."""
    head = f"Content-Type: {batch.headers.get('content-type', '')}\r\n\r\n".encode()
    message = BytesParser(policy=HTTP).parsebytes(head + batch.body)
    answers = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        number = _PART_NUMBER.search(part.get("Content-ID", "").strip("<> "))
        content = part.get_payload(decode=True)
        if number and isinstance(content, bytes) and (status := _PART_STATUS.match(content)):
            _, _, rest = content.partition(b"\n")
            inner = BytesParser(policy=HTTP).parsebytes(rest)
            body = inner.get_payload(decode=True)
            fields = {name.lower(): str(value) for name, value in inner.items()}
            answers[int(number[1])] = StoreAnswer(int(status[1]), fields, body if isinstance(body, bytes) else b"")
    return answers


ObstoreError = BaseError | FileNotFoundError
"""Exceptions of obstore."""
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,300})")
_STATUS = re.compile(r"status code: (\d{3})")


class Meaning(Enum):
    """Meaning of an error's code or status."""

    NO_OBJECT = auto()
    NO_BUCKET = auto()
    OTHER_VERSION = auto()
    OTHER_REGION = auto()
    BAD_CREDENTIALS = auto()
    DENIED = auto()
    ARCHIVED = auto()
    CONFLICT = auto()
    BUSY = auto()


_STATUSES = {
    "401": Meaning.BAD_CREDENTIALS,
    "403": Meaning.DENIED,
    "409": Meaning.CONFLICT,
    "412": Meaning.OTHER_VERSION,
    **{str(status): Meaning.BUSY for status in BUSY},
}
_SENTENCES = {
    Meaning.OTHER_REGION: (StorageError, "the bucket lies in another region", "set `store.region`"),
    Meaning.BAD_CREDENTIALS: (StorageError, "the credentials were refused", "set the right ones of `store`"),
    Meaning.DENIED: (PermissionMissing, "access denied", "the credentials of `store` need this permission"),
    # Such as Glacier, Deep Archive or Azure's archive.
    Meaning.ARCHIVED: (
        ObjectArchived,
        "it is in an archive tier",
        "bring it back from there first. To delete such objects without a copy, sweep with "
        "`collection.sweep_mode: delete`",
    ),
    Meaning.CONFLICT: (StorageError, "something is in the way, such as other writers", "run again"),
    Meaning.BUSY: (StorageError, "the service kept failing or throttling", "run again, or with less load"),
}
"""Error class, sentence and remedy for each meaning."""


@dataclass(frozen=True)
class CloudErrors:
    """Turns answers and obstore's exceptions into StorageError and its subclasses.

    An error is one line with the failed action, the bucket and a remedy. It quotes only the service's code and
    message, because the rest of an answer may contain parts of the request.

    Attributes:
        place: bucket and endpoint, such as `gs://bucket at https://storage.googleapis.com`.
        meanings: meanings of the service's own codes, and of statuses with a special meaning for this service.
    """

    place: str
    meanings: Mapping[str, Meaning]

    def answered(self, action: str, answer: StoreAnswer) -> StorageError:
        """The error for an answer that is not a success."""
        return self.refused(action, str(answer.status), *code_and_message(answer))

    def refused(self, action: str, status: str, code: str = "", message: str = "") -> StorageError:
        """The error for a status and the service's code and message, if any; the code takes precedence."""
        known = {**_STATUSES, **self.meanings}
        quoted = " ".join(filter(None, dict.fromkeys((status, code, message))))
        match known.get(code) or known.get(status):
            case Meaning.NO_OBJECT:
                return self.not_found(action)
            case Meaning.NO_BUCKET:
                return self.no_bucket(action)
            case Meaning.OTHER_VERSION:
                return self.other_version(action)
            case None:
                remedy = "check the settings of `store`"
                if status == "404":
                    remedy = "check that the bucket of the storage namespace exists there, and `store.endpoint_url`"
                return self.failed(action, f"the service answered {quoted}", remedy)
            case meaning:
                kind, what, remedy = _SENTENCES[meaning]
                return kind(self._sentence(action, f"{what} ({quoted})", remedy))

    def raised(self, action: str, error: ObstoreError) -> StorageError:
        """The error for an exception of obstore."""
        text = str(error)
        status, code, message = (
            match[1].strip() if (match := each.search(text)) else "" for each in (_STATUS, _CODE, _MESSAGE)
        )
        if status or code:
            return self.refused(action, status, code, message)
        if isinstance(error, FileNotFoundError):
            return self.refused(action, "404")
        if "HTTP error" in text:
            return self.unreachable(action)
        return self.failed(action, text.partition("\n")[0], "check the settings of `store`")

    @contextmanager
    def reading(self, action: str) -> Iterator[None]:
        """Context for parsing an answer: missing or malformed parts raise StorageError."""
        # XML's ParseError is a SyntaxError.
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, SyntaxError) as error:
            raise self.failed(
                action, f"the answer cannot be read ({error!r})", "check the service and any proxy"
            ) from None

    def not_found(self, action: str) -> ObjectNotFound:
        """The error for a missing object."""
        return ObjectNotFound(f"cannot {action}: there is no such object in {self.place}")

    def no_bucket(self, action: str) -> StorageError:
        """The error for a missing bucket or container."""
        return self.failed(
            action, "there is no such bucket or container", "check the storage namespace and the endpoint"
        )

    def other_version(self, action: str) -> PreconditionFailed:
        """The error for a version that is not the expected one."""
        return PreconditionFailed(f"cannot {action}: another version is there; read it again")

    def already_exists(self, action: str) -> AlreadyExists:
        """The error for a conditional put that found an object."""
        return AlreadyExists(f"cannot {action}: there is an object already, left as it is")

    def unreachable(self, action: str) -> StorageError:
        """The error for a request without an answer."""
        return self.failed(
            action, "no connection, or it broke or timed out", "check `store.endpoint_url`: http or https, host, port"
        )

    def nonsense(self, action: str, what: str) -> StorageError:
        """The error for an answer that contradicts the request or the API."""
        return self.failed(action, f"the service's answer makes no sense: {what}", "check the service and any proxy")

    def failed(self, action: str, what: str, remedy: str) -> StorageError:
        """The error for any other failure."""
        return StorageError(self._sentence(action, what, remedy))

    def _sentence(self, action: str, what: str, remedy: str) -> str:
        return f"cannot {action} in {self.place}: {what}; {remedy}"


def code_and_message(answer: StoreAnswer) -> tuple[str, str]:
    """The service's code and message, empty if absent: from Google's JSON, XML, or Azure's header."""
    text = answer.body.decode(errors="replace")
    if answer.headers.get("content-type", "").startswith("application/json") or text.startswith("{"):
        return _json(text)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    return code[1] if code else answer.headers.get("x-ms-error-code", ""), message[1].strip() if message else ""


def _json(text: str) -> tuple[str, str]:
    try:
        error = json.loads(text)["error"]
        reasons = [str(entry.get("reason", "")) for entry in error.get("errors", ())]
        return reasons[0] if reasons else "", str(error.get("message", ""))[:300]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


DELETE_ATTEMPTS = 7
"""Maximum requests in a row whose keys are all throttled; their pauses last at most 16 seconds."""
SAME_SIZE_ATTEMPTS = 5
"""Refusals in a row of a whole request before the next one has fewer keys."""
_SLOWEST, _FASTER = 5.0, 25.0
"""Keys per second: the minimum rate, and the increase for each second without throttling."""


def require_time_to_delete(**_: object) -> None:
    """Called before each request of a client, including retries. Raises DeletesOver."""
    if are_deletes_over():
        raise DeletesOver("the time for deletes is over")


class RequestThrottled(StorageError):
    """A bulk delete was throttled as a whole: none of its keys was deleted, and none has an answer of its own."""


class Throttle:
    """Adaptive rate of a store's deletes in this process. It is unlimited until the service throttles keys.

    Throttling lowers the rate by the share of throttled keys, to between a quarter and a half, at most once a second.
    Each second without throttling raises it. Executors with this policy share the service's capacity without
    coordination.
    """

    def __init__(
        self, counter: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] | None = None
    ) -> None:
        """A throttle without a limit yet.

        Args:
            counter: seconds of a monotonic clock.
            sleep: defaults to `time.sleep`.
        """
        self.counter, self.sleep = counter, sleep or (lambda seconds: time.sleep(seconds))
        self._lock = threading.Lock()
        self._rate = math.inf
        self._next = self._slowed = self._quickened = -math.inf

    def at_once(self, keys: int) -> int:
        """Maximum keys for the next request out of `keys`: at most one second's worth."""
        return int(min(keys, self._rate))

    def turn(self, keys: int) -> float:
        """Reserves a request for `keys` keys; returns the seconds to wait before sending it."""
        with self._lock:
            now = self.counter()
            begins = max(now, self._next)
            self._next = begins + keys / self._rate
        return begins - now

    def adapt(self, keys: int, busy: int) -> None:
        """Adapts the rate to an answer: `busy` out of `keys` requested keys were throttled."""
        with self._lock:
            now = self.counter()
            if busy and now - self._slowed >= 1:
                rate = keys if math.isinf(self._rate) else self._rate
                self._rate = max(_SLOWEST, rate * max(0.25, min(0.5, 1 - busy / keys)))
                self._slowed = now
            elif not busy and now - max(self._slowed, self._quickened) >= 1:
                self._rate += _FASTER
                self._quickened = now


def retry_throttled(
    delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]],
    keys: Sequence[str],
    was_busy: Callable[[DeleteOutcome], bool],
    throttle: Throttle,
) -> dict[str, DeleteOutcome]:
    """Deletes keys, retrying throttled ones at a lower rate; returns the last outcome of each key.

    Keys without a final outcome are LEFT if the deadline of `deletes_until` passes. Other errors of `delete` propagate.

    Raises:
        RequestThrottled: `delete` raised it until the last attempt, and no key has an outcome.
    """
    outcomes: dict[str, DeleteOutcome] = {}
    remaining = list(keys)
    batch: Sequence[str] = ()
    busy_in_row, refused_in_row, refused_since = 0, 0, 0.0
    while remaining:
        # The service may count requests instead of keys: smaller ones would be more of them.
        is_repeated = 0 < refused_in_row < SAME_SIZE_ATTEMPTS
        batch = remaining[: len(batch) if is_repeated else throttle.at_once(len(remaining))]
        throttle.sleep(throttle.turn(len(batch)))
        try:
            require_time_to_delete()
            outcomes |= delete(batch)
        except DeletesOver:
            return outcomes | {key: DeleteOutcome(key, DeleteResult.LEFT) for key in remaining}
        except RequestThrottled as refusal:
            traffic.count(retries=1)
            refused_since = refused_since if refused_in_row else throttle.counter()
            refused_in_row += 1
            refused_for = timedelta(seconds=throttle.counter() - refused_since)
            if refused_in_row >= ATTEMPTS and refused_for >= RETRY_FOR:
                if not outcomes:
                    raise
                return {key: DeleteOutcome(key, DeleteResult.FAILED, str(refusal)) for key in remaining} | outcomes
            if refused_in_row >= SAME_SIZE_ATTEMPTS:
                throttle.adapt(len(batch), len(batch))
            throttle.sleep(pause_after(refused_in_row + 2))
            continue
        refused_in_row = 0
        busy = [key for key in batch if was_busy(outcomes[key])]
        throttle.adapt(len(batch), len(busy))
        remaining = [*busy, *remaining[len(batch) :]]
        if not busy:
            continue
        traffic.count(retries=1)
        # As long as some keys are deleted, the others are sent again: the deadline ends this, not the throttling.
        busy_in_row = busy_in_row + 1 if len(busy) == len(batch) else 1
        if busy_in_row >= DELETE_ATTEMPTS:
            # Keys that were not requested yet get the same outcome: the service would throttle them too.
            return {key: replace(outcomes[busy[0]], key=key) for key in remaining} | outcomes
        throttle.sleep(pause_after(busy_in_row))
    return outcomes


_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
_AT_ONCE = 4
"""Parallel batches per call."""


def delete_in_batches(
    keys: Sequence[str], size: int, delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]], throttle: Throttle
) -> dict[str, DeleteOutcome]:
    """Deletes keys in batches; returns the outcome of each key. If a batch fails as a whole, all its keys fail.

    Args:
        size: maximum keys for one call of `delete`.
    Raises:
        StorageError: every batch failed as a whole.
    """
    batches = [keys[start : start + size] for start in range(0, len(keys), size)]
    results = in_threads(_AT_ONCE, lambda batch: _batch_outcomes(batch, delete, throttle), batches)
    outcomes: dict[str, DeleteOutcome] = {}
    for batch, result in zip(batches, results, strict=True):
        if not isinstance(result, StorageError):
            outcomes |= result
        elif all(isinstance(other, StorageError) for other in results):
            raise result
        else:
            outcomes |= {key: DeleteOutcome(key, DeleteResult.FAILED, str(result)) for key in batch}
    return outcomes


def in_threads(count: int, work: Callable[[_Piece], _Result], pieces: Sequence[_Piece]) -> list[_Result]:
    """Results of `work` for each piece, from `count` threads with copies of the caller's context (`deletes_until`)."""
    contexts = [copy_context() for _ in pieces]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda context, piece: context.run(work, piece), contexts, pieces))


def _batch_outcomes(
    batch: Sequence[str], delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]], throttle: Throttle
) -> dict[str, DeleteOutcome] | StorageError:
    try:
        return retry_throttled(delete, batch, _was_busy, throttle)
    except StorageError as error:
        return error


def outcome_of(full: str, part: StoreAnswer | None, kept: bool | None) -> DeleteOutcome:
    """The outcome for one part of a batch answer; `kept` is True if the service soft-deletes."""
    if part is None:
        return DeleteOutcome(full, DeleteResult.FAILED, "the service's answer does not mention this key")
    if part.status == 404:
        return DeleteOutcome(full, DeleteResult.ACCEPTED)
    if 200 <= part.status < 300:
        return DeleteOutcome(full, DeleteResult.ACCEPTED, soft_deleted=kept)
    code, message = code_and_message(part)
    return DeleteOutcome(full, DeleteResult.FAILED, f"{part.status} {code}: {message}")


def _was_busy(outcome: DeleteOutcome) -> bool:
    status = (outcome.error or "").partition(" ")[0]
    return status.isdecimal() and int(status) in BUSY

"""Shared by the clients of every cloud: timeouts and retries, answers, errors, and deletes in batches.

Clients retry with growing pauses while the service is busy or out of reach. A bulk delete is repeated for the keys that
the service was too busy for, at a rate that adapts to what it takes (`Throttle`). A call that takes long is shown. An
error is one line: what was asked, of which bucket, and what to do. It quotes only the service's code and message,
because the rest of an answer may hold parts of the request.

Entities of XML can grow without bound and name files and hosts. They are declared in a DOCTYPE, which neither the S3
API nor Azure's ever sends, so a document with one is refused before anything of it is read.
"""

import json
import logging
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
from typing import TYPE_CHECKING, TypeVar
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
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, are_deletes_over
from lakefs_gc_assets.waits import Waits

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, RetryConfig

ATTEMPTS = 10
"""How often a request is tried where it is answered 408, 429 or 5xx, times out or loses its connection."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 20.0
"""Seconds; a pause doubles from attempt to attempt, and a random part of it is waited."""
RETRY_FOR = timedelta(minutes=3)
"""How long Google's client and obstore begin attempts."""
CONNECT_TIMEOUT = timedelta(seconds=10)
READ_TIMEOUT = timedelta(minutes=1)
"""How long nothing may arrive."""
REQUEST_TIMEOUT = timedelta(minutes=10)
"""How long one answer may take that obstore reads."""
CONNECTIONS = 32
_log = logging.getLogger(__name__)
_FIRST_CONTACT = ContextVar("first contact", default=False)
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of a service that could not answer now, and may be asked again."""
_OBSTORE_BACKOFF: "BackoffConfig" = {
    "init_backoff": timedelta(seconds=0.1),
    "max_backoff": timedelta(seconds=15),
    # A pause is drawn between the first one and this many times the last: with 2 they would shrink, not grow.
    "base": 8,
}
"""Pauses between attempts: in all 8 seconds or more in 999 of 1,000 cases, a minute and a half usually."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """Answer of the service; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@contextmanager
def first_contact() -> Iterator[None]:
    """Within it stores are opened and asked with so little patience that a request fails within seven seconds."""
    token = _FIRST_CONTACT.set(True)
    try:
        yield
    finally:
        _FIRST_CONTACT.reset(token)


def attempts() -> int:
    """How often a request is tried in all."""
    return min(2, ATTEMPTS) if _FIRST_CONTACT.get() else ATTEMPTS


def retry_for() -> timedelta:
    """How long attempts are begun."""
    return min(timedelta(seconds=5), RETRY_FOR) if _FIRST_CONTACT.get() else RETRY_FOR


def connect_timeout() -> timedelta:
    """How long to wait for a connection."""
    return min(timedelta(seconds=2), CONNECT_TIMEOUT) if _FIRST_CONTACT.get() else CONNECT_TIMEOUT


def read_timeout() -> timedelta:
    """How long nothing may arrive."""
    return min(timedelta(seconds=3), READ_TIMEOUT) if _FIRST_CONTACT.get() else READ_TIMEOUT


def pause_after(failed: int) -> float:
    """Seconds to wait after so many attempts, one at least, have failed."""
    longest: float = min(FIRST_PAUSE * 2.0 ** (failed - 1), LONGEST_PAUSE)
    return uniform(longest / 2, longest)  # noqa: S311


waits = Waits("the store")


def obstore_options(ca_bundle: str) -> "ClientConfig":
    """Timeouts, and a PEM file of certificates to trust, if any. Raises OSError where it cannot be read."""
    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": connect_timeout(),
        "read_timeout": read_timeout(),
        "timeout": REQUEST_TIMEOUT,
    }
    return {**options, "root_certificate": Path(ca_bundle).read_bytes()} if ca_bundle else options


def obstore_retries() -> "RetryConfig":
    """Attempts and the pauses between them."""
    return {"max_retries": attempts() - 1, "retry_timeout": retry_for(), "backoff": _OBSTORE_BACKOFF}


class _WithoutDoctype(TreeBuilder):
    def doctype(self, *_: object) -> None:
        raise ParseError("the document has a DOCTYPE, which may declare entities: it is not read")


def parse_xml(body: bytes) -> Element:
    """The root of a document. Raises ParseError where it is no XML, or has a DOCTYPE."""
    # What the rule warns of takes a DOCTYPE.
    parser = XMLParser(target=_WithoutDoctype())  # noqa: S314
    parser.feed(body)
    return parser.close()


_PART_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_PART_NUMBER = re.compile(r"(\d+)\D*$")


def batch_of_deletes(targets: Sequence[str]) -> tuple[str, bytes]:
    """Content type and body of a batch that deletes targets; the first part has the Content-ID 0."""
    boundary = f"batch_{uuid.uuid4()}"
    lines = []
    for number, target in enumerate(targets):
        lines += [f"--{boundary}", "Content-Type: application/http", "Content-Transfer-Encoding: binary"]
        lines += [f"Content-ID: {number}", "", f"DELETE {target} HTTP/1.1"]
        lines += ["Content-Length: 0", "", ""]
    lines += [f"--{boundary}--", ""]
    return f"multipart/mixed; boundary={boundary}", "\r\n".join(lines).encode()


def batch_answers(batch: StoreAnswer) -> dict[int, StoreAnswer]:
    """The answer of each part, by the number of its request. What cannot be read is left out."""
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
    """Meaning of the code or the status of a refusal."""

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
"""Kind of error, sentence and remedy for each."""


@dataclass(frozen=True)
class CloudErrors:
    """Turns answers and what obstore raises into StorageError and its subclasses.

    Attributes:
        place: such as `gs://bucket at https://storage.googleapis.com`.
        meanings: of the service's own codes, and of statuses that mean something there and not everywhere.
    """

    place: str
    meanings: Mapping[str, Meaning]

    def answered(self, action: str, answer: StoreAnswer) -> StorageError:
        """The error for an answer that is none of those which were hoped for."""
        return self.refused(action, str(answer.status), *code_and_message(answer))

    def refused(self, action: str, status: str, code: str = "", message: str = "") -> StorageError:
        """The error for a status, with the service's code and message where it gave any; the code counts first."""
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
        """The error for what obstore raised."""
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
        """Around the reading of an answer: what is missing or malformed becomes a StorageError."""
        # XML that is none is a SyntaxError.
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, SyntaxError) as error:
            raise self.failed(
                action, f"the answer cannot be read ({error!r})", "check the service and what lies between"
            ) from None

    def not_found(self, action: str) -> ObjectNotFound:
        """The error where there is no such object."""
        return ObjectNotFound(f"cannot {action}: there is no such object in {self.place}")

    def no_bucket(self, action: str) -> StorageError:
        """The error where the bucket or container itself is missing."""
        return self.failed(
            action, "there is no such bucket or container", "check the storage namespace and the endpoint"
        )

    def other_version(self, action: str) -> PreconditionFailed:
        """The error where there is another version than the expected one."""
        return PreconditionFailed(f"cannot {action}: another version is there; read it again")

    def already_exists(self, action: str) -> AlreadyExists:
        """The error where a put found an object that was not to be there."""
        return AlreadyExists(f"cannot {action}: there is an object already, left as it is")

    def unreachable(self, action: str) -> StorageError:
        """The error where no answer came."""
        return self.failed(
            action,
            "no connection, or it broke or timed out",
            "check `store.endpoint_url`: http or https, host, port",
        )

    def nonsense(self, action: str, what: str) -> StorageError:
        """The error where an answer cannot be what the service means."""
        return self.failed(
            action, f"the service's answer makes no sense: {what}", "check the service and what lies between"
        )

    def failed(self, action: str, what: str, remedy: str) -> StorageError:
        """The error for whatever else happened."""
        return StorageError(self._sentence(action, what, remedy))

    def _sentence(self, action: str, what: str, remedy: str) -> str:
        return f"cannot {action} in {self.place}: {what}; {remedy}"


def code_and_message(answer: StoreAnswer) -> tuple[str, str]:
    """The service's code and message, empty where it gave none: JSON of Google, XML or a header of Azure."""
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
"""How often in a row a service may refuse all keys that it is asked for because it is busy: 16 seconds at the most."""
BUSY_FOR = 60.0
"""Seconds in which keys of one call are asked for again, however many of them a busy service takes meanwhile."""
_SLOWEST, _FASTER = 20.0, 25.0
"""Keys a second: the lowest rate, and what a second without a refusal adds to it."""


def require_time_to_delete(**_: object) -> None:
    """To be called before each request of a client, also where it repeats one. Raises DeletesOver."""
    if are_deletes_over():
        raise DeletesOver("the time for deletes is over")


class Throttle:
    """Rate of the deletes of one store in this process. There is no limit until the service refuses keys as it is busy.

    A refusal lowers the rate by the share of keys that was refused, to between a half and a quarter of it and once a
    second at the most. Each second without a refusal adds to it. Executors that do so share what the service takes,
    without knowing of each other.
    """

    def __init__(
        self, counter: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] | None = None
    ) -> None:
        """Without a limit.

        Args:
            counter: seconds since some moment.
            sleep: by default that of the module `time`.
        """
        self.counter, self.sleep = counter, sleep or (lambda seconds: time.sleep(seconds))
        self._lock = threading.Lock()
        self._rate = math.inf
        self._next = self._slowed = self._quickened = -math.inf

    def at_once(self, keys: int) -> int:
        """How many of so many keys the next request asks for: those of a second at the most."""
        return int(min(keys, self._rate))

    def turn(self, keys: int) -> float:
        """Seconds until so many more keys may be asked for, which then count as asked for."""
        with self._lock:
            now = self.counter()
            begins = max(now, self._next)
            self._next = begins + keys / self._rate
        return begins - now

    def adapt(self, keys: int, busy: int) -> None:
        """Adapts the rate to the answer to a request for so many keys: how many the service was too busy for."""
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
    """Deletes keys, those that the service was too busy for again and slower; returns the last outcome of each.

    Keys that have none when the time for deletes is over are LEFT. Raises what else `delete` raises.
    """
    outcomes: dict[str, DeleteOutcome] = {}
    remaining = list(keys)
    refused_in_row, begun = 0, throttle.counter()
    while remaining:
        batch = remaining[: throttle.at_once(len(remaining))]
        throttle.sleep(throttle.turn(len(batch)))
        try:
            require_time_to_delete()
            outcomes |= delete(batch)
        except DeletesOver:
            return outcomes | {key: DeleteOutcome(key, DeleteResult.LEFT) for key in remaining}
        busy = [key for key in batch if was_busy(outcomes[key])]
        throttle.adapt(len(batch), len(busy))
        remaining = busy + remaining[len(batch) :]
        if not busy:
            continue
        refused_in_row = refused_in_row + 1 if len(busy) == len(batch) else 1
        if refused_in_row >= DELETE_ATTEMPTS or throttle.counter() - begun >= BUSY_FOR:
            # The service was too busy for this request; for those that it was not asked for, it is as well.
            return {key: replace(outcomes[busy[0]], key=key) for key in remaining} | outcomes
        throttle.sleep(pause_after(refused_in_row))
    return outcomes


_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
_AT_ONCE = 4
"""Batches of one call that are under way at the same time."""


def delete_in_batches(
    keys: Sequence[str], size: int, delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]], throttle: Throttle
) -> dict[str, DeleteOutcome]:
    """Deletes keys in batches, and says what became of each. Where a batch fails as a whole, all its keys fail.

    Args:
        size: how many keys `delete` takes.
    Raises:
        StorageError: where every batch failed as a whole.
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
    """The result for each piece of the work of so many threads, which have the caller's context (`deletes_until`)."""
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
    """The outcome that the answer to one part states; `kept`: whether the service keeps what it deleted."""
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

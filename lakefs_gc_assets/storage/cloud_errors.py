"""What went wrong at a cloud's object store, in a line: what was asked, of which bucket, and what to do.

Only the service's code and message are quoted: the rest of an answer may hold parts of the request.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

from obstore.exceptions import BaseError

from lakefs_gc_assets.errors import AlreadyExists, ObjectArchived, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.storage.http_service import BUSY, Answer

ObstoreError = BaseError | FileNotFoundError
"""What obstore raises."""
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,300})")
_STATUS = re.compile(r"status code: (\d{3})")


class Meaning(Enum):
    """What the code or the status of a refusal means."""

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
    Meaning.OTHER_REGION: ("the bucket lies in another region", "set `store.region`"),
    Meaning.BAD_CREDENTIALS: ("the credentials were refused", "set the right ones of `store`"),
    Meaning.DENIED: ("access denied", "the credentials of `store` need this permission"),
    Meaning.CONFLICT: ("something is in the way, such as other writers", "run again"),
    Meaning.BUSY: ("the service kept failing or throttling", "run again, or with less load"),
}
"""What happened, and what to do."""


@dataclass(frozen=True)
class CloudErrors:
    """Turns answers and what obstore raises into StorageError and its subclasses.

    Attributes:
        place: such as `gs://bucket at https://storage.googleapis.com`.
        meanings: of the service's own codes, and of statuses that mean something there and not everywhere.
    """

    place: str
    meanings: Mapping[str, Meaning]

    def answered(self, action: str, answer: Answer) -> StorageError:
        """The error for an answer that is none of those which were hoped for."""
        return self.refused(action, str(answer.status), *said(answer))

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
            case Meaning.ARCHIVED:
                return self.archived(action, quoted)
            case None:
                return self.failed(action, f"the service answered {quoted}", "see to the settings of `store`")
            case meaning:
                what, remedy = _SENTENCES[meaning]
                return self.failed(action, f"{what} ({quoted})", remedy)

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
        return self.failed(action, text.partition("\n")[0], "see to the settings of `store`")

    @contextmanager
    def reading(self, action: str) -> Iterator[None]:
        """Around the reading of an answer: what is missing or malformed becomes a StorageError."""
        # XML that is none is a SyntaxError.
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, SyntaxError) as error:
            raise self.failed(
                action, f"the answer cannot be read ({error!r})", "see to the service and what lies between"
            ) from None

    def not_found(self, action: str) -> ObjectNotFound:
        """The error where there is no such object."""
        return ObjectNotFound(f"cannot {action}: there is no such object in {self.place}")

    def archived(self, action: str, quoted: str) -> ObjectArchived:
        """The error where an object is in an archive tier, such as Glacier, Deep Archive or Azure's archive."""
        return ObjectArchived(
            f"cannot {action} in {self.place}: it is in an archive tier ({quoted}); bring it back from there first. To "
            "delete such objects without a copy, sweep with `collection.sweep_mode: delete`"
        )

    def no_bucket(self, action: str) -> StorageError:
        """The error where the bucket or container itself is missing."""
        return self.failed(
            action, "there is no such bucket or container", "see to the storage namespace and the endpoint"
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
            action, "no connection, or it broke or timed out", "see to `store.endpoint_url` and the network"
        )

    def nonsense(self, action: str, what: str) -> StorageError:
        """The error where an answer cannot be what the service means."""
        return self.failed(
            action, f"the service's answer makes no sense: {what}", "see to the service and what lies between"
        )

    def failed(self, action: str, what: str, remedy: str) -> StorageError:
        """The error for whatever else happened."""
        return StorageError(f"cannot {action} in {self.place}: {what}; {remedy}")


def said(answer: Answer) -> tuple[str, str]:
    """The service's code and message, empty where it gave none: JSON of Google, XML or a header of Azure."""
    text = answer.body.decode(errors="replace")
    if answer.headers.get("content-type", "").startswith("application/json") or text.startswith("{"):
        return _json(text)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    return code[1] if code else answer.headers.get("x-ms-error-code", ""), message[1].strip() if message else ""


def _json(text: str) -> tuple[str, str]:
    try:
        error = json.loads(text)["error"]
        reasons = [str(found.get("reason", "")) for found in error.get("errors", ())]
        return reasons[0] if reasons else "", str(error.get("message", ""))[:300]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""

"""What went wrong at Google Cloud Storage or Azure, in a line: what was asked, of which bucket, and what to do.

Only the service's code and message are quoted: the rest of an answer may hold parts of the request.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from obstore.exceptions import BaseError

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.storage.http_service import BUSY, Answer

_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,300})")
_STATUS = re.compile(r"status code: (\d{3})")


@dataclass(frozen=True, slots=True)
class CloudErrors:
    """Turns answers and what obstore raises into StorageError and its subclasses.

    Attributes:
        place: such as `gs://bucket at https://storage.googleapis.com`.
        missing_container: codes that say that the bucket or container is not there.
    """

    place: str
    missing_container: frozenset[str]

    def answered(self, action: str, answer: Answer) -> StorageError:
        """The error for an answer that is none of those which were hoped for."""
        code, message = said(answer)
        return self.refused(action, answer.status, code, message)

    def refused(self, action: str, status: int, code: str = "", message: str = "") -> StorageError:
        """The error for a status, with the service's code and message where it gave any."""
        quoted = f"{status} {code} {message}".replace("  ", " ").strip()
        if code in self.missing_container:
            return self.no_container(action)
        match status:
            case 404 | 410:
                return ObjectNotFound(f"cannot {action}: there is no such object in {self.place}")
            case 412:
                return PreconditionFailed(f"cannot {action}: another version is there; read it again")
            case 401:
                return self._failed(action, f"the credentials were refused ({quoted})", "set the right ones of `store`")
            case 403:
                return self._failed(
                    action, f"access denied ({quoted})", "the credentials of `store` need this permission"
                )
            case 409:
                return self._failed(action, f"something is in the way ({quoted})", "run again")
            case busy if busy in BUSY:
                return self._failed(
                    action, f"the service kept failing or throttling ({quoted})", "run again, or with less load"
                )
        return self._failed(action, f"the service answered {quoted}", "see to the settings of `store`")

    def raised(self, action: str, error: BaseError | FileNotFoundError) -> StorageError:
        """The error for what obstore raised."""
        text = str(error)
        code, message, status = _CODE.search(text), _MESSAGE.search(text), _STATUS.search(text)
        if status:
            return self.refused(action, int(status[1]), code[1] if code else "", message[1] if message else "")
        if isinstance(error, FileNotFoundError):
            return self.refused(action, 404)
        if "HTTP error" in text:
            return self.unreachable(action)
        return self._failed(action, text.partition("\n")[0], "see to the settings of `store`")

    def no_container(self, action: str) -> StorageError:
        """The error where the bucket or container itself is missing."""
        return self._failed(
            action, "there is no such bucket or container", "see to the storage namespace and the endpoint"
        )

    @contextmanager
    def reading(self, action: str) -> Iterator[None]:
        """Around the reading of an answer: what is missing or malformed becomes a StorageError."""
        # XML that is none is a SyntaxError.
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, SyntaxError) as error:
            raise self._failed(
                action, f"the answer cannot be read ({error!r})", "see to the service and what lies between"
            ) from None

    def already_exists(self, action: str) -> AlreadyExists:
        """The error where a put found an object that was not to be there."""
        return AlreadyExists(f"cannot {action}: there is an object already, left as it is")

    def unreachable(self, action: str) -> StorageError:
        """The error where no answer came."""
        return self._failed(
            action, "no connection, or it broke or timed out", "see to `store.endpoint_url` and the network"
        )

    def _failed(self, action: str, what: str, remedy: str) -> StorageError:
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

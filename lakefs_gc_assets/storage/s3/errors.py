"""What went wrong at an S3 service, said in a line: what was asked, of which bucket and endpoint, and what to do.

Only the service's code and message are quoted: the rest of an answer may hold parts of the signed request.
"""

import re
from dataclasses import dataclass

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError
from obstore.exceptions import BaseError

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StorageError

_DENIED = frozenset({"AccessDenied", "Forbidden", "403", "AllAccessDisabled"})
_CREDENTIALS = frozenset(
    {
        "401",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_REGION = frozenset({"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
BUSY = frozenset({"500", "502", "503", "504", "InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
"""Codes of a service that could not answer now, and may be asked again."""
FAILURES = (
    ClientError,
    BotoCoreError,
    ResponseParserError,
    ValueError,
    LookupError,
    OverflowError,
    RuntimeError,
    TypeError,
    AttributeError,
)
"""What boto3 raises, from the third on where an answer cannot be read."""
CONFLICT = frozenset({"409", "ConditionalRequestConflict", "OperationAborted"})
"""Codes of a write that collided with another one, and may be repeated."""
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,500})</Message>")
_STATUS = re.compile(r"status code: (\d{3})")


@dataclass(frozen=True, slots=True)
class S3Errors:
    """Turns what boto3 and obstore raise into StorageError and its subclasses."""

    bucket: str
    endpoint: str

    def explain(self, action: str, error: Exception) -> StorageError:
        """The error to raise for a failed action, such as `read 'data/…'`."""
        if isinstance(error, ClientError):
            return self.answered(action, code_of(error), error.response.get("Error", {}).get("Message", ""))
        if isinstance(error, NoCredentialsError | CredentialRetrievalError):
            return self._said(action, "no credentials were found", "set those of `store`, or the service's usual chain")
        if isinstance(error, NoConnectionError | HTTPClientError):
            return self._unreachable(action)
        if isinstance(error, BaseError | FileNotFoundError):
            return self._obstore(action, str(error))
        if isinstance(error, BotoCoreError):
            return self._said(action, str(error), "see to the settings of `store`")
        return self._said(action, type(error).__name__, "this is not expected of a store")

    def _obstore(self, action: str, text: str) -> StorageError:
        if code := _CODE.search(text) or _STATUS.search(text):
            message = _MESSAGE.search(text)
            return self.answered(action, code[1], message[1] if message else "")
        if "HTTP error" in text:
            return self._unreachable(action)
        return self._said(action, text.partition("\n")[0], "see to the settings of `store`")

    def answered(self, action: str, code: str, message: str) -> StorageError:
        """The error for an answer with this code of S3, or this status where the answer has no code."""
        said = f"{code} {message}".strip()
        if code == "NoSuchKey":
            return self.not_found(action)
        if code == "NoSuchBucket":
            return self._said(action, "there is no such bucket", "see to the storage namespace and the endpoint")
        if code in ("PreconditionFailed", "412"):
            return PreconditionFailed(f"cannot {action}: another version is there; read it again")
        if code in _DENIED:
            return self._said(action, f"access denied ({said})", "the credentials of `store` need this permission")
        if code in _CREDENTIALS:
            return self._said(action, f"the credentials were refused ({said})", "set the right ones of `store`")
        if code in _REGION:
            return self._said(action, f"the bucket lies in another region ({said})", "set `store.region`")
        if code in CONFLICT:
            return self._said(action, f"other writers got in the way ({said})", "run again")
        if code in BUSY:
            return self._said(
                action, f"the service kept failing or throttling ({said})", "run again, or with less load"
            )
        return self._said(action, f"the service answered {said}", "see to the settings of `store`")

    def nonsense(self, action: str, what: str) -> StorageError:
        """The error where an answer cannot be what the service means."""
        return self._said(
            action, f"the service's answer makes no sense: {what}", "see to the service and what lies between"
        )

    def not_found(self, action: str) -> ObjectNotFound:
        """The error where there is no such object."""
        return ObjectNotFound(f"cannot {action}: there is no such object in s3://{self.bucket}")

    def already_exists(self, action: str) -> AlreadyExists:
        """The error where a put found an object that was not to be there."""
        return AlreadyExists(f"cannot {action}: there is an object already, left as it is")

    def _unreachable(self, action: str) -> StorageError:
        return self._said(
            action, "no connection, or it broke or timed out", "see to `store.endpoint_url` and the network"
        )

    def _said(self, action: str, what: str, remedy: str) -> StorageError:
        return StorageError(f"cannot {action} in s3://{self.bucket} at {self.endpoint}: {what}; {remedy}")


def code_of(error: ClientError) -> str:
    """The code of S3, or the status where the answer has no code."""
    return str(error.response.get("Error", {}).get("Code", ""))

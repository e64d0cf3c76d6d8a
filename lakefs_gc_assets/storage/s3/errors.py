"""What boto3 raises where a request to S3 fails, as errors of a store."""

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

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

from lakefs_gc_assets.errors import NotOffered, StorageError
from lakefs_gc_assets.storage.cloud_errors import CloudErrors, Meaning

BUSY = frozenset({"500", "502", "503", "504", "InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
"""Codes of a service that could not answer now, and may be asked again."""
CONFLICT = frozenset({"409", "ConditionalRequestConflict", "OperationAborted"})
"""Codes of a write that collided with another one, and may be repeated."""
_CODES = {
    # Of a 404 without this code nobody knows what is missing.
    Meaning.NO_OBJECT: {"NoSuchKey"},
    Meaning.NO_BUCKET: {"NoSuchBucket"},
    Meaning.OTHER_VERSION: {"PreconditionFailed"},
    Meaning.OTHER_REGION: {
        "301",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
    },
    Meaning.BAD_CREDENTIALS: {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    },
    Meaning.ARCHIVED: {"InvalidObjectState", "ObjectNotInActiveTierError"},
    Meaning.DENIED: {"AccessDenied", "Forbidden", "AllAccessDisabled"},
    Meaning.CONFLICT: CONFLICT,
    Meaning.BUSY: BUSY,
}
NOT_OFFERED = frozenset({"405", "501", "MethodNotAllowed", "NotImplemented"})
"""Codes of a service that lacks what it was asked for."""
_FEATURES = {
    "CompleteMultipartUpload": "uploads in parts",
    "CopyObject": "copies (CopyObject), which quarantine and restore take",
    "DeleteObjects": "bulk deletes (DeleteObjects)",
    "ListObjectVersions": "versions of objects (ListObjectVersions)",
    "ListObjectsV2": "listings by ListObjectsV2",
    "UploadPartCopy": "copies in parts (UploadPartCopy), which quarantine and restore take",
}
_MEANINGS = {code: meaning for meaning, codes in _CODES.items() for code in codes}
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


@dataclass(frozen=True)
class S3Errors(CloudErrors):
    """Turns what boto3 and obstore raise into StorageError and its subclasses.

    Attributes:
        bucket_host: the host that requests go to, where the bucket's name is part of it and the endpoint was given; not
            every service has such hosts.
        endpoint: that endpoint.
    """

    bucket_host: str = ""
    endpoint: str = ""

    @classmethod
    def of_bucket(cls, bucket: str, endpoint: str, *, bucket_in_host: bool = False) -> "S3Errors":
        """Of a bucket at an endpoint."""
        place = f"s3://{bucket} at {endpoint}"
        if not bucket_in_host:
            return cls(place, _MEANINGS)
        return cls(place, _MEANINGS, f"{bucket}.{urlsplit(endpoint).netloc}", endpoint)

    def explain(self, action: str, error: Exception) -> StorageError:
        """The error to raise for a failed action, such as `read 'data/…'`."""
        match error:
            case ClientError():
                status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
                code, message = code_of(error), error.response.get("Error", {}).get("Message", "")
                if NOT_OFFERED.intersection((code, status)):
                    return self.not_offered(action, _FEATURES.get(error.operation_name, error.operation_name))
                return self.refused(action, status, code, message)
            case NoCredentialsError() | CredentialRetrievalError():
                remedy = "set those of `store`, or the service's usual chain"
                return self.failed(action, "no credentials were found", remedy)
            case NoConnectionError() | HTTPClientError():
                return self.unreachable(action)
            case BaseError() | FileNotFoundError():
                return self.raised(action, error)
            case BotoCoreError():
                return self.failed(action, str(error), "see to the settings of `store`")
        return self.failed(action, type(error).__name__, "this is not expected of a store")

    def not_offered(self, action: str, feature: str) -> NotOffered:
        """The error where the service lacks a feature."""
        return NotOffered(f"cannot {action} in {self.place}: the service does not offer {feature}; no right gives it")

    def unreachable(self, action: str) -> StorageError:
        """See CloudErrors.unreachable; names `store.path_style` where only the bucket's own host does not answer."""
        if self.endpoint and _answers(self.endpoint):
            return self.failed(
                action,
                f"nothing answers at {self.bucket_host}, where requests go, but the endpoint itself does",
                "set `store.path_style: true`",
            )
        return super().unreachable(action)

    def no_bucket(self, action: str) -> StorageError:
        """See CloudErrors.no_bucket."""
        if self.endpoint:
            return self.failed(
                action,
                "there is no such bucket",
                "see to the storage namespace and the endpoint, and whether it needs `store.path_style: true`",
            )
        return super().no_bucket(action)


def _answers(endpoint: str) -> bool:
    """Whether something listens at an endpoint."""
    url = urlsplit(endpoint)
    try:
        socket.create_connection((url.hostname or "", url.port or (80 if url.scheme == "http" else 443)), 5).close()
    except OSError:
        return False
    return True


def code_of(error: ClientError) -> str:
    """The code of S3, or the status where the answer has no code."""
    return str(error.response.get("Error", {}).get("Code", ""))

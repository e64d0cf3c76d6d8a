"""What boto3 raises where a request to S3 fails, as errors of a store."""

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

from lakefs_gc_assets.errors import StorageError
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
    Meaning.DENIED: {"AccessDenied", "Forbidden", "AllAccessDisabled"},
    Meaning.CONFLICT: CONFLICT,
    Meaning.BUSY: BUSY,
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


class S3Errors(CloudErrors):
    """Turns what boto3 and obstore raise into StorageError and its subclasses."""

    def __init__(self, bucket: str, endpoint: str) -> None:
        """Of a bucket at an endpoint."""
        super().__init__(f"s3://{bucket} at {endpoint}", _MEANINGS)

    def explain(self, action: str, error: Exception) -> StorageError:
        """The error to raise for a failed action, such as `read 'data/…'`."""
        match error:
            case ClientError():
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
                message = error.response.get("Error", {}).get("Message", "")
                return self.refused(action, str(status), code_of(error), message)
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


def code_of(error: ClientError) -> str:
    """The code of S3, or the status where the answer has no code."""
    return str(error.response.get("Error", {}).get("Code", ""))

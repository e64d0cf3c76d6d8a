"""The two clients of an S3 bucket, with shared credentials and endpoint, and their errors.

boto3 determines the endpoint (settings, environment, profile, rules of the service) and holds the credentials. obstore
gets both from boto3, so the two never talk to different stores.

This module parses listing pages itself. obstore takes any XML without NextContinuationToken for the last page, such as
an error or a proxy's page. boto3 takes 70 ms for a page of a thousand objects.
Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
"""

import base64
import hashlib
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote_plus, urlsplit
from xml.etree.ElementTree import Element, ParseError

import boto3
import botocore.session
import pyarrow as pa
import pyarrow.compute as pc
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    ProfileNotFound,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.loaders import Loader
from botocore.model import OperationModel
from botocore.parsers import ResponseParserError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import BaseError
from obstore.store import S3Store as Files

from lakefs_gc_assets.errors import ConfigurationError, NotOffered, StorageError
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud, traffic
from lakefs_gc_assets.storage.cloud import CloudErrors, Meaning
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, Page
from lakefs_gc_assets.waits import limit_answers

EVENT = "before-parse.*.ListObjectsV2"
"""With this wildcard, a handler runs before boto3's own one, which parses the whole page to find an error."""
PAGE = "Page"
"""Key of the parsed page in the answer of boto3's client."""
_NEEDED = ("Key", "Size", "LastModified", "ETag")
_CLASS = "StorageClass"
_COLUMNS = (*_NEEDED, _CLASS)
_STANDARD = "STANDARD"
"""Default storage class: some services omit it from rows of objects in their standard class."""
_TEXT = r"[^<&\x00-\x1f\x7f]*+"
_NAME = "[A-Za-z][A-Za-z0-9]*+"
_ODD = ("<!", "\ufffe", "\uffff")
"""Texts that could hide markup in a row, or that are invalid in XML; pages with them are parsed as a whole."""
_Rows = list[list[str | None]]
"""Texts by column."""
_TIME = LISTING_SCHEMA.field("last_modified").type


class _AnotherDocument(ValueError):
    """XML that is not a page of a listing, such as an error."""


@dataclass(frozen=True, slots=True)
class ListedPage(Page):
    """One page of a listing.

    Attributes:
        prefix: requested prefix according to the page; None if the page does not say.
    """

    prefix: str | None = None


def read_page(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Handler of boto3's client: adds the parsed page to the answer as PAGE, so that boto3 parses nothing.

    Any other document is left to boto3, which retries if it is an error or not XML.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        customized_response_dict[PAGE] = parsed(response_dict["body"])
    except (_AnotherDocument, ParseError) as reason:
        customized_response_dict[PAGE] = reason
        return
    except ValueError as reason:
        customized_response_dict[PAGE] = reason
    response_dict["body"] = b""


def parsed(body: bytes) -> ListedPage:
    """Parses a page. Raises ValueError or ParseError if it is not one, or does not say whether there is more.

    KeyCount is not checked: Ceph counts only objects; other services omit it or count the whole bucket.
    """
    fast = _fast(body)
    root = fast[0] if fast else cloud.parse_xml(body)
    if _local(root) != "ListBucketResult":
        raise _AnotherDocument("it is no page of a listing")
    truncated = _only(root, "IsTruncated")
    if truncated not in ("true", "false"):
        raise ValueError("it does not say whether there is more")
    token = _only(root, "NextContinuationToken") or None
    if truncated == "true" and token is None:
        raise ValueError("there is more to list, but not where to go on")
    encoding = _only(root, "EncodingType")
    prefix, shown_prefixes = _only(root, "Prefix"), [_only(each, "Prefix") for each in _all(root, "CommonPrefixes")]
    prefixes = [shown for shown in shown_prefixes if shown is not None]
    if len(prefixes) != len(shown_prefixes):
        raise ValueError("it lists a prefix without a name")
    if encoding == "url":
        prefixes = _decoded(prefixes)
    return ListedPage(
        _batch(fast[1] if fast else _slow(root), encoding == "url"), tuple(prefixes), token, prefix=prefix
    )


def is_of(page: ListedPage, prefix: str) -> bool:
    """True if a page can be an answer to a listing below a prefix.

    A page without rows must state the requested prefix, as S3 always does; for other pages, the keys show it. Some
    services do not encode the prefix in the way they encode keys.
    """
    if page.prefix is None:
        return not prefix or page.rows.num_rows > 0 or bool(page.prefixes)
    return prefix in (page.prefix, unquote_plus(page.prefix))


def _fast(body: bytes) -> tuple[Element, _Rows] | None:
    """The page without its rows, and the rows; None if the rows are not adjacent, or the pattern misses one.

    One regular expression matches the rows, which are alike; the rest is parsed as XML. Pages with irregular rows are
    parsed as a whole, which is five times slower.

    The result equals that of an XML parser: matched rows are well-formed, and the element that replaces them must be a
    child of the root.
    """
    text = body.decode()
    a_class = text.find(f"<{_CLASS}>")
    # Sample the first row with a class, because other rows may lack it.
    begin = text.find("<Contents>") if a_class < 0 else text.rfind("<Contents>", 0, a_class)
    sample = text[begin : text.find("</Contents>", begin)]
    names = _NEEDED if a_class < 0 else _COLUMNS
    places = {name: sample.find(f"<{name}>") for name in names}
    if begin < 0 or min(places.values()) < 0 or text.rfind("<?") > 0 or any(odd in text for odd in _ODD):
        return None
    row = _row(tuple(sorted(names, key=places.__getitem__)))
    parts, width = row.split(text), row.groups + 1
    if len(parts) == 1 or any(parts[width:-1:width]):
        return None
    root = cloud.parse_xml(f"{parts[0]}<R/>{parts[-1]}".encode())
    if len(_all(root, "R")) != 1 or _all(root, "Contents"):
        return None
    rows = [parts[row.groupindex[name] :: width] for name in names]
    return root, rows if names is _COLUMNS else [*rows, [None] * len(rows[0])]


@lru_cache
def _row(order: tuple[str, ...]) -> re.Pattern[str]:
    """Pattern of one object with these elements in this order, and any other elements between them."""
    needed = "|".join((*_COLUMNS, "Contents"))
    parts = []
    for number, name in enumerate(order):
        parts += [_others(needed, f"o{number}"), _element(name)]
    return re.compile(f"<Contents>{''.join(parts)}{_others(needed, 'o')}</Contents>")


def _element(name: str) -> str:
    quote, text = ('(?:&quot;|")?', _TEXT.replace("&", '&"')) if name == "ETag" else ("", _TEXT)
    element = f"<{name}>{quote}(?P<{name}>{text}){quote}</{name}>"
    return f"(?:{element})?+" if name == _CLASS else element


def _others(needed: str, group: str) -> str:
    """Pattern of any other elements, which contain text or elements with text."""
    inner = f"<(?P<{group}i>{_NAME})>{_TEXT}</(?P={group}i)>"
    return f"(?:<(?!(?:{needed})>)(?P<{group}>{_NAME})>(?:{_TEXT}|(?:{inner})+)</(?P={group})>)*"


def _slow(root: Element) -> _Rows:
    rows = [{name: _only(row, name) for name in _COLUMNS} for row in _all(root, "Contents")]
    return [[row[name] for row in rows] for name in _COLUMNS]


def _batch(rows: _Rows, encoded: bool) -> pa.RecordBatch:
    keys, sizes, times, etags, classes = rows
    if not (_are_texts(keys) and _are_texts(sizes) and _are_texts(times)):
        raise ValueError("it lists an object without key, size or time")
    columns = [
        pa.array(_decoded(keys) if encoded else keys, pa.string()),
        pa.array(sizes, pa.string()).cast(pa.int64()),
        _times(times),
        pc.utf8_trim(pa.array(etags, pa.string()), '"'),
        pa.array([each or _STANDARD for each in classes], pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)
    if batch.num_rows and pc.min(batch["size"]).as_py() < 0:
        raise ValueError("it lists an object of a negative size")
    return batch


def _are_texts(column: list[str | None]) -> TypeGuard[list[str]]:
    return None not in column


def _times(texts: list[str]) -> "pa.Array[Any]":
    """Parses times in ISO 8601, as S3 writes them, or in the format of HTTP headers; UTC if there is no zone."""
    try:
        return pa.array(texts, pa.string()).cast(_TIME)
    except pa.ArrowInvalid:
        return pa.array([_time(text) for text in texts], _TIME)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = parsedate_to_datetime(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _decoded(names: list[str]) -> list[str]:
    """URL-decodes names, all at once. Raises UnicodeDecodeError if they are not UTF-8."""
    joined = "\n".join(names)
    if "%" not in joined and "+" not in joined:
        return names
    decoded = unquote_plus(joined, errors="strict").split("\n")
    return decoded if len(decoded) == len(names) else [unquote_plus(name, errors="strict") for name in names]


def _local(element: Element) -> str:
    """The name of an element without its XML namespace, which differs between services."""
    return element.tag.rpartition("}")[2]


def _all(element: Element, name: str) -> list[Element]:
    return [child for child in element if child.tag.endswith(name) and _local(child) == name]


def _only(element: Element, name: str) -> str | None:
    """The text of the only child with a name; None if there is none. Raises ValueError if there are several."""
    children = _all(element, name)
    if len(children) > 1:
        raise ValueError(f"it has {name} more than once")
    return (children[0].text or "") if children else None


if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3 import S3Client

SLOW_DOWN = "SlowDown"
"""Code of a throttled request."""
_THROTTLED = frozenset({"429", "503", SLOW_DOWN})
"""Codes of throttled requests; boto3 takes the status if an answer has no body, such as one to HEAD."""
BUSY = frozenset(
    {"429", "500", "502", "503", "504", "InternalError", "RequestTimeout", "ServiceUnavailable", SLOW_DOWN}
)
"""Codes of temporary failures, which are retried."""
CONFLICT = frozenset({"409", "ConditionalRequestConflict", "OperationAborted"})
"""Codes of a write that collided with another one; such writes are retried."""
_CODES = {
    # A 404 without this code does not say whether the object or the bucket is missing.
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
"""Codes of a service that lacks the requested feature."""
_FEATURES = {
    "CompleteMultipartUpload": "uploads in parts",
    "CopyObject": "copies (CopyObject), which quarantine and restore take",
    "DeleteObjects": "bulk deletes (DeleteObjects)",
    "ListObjectVersions": "versions of objects (ListObjectVersions)",
    "ListObjectsV2": "listings by ListObjectsV2",
    "UploadPartCopy": "copies in parts (UploadPartCopy), which quarantine and restore take",
}
_MEANINGS = {code: meaning for meaning, codes in _CODES.items() for code in codes}
_UNREADABLE = (ResponseParserError, ValueError, LookupError, OverflowError, RuntimeError, TypeError, AttributeError)
"""Exceptions of boto3 for unreadable answers."""
FAILURES = (ClientError, BotoCoreError, *_UNREADABLE)
"""All exceptions of boto3 calls."""


@dataclass(frozen=True)
class S3Errors(CloudErrors):
    """Turns exceptions of boto3 and obstore into StorageError and its subclasses.

    Attributes:
        bucket_host: the bucket's own host, if requests go there and `store.endpoint_url` is set; else empty. Not every
            service has such hosts.
        endpoint: the endpoint in this case; else empty.
    """

    bucket_host: str = ""
    endpoint: str = ""

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
                remedy = (
                    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, store.access_key_id and store.secret_access_key, "
                    "or another source of the AWS command line"
                )
                return self.failed(action, "no credentials were found", remedy)
            case NoConnectionError() | HTTPClientError():
                return self.unreachable(action)
            case BaseError() | FileNotFoundError():
                return self.raised(action, error)
            case BotoCoreError():
                return self.failed(action, str(error), "check the settings of `store`, and the variables of AWS")
        return self.failed(action, type(error).__name__, "this is not expected of a store")

    def not_offered(self, action: str, feature: str) -> NotOffered:
        """The error for a feature that the service lacks."""
        return NotOffered(f"cannot {action} in {self.place}: the service does not offer {feature}; no right gives it")

    def unreachable(self, action: str) -> StorageError:
        """See CloudErrors.unreachable; names `store.path_style` if only the bucket's own host does not answer."""
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
                "check the storage namespace and the endpoint, and whether it needs `store.path_style: true`",
            )
        return super().no_bucket(action)


def _answers(endpoint: str) -> bool:
    """True if an endpoint accepts connections."""
    url = urlsplit(endpoint)
    try:
        socket.create_connection((url.hostname or "", url.port or (80 if url.scheme == "http" else 443)), 1).close()
    except OSError:
        return False
    return True


def code_of(error: ClientError) -> str:
    """The code of S3, or the status if the answer has no code."""
    return str(error.response.get("Error", {}).get("Code", ""))


def quoted(error: ClientError) -> str:
    """Status, code and message of the service's answer."""
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    return " ".join(dict.fromkeys((status, code_of(error), error.response.get("Error", {}).get("Message", "")))).strip()


def pause_before_retry(
    most: int,
    attempts: int,
    response: tuple[Any, dict[str, Any]] | None,
    caught_exception: Exception | None,
    operation: OperationModel,
    **_: object,
) -> float | None:
    """Handler of boto3's client: seconds to wait before the next attempt; None if there is no further attempt.

    Args:
        most: maximum attempts, including the first.
        attempts: attempts so far, at least one.
    """
    if response is None:
        is_temporary = isinstance(caught_exception, NoConnectionError | HTTPClientError)
    else:
        error = response[1].get("Error", {})
        status = response[1].get("ResponseMetadata", {}).get("HTTPStatusCode")
        is_temporary = status in cloud.BUSY or error.get("Code") in BUSY
        if error.get("Code") in _THROTTLED:
            # boto3's rate limit recognises a throttled request by this code alone.
            error["Code"] = SLOW_DOWN
            # `retry_throttled` repeats bulk deletes.
            is_temporary = operation.name != "DeleteObjects"
    return cloud.pause_after(attempts) if is_temporary and attempts < most else None


_WRITES = ("PutObject", "CopyObject", "CreateMultipartUpload")
"""Operations that set an object's encryption; parts inherit that of their upload."""
_NEWER_CHECKSUMS = ("x-amz-checksum-", "x-amz-sdk-checksum-")
DIRECTORY_BUCKET = "--x-s3"
"""Suffix of the names of directory buckets (S3 Express)."""
_loaders: dict[tuple[str, ...], Loader] = {}
"""Loaders of botocore's service descriptions, by search paths."""
_HANDED_ON_FOR = timedelta(minutes=9)
"""Lifetime of credentials in obstore. boto3 renews them ten minutes or more before they expire, so they last longer."""


def connect(settings: StoreSettings, bucket: str) -> "tuple[S3Client, Files, S3Errors]":
    """Opens a bucket: both clients, which are thread-safe, and their errors.

    Sends no request, except to determine an unknown region.

    Raises ConfigurationError for contradictory settings and the ARN of an access point, StorageError if there are no
    credentials or no endpoint.
    """
    if bucket.startswith("arn:"):
        # boto3 removes the ARN from the path, obstore keeps it: the two would use different keys.
        raise ConfigurationError(
            f"the storage namespace names its bucket by {bucket!r}, the ARN of an access point, which cannot be "
            "collected: a namespace with the bucket's name or the access point's alias (…-s3alias) can"
        )
    if urlsplit(settings.endpoint_url).path.strip("/") == bucket:
        # Otherwise every key would begin with the bucket's name: a server may accept writes there, and list nothing.
        raise ConfigurationError(
            f"store.endpoint_url ends with the bucket's name: leave out /{bucket}, which the storage namespace names"
        )
    endpoint = settings.endpoint_url or "the service's usual endpoint"
    errors = S3Errors(f"s3://{bucket} at {endpoint}", _MEANINGS)
    try:
        session = _session(settings)
        if session.get_credentials() is None:
            raise NoCredentialsError
        region = settings.region or session.region_name or _region_of(session, settings, bucket)
        client = _client(session, settings, region)
        # boto3's CA bundle, from settings, environment (AWS_CA_BUNDLE) or profile.
        bundle = settings.ca_bundle or session._session.get_config_variable("ca_bundle") or ""
        files = _files(session, client, bucket, region, bundle)
    except (ClientError, BotoCoreError, BaseError) as error:
        raise errors.explain("open the bucket", error) from None
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"cannot open s3://{bucket} with the settings of `store`: {error}") from None
    endpoint = client.meta.endpoint_url
    errors = replace(errors, place=f"s3://{bucket} at {endpoint}")
    if settings.endpoint_url and not settings.path_style:
        errors = replace(errors, bucket_host=f"{bucket}.{urlsplit(endpoint).netloc}", endpoint=endpoint)
    return client, files, errors


def _session(settings: StoreSettings) -> boto3.Session:
    if bool(settings.access_key_id) != bool(settings.secret_access_key):
        raise ConfigurationError("store.access_key_id and store.secret_access_key go together: set both or neither")
    try:
        session = boto3.Session(
            aws_access_key_id=settings.access_key_id or None,
            aws_secret_access_key=settings.secret_access_key or None,
            aws_session_token=settings.session_token or None,
            profile_name=settings.profile or None,
            region_name=settings.region or None,
        )
    except ProfileNotFound:
        raise ConfigurationError(
            f"store.profile names {settings.profile!r}, which the AWS configuration files do not have"
        ) from None
    _share_descriptions(session)
    return _assuming(session, settings.role_arn) if settings.role_arn else session


def _share_descriptions(session: boto3.Session) -> None:
    """Shares the service descriptions between sessions of this process: loading them takes 0.1 s per session."""
    own: Loader = session._session.get_component("data_loader")
    session._session.register_component("data_loader", _loaders.setdefault(tuple(own.search_paths), own))


def _assuming(session: boto3.Session, role_arn: str) -> boto3.Session:
    """A session that holds the role's credentials and renews them."""
    source = session.get_credentials()
    if source is None:
        raise ConfigurationError("store.role_arn is set, but there are no credentials to assume that role with")
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=session.client,
        source_credentials=source,
        role_arn=role_arn,
        extra_args={"RoleSessionName": "lakefs-gc"},
    )
    inner = botocore.session.Session()
    inner.register_component("credential_provider", CredentialResolver([_Role(fetcher.fetch_credentials)]))
    assuming = boto3.Session(botocore_session=inner, region_name=session.region_name)
    _share_descriptions(assuming)
    return assuming


class _Role(CredentialProvider):
    METHOD = "store.role_arn"

    def __init__(self, fetch: Callable[[], Any]) -> None:
        super().__init__()
        self._fetch = fetch

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(refresh_using=self._fetch, method=self.METHOD)


def _client(session: boto3.Session, settings: StoreSettings, region: str) -> "S3Client":
    client = session.client(
        "s3",
        region_name=region,
        endpoint_url=settings.endpoint_url or None,
        verify=settings.ca_bundle or None,
        config=Config(
            signature_version="s3v4",
            connect_timeout=cloud.connect_timeout().total_seconds(),
            read_timeout=cloud.read_timeout().total_seconds(),
            max_pool_connections=cloud.CONNECTIONS,
            # The mode limits the rate while the service throttles. `pause_before_retry` decides about attempts, because
            # boto3's own retries share a quota: some hundred failures use it up, and each further one is final.
            retries={"mode": "adaptive", "total_max_attempts": 1},
            s3={"addressing_style": "path" if settings.path_style else "virtual"},
            # Services other than AWS may refuse the newer checksums, so send them only if required.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    # The session has no public way, and a later botocore may have no such attribute: its answers have no limit then.
    pools: dict[str, Any] = getattr(client._endpoint.http_session, "_pool_classes_by_scheme", {})  # type: ignore[attr-defined]
    pools |= {scheme: limit_answers(type(pool.__name__, (pool,), {})) for scheme, pool in pools.items()}
    events = client.meta.events
    events.register(EVENT, read_page)
    # The stubs do not know that this event takes an answer.
    events.register("needs-retry.s3", partial(pause_before_retry, cloud.attempts()))  # type: ignore[arg-type]
    events.register("before-sign.s3.DeleteObjects", _send_content_md5)
    events.register("before-call.s3", lambda model, **_: cloud.waits.begin(model.name))
    for end in ("after-call.s3", "after-call-error.s3"):
        events.register(end, lambda **_: cloud.waits.end())
    events.register("before-send.s3", _count)
    # Last, because the client's rate limit may delay a request. Exceptions of this handler are not retried.
    events.register_last("before-send", cloud.require_time_to_delete)
    if encryption := _encryption(settings):
        for operation in _WRITES:
            events.register(f"before-parameter-build.s3.{operation}", partial(_encrypt, encryption))
    return client


_REPEATED = re.compile(r"attempt=(?!1\b)")
"""In a header of each request, which has the number of the attempt."""


def _count(request: "AWSPreparedRequest", **_: object) -> None:
    attempt = request.headers.get("amz-sdk-request", "")
    text = attempt.decode() if isinstance(attempt, bytes) else attempt
    traffic.count(1, retries=1 if _REPEATED.search(text) else 0)


def _encryption(settings: StoreSettings) -> dict[str, str]:
    """Arguments of a write for the configured encryption. Raises ConfigurationError."""
    if not settings.kms_key_id:
        return {"ServerSideEncryption": settings.server_side_encryption} if settings.server_side_encryption else {}
    if not settings.server_side_encryption.startswith("aws:kms"):
        raise ConfigurationError("store.kms_key_id goes with store.server_side_encryption: aws:kms or aws:kms:dsse")
    return {"ServerSideEncryption": settings.server_side_encryption, "SSEKMSKeyId": settings.kms_key_id}


def _encrypt(encryption: Mapping[str, str], params: dict[str, Any], **_: object) -> None:
    params |= encryption


def _send_content_md5(request: AWSRequest, **_: object) -> None:
    """Sends Content-MD5 with a bulk delete instead of boto3's newer checksum headers.

    Backblaze, OVH, S3Proxy and others refuse the newer ones. Only directory buckets do not support Content-MD5.
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
    """
    if DIRECTORY_BUCKET in str(request.url):
        return
    for name in [name for name in request.headers if name.lower().startswith(_NEWER_CHECKSUMS)]:
        del request.headers[name]
    body = request.body.encode() if isinstance(request.body, str) else request.body
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


def _region_of(session: boto3.Session, settings: StoreSettings, bucket: str) -> str:
    """The region of a bucket according to the service; us-east-1 if it does not say."""
    client = _client(session, settings, "us-east-1")
    try:
        headers = client.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
    except ClientError as error:
        headers = error.response["ResponseMetadata"]["HTTPHeaders"]
    return headers.get("x-amz-bucket-region", "us-east-1")


def _files(session: boto3.Session, client: "S3Client", bucket: str, region: str, bundle: str) -> Files:
    endpoint, virtual = address(client, bucket)
    return Files(
        bucket,
        region=region,
        endpoint=endpoint,
        aws_endpoint_url_s3=endpoint,
        virtual_hosted_style_request=virtual,
        credential_provider=Boto3CredentialProvider(session, ttl=_HANDED_ON_FOR),
        client_options=cloud.obstore_options(bundle),
        retry_config=cloud.obstore_retries(),
    )


def address(client: "S3Client", bucket: str) -> tuple[str, bool]:
    """The address of boto3's requests for a bucket, and True if the bucket's name is part of the host."""
    url = urlsplit(client.generate_presigned_url("list_objects_v2", Params={"Bucket": bucket}))
    path = url.path.rstrip("/")
    virtual = url.netloc.startswith(f"{bucket}.") and not path.endswith(f"/{bucket}")
    return f"{url.scheme}://{url.netloc}{path if virtual else path.removesuffix(f'/{bucket}')}", virtual

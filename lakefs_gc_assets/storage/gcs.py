"""A storage namespace in a bucket of Google Cloud Storage.

obstore reads. Everything else goes through Google's own client, which supports generations and has its own retries.
Both get the same access tokens from google-auth: application default credentials, or a service account's key.

The ETag is the generation, which is unique to each version of an object, even if the content is the same. In listings
the ETag is the MD5 of the content; null if the service gives none.
API: https://cloud.google.com/storage/docs/json_api/v1
"""

import base64
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import urlencode

import google.auth
import pyarrow as pa
from google.api_core.exceptions import Forbidden, GoogleAPICallError, RetryError, Unauthorized, from_http_response
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.storage import Blob, Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY
from google.oauth2.service_account import Credentials as ServiceAccount
from obstore.exceptions import BaseError
from obstore.store import GCSStore as Files
from requests import JSONDecodeError, RequestException, Response
from requests.adapters import HTTPAdapter

from lakefs_gc_assets.errors import ConfigurationError, ObjectNotFound, StorageError, counted
from lakefs_gc_assets.lakefs.addresses import Location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud, traffic
from lakefs_gc_assets.storage.bucket_store import Expected, OrderedBucketStore
from lakefs_gc_assets.storage.cloud import (
    CloudErrors,
    Meaning,
    ObstoreError,
    StoreAnswer,
    delete_in_batches,
    outcome_of,
)
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, DeleteOutcome, ObjectFacts, Page

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from obstore.store import GCSCredential

ENDPOINT = "https://storage.googleapis.com"
# Otherwise a thread of the library reads the bucket's metadata for tracing, which is not used and needs a permission.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
_MEANINGS = {"404": Meaning.NO_OBJECT, "410": Meaning.NO_OBJECT}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class Tokens(Credentials):
    """Access tokens of google-auth for both clients; one thread renews a token when it is about to expire.

    The library gets this wrapper instead of the credentials. With a service account's credentials, one of its threads
    would ask iamcredentials.googleapis.com for the locations in which the tokens are allowed.
    """

    def __init__(self, source: Any) -> None:
        """Takes credentials of google-auth, whose methods are untyped."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source
        self._universe_domain = source.universe_domain
        self._renewing = threading.Lock()

    def refresh(self, request: Request) -> None:
        """See Credentials.refresh."""
        with self._renewing:
            if not self._source.valid:
                self._source.refresh(request)
            self.token, self.expiry = self._source.token, self._source.expiry

    def for_obstore(self) -> "GCSCredential":
        """The access token in obstore's format."""
        try:
            if not self.valid:
                self.refresh(Request())
        except GoogleAuthError as error:
            raise no_token(error) from None
        return {"token": str(self.token), "expires_at": self.expiry.replace(tzinfo=UTC) if self.expiry else None}


class RetryPolicy(TypedDict):
    """Retries of a library call, and its timeouts in seconds (connect, read)."""

    retry: "Retry"
    timeout: tuple[float, float]


def retry_policy() -> RetryPolicy:
    """The library's policy with the pauses and timeouts that all clouds share.

    It is safe for every call. A retried conditional put has the same condition, so it cannot replace another client's
    write; at most it finds its own write, see ObjectStore.
    """
    retry = DEFAULT_RETRY.with_delay(initial=cloud.FIRST_PAUSE, maximum=cloud.LONGEST_PAUSE, multiplier=2)
    return {
        "retry": retry.with_predicate(_is_retried).with_timeout(cloud.retry_for().total_seconds()),
        "timeout": (cloud.connect_timeout().total_seconds(), cloud.read_timeout().total_seconds()),
    }


def _is_retried(error: Exception) -> bool:
    """True if the library retries after this error, which counts as a retry."""
    is_retried: bool = DEFAULT_RETRY._predicate(error)
    traffic.count(retries=int(is_retried))
    return is_retried


class _GoogleConnections(cloud.LimitedAdapter, HTTPAdapter):
    """See `cloud.LimitedAdapter`."""


def _session(tokens: Tokens, ca_bundle: str) -> AuthorizedSession:
    """Connections shared by all threads; redirects are not followed."""
    session = AuthorizedSession(tokens, refresh_status_codes=())  # type: ignore[no-untyped-call]
    for scheme in ("https://", "http://"):
        session.mount(scheme, _GoogleConnections(pool_maxsize=cloud.CONNECTIONS))
    session.verify = ca_bundle or True
    session.max_redirects = 0
    return session


def no_token(error: GoogleAuthError) -> StorageError:
    """The error for a refused access token, without Google's message, which may repeat the request."""
    return StorageError(f"Google hands out no access token ({type(error).__name__}): check the credentials of `store`")


def _credentials(settings: StoreSettings) -> Any:
    file = settings.service_account_file
    if not file:
        return google.auth.default(scopes=[_SCOPE])[0]
    read: Any = ServiceAccount.from_service_account_file
    try:
        return read(str(Path(file).expanduser()), scopes=[_SCOPE])
    except (ValueError, KeyError):
        # The parser's message may repeat the key.
        raise ConfigurationError(f"store.service_account_file {file} is not the key of a service account") from None


BATCH = 100
"""Keys in one batch request, the service's limit."""
PAGE = 1000
"""Objects per page of a listing, the service's limit."""
_FIELDS = "name,size,updated,generation,md5Hash,storageClass"
_API = "/storage/v1"


class GCSStore(OrderedBucketStore[CloudErrors, Blob]):
    """Objects below a prefix of a bucket; see ObjectStore."""

    def __init__(self, settings: StoreSettings, location: Location) -> None:
        """Binds to a bucket and prefix; sends no request.

        Raises ConfigurationError, or StorageError if there are no credentials.
        """
        name = f"gs://{location.bucket}"
        self._endpoint = settings.endpoint_url.rstrip("/") or ENDPOINT
        try:
            tokens = Tokens(_credentials(settings))
            # The library's connections, which authenticate requests.
            self._session = _session(tokens, settings.ca_bundle)
            client = Client(
                project=None, credentials=tokens, _http=self._session, client_options={"api_endpoint": self._endpoint}
            )
            files = Files(
                location.bucket,
                base_url=self._endpoint,
                credential_provider=tokens.for_obstore,
                client_options=cloud.obstore_options(settings.ca_bundle),
                retry_config=cloud.obstore_retries(),
            )
        except DefaultCredentialsError:
            raise StorageError(
                f"cannot open {name}: no credentials were found; set store.service_account_file, or the application "
                "default credentials of Google Cloud"
            ) from None
        except GoogleAuthError as error:
            kind = type(error).__name__
            raise StorageError(f"cannot open {name}: Google's credentials cannot be used ({kind})") from None
        except (BaseError, ValueError, OSError) as error:
            raise ConfigurationError(f"cannot open {name} with the settings of `store`: {error}") from None
        self._bucket = client.bucket(location.bucket)
        super().__init__(location.key, files, CloudErrors(f"{name} at {self._endpoint}", _MEANINGS))

    def _page(self, action: str, prefix: str, behind: str, delimiter: str, token: str | None) -> Page:
        listed = self._bucket.list_blobs(
            prefix=prefix or None,
            start_offset=behind or None,
            delimiter=delimiter or None,
            fields=f"kind,nextPageToken,prefixes,items({_FIELDS})",
            page_size=PAGE,
            page_token=token,
            **retry_policy(),
        )
        try:
            with self._asking(action):
                return _page(next(listed.pages).raw_page)
        except ObjectNotFound:
            raise self._errors.no_bucket(action) from None

    def _read(self, action: str, full: str) -> bytes:
        with self._asking(action):
            content: bytes = self._bucket.blob(full).download_as_bytes(raw_download=True, **retry_policy())
        return content

    def _write(self, action: str, full: str, data: bytes, expected: Expected | None) -> str:
        """Writes an object, replacing the expected generation, if given; the service compares CRC32C."""
        generation = None if expected is None else 0
        if expected is not None and expected.etag is not None:
            generation = int(expected.etag) if expected.etag.isdecimal() else 0
            if not generation:
                raise self._errors.other_version(action)
        blob = self._bucket.blob(full)
        try:
            with self._asking(action):
                blob.upload_from_string(
                    data, content_type="application/octet-stream", if_generation_match=generation, **retry_policy()
                )
                return str(int(blob.generation))
        except ObjectNotFound:
            raise self._errors.no_bucket(action) from None

    def _delete(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        """Deletes in batches, whose requests and answers are handled here.

        The library assigns the answers of a batch by order, so it could blame a failed delete on another key. Single
        deletes would avoid that, but take a hundred times as many requests.
        """
        kept = self._keeps_deleted
        return delete_in_batches(full_keys, BATCH, lambda batch: self._delete_batch(batch, kept), self._throttle)

    def _delete_batch(self, full_keys: Sequence[str], kept: bool | None) -> dict[str, DeleteOutcome]:
        content_type, body = cloud.batch_of_deletes([_API + self._bucket.blob(full).path for full in full_keys])
        with self._asking(f"delete {counted(len(full_keys), 'objects')} such as {full_keys[0]!r}"):
            answer = self._post(f"/batch{_API}", body, {"Content-Type": content_type})
        parts = cloud.batch_answers(_answer(answer))
        return {full: outcome_of(full, parts.get(number), kept) for number, full in enumerate(full_keys)}

    @cached_property
    def _keeps_deleted(self) -> bool | None:
        """True if the bucket keeps deleted objects, by soft delete or versions; None without permission to read it."""
        bucket = self._bucket.client.bucket(self._bucket.name)
        with self._asking("look at the bucket"), suppress(Unauthorized, Forbidden):
            bucket.reload(**retry_policy())
            seconds = bucket.soft_delete_policy.retention_duration_seconds
            return int(seconds or 0) > 0 or bool(bucket.versioning_enabled)
        return None

    def _copy_content(
        self, action: str, source: str, target: str, content: Blob, there: Blob | None, only_if_absent: bool
    ) -> Blob | None:
        """Copies within the bucket, with as many requests as the service needs.

        The library's own method sends a body, whose properties would replace the source's; this request has none.
        """
        path = f"{_API}{self._bucket.blob(source).path}/rewriteTo{self._bucket.blob(target).path}"
        query = {"ifSourceGenerationMatch": content.generation}
        if there is not None or only_if_absent:
            query["ifGenerationMatch"] = "0" if there is None else there.generation
        while True:
            with self._asking(action):
                answer = self._post(f"{path}?{urlencode(query)}").json()
                if answer["done"]:
                    return self._content(target)
                query["rewriteToken"] = str(answer["rewriteToken"])

    def _look(self, full: str) -> Blob:
        blob: Blob = self._bucket.blob(full)
        with self._asking(f"look at {full!r}"):
            blob.reload(**retry_policy())
            # Raises if a field is missing or malformed.
            self._facts(full, blob)
        return blob

    def _facts(self, key: str, content: Blob) -> ObjectFacts:
        """The ETag is the generation."""
        etag, md5 = str(int(content.generation)), _md5(content.md5_hash)
        return ObjectFacts(key, int(content.size), content.updated.astimezone(UTC), etag, md5)

    def _alike(self, one: Blob, other: Blob) -> bool:
        """True if the sizes are equal, both have at least one common kind of digest, and all common ones are equal."""
        digests = [pair for pair in ((one.md5_hash, other.md5_hash), (one.crc32c, other.crc32c)) if all(pair)]
        return one.size == other.size and bool(digests) and all(each[0] == each[1] for each in digests)

    def _post(self, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        """Sends a request for which the library has no method, with the library's retries and exceptions."""
        policy = retry_policy()

        def send() -> Response:
            cloud.require_time_to_delete()
            response = self._session.post(
                self._endpoint + target, data=body, headers=headers, timeout=policy["timeout"]
            )
            if response.status_code != 200:
                raise from_http_response(response)  # type: ignore[no-untyped-call]
            return response

        answered: Response = policy["retry"](send)()
        return answered

    @contextmanager
    def _asking(self, action: str) -> Iterator[None]:
        """Context for a call of the library: exceptions become StorageError."""
        with self._errors.reading(action), cloud.waits.shown(action):
            try:
                yield
            except JSONDecodeError:
                raise
            except RetryError as error:
                raise self._failed(action, error.cause) from None
            except (GoogleAPICallError, GoogleAuthError, RequestException, DataCorruption) as error:
                raise self._failed(action, error) from None

    def _failed(self, action: str, error: BaseException | None) -> StorageError:
        match error:
            case GoogleAPICallError(response=Response() as response) | InvalidResponse(response=response):
                return self._if_bucket_exists(action, self._errors.answered(action, _answer(response)))
            case GoogleAuthError():
                return no_token(error)
            case DataCorruption():
                return StorageError(
                    f"cannot {action} in {self._errors.place}: the data that arrived has another digest"
                )
        return self._errors.unreachable(action)

    def _explain(self, action: str, error: ObstoreError) -> StorageError:
        return self._if_bucket_exists(action, self._errors.raised(action, error))

    def _if_bucket_exists(self, action: str, error: StorageError) -> StorageError:
        """The error, or that for a missing bucket: a 404 may mean the bucket or the object."""
        if isinstance(error, ObjectNotFound):
            with self._asking(action), suppress(Forbidden):
                if not self._bucket.exists(**retry_policy()):
                    return self._errors.no_bucket(action)
        return error


def _answer(response: Response) -> StoreAnswer:
    return StoreAnswer.from_headers(response.status_code, response.headers, response.content)


def _page(answer: Mapping[str, Any]) -> Page:
    """Parses a page. Raises ValueError, KeyError or TypeError if it is not one."""
    if answer["kind"] != "storage#objects":
        raise ValueError("no page of a listing")
    items, prefixes = answer.get("items", []), answer.get("prefixes", [])
    columns: list[pa.Array[Any]] = [
        pa.array([item["name"] for item in items], pa.string()),
        pa.array([int(item["size"]) for item in items], pa.int64()),
        pa.array([datetime.fromisoformat(item["updated"]) for item in items], LISTING_SCHEMA.field(2).type),
        pa.array([_md5(item.get("md5Hash")) for item in items], pa.string()),
        pa.array([item.get("storageClass") for item in items], pa.string()),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)
    versions = tuple(str(int(item["generation"])) for item in items)
    return Page(rows, tuple(map(str, prefixes)), answer.get("nextPageToken"), versions)


def _md5(digest: str | None) -> str | None:
    """The digest in hexadecimal, as other stores give it."""
    return base64.b64decode(digest, validate=True).hex() if digest else None

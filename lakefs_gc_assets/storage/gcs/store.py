"""A storage namespace in a bucket of Google Cloud Storage.

obstore reads; everything else Google's own client asks, by the same credentials. A version is told by its
generation, which no two versions of an object share, not even with the same content: that is the ETag of everything but
listings, whose ETags are what the service gives there, usually the MD5 of the content.
API: https://cloud.google.com/storage/docs/json_api/v1
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
from google.api_core.exceptions import Forbidden, GoogleAPICallError, RetryError, Unauthorized
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage import Blob
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests import JSONDecodeError, RequestException, Response

from lakefs_gc_assets.errors import ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs.addresses import Location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import multipart
from lakefs_gc_assets.storage.bucket_store import Expected, OrderedBucketStore
from lakefs_gc_assets.storage.cloud_deletes import delete_in_batches, outcome_of
from lakefs_gc_assets.storage.cloud_errors import CloudErrors, ObstoreError
from lakefs_gc_assets.storage.gcs.connection import connect, no_token, patient
from lakefs_gc_assets.storage.http_service import Answer
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteOutcome,
    ObjectFacts,
    Page,
)

BATCH = 100
"""Keys in one batch request, the service's limit."""
PAGE = 1000
"""Objects on one page of a listing, the service's limit."""
_FIELDS = "name,size,updated,generation,md5Hash"
_API = "/storage/v1"


class GCSStore(OrderedBucketStore[CloudErrors, Blob]):
    """Objects below a prefix of a bucket; see ObjectStore."""

    def __init__(self, settings: StoreSettings, location: Location) -> None:
        """Binds to a bucket and prefix; asks the service nothing."""
        self._connection = connect(settings, location.bucket)
        self._bucket = self._connection.bucket
        super().__init__(
            f"gs://{location.bucket}",
            location.key,
            self._connection.files,
            self._connection.errors,
        )

    def _pages(self, action: str, prefix: str, behind: str, delimiter: str) -> Iterator[Page]:
        listed = self._bucket.list_blobs(
            prefix=prefix or None,
            start_offset=behind or None,
            delimiter=delimiter or None,
            fields=f"kind,nextPageToken,prefixes,items({_FIELDS})",
            page_size=PAGE,
            **patient(),
        )
        tokens: set[str] = set()
        try:
            with self._asking(action):
                for found in listed.pages:
                    if listed.next_page_token in tokens:
                        raise self._errors.nonsense(action, "it would go on where it was before")
                    if listed.next_page_token is not None:
                        tokens.add(listed.next_page_token)
                    yield _page(found.raw_page)
        except ObjectNotFound:
            raise self._errors.no_bucket(action) from None

    def _read(self, action: str, full: str) -> bytes:
        with self._asking(action):
            content: bytes = self._bucket.blob(full).download_as_bytes(raw_download=True, **patient())
        return content

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head; the ETag is the generation."""
        full = self._full(key)
        blob = self._bucket.blob(full)
        with self._asking(f"look at {full!r}"):
            blob.reload(**patient())
            return _facts(key, blob)

    def _write(self, action: str, full: str, data: bytes, expected: Expected | None) -> str:
        """Writes in place of a generation; the service compares CRC32C."""
        generation = None if expected is None else 0
        if expected is not None and expected.etag is not None:
            generation = int(expected.etag) if expected.etag.isdecimal() else 0
            if not generation:
                raise self._errors.other_version(action)
        blob = self._bucket.blob(full)
        try:
            with self._asking(action):
                blob.upload_from_string(
                    data, content_type="application/octet-stream", if_generation_match=generation, **patient()
                )
                return str(int(blob.generation))
        except ObjectNotFound:
            raise self._errors.no_bucket(action) from None

    def _delete(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        """Deletes in batches, which are composed and read here.

        The library takes the answers of a batch in the order in which they come, and a delete that failed must not be
        taken for another one's. Deletes one by one would be told apart as well, but take a hundred times the requests.
        """
        kept = self._keeps_deleted
        return delete_in_batches(full_keys, BATCH, lambda batch: self._delete_batch(batch, kept))

    def _delete_batch(self, full_keys: Sequence[str], kept: bool | None) -> dict[str, DeleteOutcome]:
        content_type, body = multipart.composed([_API + self._bucket.blob(full).path for full in full_keys])
        with self._asking(f"delete {len(full_keys)} objects such as {full_keys[0]!r}"):
            answer = self._connection.post(f"/batch{_API}", body, {"Content-Type": content_type})
        parts = multipart.answers(_answer(answer))
        return {full: outcome_of(full, parts.get(number), kept) for number, full in enumerate(full_keys)}

    @cached_property
    def _keeps_deleted(self) -> bool | None:
        """Whether the bucket keeps what is deleted, by soft delete or versions; None where we may not know."""
        bucket = self._bucket.client.bucket(self._bucket.name)
        with self._asking("look at the bucket"), suppress(Unauthorized, Forbidden):
            bucket.reload(**patient())
            seconds = bucket.soft_delete_policy.retention_duration_seconds
            return int(seconds or 0) > 0 or bool(bucket.versioning_enabled)
        return None

    def _copy_content(
        self,
        action: str,
        source: str,
        target: str,
        content: Blob,
        there: Blob | None,
        only_if_absent: bool,
    ) -> Blob | None:
        """Copies within the bucket, in as many requests as the service needs for it.

        Without a body, which the library's own method has: properties in it take the place of the source's.
        """
        path = f"{_API}{self._bucket.blob(source).path}/rewriteTo{self._bucket.blob(target).path}"
        query = {"ifSourceGenerationMatch": content.generation}
        if there is not None or only_if_absent:
            query["ifGenerationMatch"] = "0" if there is None else there.generation
        while True:
            with self._asking(action):
                answer = self._connection.post(f"{path}?{urlencode(query)}").json()
                if answer["done"]:
                    return self._content(target)
                query["rewriteToken"] = str(answer["rewriteToken"])

    def _content(self, full: str) -> Blob | None:
        blob: Blob = self._bucket.blob(full)
        try:
            with self._asking(f"look at {full!r}"):
                blob.reload(**patient())
                # What is missing or malformed is an error.
                _facts(full, blob)
                return blob
        except ObjectNotFound:
            return None

    def _alike(self, one: Blob, other: Blob) -> bool:
        return _alike(one, other)

    @contextmanager
    def _asking(self, action: str) -> Iterator[None]:
        """Around a call of the library: what it raises becomes a StorageError."""
        with self._errors.reading(action):
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
                return StorageError(f"cannot {action} in {self._errors.place}: what arrived has another digest")
        return self._errors.unreachable(action)

    def _explain(self, action: str, error: ObstoreError) -> StorageError:
        return self._if_bucket_exists(action, self._errors.raised(action, error))

    def _if_bucket_exists(self, action: str, error: StorageError) -> StorageError:
        """An answer 404 does not always say whether the object is missing or the bucket."""
        if isinstance(error, ObjectNotFound):
            with self._asking(action), suppress(Forbidden):
                if not self._bucket.exists(**patient()):
                    return self._errors.no_bucket(action)
        return error


def _answer(response: Response) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.content)


def _alike(one: Blob, other: Blob) -> bool:
    """Whether both have the same size and at least one digest in common, and all digests that both have are equal."""
    digests = [pair for pair in ((one.md5_hash, other.md5_hash), (one.crc32c, other.crc32c)) if all(pair)]
    return one.size == other.size and bool(digests) and all(each[0] == each[1] for each in digests)


def _page(answer: Mapping[str, Any]) -> Page:
    """A page as the service wrote it. Raises ValueError, KeyError or TypeError where it is none."""
    if answer["kind"] != "storage#objects":
        raise ValueError("no page of a listing")
    items, prefixes = answer.get("items", []), answer.get("prefixes", [])
    columns: list[pa.Array[Any]] = [
        pa.array([found["name"] for found in items], pa.string()),
        pa.array([int(found["size"]) for found in items], pa.int64()),
        pa.array([datetime.fromisoformat(found["updated"]) for found in items], LISTING_SCHEMA.field(2).type),
        pa.array([_md5(found.get("md5Hash")) for found in items], pa.string()),
    ]
    versions = tuple(str(int(found["generation"])) for found in items)
    return Page(pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA), tuple(map(str, prefixes)), versions)


def _md5(digest: str | None) -> str | None:
    """In hexadecimal, as other stores tell it."""
    return base64.b64decode(digest, validate=True).hex() if digest else None


def _facts(key: str, blob: Blob) -> ObjectFacts:
    md5 = _md5(blob.md5_hash)
    return ObjectFacts(key, int(blob.size), blob.updated.astimezone(UTC), str(int(blob.generation)), md5)

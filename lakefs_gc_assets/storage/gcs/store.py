"""A storage namespace in a bucket of Google Cloud Storage.

obstore lists and reads; everything else Google's own client asks, by the same credentials. A version is told by its
generation, which no two versions of an object share, not even with the same content: that is the ETag of everything but
listings, whose ETags are what the service gives there, usually the MD5 of the content.
API: https://cloud.google.com/storage/docs/json_api/v1
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
from google.api_core.exceptions import Forbidden, GoogleAPICallError, RetryError, Unauthorized
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage import Blob
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from obstore.exceptions import BaseError
from requests import JSONDecodeError, RequestException, Response

from lakefs_gc_assets.errors import ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import multipart, obstore_listing
from lakefs_gc_assets.storage.cloud_deletes import delete_in_batches, outcome_of
from lakefs_gc_assets.storage.gcs.connection import connect, no_token, patient
from lakefs_gc_assets.storage.http_service import Answer
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteOutcome,
    Level,
    ObjectFacts,
    below,
    checked_key,
    checked_prefix,
)
from lakefs_gc_assets.storage.obstore_listing import Listable, obstore_can_name

BATCH = 100
"""Keys in one batch request, the service's limit."""
PAGE = 1000
"""Objects on one page of a listing, the service's limit."""
_FIELDS = "name,size,updated,generation,md5Hash"
_API = "/storage/v1"


class GCSStore:
    """Objects below a prefix of a bucket; see ObjectStore."""

    delete_limit = 1000

    def __init__(self, settings: StoreSettings, location: Location) -> None:
        """Binds to a bucket and prefix; asks the service nothing."""
        self._connection = connect(settings, location.bucket)
        self._bucket = self._connection.bucket
        self._errors = self._connection.errors
        self._root = location.key
        self._listable = Listable(
            f"gs://{location.bucket}", self._connection.files, self._pages, self._not_listed, ends_unproved=True
        )

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list; here in order of keys."""
        return obstore_listing.batches(self._listable, self._root, checked_prefix(prefix))

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """See ListsInOrder.list_between."""
        pages = partial(self._pages, delimiter="/" if only_directly else "")
        listable = replace(self._listable, pages=pages)
        return obstore_listing.between(
            listable, self._root, checked_prefix(prefix), after, until, by_pages=only_directly
        )

    def _pages(self, prefix: str, behind: str, delimiter: str = "") -> Iterator[pa.RecordBatch]:
        action = f"list below {prefix!r}"
        for page in self._json_pages(action, prefix, behind, delimiter):
            with self._errors.reading(action):
                batch = _as_batch(page.get("items", []))
            yield batch

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        full = self._root + checked_prefix(prefix)
        prefixes: list[str] = []
        objects: list[ObjectFacts] = []
        action = f"list directly below {full!r}"
        for page in self._json_pages(action, full, "", "/"):
            with self._errors.reading(action):
                prefixes += (below(full, found, self._root) for found in page.get("prefixes", []))
                objects += (
                    _facts(below(full, found["name"], self._root), found)
                    for found in page.get("items", [])
                    if found["name"] != full
                )
        return Level(
            tuple(sorted(set(prefixes), key=str.encode)), tuple(sorted(objects, key=lambda facts: facts.key.encode()))
        )

    def _json_pages(self, action: str, prefix: str, behind: str, delimiter: str) -> Iterator[dict[str, Any]]:
        """Pages as the service wrote them, while the library turns them over."""
        pages = self._bucket.list_blobs(
            prefix=prefix or None,
            start_offset=behind or None,
            delimiter=delimiter or None,
            fields=f"nextPageToken,prefixes,items({_FIELDS})",
            page_size=PAGE,
            **patient(),
        ).pages
        while True:
            try:
                with self._asking(action):
                    page = next(pages, None)
            except ObjectNotFound:
                raise self._errors.no_container(action) from None
            if page is None:
                return
            yield page.raw_page

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        full = self._full(key)
        action = f"read {full!r}"
        if obstore_can_name(full):
            try:
                return bytes(self._connection.files.get(full).bytes())
            except (BaseError, FileNotFoundError) as error:
                raise self._explained(action, error) from None
        with self._asking(action):
            content: bytes = self._bucket.blob(full).download_as_bytes(raw_download=True, **patient())
        return content

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head; the ETag is the generation."""
        full = self._full(key)
        blob = self._bucket.blob(full)
        with self._asking(f"look at {full!r}"):
            blob.reload(**patient())
            md5 = base64.b64decode(blob.md5_hash, validate=True).hex() if blob.md5_hash else None
            return ObjectFacts(key, int(blob.size), blob.updated.astimezone(UTC), str(int(blob.generation)), md5)

    def put(self, key: str, data: bytes) -> str:
        """See ObjectStore.put."""
        full = self._full(key)
        return self._upload(f"write {full!r}", full, data)

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        full = self._full(key)
        try:
            return self._upload(f"create {full!r}", full, data, generation=0)
        except PreconditionFailed:
            raise self._errors.already_exists(f"create {full!r}") from None

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        full = self._full(key)
        if not etag.isdecimal() or not int(etag):
            raise PreconditionFailed(f"cannot replace {full!r}: {etag!r} is the generation of no version")
        return self._upload(f"replace {full!r}", full, data, generation=int(etag))

    def _upload(self, action: str, full: str, data: bytes, generation: int | None = None) -> str:
        """Writes in place of a generation (0 of none), or of any; returns the new one. The service compares CRC32C."""
        blob = self._bucket.blob(full)
        try:
            with self._asking(action):
                blob.upload_from_string(
                    data, content_type="application/octet-stream", if_generation_match=generation, **patient()
                )
                return str(int(blob.generation))
        except ObjectNotFound:
            raise self._errors.no_container(action) from None

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete. A key that the answer does not mention has failed.

        Batches are composed and read here: the library takes the answers of a batch in the order in which they come,
        and a delete that failed must not be taken for another one's. Deletes one by one would be told apart as well,
        but take a hundred times the requests.
        """
        if len(keys) > self.delete_limit:
            raise ValueError(f"{len(keys)} keys in one delete, at most {self.delete_limit} are taken")
        full_keys = {self._full(key): key for key in keys}
        if not full_keys:
            return []
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

    def copy(self, source: str, target: str) -> None:
        """See CopiesObjects.copy. Contents are compared by MD5 and CRC32C; a composed object has no MD5."""
        facts, there = self._contents(source), self._contents(target)
        if facts is None:
            raise self._errors.answered(f"copy {self._full(source)!r}", Answer(404, {}, b""))
        if there is None or not _alike(facts, there):
            self._rewrite(source, target, facts, {} if there is None else {"ifGenerationMatch": there["generation"]})

    def copy_if_absent(self, source: str, target: str) -> None:
        """See CopiesObjects.copy_if_absent."""
        facts = self._contents(source)
        if facts is None:
            raise self._errors.answered(f"copy {self._full(source)!r}", Answer(404, {}, b""))
        action = f"copy {self._full(source)!r} to {self._full(target)!r}"
        if self._contents(target) is not None:
            raise self._errors.already_exists(action)
        try:
            self._rewrite(source, target, facts, {"ifGenerationMatch": "0"})
        except PreconditionFailed:
            if self._contents(target) is None:
                raise
            raise self._errors.already_exists(action) from None

    def _rewrite(self, source: str, target: str, facts: Mapping[str, object], condition: Mapping[str, object]) -> None:
        """Copies within the bucket, in as many requests as the service needs for it.

        Without a body, which the library's own method has: properties in it take the place of the source's.
        """
        full, other = self._full(source), self._full(target)
        action = f"copy {full!r} to {other!r}"
        path = f"{_API}{self._bucket.blob(full).path}/rewriteTo{self._bucket.blob(other).path}"
        query = {"ifSourceGenerationMatch": facts["generation"], **condition}
        while True:
            with self._asking(action):
                answer = self._connection.post(f"{path}?{urlencode(query)}").json()
                if answer["done"]:
                    break
                query["rewriteToken"] = str(answer["rewriteToken"])
        made = self._contents(target)
        if made is None or not _alike(facts, made):
            raise StorageError(f"cannot {action} in {self._errors.place}: the copy has another size or digest")

    def _contents(self, key: str) -> Mapping[str, object] | None:
        """Size, generation and digests of an object; None where there is none."""
        full = self._full(key)
        blob: Blob = self._bucket.blob(full)
        try:
            with self._asking(f"look at {full!r}"):
                blob.reload(**patient())
                digests = {"md5Hash": blob.md5_hash, "crc32c": blob.crc32c}
                return {
                    "size": int(blob.size),
                    "generation": str(int(blob.generation)),
                    **{name: digest for name, digest in digests.items() if digest},
                }
        except ObjectNotFound:
            return None

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

    def _explained(self, action: str, error: Exception) -> StorageError:
        if not isinstance(error, BaseError | FileNotFoundError):
            return StorageError(f"cannot {action} in {self._errors.place}: {type(error).__name__}")
        return self._if_bucket_exists(action, self._errors.raised(action, error))

    def _not_listed(self, action: str, error: Exception) -> StorageError:
        explained = self._explained(action, error)
        return self._errors.no_container(action) if isinstance(explained, ObjectNotFound) else explained

    def _if_bucket_exists(self, action: str, error: StorageError) -> StorageError:
        """An answer 404 does not always say whether the object is missing or the bucket."""
        if isinstance(error, ObjectNotFound):
            with self._asking(action), suppress(Forbidden):
                if not self._bucket.exists(**patient()):
                    return self._errors.no_container(action)
        return error

    def _full(self, key: str) -> str:
        return self._root + checked_key(key)


def _answer(response: Response) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.content)


def _alike(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether both have the same size and at least one digest in common, and all digests that both have are equal."""
    digests = [(one[name], other[name]) for name in ("md5Hash", "crc32c") if name in one and name in other]
    return one["size"] == other["size"] and bool(digests) and all(each[0] == each[1] for each in digests)


def _facts(key: str, found: dict[str, Any]) -> ObjectFacts:
    return ObjectFacts(key, int(found["size"]), _time(found["updated"]), str(int(found["generation"])))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _as_batch(found: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    columns = [
        [facts["name"] for facts in found],
        [int(facts["size"]) for facts in found],
        [_time(facts["updated"]) for facts in found],
        [base64.b64decode(facts["md5Hash"]).hex() if "md5Hash" in facts else None for facts in found],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LISTING_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LISTING_SCHEMA)

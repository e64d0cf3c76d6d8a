"""A storage namespace in a bucket of Google Cloud Storage.

A version is told by its generation, which no two versions of an object share, not even with the same content: that is
the ETag of everything but listings, whose ETags are what the service gives there, usually the MD5 of the content.
API: https://cloud.google.com/storage/docs/json_api/v1
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
from obstore.exceptions import BaseError

from lakefs_gc_assets.errors import ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import multipart, obstore_listing
from lakefs_gc_assets.storage.cloud_deletes import delete_in_batches, outcome_of
from lakefs_gc_assets.storage.gcs.connection import connect
from lakefs_gc_assets.storage.http_service import Answer, Unreachable, quoted
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
_CONTENT = "size,generation,md5Hash,crc32c"


class GCSStore:
    """Objects below a prefix of a bucket; see ObjectStore."""

    delete_limit = 1000

    def __init__(self, settings: StoreSettings, location: Location) -> None:
        """Binds to a bucket and prefix; asks the service nothing."""
        self._connection = connect(settings, location.bucket)
        self._errors = self._connection.errors
        self._root = location.key
        self._bucket_path = f"/storage/v1/b/{quoted(location.bucket)}"
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
        for page in self._json_pages(action, prefix=prefix, startOffset=behind, delimiter=delimiter):
            with self._errors.reading(action):
                batch = _as_batch(page.get("items", []))
            yield batch

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        full = self._root + checked_prefix(prefix)
        prefixes: list[str] = []
        objects: list[ObjectFacts] = []
        action = f"list directly below {full!r}"
        for page in self._json_pages(action, prefix=full, delimiter="/"):
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

    def _json_pages(self, action: str, **query: str) -> Iterator[dict[str, Any]]:
        fields = f"nextPageToken,prefixes,items({_FIELDS})"
        token = ""
        while True:
            asked = {"fields": fields, "maxResults": str(PAGE), "pageToken": token, **query}
            target = f"{self._bucket_path}/o?{urlencode({name: value for name, value in asked.items() if value})}"
            answer = self._ask(action, "GET", target)
            if answer.status == 404:
                raise self._errors.no_container(action)
            page = self._json(action, answer)
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        full = self._full(key)
        action = f"read {full!r}"
        if obstore_can_name(full):
            try:
                return bytes(self._connection.files.get(full).bytes())
            except (BaseError, FileNotFoundError) as error:
                raise self._explained(action, error) from None
        answer = self._ask(action, "GET", f"{self._path(full)}?alt=media")
        if answer.status != 200:
            raise self._refused(action, answer)
        return answer.body

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head; the ETag is the generation."""
        full = self._full(key)
        action = f"look at {full!r}"
        answer = self._ask(action, "GET", f"{self._path(full)}?{urlencode({'fields': _FIELDS})}")
        with self._errors.reading(action):
            found = self._json(action, answer)
            md5 = base64.b64decode(found["md5Hash"], validate=True).hex() if "md5Hash" in found else None
            return replace(_facts(key, found), md5=md5)

    def put(self, key: str, data: bytes) -> str:
        """See ObjectStore.put."""
        full = self._full(key)
        return self._upload(f"write {full!r}", full, data)

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        full = self._full(key)
        try:
            return self._upload(f"create {full!r}", full, data, generation="0")
        except PreconditionFailed:
            raise self._errors.already_exists(f"create {full!r}") from None

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        full = self._full(key)
        if not etag.isdecimal() or not int(etag):
            raise PreconditionFailed(f"cannot replace {full!r}: {etag!r} is the generation of no version")
        return self._upload(f"replace {full!r}", full, data, generation=etag)

    def _upload(self, action: str, full: str, data: bytes, generation: str = "") -> str:
        """Writes in place of a generation (0 of none), or of any; returns the new one."""
        query = {"uploadType": "media", "name": full, "fields": "generation"}
        if generation:
            query["ifGenerationMatch"] = generation
        answer = self._ask(
            action,
            "POST",
            f"/upload{self._bucket_path}/o?{urlencode(query)}",
            data,
            {"Content-Type": "application/octet-stream"},
        )
        if answer.status == 404:
            raise self._errors.no_container(action)
        with self._errors.reading(action):
            return str(int(self._json(action, answer)["generation"]))

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete. A key that the answer does not mention has failed."""
        if len(keys) > self.delete_limit:
            raise ValueError(f"{len(keys)} keys in one delete, at most {self.delete_limit} are taken")
        full_keys = {self._full(key): key for key in keys}
        if not full_keys:
            return []
        kept = self._keeps_deleted
        return delete_in_batches(full_keys, BATCH, lambda batch: self._delete_batch(batch, kept))

    def _delete_batch(self, full_keys: Sequence[str], kept: bool | None) -> dict[str, DeleteOutcome]:
        action = f"delete {len(full_keys)} objects such as {full_keys[0]!r}"
        content_type, body = multipart.composed([self._path(full) for full in full_keys], [{}] * len(full_keys))
        answer = self._ask(action, "POST", "/batch/storage/v1", body, {"Content-Type": content_type})
        if answer.status != 200:
            raise self._refused(action, answer)
        parts = multipart.answers(answer)
        return {full: outcome_of(full, parts.get(number), kept) for number, full in enumerate(full_keys)}

    @cached_property
    def _keeps_deleted(self) -> bool | None:
        """Whether the bucket keeps what is deleted, by soft delete or versions; None where we may not know."""
        action = "look at the bucket"
        answer = self._ask(action, "GET", f"{self._bucket_path}?fields=softDeletePolicy,versioning")
        if answer.status in (401, 403):
            return None
        if answer.status == 404:
            raise self._errors.no_container(action)
        facts = self._json(action, answer)
        with self._errors.reading(action):
            seconds = int(facts.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
            return seconds > 0 or bool(facts.get("versioning", {}).get("enabled"))

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

    def _rewrite(self, source: str, target: str, facts: dict[str, Any], condition: dict[str, str]) -> None:
        """Copies within the bucket, in as many requests as the service needs for it."""
        full, other = self._full(source), self._full(target)
        action = f"copy {full!r} to {other!r}"
        query = {"ifSourceGenerationMatch": str(facts["generation"]), **condition}
        while True:
            asked = f"{self._path(full)}/rewriteTo{self._path(other).removeprefix('/storage/v1')}?{urlencode(query)}"
            answer = self._json(action, self._ask(action, "POST", asked))
            with self._errors.reading(action):
                if answer["done"]:
                    break
                query["rewriteToken"] = str(answer["rewriteToken"])
        made = self._contents(target)
        if made is None or not _alike(facts, made):
            raise StorageError(f"cannot {action} in {self._errors.place}: the copy has another size or digest")

    def _contents(self, key: str) -> dict[str, Any] | None:
        """Size, generation and digests of an object; None where there is none."""
        full = self._full(key)
        action = f"look at {full!r}"
        answer = self._ask(action, "GET", f"{self._path(full)}?{urlencode({'fields': _CONTENT})}")
        try:
            found = self._json(action, answer)
        except ObjectNotFound:
            return None
        with self._errors.reading(action):
            return {**found, "size": int(found["size"]), "generation": str(int(found["generation"]))}

    def _ask(
        self, action: str, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        try:
            return self._connection.service.ask(
                method,
                lambda: (
                    self._connection.endpoint + target,
                    {**self._connection.tokens.header(), **(headers or {})},
                ),
                body,
            )
        except Unreachable:
            raise self._errors.unreachable(action) from None

    def _json(self, action: str, answer: Answer) -> dict[str, Any]:
        if answer.status != 200:
            raise self._refused(action, answer)
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StorageError(f"cannot {action} in {self._errors.place}: the service's answer is no JSON object")
        return found

    def _refused(self, action: str, answer: Answer) -> StorageError:
        return self._if_bucket_exists(action, self._errors.answered(action, answer))

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
            answer = self._ask(action, "GET", f"{self._bucket_path}?fields=name")
            if answer.status == 404:
                return self._errors.no_container(action)
        return error

    def _full(self, key: str) -> str:
        return self._root + checked_key(key)

    def _path(self, full: str) -> str:
        return f"{self._bucket_path}/o/{quoted(full)}"


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
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

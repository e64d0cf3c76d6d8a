"""A storage namespace in an S3 bucket, on AWS or on any service that speaks S3."""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError
from obstore.exceptions import BaseError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from lakefs_gc_assets.errors import ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import obstore_listing
from lakefs_gc_assets.storage.busy_keys import insisting
from lakefs_gc_assets.storage.interface import (
    NULL_VERSION,
    DeleteOutcome,
    DeleteResult,
    Level,
    ObjectFacts,
    checked_key,
    checked_prefix,
)
from lakefs_gc_assets.storage.s3 import copies, listing
from lakefs_gc_assets.storage.s3.connection import connect
from lakefs_gc_assets.storage.s3.errors import BUSY, CONFLICT, FAILURES, code_of

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

CONFLICT_ATTEMPTS = 5
_MD5 = re.compile("[0-9a-f]{32}")
_DIRECTORY_BUCKET = "--x-s3"
_NOT_IN_XML = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")
_Result = TypeVar("_Result")


class S3Store:
    """Objects below a prefix of a bucket; see ObjectStore. Every answer of the service is believed only as it stands.

    Requests that were answered 5xx or SlowDown, timed out or lost their connection are repeated, at a rate that backs
    off while the service throttles.
    """

    delete_limit = 1000

    def __init__(self, settings: StoreSettings, location: Location) -> None:
        """Binds to a bucket and prefix; asks the service nothing, unless its region is to be found out."""
        self._connection = connect(settings, location.bucket)
        self._client = self._connection.client
        self._errors = self._connection.errors
        self._bucket = location.bucket
        self._root = location.key

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list; here in order of keys."""
        return obstore_listing.batches(listing.listable(self._connection), self._root, checked_prefix(prefix))

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """See ListsInOrder.list_between."""
        arguments = {"Delimiter": "/"} if only_directly else {}
        return obstore_listing.between(
            listing.listable(self._connection, **arguments),
            self._root,
            checked_prefix(prefix),
            after,
            until,
            by_pages=only_directly,
        )

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        full = self._root + checked_prefix(prefix)
        prefixes: list[str] = []
        objects: list[ObjectFacts] = []
        action = f"list directly below {full!r}"
        for page in listing.whole_pages(self._connection, action, full, Delimiter="/"):
            prefixes += (self._relative(found["Prefix"]) for found in page.get("CommonPrefixes", []))
            objects += (
                _facts(self._relative(found["Key"]), found["Size"], found["LastModified"], found.get("ETag"))
                for found in page.get("Contents", [])
                if found["Key"] != full
            )
        return Level(tuple(prefixes), tuple(objects))

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        full = self._full(key)
        if not obstore_listing.obstore_can_name(full):
            return self._ask(f"read {full!r}", lambda: self._get_by_boto3(full))
        try:
            return bytes(self._connection.files.get(full).bytes())
        except (BaseError, FileNotFoundError) as error:
            raise self._errors.explain(f"read {full!r}", error) from None

    def _get_by_boto3(self, full: str) -> bytes:
        return self._client.get_object(Bucket=self._bucket, Key=full)["Body"].read()

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head."""
        full = self._full(key)
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=full)
        except ClientError as error:
            if code_of(error) == "404" and self._bucket_exists():
                raise self._errors.not_found(f"look at {full!r}") from None
            raise self._errors.explain(f"look at {full!r}", error) from None
        except BotoCoreError as error:
            raise self._errors.explain(f"look at {full!r}", error) from None
        facts = _facts(key, found["ContentLength"], found["LastModified"], found.get("ETag"))
        return replace(facts, md5=self._md5(facts.etag or "", found))

    def _md5(self, etag: str, found: "HeadObjectOutputTypeDef") -> str | None:
        """The ETag where it is the MD5 of the content.

        It is that of what was written in one piece and is encrypted by the service's own keys or not at all. With keys
        of KMS or of a customer it looks the same and is something else, as it is in directory buckets
        (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html).
        """
        own_keys = found.get("ServerSideEncryption", "AES256") == "AES256"
        other_keys = "SSEKMSKeyId" in found or "SSECustomerAlgorithm" in found or "SSECustomerKeyMD5" in found
        plain = own_keys and not other_keys and not self._bucket.endswith(_DIRECTORY_BUCKET)
        return etag if plain and _MD5.fullmatch(etag) else None

    def _bucket_exists(self) -> bool:
        """An answer to HEAD does not say whether the object is missing or the bucket."""
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            return code_of(error) != "404"
        return True

    def put(self, key: str, data: bytes) -> str:
        """See ObjectStore.put."""
        full = self._full(key)
        answer = self._ask(f"write {full!r}", lambda: self._client.put_object(Bucket=self._bucket, Key=full, Body=data))
        return answer["ETag"].strip('"')

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        full = self._full(key)
        try:
            answer = self._ask(
                f"create {full!r}",
                lambda: self._client.put_object(Bucket=self._bucket, Key=full, Body=data, IfNoneMatch="*"),
            )
        except PreconditionFailed:
            raise self._errors.already_exists(f"create {full!r}") from None
        return answer["ETag"].strip('"')

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        full = self._full(key)
        try:
            answer = self._ask(
                f"replace {full!r}",
                lambda: self._client.put_object(Bucket=self._bucket, Key=full, Body=data, IfMatch=f'"{etag}"'),
            )
        except ObjectNotFound:
            raise PreconditionFailed(f"cannot replace {full!r}: it is gone") from None
        return answer["ETag"].strip('"')

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete. A key that the answer does not mention has failed."""
        if len(keys) > self.delete_limit:
            raise ValueError(f"{len(keys)} keys in one delete, at most {self.delete_limit} are taken")
        full_keys = [self._full(key) for key in keys]
        said = insisting(self._delete_once, [full for full in full_keys if not _NOT_IN_XML.search(full)], _was_busy)
        said |= {full: self._delete_alone(full) for full in full_keys if _NOT_IN_XML.search(full)}
        return [replace(said[full], key=key) for key, full in zip(keys, full_keys, strict=True)]

    def _delete_once(self, full_keys: Sequence[str]) -> dict[str, DeleteOutcome]:
        answer = self._ask(
            f"delete {len(full_keys)} objects such as {full_keys[0]!r}",
            lambda: self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": full} for full in full_keys], "Quiet": False}
            ),
        )
        said = {full: _failed(full, "the service's answer does not mention this key") for full in full_keys}
        for deleted in _with_key(answer.get("Deleted", []), said):
            said[deleted["Key"]] = _accepted(
                deleted["Key"], deleted.get("DeleteMarker", False), deleted.get("DeleteMarkerVersionId")
            )
        for failed in _with_key(answer.get("Errors", []), said):
            said[failed["Key"]] = _failed(
                failed["Key"], f"{failed.get('Code', 'no code')}: {failed.get('Message', 'no message')}"
            )
        return said

    def _delete_alone(self, full: str) -> DeleteOutcome:
        """Deletes a key that an XML document cannot hold."""
        try:
            answer = self._ask(f"delete {full!r}", lambda: self._client.delete_object(Bucket=self._bucket, Key=full))
        except StorageError as error:
            return _failed(full, str(error))
        return _accepted(full, answer.get("DeleteMarker", False), answer.get("VersionId"))

    def copy(self, source: str, target: str) -> None:
        """See CopiesObjects.copy."""
        copies.copy(self._connection, self._full(source), self._full(target), only_if_absent=False)

    def copy_if_absent(self, source: str, target: str) -> None:
        """See CopiesObjects.copy_if_absent."""
        copies.copy(self._connection, self._full(source), self._full(target), only_if_absent=True)

    def remove_delete_marker(self, key: str, version_id: str) -> bool:
        """See KeepsVersions.remove_delete_marker. Takes the permissions to list and to delete versions."""
        full = self._full(key)
        if version_id == NULL_VERSION:
            # An object written in between would have the same version, and would be lost.
            raise StorageError(f"cannot remove the delete marker of {full!r}: it has no version of its own")
        # Of all names with this prefix the key itself sorts first, and of its versions the newest.
        answer = self._ask(
            f"look at the versions of {full!r}",
            lambda: self._client.list_object_versions(Bucket=self._bucket, Prefix=full, MaxKeys=1),
        )
        markers = _with_key(answer.get("DeleteMarkers", []), [full])
        if not any(found.get("VersionId") == version_id and found.get("IsLatest") is True for found in markers):
            return False
        self._ask(
            f"remove the delete marker of {full!r}",
            lambda: self._client.delete_object(Bucket=self._bucket, Key=full, VersionId=version_id),
        )
        return True

    def _ask(self, action: str, call: Callable[[], _Result]) -> _Result:
        """Calls boto3, again where another writer was in the way, and turns its errors into ours."""
        attempts = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, ClientError) and code_of(error) in CONFLICT),
            stop=stop_after_attempt(CONFLICT_ATTEMPTS),
            wait=wait_random_exponential(max=2),
            reraise=True,
        )
        try:
            return attempts(call)
        except FAILURES as error:
            raise self._errors.explain(action, error) from None

    def _full(self, key: str) -> str:
        return self._root + checked_key(key)

    def _relative(self, full: str) -> str:
        return full[len(self._root) :]


def _accepted(full: str, marked: bool, version_id: str | None) -> DeleteOutcome:
    """What a bucket without versions accepted, or one that put a delete marker on top of the versions it has."""
    if not marked:
        return DeleteOutcome(full, DeleteResult.ACCEPTED)
    kept = None if version_id == NULL_VERSION else True
    return DeleteOutcome(full, DeleteResult.ACCEPTED, version_id=version_id, soft_deleted=kept)


def _with_key(entries: Sequence[Any], asked: Container[str]) -> Iterator[Any]:
    """The entries of an answer whose one key was asked for; of two keys boto3 makes a list."""
    return (entry for entry in entries if isinstance(entry.get("Key"), str) and entry["Key"] in asked)


def _failed(full: str, error: str) -> DeleteOutcome:
    return DeleteOutcome(full, DeleteResult.FAILED, error)


def _was_busy(outcome: DeleteOutcome) -> bool:
    return (outcome.error or "").partition(":")[0] in BUSY


def _facts(key: str, size: int, last_modified: datetime, etag: str | None) -> ObjectFacts:
    return ObjectFacts(key, size, last_modified.astimezone(UTC), etag.strip('"') if etag else None)

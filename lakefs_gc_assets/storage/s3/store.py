"""A storage namespace in an S3 bucket, on AWS or any S3-compatible service.

obstore reads; boto3's client lists, writes, deletes, and reads keys that obstore cannot name. S3 itself copies within
the bucket, in parts if the object is too large for a single request.
"""

import logging
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, TypeVar

from botocore.exceptions import ClientError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from lakefs_gc_assets.errors import DeletesOver, NotOffered, ObjectNotFound, StorageError, counted
from lakefs_gc_assets.lakefs.addresses import Location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.bucket_store import Expected, OrderedBucketStore
from lakefs_gc_assets.storage.cloud import RequestThrottled, in_threads, retry_throttled
from lakefs_gc_assets.storage.interface import (
    NULL_VERSION,
    DeleteOutcome,
    DeleteResult,
    ObjectFacts,
    Page,
    Version,
)
from lakefs_gc_assets.storage.s3.client import (
    BUSY,
    CONFLICT,
    DIRECTORY_BUCKET,
    FAILURES,
    PAGE,
    SLOW_DOWN,
    ListedPage,
    S3Errors,
    code_of,
    connect,
    is_of,
    quoted,
)

CONFLICT_ATTEMPTS = 5
_PARTS_AT_ONCE = 16
SINGLE_DELETES = 8
"""Parallel requests if a service has no bulk deletes."""
_CONDITIONS = "conditional writes (If-None-Match, If-Match), which keep two collections apart"
_BAD_REQUEST = frozenset({"400", "BadRequest", "InvalidArgument", "InvalidRequest"})
"""Codes of services that refuse the headers of a conditional write."""
_NOT_IN_XML = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")
WHOLE = 5 * 1024**3
"""Maximum bytes per CopyObject. https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html"""
PART = 1024**3
"""Bytes per part of a larger object."""
MD5 = re.compile("[0-9a-f]{32}")
_KEPT = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Metadata")
_Result = TypeVar("_Result")
Head = Mapping[str, Any]
"""An answer to HeadObject."""
_log = logging.getLogger(__name__)


class S3Store(OrderedBucketStore[S3Errors, Head]):
    """Objects below a prefix of a bucket; see ObjectStore.

    Requests that are answered 5xx or SlowDown, time out or lose their connection are retried, at a rate that backs off
    while the service throttles.
    """

    def __init__(self, settings: StoreSettings, location: Location) -> None:
        """Binds to a bucket and prefix; sends no request, except to determine an unknown region."""
        self._client, files, errors = connect(settings, location.bucket)
        self._bucket = location.bucket
        self._deletes_in_bulk = True
        super().__init__(location.key, files, errors)

    def _page(self, action: str, prefix: str, behind: str, delimiter: str, token: str | None) -> Page:
        given = {"StartAfter": behind, "Delimiter": delimiter, "ContinuationToken": token}
        asked: dict[str, Any] = {name: value for name, value in given.items() if value}
        answer = self._ask(action, lambda: self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **asked))
        page = answer.get(PAGE)
        if not isinstance(page, ListedPage):
            raise self._errors.nonsense(action, str(page or "it is no page of a listing"))
        if not is_of(page, prefix):
            raise self._errors.nonsense(action, f"it is a page of another listing, below {page.prefix!r}")
        return page

    def _read(self, action: str, full: str) -> bytes:
        return self._ask(action, lambda: self._client.get_object(Bucket=self._bucket, Key=full)["Body"].read())

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head."""
        try:
            return super().head(key)
        except ObjectNotFound:
            if self._bucket_exists():
                raise
            raise self._errors.refused(f"look at {self._full(key)!r}", "404") from None

    def _facts(self, key: str, content: Head) -> ObjectFacts:
        etag, modified = content.get("ETag", "").strip('"'), content["LastModified"].astimezone(UTC)
        return ObjectFacts(key, content["ContentLength"], modified, etag or None, self._md5(etag, content))

    def _md5(self, etag: str, head: Head) -> str | None:
        """The ETag if it is the MD5 of the content, else None.

        It is the MD5 if the object was written in one request, and is unencrypted or encrypted with the service's own
        keys. With keys of KMS or of a customer, and in directory buckets, it only looks like an MD5
        (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html).
        """
        return etag if self._tells_md5s(head) and MD5.fullmatch(etag) else None

    def _tells_md5s(self, head: Head) -> bool:
        """True if the ETag is an MD5, or is computed from MD5s of parts; see `_md5`."""
        own_keys = head.get("ServerSideEncryption", "AES256") == "AES256"
        other_keys = "SSEKMSKeyId" in head or "SSECustomerAlgorithm" in head or "SSECustomerKeyMD5" in head
        return own_keys and not other_keys and not self._bucket.endswith(DIRECTORY_BUCKET)

    def part_sizes(self, key: str) -> tuple[int, ...] | None:
        """See TellsParts.part_sizes. Sends a request for each part."""
        full = self._full(key)

        def look(number: int) -> Head:
            try:
                return self._client.head_object(Bucket=self._bucket, Key=full, PartNumber=number)
            except FAILURES as error:
                raise self._errors.explain(f"look at part {number} of {full!r}", error) from None

        whole = self._look(full)
        if not self._tells_md5s(whole):
            return None
        try:
            first = look(1)
        except StorageError:
            # Not every service supports PartNumber.
            return None
        others = in_threads(_PARTS_AT_ONCE, look, range(2, first.get("PartsCount", 0) + 1))
        sizes = (first["ContentLength"], *(head["ContentLength"] for head in others))
        return sizes if "PartsCount" in first and sum(sizes) == whole["ContentLength"] else None

    def _bucket_exists(self) -> bool:
        """True if the bucket exists: a 404 for HEAD does not say whether object or bucket is missing."""
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            return code_of(error) != "404"
        return True

    def _write(self, action: str, full: str, data: bytes, expected: Expected | None) -> str:
        condition: dict[str, Any] = {}
        if expected is not None:
            condition = {"IfNoneMatch": "*"} if expected.etag is None else {"IfMatch": f'"{expected.etag}"'}

        def put() -> Any:
            try:
                return self._client.put_object(Bucket=self._bucket, Key=full, Body=data, **condition)
            except ClientError as error:
                is_lacking = isinstance(self._errors.explain(action, error), NotOffered)
                if not condition or not (is_lacking or code_of(error) in _BAD_REQUEST):
                    raise
                raise self._errors.not_offered(action, f"{_CONDITIONS}: it answered {quoted(error)}") from None

        answer = self._ask(action, put)
        etag: str = answer.get("ETag", "").strip('"')
        if not etag and condition:
            raise self._errors.not_offered(action, f"an ETag for each object, and so no {_CONDITIONS}")
        return etag

    def _delete(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        if self._deletes_in_bulk:
            try:
                return self._delete_in_bulk(full_keys)
            except NotOffered as reason:
                self._deletes_in_bulk = False
                _log.warning("objects are deleted one by one, slowly: %s", reason)
        return dict(zip(full_keys, in_threads(SINGLE_DELETES, self._delete_alone, full_keys), strict=True))

    def _delete_in_bulk(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        outcomes = retry_throttled(
            self._delete_once, [full for full in full_keys if not _NOT_IN_XML.search(full)], _was_busy, self._throttle
        )
        return outcomes | {full: self._delete_alone(full) for full in full_keys if _NOT_IN_XML.search(full)}

    def _delete_once(self, full_keys: Sequence[str]) -> dict[str, DeleteOutcome]:
        action = f"delete {counted(len(full_keys), 'objects')} such as {full_keys[0]!r}"

        def request() -> Any:
            try:
                return self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": full} for full in full_keys], "Quiet": False}
                )
            except ClientError as error:
                if code_of(error) != SLOW_DOWN:
                    raise
                raise RequestThrottled(str(self._errors.explain(action, error))) from None

        answer = self._ask(action, request)
        outcomes = {full: _failed(full, "the service's answer does not mention this key") for full in full_keys}
        for deleted in _with_key(answer.get("Deleted", []), outcomes):
            outcomes[deleted["Key"]] = _accepted(
                deleted["Key"], deleted.get("DeleteMarker", False), deleted.get("DeleteMarkerVersionId")
            )
        for failed in _with_key(answer.get("Errors", []), outcomes):
            outcomes[failed["Key"]] = _failed(
                failed["Key"], f"{failed.get('Code', 'no code')}: {failed.get('Message', 'no message')}"
            )
        return outcomes

    def _delete_alone(self, full: str) -> DeleteOutcome:
        """Deletes one key by its own request, if XML cannot hold it or the service has no bulk deletes."""
        try:
            answer = self._ask(f"delete {full!r}", lambda: self._client.delete_object(Bucket=self._bucket, Key=full))
        except DeletesOver:
            return DeleteOutcome(full, DeleteResult.LEFT)
        except StorageError as error:
            return _failed(full, str(error))
        return _accepted(full, answer.get("DeleteMarker", False), answer.get("VersionId"))

    def _look(self, full: str) -> Head:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=full)
        except FAILURES as error:
            if isinstance(error, ClientError) and code_of(error) == "404":
                raise self._errors.not_found(f"look at {full!r}") from None
            raise self._errors.explain(f"look at {full!r}", error) from None

    def _alike(self, one: Head, other: Head) -> bool:
        return same_content(one, other)

    def _copy_content(
        self, action: str, source: str, target: str, content: Head, there: Head | None, only_if_absent: bool
    ) -> Head | None:
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if only_if_absent else {}
        try:
            if content["ContentLength"] <= WHOLE:
                self._client.copy_object(
                    Bucket=self._bucket,
                    Key=target,
                    CopySource={"Bucket": self._bucket, "Key": source},
                    CopySourceIfMatch=content["ETag"],
                    **condition,
                )
            else:
                self._copy_in_parts(source, target, content, condition)
        except FAILURES as error:
            raise self._errors.explain(action, error) from None
        return self._content(target)

    def _copy_in_parts(self, source: str, target: str, content: Head, condition: Mapping[str, Any]) -> None:
        """Copies an object that is too large for a single request."""
        client, bucket, size = self._client, self._bucket, content["ContentLength"]
        kept = {name: content[name] for name in _KEPT if name in content}
        upload = client.create_multipart_upload(Bucket=bucket, Key=target, **kept)["UploadId"]
        try:
            parts: list[Any] = []
            for number, start in enumerate(range(0, size, PART), 1):
                answer = client.upload_part_copy(
                    Bucket=bucket,
                    Key=target,
                    UploadId=upload,
                    PartNumber=number,
                    CopySource={"Bucket": bucket, "Key": source},
                    CopySourceRange=f"bytes={start}-{min(start + PART, size) - 1}",
                    CopySourceIfMatch=content["ETag"],
                )
                parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            client.complete_multipart_upload(
                Bucket=bucket, Key=target, UploadId=upload, MultipartUpload={"Parts": parts}, **condition
            )
        except BaseException:
            client.abort_multipart_upload(Bucket=bucket, Key=target, UploadId=upload)
            raise

    def remove_delete_marker(self, key: str, version_id: str) -> bool:
        """See KeepsVersions.remove_delete_marker. Needs the permissions to list and to delete versions."""
        full = self._full(key)
        if version_id == NULL_VERSION:
            # An object written meanwhile would have the same version ID, and would be lost.
            raise StorageError(f"cannot remove the delete marker of {full!r}: it has no version of its own")
        # The key itself sorts first among keys with this prefix, and its newest version first among its versions.
        answer = self._ask(
            f"look at the versions of {full!r}",
            lambda: self._client.list_object_versions(Bucket=self._bucket, Prefix=full, MaxKeys=1),
        )
        markers = _with_key(answer.get("DeleteMarkers", []), [full])
        if not any(marker.get("VersionId") == version_id and marker.get("IsLatest") is True for marker in markers):
            return False
        self._ask(
            f"remove the delete marker of {full!r}",
            lambda: self._client.delete_object(Bucket=self._bucket, Key=full, VersionId=version_id),
        )
        return True

    def versions(self, prefix: str) -> Iterator[Version]:
        """See ListsVersions.versions. Needs the permission to list versions."""
        full = self._full(prefix)
        position: dict[str, str] = {}
        while True:
            page = self._ask(
                f"list the versions of {full!r}",
                lambda after=dict(position): self._client.list_object_versions(  # type: ignore[misc]
                    Bucket=self._bucket, Prefix=full, **after
                ),
            )
            listed: list[tuple[bool, Any]] = [
                *((False, entry) for entry in page.get("Versions", ())),
                *((True, entry) for entry in page.get("DeleteMarkers", ())),
            ]
            for is_marker, entry in listed:
                if entry["Key"].startswith(full):
                    key, etag = entry["Key"].removeprefix(self._root), entry.get("ETag")
                    facts = entry.get("Size", 0), etag and etag.strip('"')
                    yield Version(key, entry["VersionId"], is_marker, entry["IsLatest"], *facts)
            if not page.get("IsTruncated"):
                return
            position = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    def delete_version(self, key: str, version_id: str) -> None:
        """See ListsVersions.delete_version. Needs the permission to delete versions."""
        full = self._full(key)
        self._ask(
            f"delete version {version_id} of {full!r}",
            lambda: self._client.delete_object(Bucket=self._bucket, Key=full, VersionId=version_id),
        )

    def _ask(self, action: str, call: Callable[[], _Result]) -> _Result:
        """Calls boto3, retries conflicts with other writers, and turns its errors into ours."""
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


def _accepted(full: str, marked: bool, version_id: str | None) -> DeleteOutcome:
    """Outcome of a delete in an unversioned bucket, or of one that added a delete marker."""
    if not marked:
        return DeleteOutcome(full, DeleteResult.ACCEPTED)
    kept = None if version_id == NULL_VERSION else True
    return DeleteOutcome(full, DeleteResult.ACCEPTED, version_id=version_id, soft_deleted=kept)


def _with_key(entries: Sequence[Any], asked: Container[str]) -> Iterator[Any]:
    """The entries of an answer with a requested key. Entries with two keys, which boto3 makes a list, are skipped."""
    return (entry for entry in entries if isinstance(entry.get("Key"), str) and entry["Key"] in asked)


def _failed(full: str, error: str) -> DeleteOutcome:
    return DeleteOutcome(full, DeleteResult.FAILED, error)


def _was_busy(outcome: DeleteOutcome) -> bool:
    return (outcome.error or "").partition(":")[0] in BUSY


def same_content(one: Head, other: Head) -> bool:
    """True if the sizes are equal and, if both ETags are digests of the content, the ETags too."""
    etags = [str(facts.get("ETag", "")).strip('"') for facts in (one, other)]
    digests = all(MD5.fullmatch(etag) for etag in etags) and not (_has_own_key(one) or _has_own_key(other))
    return one["ContentLength"] == other["ContentLength"] and (not digests or etags[0] == etags[1])


def _has_own_key(facts: Head) -> bool:
    """True if the ETag depends on the encryption, which differs for each write."""
    return str(facts.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in facts

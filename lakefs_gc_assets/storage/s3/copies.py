"""Copies that S3 makes itself within a bucket, in parts above the size that one request may copy."""

import re
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from lakefs_gc_assets.storage.s3.connection import Connection
from lakefs_gc_assets.storage.s3.errors import FAILURES, code_of

WHOLE = 5 * 1024**3
"""Bytes that one CopyObject may copy. https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html"""
PART = 1024**3
"""Bytes of each part of a larger object."""
_MD5 = re.compile("[0-9a-f]{32}")
_KEPT = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Metadata")


def copy(connection: Connection, source: str, target: str, only_if_absent: bool) -> None:
    """Copies an object to another key of its bucket, unless the same is there already, and looks whether it did.

    Args:
        only_if_absent: whether any object at the target is left alone.
    Raises:
        ObjectNotFound, AlreadyExists, StorageError: also where size or ETag of the copy differ.
    """
    action = f"copy {source!r} to {target!r}"
    try:
        facts, there = _head(connection, source), _head(connection, target)
        if facts is None:
            raise connection.errors.not_found(action)
        if there is not None and only_if_absent:
            raise connection.errors.already_exists(action)
        if there is not None and _alike(facts, there):
            return
        condition = {"IfNoneMatch": "*"} if only_if_absent else {}
        if facts["ContentLength"] <= WHOLE:
            _whole(connection, source, target, facts, condition)
        else:
            _in_parts(connection, source, target, facts, condition)
        there = _head(connection, target)
    except FAILURES as error:
        if isinstance(error, ClientError) and only_if_absent and code_of(error) in ("PreconditionFailed", "412"):
            raise connection.errors.already_exists(action) from None
        raise connection.errors.explain(action, error) from None
    if there is None or not _alike(facts, there):
        raise connection.errors.nonsense(action, "the copy has another size or ETag")


def _head(connection: Connection, key: str) -> Mapping[str, Any] | None:
    try:
        return connection.client.head_object(Bucket=connection.bucket, Key=key)
    except ClientError as error:
        if code_of(error) == "404":
            return None
        raise


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Same size and, where both ETags are digests of the content, the same ETag."""
    etags = [str(facts.get("ETag", "")).strip('"') for facts in (one, other)]
    digests = all(_MD5.fullmatch(etag) for etag in etags) and not (_has_own_key(one) or _has_own_key(other))
    return one["ContentLength"] == other["ContentLength"] and (not digests or etags[0] == etags[1])


def _has_own_key(facts: Mapping[str, Any]) -> bool:
    """Whether the ETag depends on an encryption that is new for each write."""
    return str(facts.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in facts


def _whole(
    connection: Connection, source: str, target: str, facts: Mapping[str, Any], condition: dict[str, Any]
) -> None:
    connection.client.copy_object(
        Bucket=connection.bucket,
        Key=target,
        CopySource={"Bucket": connection.bucket, "Key": source},
        CopySourceIfMatch=facts["ETag"],
        **condition,
    )


def _in_parts(
    connection: Connection, source: str, target: str, facts: Mapping[str, Any], condition: dict[str, Any]
) -> None:
    client, bucket = connection.client, connection.bucket
    kept = {name: facts[name] for name in _KEPT if name in facts}
    upload = client.create_multipart_upload(Bucket=bucket, Key=target, **kept)["UploadId"]
    try:
        parts = []
        for number, start in enumerate(range(0, facts["ContentLength"], PART), 1):
            end = min(start + PART, facts["ContentLength"]) - 1
            answer = client.upload_part_copy(
                Bucket=bucket,
                Key=target,
                UploadId=upload,
                PartNumber=number,
                CopySource={"Bucket": bucket, "Key": source},
                CopySourceRange=f"bytes={start}-{end}",
                CopySourceIfMatch=facts["ETag"],
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        client.complete_multipart_upload(
            Bucket=bucket,
            Key=target,
            UploadId=upload,
            MultipartUpload={"Parts": parts},  # type: ignore[typeddict-item]
            **condition,
        )
    except BaseException:
        client.abort_multipart_upload(Bucket=bucket, Key=target, UploadId=upload)
        raise

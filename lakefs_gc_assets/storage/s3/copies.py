"""Copies that S3 makes itself within a bucket, in parts above the size that one request may copy."""

import re
from collections.abc import Mapping
from typing import Any

from lakefs_gc_assets.storage.s3.connection import Connection

WHOLE = 5 * 1024**3
"""Bytes that one CopyObject may copy. https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html"""
PART = 1024**3
"""Bytes of each part of a larger object."""
MD5 = re.compile("[0-9a-f]{32}")
_KEPT = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Metadata")


def copy(connection: Connection, source: str, target: str, facts: Mapping[str, Any], only_if_absent: bool) -> None:
    """Copies this version of an object to another key of its bucket, where one may be unless `only_if_absent`.

    Raises what boto3 raises.
    """
    condition = {"IfNoneMatch": "*"} if only_if_absent else {}
    if facts["ContentLength"] <= WHOLE:
        _whole(connection, source, target, facts, condition)
    else:
        _in_parts(connection, source, target, facts, condition)


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Same size and, where both ETags are digests of the content, the same ETag."""
    etags = [str(facts.get("ETag", "")).strip('"') for facts in (one, other)]
    digests = all(MD5.fullmatch(etag) for etag in etags) and not (_has_own_key(one) or _has_own_key(other))
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

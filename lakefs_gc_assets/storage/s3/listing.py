"""Pages of a bucket's listing by boto3, which does not check what the service leaves out: that is done here."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakefs_gc_assets.storage.interface import Level, ObjectFacts
from lakefs_gc_assets.storage.s3.connection import Connection
from lakefs_gc_assets.storage.s3.errors import FAILURES

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef


def levels(connection: Connection, action: str, prefix: str, behind: str, delimiter: str) -> Iterator[Level]:
    """All pages of what lies below a prefix, with full keys, behind a key; `action` names the listing in errors.

    S3 lists in the order of UTF-8 bytes, but for directory buckets (S3 Express). Raises what whole_pages raises.
    """
    arguments = {name: given for name, given in (("StartAfter", behind), ("Delimiter", delimiter)) if given}
    for page in whole_pages(connection, action, prefix, **arguments):
        objects = (
            object_facts(found["Key"], found["Size"], found["LastModified"], found.get("ETag"))
            for found in page.get("Contents", [])
        )
        yield Level(tuple(found["Prefix"] for found in page.get("CommonPrefixes", [])), tuple(objects))


def whole_pages(
    connection: Connection, action: str, prefix: str, **arguments: Any
) -> "Iterator[ListObjectsV2OutputTypeDef]":
    """All pages of what lies below a prefix; `action` names the listing in errors.

    Raises StorageError, also where it is not said whether there is more, as by an answer without any content, or there
    is more but no place to go on (boto3 would end there), and where something is listed that lies elsewhere or lacks
    its key, size or time.
    """
    paginator = connection.client.get_paginator("list_objects_v2")
    try:
        for page in paginator.paginate(Bucket=connection.bucket, Prefix=prefix, **arguments):
            if not isinstance(page.get("IsTruncated"), bool):
                raise connection.errors.nonsense(action, "it does not say whether there is more")
            if page["IsTruncated"] and not page.get("NextContinuationToken"):
                raise connection.errors.nonsense(action, "there is more to list, but not where to go on")
            if not isinstance(page.get("EncodingType", "url"), str):
                raise connection.errors.nonsense(action, "it says more than once how its names are written")
            for facts in page.get("Contents", []):
                if not _is_whole(facts) or not facts["Key"].startswith(prefix):
                    raise connection.errors.nonsense(action, "it lists an object elsewhere, or without size or time")
            for found in page.get("CommonPrefixes", []):
                name = found.get("Prefix")
                if not isinstance(name, str) or not name.startswith(prefix) or not name.endswith("/"):
                    raise connection.errors.nonsense(
                        action, "it lists a prefix elsewhere, or without a slash at its end"
                    )
            yield page
    except FAILURES as error:
        raise connection.errors.explain(action, error) from None


_LARGEST = (1 << 63) - 1
_TYPES: dict[str, type] = {"Key": str, "Size": int, "LastModified": datetime, "ETag": str}


def _is_whole(facts: Mapping[str, Any]) -> bool:
    """Whether an object is listed with what is needed of it, once each: of two boto3 makes a list."""
    given: dict[str, Any] = {name: facts.get(name, "" if name == "ETag" else None) for name in _TYPES}
    return all(isinstance(value, _TYPES[name]) for name, value in given.items()) and 0 <= given["Size"] <= _LARGEST


def object_facts(key: str, size: int, last_modified: datetime, etag: str | None) -> ObjectFacts:
    """Facts as boto3 gives them."""
    return ObjectFacts(key, size, last_modified.astimezone(UTC), etag.strip('"') if etag else None)

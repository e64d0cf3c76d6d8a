"""Pages of a bucket's listing by boto3, which does not check what the service leaves out: that is done here."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakefs_gc_assets.storage.interface import LISTING_SCHEMA
from lakefs_gc_assets.storage.obstore_listing import Listable
from lakefs_gc_assets.storage.s3.connection import Connection
from lakefs_gc_assets.storage.s3.errors import FAILURES

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef


def listable(connection: Connection, **arguments: Any) -> Listable:
    """The bucket of a connection; S3 lists in the order of UTF-8 bytes. Its pages are asked for with the arguments.

    Directory buckets (S3 Express) list in no order: such a listing ends with a StorageError.
    """

    def pages(prefix: str, behind: str) -> Iterator[pa.RecordBatch]:
        found = whole_pages(connection, f"list below {prefix!r}", prefix, StartAfter=behind, **arguments)
        return map(_as_batch, found)

    return Listable(f"s3://{connection.bucket}", connection.files, pages, connection.errors.explain)


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


def _as_batch(page: "ListObjectsV2OutputTypeDef") -> pa.RecordBatch:
    objects = page.get("Contents", [])
    columns = [
        [facts["Key"] for facts in objects],
        [facts["Size"] for facts in objects],
        [facts["LastModified"] for facts in objects],
        [etag.strip('"') if (etag := facts.get("ETag")) else None for facts in objects],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LISTING_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LISTING_SCHEMA)

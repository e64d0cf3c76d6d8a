"""A bucket of S3 for a listing: pages by boto3 where obstore cannot go on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from lakefs_gc_assets.storage.interface import LISTING_SCHEMA
from lakefs_gc_assets.storage.obstore_listing import Listable
from lakefs_gc_assets.storage.s3_connection import Connection

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef


def listable(connection: Connection) -> Listable:
    """The bucket of a connection; S3 lists in the order of UTF-8 bytes."""

    def pages(prefix: str, behind: str) -> Iterator[pa.RecordBatch]:
        paginator = connection.client.get_paginator("list_objects_v2")
        try:
            for page in paginator.paginate(Bucket=connection.bucket, Prefix=prefix, StartAfter=behind):
                yield _as_batch(page)
        except (ClientError, BotoCoreError) as error:
            raise connection.errors.explain(f"list below {prefix!r}", error) from None

    return Listable(f"s3://{connection.bucket}", connection.files, pages, connection.errors.explain)


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

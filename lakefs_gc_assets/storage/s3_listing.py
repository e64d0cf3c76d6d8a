"""Listing a bucket: obstore makes Arrow columns fast; boto3 takes over where a key is beyond it.

Measured with obstore 0.12: its listing ends with an error at a key with an empty, `.` or `..` segment or a control
character; it strips a slash that a key begins or ends with, so that another key seems to be there. S3 lists in the
order of UTF-8 bytes: rows out of order or twice show stripped slashes, and boto3 can go on behind the last good row.
A folder's marker (`dir/`) without an object `dir` is still listed as `dir`, a key where no object is.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from botocore.exceptions import BotoCoreError, ClientError
from obstore.exceptions import BaseError, InvalidPathError

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA
from lakefs_gc_assets.storage.s3_connection import Connection

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

BATCH_ROWS = 10_000
_log = logging.getLogger(__name__)


class _BeyondObstore(Exception):
    """obstore cannot list what comes next, or did not list it as it is."""


def obstore_can_name(key: str) -> bool:
    """Whether obstore takes a key (or a prefix without its last slash) for exactly this key."""
    return all(segment not in ("", ".", "..") for segment in key.split("/")) and not any(map(_is_control, key))


def _is_control(character: str) -> bool:
    return character < " " or character == "\x7f"


def batches(connection: Connection, root: str, prefix: str) -> Iterator[pa.RecordBatch]:
    """Every object below root + prefix with keys relative to root, in batches of LISTING_SCHEMA, in order of keys.

    Raises StorageError where the service fails, or does not list in order (nothing could be proved complete then).
    """
    listing = _Listing(connection, root, root + prefix)
    try:
        yield from listing.by_obstore()
    except _BeyondObstore as reason:
        _log.warning("s3://%s/%s is listed by boto3 from here, slowly: %s", connection.bucket, root + prefix, reason)
        yield from listing.by_boto3()


class _Listing:
    """One listing under way, and how far it has come."""

    def __init__(self, connection: Connection, root: str, prefix: str) -> None:
        self._connection = connection
        self._root = root
        self._prefix = prefix
        self._last = ""
        self._action = f"list below {prefix!r}"

    def by_obstore(self) -> Iterator[pa.RecordBatch]:
        """Rows until a key comes that obstore cannot name. Raises _BeyondObstore then."""
        if self._prefix and not obstore_can_name(self._prefix[:-1]):
            raise _BeyondObstore("the prefix is beyond obstore")
        if not self._prefix and self._some_key_begins_with_slash():
            raise _BeyondObstore("some keys begin with a slash")
        try:
            stream = self._connection.files.list(self._prefix or None, chunk_size=BATCH_ROWS, return_arrow=True)
            for chunk in stream:
                yield from self._checked(_of_obstore(pa.record_batch(chunk)), lenient=True)
        except InvalidPathError as error:
            raise _BeyondObstore(ascii(str(error).partition("\n")[0])) from None
        except (BaseError, FileNotFoundError) as error:
            raise self._connection.errors.explain(self._action, error) from None

    def by_boto3(self) -> Iterator[pa.RecordBatch]:
        """The rows behind the last one that was yielded."""
        paginator = self._connection.client.get_paginator("list_objects_v2")
        try:
            pages = paginator.paginate(Bucket=self._connection.bucket, Prefix=self._prefix, StartAfter=self._last)
            for page in pages:
                yield from self._checked(_of_boto3(page), lenient=False)
        except (ClientError, BotoCoreError) as error:
            raise self._connection.errors.explain(self._action, error) from None

    def _some_key_begins_with_slash(self) -> bool:
        try:
            page = self._connection.client.list_objects_v2(Bucket=self._connection.bucket, Prefix="/", MaxKeys=1)
        except (ClientError, BotoCoreError) as error:
            raise self._connection.errors.explain(self._action, error) from None
        return bool(page.get("Contents"))

    def _checked(self, batch: pa.RecordBatch, lenient: bool) -> Iterator[pa.RecordBatch]:
        """The batch without the prefix's own marker, once it is sure to be in order and below the prefix."""
        marker = self._prefix[:-1] if lenient else self._prefix
        if self._prefix and batch.num_rows and batch["key"][0].as_py() == marker:
            batch = batch.slice(1)
        if not batch.num_rows:
            return
        keys = batch["key"]
        if not pc.all(pc.starts_with(keys, self._prefix)).as_py():
            raise StorageError(f"asked to {self._action}, the service listed keys that do not begin so: listed nothing")
        if keys[0].as_py().encode() <= self._last.encode() or pc.any(pc.greater_equal(keys[:-1], keys[1:])).as_py():
            if lenient:
                raise _BeyondObstore("keys are out of order, which a slash at the end of a key can cause")
            raise StorageError(f"asked to {self._action}, the service did not list in order of keys: cannot be trusted")
        self._last = keys[-1].as_py()
        relative = pc.utf8_slice_codeunits(keys, len(self._root)) if self._root else keys
        yield batch.set_column(0, LISTING_SCHEMA.field("key"), relative)


def _of_obstore(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        batch["path"],
        batch["size"].cast(pa.int64()),
        batch["last_modified"],
        pc.utf8_trim(batch["e_tag"], '"'),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)


def _of_boto3(page: "ListObjectsV2OutputTypeDef") -> pa.RecordBatch:
    objects = page.get("Contents", [])
    columns = [
        [facts["Key"] for facts in objects],
        [facts["Size"] for facts in objects],
        [facts["LastModified"] for facts in objects],
        [etag.strip('"') if (etag := facts.get("ETag")) else None for facts in objects],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LISTING_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LISTING_SCHEMA)

"""An S3 Inventory instead of a listing: the bucket's own report of its objects, written daily or weekly to a bucket.

The report is older than the run, and may lack recent writes and deletes. That is safe if only objects clearly older
than the report (`created_at`) are deleted.
Format: https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html
"""

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace, parse_location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, head_if_there
from lakefs_gc_assets.storage.opening import StoreOpener

_DATED = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}Z/")
_NEEDED = {"Key": "key", "Size": "size", "LastModifiedDate": "last_modified_date", "ETag": "e_tag"}
_CLASS = "StorageClass"
_OPTIONAL = {_CLASS: "storage_class"}
_VERSIONS = {"IsLatest": "is_latest", "IsDeleteMarker": "is_delete_marker"}
_PARQUET_NAMES = _NEEDED | _OPTIONAL | _VERSIONS
_PARQUET_COLUMN = re.compile(r"\b(?:required|optional)\s+\w+\s+(\w+)")
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """One file of a report; `key` is relative to the root of its bucket, `md5` is in hexadecimal."""

    key: str
    size: int
    md5: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """One report, as its manifest describes it. It can be pickled, and its repr shows no settings.

    Attributes:
        manifest: address of the manifest.
        created_at: time in UTC when S3 began to write the report.
        root: prefix of all keys of the wanted storage namespace.
        columns: columns of the files, in order for CSV; Parquet columns have the names of CSV too.
    """

    opener: StoreOpener = field(repr=False)
    manifest: str
    created_at: datetime
    root: str
    parquet: bool
    columns: tuple[str, ...]
    files: tuple[InventoryFile, ...]

    def batches(self, file: InventoryFile) -> Iterator[pa.RecordBatch]:
        """Objects of the namespace in one file, as from ObjectStore.list; each object is in one file of the report.

        Older versions and delete markers are skipped. The rest equals a listing at the time of the report, except for
        writes and deletes shortly before.

        Raises StorageError if the file is missing, does not have the manifest's checksum, or cannot be read.
        """
        try:
            for batch in self._raw(file):
                rows = _listed(batch, self.root)
                if rows.num_rows:
                    yield rows
        except (pa.ArrowException, OSError, EOFError, ValueError, KeyError, zlib.error) as error:
            raise StorageError(
                f"file {file.key} of the inventory {self.manifest} cannot be read ({error}): the inventory is not used"
            ) from None

    def _raw(self, file: InventoryFile) -> Iterator[pa.RecordBatch]:
        content = _checked(self.opener.open().get(file.key), file.md5, f"file {file.key}", self.manifest)
        wanted = [name for name in (*_NEEDED, *_OPTIONAL, *_VERSIONS) if name in self.columns]
        if self.parquet:
            names = {name: _PARQUET_NAMES[name] for name in wanted}
            for batch in pq.ParquetFile(io.BytesIO(content)).iter_batches(columns=list(names.values())):
                yield pa.RecordBatch.from_arrays([batch.column(names[name]) for name in wanted], names=wanted)
            return
        text = io.BufferedReader(gzip.GzipFile(fileobj=io.BytesIO(content)))
        if not text.peek(1):
            return
        reader = csv.open_csv(
            text,
            csv.ReadOptions(column_names=list(self.columns), block_size=_BLOCK_BYTES),
            convert_options=csv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string()), strings_can_be_null=False
            ),
        )
        for batch in reader:
            yield batch.set_column(0, "Key", _decoded(batch.column("Key")))


def open_inventory(settings: StoreSettings, uri: str, namespace: Namespace) -> Inventory:
    """Reads the manifest of a report, or of the newest complete one of an inventory configuration.

    Args:
        settings: settings of a store with read access to the bucket of the reports.
        uri: `s3://bucket/…/manifest.json`, or the folder above the dated ones.
        namespace: storage namespace of the wanted objects.
    Raises:
        ConfigurationError: the report is of another bucket, or lacks a column.
        StorageError: there is no report, or it is damaged.
    """
    location = parse_location(uri)
    if location is None or location.kind != "s3" or namespace.location.kind != "s3":
        raise ConfigurationError(f"{uri!r} is no inventory of {namespace.uri}: both must be addresses of S3")
    opener = StoreOpener(settings, f"s3://{location.bucket}/")
    key = location.key if location.key.endswith("/manifest.json") else _newest(opener, location.key.rstrip("/") + "/")
    store = opener.open()
    text = store.get(key)
    checksum = store.get(key.removesuffix("manifest.json") + "manifest.checksum").decode(errors="replace")
    _checked(text, checksum.strip(), "manifest.json", key)
    try:
        content = json.loads(text)
        source, file_format = content["sourceBucket"], content["fileFormat"]
        columns = _columns(file_format, content["fileSchema"])
        created_at = datetime.fromtimestamp(int(content["creationTimestamp"]) / 1000, UTC)
        files = tuple(InventoryFile(part["key"], int(part["size"]), part["MD5checksum"]) for part in content["files"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"manifest {key} is not that of an S3 Inventory ({error!r})") from None
    if source != namespace.location.bucket:
        raise ConfigurationError(f"the inventory {uri} is of bucket {source!r}, and {namespace.uri} lies elsewhere")
    if file_format not in ("CSV", "Parquet"):
        raise ConfigurationError(f"the inventory {uri} is in format {file_format}: read are CSV and Parquet")
    if missing := _NEEDED.keys() - set(columns):
        raise ConfigurationError(f"the inventory {uri} lacks {', '.join(sorted(missing))}: add them to its columns")
    if len(_VERSIONS.keys() & set(columns)) == 1:
        raise StorageError(f"the inventory {uri} tells of versions, but not which are the latest and which are markers")
    manifest = f"s3://{location.bucket}/{key}"
    return Inventory(opener, manifest, created_at, namespace.location.key, file_format == "Parquet", columns, files)


def _newest(opener: StoreOpener, folder: str) -> str:
    """The manifest of the newest complete report; S3 writes its checksum last."""
    store = opener.open()
    dated = [prefix for prefix in store.list_level(folder).prefixes if _DATED.fullmatch(prefix.removeprefix(folder))]
    for prefix in sorted(dated, reverse=True):
        if head_if_there(store, f"{prefix}manifest.checksum") is not None:
            return f"{prefix}manifest.json"
    raise StorageError(f"there is no complete inventory below {folder!r}: S3 writes the first one within 48 hours")


def _columns(file_format: str, schema: str) -> tuple[str, ...]:
    if file_format == "Parquet":
        known = {parquet: name for name, parquet in _PARQUET_NAMES.items()}
        return tuple(known.get(column, column) for column in _PARQUET_COLUMN.findall(schema))
    return tuple(column.strip() for column in schema.split(","))


def _checked(content: bytes, md5: str, what: str, manifest: str) -> bytes:
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5.lower():
        raise StorageError(
            f"{what} of the inventory {manifest} has another checksum than is written there: it was replaced or damaged"
        )
    return content


def _decoded(keys: pa.Array) -> pa.Array:
    """Decodes the URL-encoded keys of a CSV file."""
    encoded = pc.or_(pc.match_substring(keys, "%"), pc.match_substring(keys, "+"))
    if not pc.any(encoded).as_py():
        return keys
    # Strict, so that two keys which are not valid UTF-8 do not become one.
    replaced = [unquote_plus(key, errors="strict") for key in keys.filter(encoded).to_pylist()]
    return pc.replace_with_mask(keys, encoded, pa.array(replaced, pa.string()))


def _listed(batch: pa.RecordBatch, root: str) -> pa.RecordBatch:
    """Rows of a report as LISTING_SCHEMA."""
    keys = batch.column("Key").cast(pa.string())
    wanted = pc.and_(pc.starts_with(keys, root), pc.not_equal(keys, root)) if root else pc.is_valid(keys)
    if "IsLatest" in batch.schema.names:
        wanted = pc.and_(wanted, _is_true(batch.column("IsLatest")))
        wanted = pc.and_(wanted, pc.invert(_is_true(batch.column("IsDeleteMarker"))))
    batch, keys = batch.filter(wanted), keys.filter(wanted)
    listed = pa.RecordBatch.from_arrays(
        [
            pc.utf8_slice_codeunits(keys, len(root)) if root else keys,
            batch.column("Size").cast(pa.int64()),
            _times(batch.column("LastModifiedDate")),
            pc.utf8_trim(batch.column("ETag").cast(pa.string()), '"'),
            batch.column(_CLASS).cast(pa.string())
            if _CLASS in batch.schema.names
            else pa.nulls(len(keys), pa.string()),
        ],
        schema=LISTING_SCHEMA,
    )
    if any(listed.column(name).null_count for name in ("key", "size", "last_modified")):
        raise ValueError("an object without key, size or time")
    return listed


def _is_true(column: pa.Array) -> pa.Array:
    """True for each set flag. Raises ValueError if a flag is missing."""
    if column.null_count:
        raise ValueError("a version that does not say whether it is the latest, or a marker")
    if pa.types.is_boolean(column.type):
        return column
    if not pc.all(pc.is_in(column, pa.array(["true", "false"]))).as_py():
        raise ValueError("a flag that is neither true nor false")
    return pc.equal(column, "true")


def _times(column: Any) -> Any:
    time = LISTING_SCHEMA.field("last_modified").type
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        return column.cast(pa.timestamp("us")).cast(time)
    return column.cast(time)

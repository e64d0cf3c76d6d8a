"""Reports of S3 Inventory, written as AWS documents them."""

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.storage.interface import ObjectStore

CREATED = datetime(2026, 11, 21, 1, 0, tzinfo=UTC)
COLUMNS = [
    "Bucket",
    "Key",
    "VersionId",
    "IsLatest",
    "IsDeleteMarker",
    "Size",
    "LastModifiedDate",
    "ETag",
    "StorageClass",
]
SCHEMA = (
    "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); "
    "optional binary version_id (UTF8); optional boolean is_latest; optional boolean is_delete_marker; "
    "optional int64 size; optional int64 last_modified_date (TIMESTAMP_MILLIS); optional binary e_tag (UTF8); "
    "optional binary storage_class (UTF8); }"
)


@dataclass(frozen=True)
class Version:
    """One version of an object in a report."""

    key: str
    size: int = 1
    last_modified: datetime = CREATED - timedelta(days=30)
    etag: str = "d41d8cd98f00b204e9800998ecf8427e"
    latest: bool = True
    marker: bool = False
    storage_class: str = "STANDARD"


def csv_file(versions: Sequence[Version]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for version in versions:
        writer.writerow(
            [
                "source",
                quote_plus(version.key, safe="/"),
                uuid4().hex,
                str(version.latest).lower(),
                str(version.marker).lower(),
                "" if version.marker else version.size,
                version.last_modified.strftime("%Y-%m-%dT%H:%M:%S.")
                + f"{version.last_modified.microsecond // 1000:03}Z",
                "" if version.marker else version.etag,
                "" if version.marker else version.storage_class,
            ]
        )
    return gzip.compress(text.getvalue().encode())


def parquet_file(versions: Sequence[Version]) -> bytes:
    table = pa.table(
        {
            "bucket": ["source"] * len(versions),
            "key": [version.key for version in versions],
            "version_id": [uuid4().hex] * len(versions),
            "is_latest": pa.array([version.latest for version in versions], pa.bool_()),
            "is_delete_marker": pa.array([version.marker for version in versions], pa.bool_()),
            "size": pa.array([None if version.marker else version.size for version in versions], pa.int64()),
            "last_modified_date": pa.array([version.last_modified for version in versions], pa.timestamp("ms", "UTC")),
            "e_tag": [None if version.marker else version.etag for version in versions],
            "storage_class": [None if version.marker else version.storage_class for version in versions],
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=3)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[Sequence[Version]], bytes]] = {"CSV": csv_file, "Parquet": parquet_file}


def write(
    bucket: ObjectStore,
    folder: str,
    file_format: str,
    files: Sequence[Sequence[Version]],
    /,
    *,
    created: datetime = CREATED,
    **manifest: Any,
) -> str:
    """Writes one report as S3 does, its checksum last; returns the manifest's key.

    Args:
        bucket: destination of the reports, from its root.
        manifest: entries that replace the usual ones.
    """
    written = []
    for versions in files:
        content = WRITERS[file_format](versions)
        key = f"{folder}data/{uuid4()}.{file_format.lower()}"
        bucket.put(key, content)
        written.append({"key": key, "size": len(content), "MD5checksum": hashlib.md5(content).hexdigest()})
    text = json.dumps(
        {
            "sourceBucket": "source",
            "destinationBucket": "arn:aws:s3:::reports",
            "version": "2016-11-30",
            "creationTimestamp": str(int(created.timestamp() * 1000)),
            "fileFormat": file_format,
            "fileSchema": SCHEMA if file_format == "Parquet" else ", ".join(COLUMNS),
            "files": written,
            **manifest,
        }
    ).encode()
    dated = f"{folder}{created:%Y-%m-%dT%H-%MZ}/"
    bucket.put(f"{dated}manifest.json", text)
    bucket.put(f"{dated}manifest.checksum", hashlib.md5(text).hexdigest().encode())
    return f"{dated}manifest.json"

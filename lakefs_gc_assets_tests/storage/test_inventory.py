"""Inventories as AWS documents them, of objects as a listing shows them."""

import csv
import gzip
import hashlib
import io
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.errors import CollectionError, ConfigurationError, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA
from lakefs_gc_assets.storage.inventory import Inventory, open_inventory
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.s3_server import S3Server

CREATED = datetime(2026, 11, 21, 1, 0, tzinfo=UTC)
COLUMNS = ["Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size", "LastModifiedDate", "ETag"]
SCHEMA = (
    "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); "
    "optional binary version_id (UTF8); optional boolean is_latest; optional boolean is_delete_marker; "
    "optional int64 size; optional int64 last_modified_date (TIMESTAMP_MILLIS); optional binary e_tag (UTF8); }"
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
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=3)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[Sequence[Version]], bytes]] = {"CSV": csv_file, "Parquet": parquet_file}


class Reports:
    """A bucket that reports are written to."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        self.server, self.bucket = server, bucket
        self.folder = f"inventories/{uuid4().hex}/source/daily/"
        self.store = open_store(server.settings(), Namespace.parse(f"s3://{bucket}"))

    def write(
        self,
        file_format: str,
        files: Sequence[Sequence[Version]],
        /,
        *,
        created: datetime = CREATED,
        **manifest: Any,
    ) -> str:
        """Writes one report as S3 does, its checksum last; returns the manifest's address."""
        written = []
        for versions in files:
            content = WRITERS[file_format](versions)
            key = f"{self.folder}data/{uuid4()}.{file_format.lower()}"
            self.store.put(key, content)
            written.append({"key": key, "size": len(content), "MD5checksum": hashlib.md5(content).hexdigest()})
        text = json.dumps(
            {
                "sourceBucket": "source",
                "destinationBucket": f"arn:aws:s3:::{self.bucket}",
                "version": "2016-11-30",
                "creationTimestamp": str(int(created.timestamp() * 1000)),
                "fileFormat": file_format,
                "fileSchema": SCHEMA if file_format == "Parquet" else ", ".join(COLUMNS),
                "files": written,
                **manifest,
            }
        ).encode()
        dated = f"{self.folder}{created:%Y-%m-%dT%H-%MZ}/"
        self.store.put(f"{dated}manifest.json", text)
        self.store.put(f"{dated}manifest.checksum", hashlib.md5(text).hexdigest().encode())
        return f"s3://{self.bucket}/{dated}manifest.json"

    def open(self, uri: str = "", namespace: str = "s3://source/repository") -> Inventory:
        chosen = uri or f"s3://{self.bucket}/{self.folder}"
        return open_inventory(self.server.settings(), chosen, Namespace.parse(namespace))


@pytest.fixture
def reports(s3_server: S3Server, bucket: str) -> Reports:
    return Reports(s3_server, bucket)


def rows(inventory: Inventory, prefix: str = "", **rule: timedelta) -> list[dict[str, Any]]:
    batches = [batch for file in inventory.files for batch in inventory.batches(file, prefix, **rule)]
    assert all(batch.schema.equals(LISTING_SCHEMA) for batch in batches)
    return sorted(pa.Table.from_batches(batches, LISTING_SCHEMA).to_pylist(), key=lambda row: row["key"])


def keys(inventory: Inventory, prefix: str = "", **rule: timedelta) -> list[str]:
    return [row["key"] for row in rows(inventory, prefix, **rule)]


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
VERSIONS = st.builds(
    Version,
    key=st.tuples(st.sampled_from(["repository/", "repository/data/", "repository2/", ""]), TEXT).map("".join),
    size=st.integers(0, 2**45),
    last_modified=st.integers(-4, 100).map(lambda hours: CREATED - timedelta(hours=hours, milliseconds=7)),
    etag=st.sampled_from(["d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204e9800998ecf8427e-12"]),
    latest=st.booleans(),
    marker=st.booleans(),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    versions=st.lists(VERSIONS, max_size=12, unique_by=lambda version: (version.key, version.latest)),
    file_format=st.sampled_from(["CSV", "Parquet"]),
    cuts=st.lists(st.integers(0, 12), max_size=3).map(sorted),
    margin=st.integers(0, 48).map(lambda hours: timedelta(hours=hours)),
)
def test_it_is_the_listing_without_what_is_too_new(
    reports: Reports, versions: list[Version], file_format: str, cuts: list[int], margin: timedelta
) -> None:
    bounds = [0, *cuts, len(versions)]
    files = [versions[start:end] for start, end in pairwise(bounds)]
    inventory = reports.open(reports.write(file_format, files))
    listed = [version for version in versions if version.latest and not version.marker]
    expected = [
        {
            "key": version.key.removeprefix("repository/"),
            "size": version.size,
            "last_modified": version.last_modified,
            "etag": version.etag,
        }
        for version in listed
        if version.key.startswith("repository/") and version.last_modified < CREATED - margin
    ]
    assert rows(inventory, margin=margin) == sorted(expected, key=lambda row: str(row["key"]))


@pytest.mark.parametrize("file_format", ["CSV", "Parquet"])
def test_it_is_what_a_listing_of_the_bucket_shows(
    reports: Reports, s3_server: S3Server, bucket: str, file_format: str
) -> None:
    namespace = Namespace.parse(f"s3://{bucket}/repository-{uuid4().hex}")
    store = open_store(s3_server.settings(), namespace)
    for key in ("data/s/1", "data/s/a b+c%20d", "data/s/é", "dummy", "_lakefs/x", "data//odd"):
        store.put(key, key.encode())
    listed = pa.Table.from_batches(store.list(""), LISTING_SCHEMA).to_pylist()
    versions = [
        Version(namespace.location.key + row["key"], row["size"], row["last_modified"], row["etag"]) for row in listed
    ]
    later = datetime.now(UTC) + timedelta(hours=3)
    uri = reports.write(file_format, [versions[:2], versions[2:]], created=later, sourceBucket=bucket)
    inventory = reports.open(uri, namespace.uri)
    assert rows(inventory, margin=timedelta(hours=2)) == sorted(listed, key=lambda row: row["key"])
    assert rows(inventory, "data/", margin=timedelta(hours=2)) == [
        row for row in sorted(listed, key=lambda row: row["key"]) if row["key"].startswith("data/")
    ]
    assert rows(inventory, margin=timedelta(hours=4)) == []


@pytest.mark.parametrize("file_format", ["CSV", "Parquet"])
def test_a_report_of_current_versions_only_has_no_flags(reports: Reports, file_format: str) -> None:
    plain = ["Bucket", "Key", "Size", "LastModifiedDate", "ETag"]
    file = WRITERS[file_format]([Version("repository/data/a")])
    if file_format == "CSV":
        row = next(csv.reader(io.StringIO(gzip.decompress(file).decode())))
        text = ",".join(f'"{row[COLUMNS.index(name)]}"' for name in plain) + "\n"
        schema, content = ", ".join(plain), gzip.compress(text.encode())
    else:
        buffer = io.BytesIO()
        pq.write_table(pq.read_table(io.BytesIO(file)).drop_columns(["is_latest", "is_delete_marker"]), buffer)
        schema, content = SCHEMA.replace("is_latest", "x").replace("is_delete_marker", "y"), buffer.getvalue()
    key = f"{reports.folder}data/plain"
    reports.store.put(key, content)
    listed = {"key": key, "size": len(content), "MD5checksum": hashlib.md5(content).hexdigest()}
    inventory = reports.open(reports.write(file_format, [], fileSchema=schema, files=[listed]))
    assert keys(inventory) == ["data/a"]


def test_the_margin_is_a_day_where_nothing_is_said(reports: Reports) -> None:
    young = [Version(f"repository/{hours}", last_modified=CREATED - timedelta(hours=hours)) for hours in (1, 24, 25)]
    assert keys(reports.open(reports.write("CSV", [young]))) == ["25"]


def test_the_marker_of_a_folder_is_not_below_it(reports: Reports) -> None:
    inventory = reports.open(reports.write("CSV", [[Version("repository/data/"), Version("repository/data/a")]]))
    assert keys(inventory, "data/") == ["data/a"]
    with pytest.raises(ValueError, match="ends with a slash"):
        keys(inventory, "data")


def test_empty_files_and_no_files_are_fine(reports: Reports) -> None:
    assert keys(reports.open(reports.write("CSV", []))) == []
    assert keys(reports.open(reports.write("CSV", [[]]))) == []
    assert keys(reports.open(reports.write("Parquet", [[]]))) == []


def test_the_newest_complete_report_is_taken(reports: Reports) -> None:
    reports.write("CSV", [[Version("repository/old")]], created=CREATED - timedelta(days=1))
    reports.write("CSV", [[Version("repository/new")]])
    unfinished = f"{reports.folder}{CREATED + timedelta(days=1):%Y-%m-%dT%H-%MZ}/manifest.json"
    reports.store.put(unfinished, b"{}")
    inventory = reports.open()
    assert keys(inventory) == ["new"]
    assert inventory.created_at == CREATED


def test_a_report_goes_to_other_processes_without_showing_secrets(reports: Reports) -> None:
    inventory = reports.open(reports.write("CSV", [[Version("repository/a")]]))
    arrived = pickle.loads(pickle.dumps(inventory))
    assert keys(arrived) == ["a"]
    assert reports.server.settings().secret_access_key not in repr(inventory)


def damaged(reports: Reports, change: Callable[[bytes], bytes]) -> Inventory:
    """A report whose only file was changed afterwards, without its checksum."""
    inventory = reports.open(reports.write("CSV", [[Version(f"repository/{number}") for number in range(50)]]))
    key = inventory.files[0].key
    reports.store.put(key, change(reports.store.get(key)))
    return inventory


def test_a_file_that_is_not_the_one_of_the_manifest_is_not_used(reports: Reports) -> None:
    for change in (lambda content: content[:-9], lambda content: content + b"x", lambda _: csv_file([])):
        with pytest.raises(StorageError, match="another checksum"):
            keys(damaged(reports, change))


def test_a_missing_file_is_an_error(reports: Reports) -> None:
    inventory = reports.open(reports.write("CSV", [[Version("repository/a")]]))
    reports.store.delete([inventory.files[0].key])
    with pytest.raises(StorageError, match="no such object"):
        keys(inventory)


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        gzip.compress(b'"source","a"\n'),
        gzip.compress(b'"source","repository/a","v","true","false","many","2026-01-01T00:00:00.000Z","e"\n'),
        gzip.compress(b'"source","repository/a","v","true","false","1","yesterday","e"\n'),
        gzip.compress(b'"source","repository/a","v","perhaps","false","1","2026-01-01T00:00:00.000Z","e"\n'),
        gzip.compress(b'"source","repository/a","v","true","false","","2026-01-01T00:00:00.000Z","e"\n'),
        gzip.compress(b'"source","repository/%ff","v","true","false","1","2026-01-01T00:00:00.000Z","e"\n'),
        csv_file([Version("repository/a")])[:-12],
    ],
    ids=["no gzip", "few fields", "size", "time", "latest", "no size", "name", "cut off"],
)
def test_a_file_that_cannot_be_read_ends_the_reading(reports: Reports, content: bytes) -> None:
    inventory = reports.open(reports.write("CSV", [[]]))
    [file] = inventory.files
    reports.store.put(file.key, content)
    changed = replace(file, md5=hashlib.md5(content).hexdigest())
    with pytest.raises(StorageError, match="cannot be read"):
        list(inventory.batches(changed))


def test_a_changed_manifest_is_not_used(reports: Reports) -> None:
    uri = reports.write("CSV", [[Version("repository/a")]])
    key = uri.removeprefix(f"s3://{reports.bucket}/")
    reports.store.put(key, reports.store.get(key).replace(b"CSV", b"Csv"))
    with pytest.raises(StorageError, match=r"manifest\.json .* another checksum"):
        reports.open(uri)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sourceBucket": "other"}, ConfigurationError, "of bucket 'other'"),
        ({"fileFormat": "ORC"}, ConfigurationError, "format ORC"),
        ({"fileSchema": "Bucket, Key, Size, LastModifiedDate"}, ConfigurationError, "lacks ETag"),
        ({"fileSchema": "Bucket, Key, IsLatest, Size, LastModifiedDate, ETag"}, StorageError, "tells of versions"),
        ({"creationTimestamp": "soon"}, StorageError, "not that of an S3 Inventory"),
        ({"files": [{"key": "a"}]}, StorageError, "not that of an S3 Inventory"),
    ],
)
def test_a_report_that_cannot_serve_is_refused(
    reports: Reports, changes: dict[str, Any], error: type[CollectionError], message: str
) -> None:
    with pytest.raises(error, match=message):
        reports.open(reports.write("CSV", [], **changes))


def test_where_there_is_no_report_it_says_so(reports: Reports) -> None:
    with pytest.raises(StorageError, match="no complete inventory"):
        reports.open()
    with pytest.raises(ConfigurationError, match="must be addresses of S3"):
        reports.open(namespace="gs://source/repository")
    with pytest.raises(ConfigurationError, match="must be addresses of S3"):
        reports.open("inventories/source")

"""Inventories in AWS's documented format, compared with listings of the same objects."""

import csv
import gzip
import hashlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.errors import CollectionError, ConfigurationError, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.storage.s3.inventory import Inventory, open_inventory
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.storage.s3 import inventories
from lakefs_gc_assets_tests.storage.s3.inventories import COLUMNS, CREATED, SCHEMA, WRITERS, Version, csv_file


class Reports:
    """A destination bucket for reports."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        self.server, self.bucket = server, bucket
        self.folder = f"inventories/{uuid4().hex}/source/daily/"
        self.store = open_store(server.settings(), Namespace.parse(f"s3://{bucket}"))

    def write(self, file_format: str, files: Sequence[Sequence[Version]], /, **manifest: Any) -> str:
        """Writes one report; returns the manifest's address."""
        return f"s3://{self.bucket}/{inventories.write(self.store, self.folder, file_format, files, **manifest)}"

    def open(self, uri: str = "", namespace: str = "s3://source/repository") -> Inventory:
        chosen = uri or f"s3://{self.bucket}/{self.folder}"
        return open_inventory(self.server.settings(), chosen, Namespace.parse(namespace))


@pytest.fixture
def reports(s3_server: S3Server, bucket: str) -> Reports:
    return Reports(s3_server, bucket)


def rows(inventory: Inventory) -> list[dict[str, Any]]:
    batches = [batch for file in inventory.files for batch in inventory.batches(file)]
    assert all(batch.schema.equals(LISTING_SCHEMA) for batch in batches)
    return sorted(pa.Table.from_batches(batches, LISTING_SCHEMA).to_pylist(), key=lambda row: row["key"])


def keys(inventory: Inventory) -> list[str]:
    return [row["key"] for row in rows(inventory)]


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
VERSIONS = st.builds(
    Version,
    key=st.tuples(st.sampled_from(["repository/", "repository/data/", "repository2/", ""]), TEXT).map("".join),
    size=st.integers(0, 2**45),
    last_modified=st.integers(-4, 100).map(lambda hours: CREATED - timedelta(hours=hours, milliseconds=7)),
    etag=st.sampled_from(["d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204e9800998ecf8427e-12"]),
    storage_class=st.sampled_from(["STANDARD", "GLACIER", "INTELLIGENT_TIERING"]),
    latest=st.booleans(),
    marker=st.booleans(),
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    versions=st.lists(VERSIONS, max_size=12, unique_by=lambda version: (version.key, version.latest)),
    file_format=st.sampled_from(["CSV", "Parquet"]),
    cuts=st.lists(st.integers(0, 12), max_size=3).map(sorted),
)
def test_it_is_the_listing_of_the_namespace(
    reports: Reports, versions: list[Version], file_format: str, cuts: list[int]
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
            "storage_class": version.storage_class,
        }
        for version in listed
        if version.key.startswith("repository/")
    ]
    assert rows(inventory) == sorted(expected, key=lambda row: str(row["key"]))


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
    uri = reports.write(file_format, [versions[:2], versions[2:]], sourceBucket=bucket)
    inventory = reports.open(uri, namespace.uri)
    assert (inventory.manifest, rows(inventory)) == (uri, sorted(listed, key=lambda row: row["key"]))


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
        schema, content = (
            SCHEMA.replace("is_latest", "x").replace("is_delete_marker", "y").replace("storage_class", "z"),
            buffer.getvalue(),
        )
    key = f"{reports.folder}data/plain"
    reports.store.put(key, content)
    listed = {"key": key, "size": len(content), "MD5checksum": hashlib.md5(content).hexdigest()}
    inventory = reports.open(reports.write(file_format, [], fileSchema=schema, files=[listed]))
    assert [(row["key"], row["storage_class"]) for row in rows(inventory)] == [("data/a", None)]


def test_the_marker_of_the_namespace_is_not_below_it(reports: Reports) -> None:
    inventory = reports.open(reports.write("CSV", [[Version("repository/"), Version("repository/data/a")]]))
    assert keys(inventory) == ["data/a"]


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
    """A report whose only file was changed afterwards, but not its checksum."""
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
        gzip.compress(b'"source","repository/a","v","true","false","many","2026-01-01T00:00:00.000Z","e","STANDARD"\n'),
        gzip.compress(b'"source","repository/a","v","true","false","1","yesterday","e","STANDARD"\n'),
        gzip.compress(b'"source","repository/a","v","perhaps","false","1","2026-01-01T00:00:00.000Z","e","STANDARD"\n'),
        gzip.compress(b'"source","repository/a","v","true","false","","2026-01-01T00:00:00.000Z","e","STANDARD"\n'),
        gzip.compress(b'"source","repository/%ff","v","true","false","1","2026-01-01T00:00:00.000Z","e","STANDARD"\n'),
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

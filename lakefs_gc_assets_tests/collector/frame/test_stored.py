from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lakefs_gc_assets.frames import spark as frames
from lakefs_gc_assets.frames.manifest import Manifest
from lakefs_gc_assets.frames.spark import SCHEMAS, StoredFrame
from lakefs_gc_assets.sources import tasks
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.spark.errors import from_worker
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.s3_server import S3Server
from lakefs_gc_assets_tests.spark.frame_rows import NOW, RUN_ID, listed, span
from lakefs_gc_assets_tests.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]

Rows = list[dict[str, Any]]
Storing = Callable[[Rows], StoredFrame]
WINDOWS = ["legacy", "2026-10", "other"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ROWS = st.lists(
    st.builds(
        lambda address, window, size, etag, late: listed(
            address, slice_window=window, size=size, etag=etag, last_modified=NOW + timedelta(microseconds=late)
        ),
        TEXT | st.sampled_from(["data/\x00", "data/\u202ex", "data/%2F", "data/\U0001f5d1", "data/ \t\r\n'\"\\"]),
        st.sampled_from(WINDOWS),
        st.integers(0, 2**62),
        st.none() | TEXT,
        st.integers(0, 10**6),
    ),
    max_size=40,
)


@pytest.fixture(params=[-1, 1000], ids=["read by tasks", "read by the driver"], autouse=True)
def local_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LOCAL_ROWS", request.param)


@pytest.fixture
def storing(spark: SparkSession, s3_server: S3Server, bucket: str) -> Storing:
    opener = StoreOpener(s3_server.settings(), f"s3://{bucket}/frames/")

    def store(rows: Rows) -> StoredFrame:
        table = pa.Table.from_pylist(rows, schema=SCHEMAS["store_df"])
        files = frames.store(spark.createDataFrame(table), opener, RUN_ID, "store_df", lambda batch: batch)
        return StoredFrame(Manifest(span(), files), opener, 2)

    return store


def counted(rows: Rows, columns: Sequence[str] = SCHEMAS["store_df"].names) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in columns) for row in rows)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ROWS, st.lists(st.sampled_from(SCHEMAS["store_df"].names), min_size=1, unique=True))
def test_a_frame_is_read_as_it_was_stored(
    spark: SparkSession, storing: Storing, rows: Rows, columns: list[str]
) -> None:
    frame = storing(rows)

    assert counted(frame.dataframe(spark).toArrow().to_pylist()) == counted(frame.table().to_pylist()) == counted(rows)
    some = frame.dataframe(spark, *columns).toArrow()
    assert some.column_names == columns
    assert counted(some.to_pylist(), columns) == counted(rows, columns)
    assert frame.preview(rows=5).num_rows == min(5, len(rows))
    assert frame.manifest.rows_by_window() == Counter(row["slice_window"] for row in rows)
    assert frame.manifest.object_bytes == sum(row["size"] for row in rows)


def test_files_that_no_manifest_names_are_not_read(spark: SparkSession, storing: Storing) -> None:
    """A repeated attempt leaves the files of the one before."""
    storing([listed("data/first")])
    second = storing([listed("data/second")])

    assert [row.address for row in second.dataframe(spark).collect()] == ["data/second"]
    store = second.opener.open()
    folder = run_folder.frame(RUN_ID, "store_df")
    assert len([key for batch in store.list(folder) for key in batch.column("key").to_pylist()]) >= 2


def test_where_it_lies(storing: Storing, bucket: str) -> None:
    frame = storing([listed("data/a")])

    assert frame.uri == f"s3://{bucket}/frames/_lakefs/retention/gc/uncommitted/{RUN_ID}/store_df/"
    assert frame.manifest.files[0].key.startswith(run_folder.frame(RUN_ID, "store_df") + "slice_window=2026-11/")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, "the frame's file was changed after it was written"),
        ({"rows": 2}, "1 rows, its manifest says 2"),
        ({"key": "nowhere"}, "the frame's file is missing from the object store"),
    ],
)
def test_it_is_noticed_what_was_changed(
    spark: SparkSession, storing: Storing, change: dict[str, Any], said: str
) -> None:
    frame = storing([listed("data/a")])
    (file,) = frame.manifest.files
    changed = replace(frame, manifest=replace(frame.manifest, files=(replace(file, **change),)))

    with pytest.raises(Exception) as caught:
        changed.dataframe(spark).collect()

    assert said in str(from_worker(caught.value) or caught.value)


def test_columns_are_nullable_for_the_checks_to_look(spark: SparkSession, storing: Storing) -> None:
    fields = storing([listed("data/a")]).dataframe(spark).schema.fields

    assert [field.name for field in fields] == SCHEMAS["store_df"].names
    assert all(field.nullable for field in fields)

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.collector.frame import files as stored_frame
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import STORE_DF, StoredFigures
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.faults import from_worker
from lakefs_gc_assets.spark.tasks import dataframe_of
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import LISTED_FIGURES, frame_of_rows, made_step, opened_by
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server
from lakefs_gc_assets_tests.spark.frame_rows import NOW, RUN_ID, listed

__all__ = ["bucket", "s3_server"]

Rows = list[dict[str, Any]]
Storing = Callable[[Rows], StoredFrame[StoredFigures]]
PLAN_OF_WINDOWS = replace(PLAN, run_id=RUN_ID, windows=("legacy", "2026-10", "2026-11"))
WINDOWS = ["legacy", "2026-10", "other"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ROWS = st.lists(
    st.builds(
        lambda address, window, size, etag, late: listed(
            address, slice_window=window, size=size, etag=etag, last_modified=NOW + timedelta(microseconds=late)
        ),
        TEXT | st.sampled_from(["data/\x00", "data/\u202ex", "data/%2F", "data/\U0001f5d1", "data/ \t\r\n'\"\\"]),
        st.sampled_from(WINDOWS),
        st.integers(0, 2**50),  # A petabyte: sums fit into 64 bits, as for real buckets.
        st.none() | TEXT,
        st.integers(0, 10**6),
    ),
    max_size=40,
)


@pytest.fixture(params=["tasks of Spark", "tasks", "this process"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine[Any]:
    """The engine that stores and reads frames."""
    monkeypatch.setattr(stored_frame, "LOCAL_ROWS", 1000 if request.param == "this process" else -1)
    if request.param == "tasks of Spark":
        spark: SparkSession = request.getfixturevalue("spark")
        return SparkEngine(spark, 2)
    return LocalEngine()


@pytest.fixture
def storing(engine: Engine[Any], s3_server: S3Server, bucket: str) -> Storing:
    opener = StoreOpener(s3_server.settings(), f"s3://{bucket}/frames/")
    step = made_step(engine, opened_by(opener), PLAN_OF_WINDOWS)

    def store(rows: Rows) -> StoredFrame[StoredFigures]:
        table = pa.Table.from_pylist(rows, schema=STORE_DF.schema)
        files = step.write(STORE_DF, engine.table(table))
        return step.unfinished(STORE_DF, LISTED_FIGURES, files)

    return store


def counted(rows: Rows, columns: Sequence[str] = STORE_DF.schema.names) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in columns) for row in rows)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ROWS, st.lists(st.sampled_from(STORE_DF.schema.names), min_size=1, unique=True))
def test_a_frame_is_read_as_it_was_stored(
    engine: Engine[Any], storing: Storing, rows: Rows, columns: list[str]
) -> None:
    frame = storing(rows)

    assert (
        counted(engine.collect(frame.rows(engine)).to_pylist()) == counted(frame.table().to_pylist()) == counted(rows)
    )
    some = engine.collect(frame.rows(engine, *columns))
    assert some.column_names == columns
    assert counted(some.to_pylist(), columns) == counted(rows, columns)
    assert frame.sample(5).num_rows == min(5, len(rows))
    assert frame.manifest.rows_by_window() == Counter(row["slice_window"] for row in rows)
    assert frame.manifest.object_bytes == sum(row["size"] for row in rows)


def test_files_that_no_manifest_names_are_not_read(engine: Engine[Any], storing: Storing) -> None:
    """A repeated attempt leaves the files of the previous attempt."""
    storing([listed("data/first")])
    second = storing([listed("data/second")])

    assert engine.collect(second.rows(engine)).column("address").to_pylist() == ["data/second"]
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
        ({"rows": 2}, "it has 1 rows, but its manifest says 2"),
        ({"key": "nowhere"}, "the file is missing from the object store"),
    ],
)
def test_it_is_noticed_what_was_changed(
    engine: Engine[Any], storing: Storing, change: dict[str, Any], said: str
) -> None:
    frame = storing([listed("data/a")])
    (file,) = frame.manifest.files
    changed = replace(frame, manifest=replace(frame.manifest, files=(replace(file, **change),)))

    with pytest.raises(Exception) as caught:
        engine.collect(changed.rows(engine))

    assert said in str(from_worker(caught.value) or caught.value)


def test_files_that_are_damaged_are_left_out_where_somebody_is_reported_of_them(
    s3_server: S3Server, bucket: str
) -> None:
    opener = StoreOpener(s3_server.settings(), f"s3://{bucket}/frames/")
    rows = [listed(f"data/{window}", slice_window=window) for window in WINDOWS]
    frame = frame_of_rows(opener, STORE_DF, rows, LISTED_FIGURES)
    damaged, *_ = frame.manifest.files
    opener.open().put(damaged.key, b"damaged")
    reported: list[CorruptFile] = []

    left = LocalEngine().collect(frame.rows(LocalEngine(), "address", damaged_files=reported.append))

    others = [f"data/{window}" for window in WINDOWS if window != damaged.slice_window]
    assert sorted(left.column("address").to_pylist()) == sorted(others)
    assert [damage.file for damage in reported] == [damaged.key]


@pytest.mark.parametrize("local_rows", [-1, 1000])
def test_columns_are_nullable_for_the_checks_to_look(
    spark: SparkSession, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, local_rows: int
) -> None:
    monkeypatch.setattr(stored_frame, "LOCAL_ROWS", local_rows)
    opener = StoreOpener(s3_server.settings(), f"s3://{bucket}/frames/")
    frame = frame_of_rows(opener, STORE_DF, [listed("data/a")], LISTED_FIGURES)

    fields = dataframe_of(frame.rows(SparkEngine(spark, 2))).schema.fields

    assert [field.name for field in fields] == STORE_DF.schema.names
    assert all(field.nullable for field in fields)

import hashlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FileWriter, FrameFile
from lakefs_gc_assets.collector.frame.frames import LISTED, LIVE
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.breaking import flipped
from lakefs_gc_assets_tests.servers.stores import bucket, local_store, s3_server, s3_store, store
from lakefs_gc_assets_tests.spark.frame_rows import RUN_ID, listed, live, put_table

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

FOLDER = run_folder.frame(RUN_ID, "store_df")
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
WINDOWS = st.sampled_from(["legacy", "2026-10", "2026-11", "other"])
ROWS = st.lists(
    st.builds(
        lambda address, slice_, window, size, etag, storage_class: listed(
            address, slice=slice_, slice_window=window, size=size, etag=etag, storage_class=storage_class
        ),
        STRINGS,
        st.none() | STRINGS,
        WINDOWS,
        st.integers(0, 2**40),
        st.none() | STRINGS,
        st.none() | st.sampled_from(["STANDARD", "GLACIER", ""]),
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def folder_store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    root = tmp_path_factory.mktemp("frames")
    (root / "repository").mkdir()
    return open_store(StoreSettings(local_root=str(root)), Namespace.parse("local://repository"))


def batches(rows: list[dict[str, object]], schema: pa.Schema, each: int = 7) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = pa.Table.from_pylist(rows, schema=schema).to_batches(max_chunksize=each)
    return found


def written(store: ObjectStore, rows: list[dict[str, object]], schema: pa.Schema = LISTED) -> list[FrameFile]:
    writer = FileWriter(store, FOLDER, schema)
    for batch in batches(rows, schema):
        writer.write(batch)
    return writer.close()


def read(store: ObjectStore, stored: list[FrameFile], schema: pa.Schema = LISTED) -> list[dict[str, object]]:
    return [row for file in stored for row in files.read_file(store, file, schema).to_pylist()]


def sorted_rows(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(
        rows, key=lambda row: [str(row.get(name)) for name in LISTED.names if row.get(name).__class__ is not datetime]
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ROWS)
def test_rows_are_read_as_they_were_written(folder_store: ObjectStore, rows: list[dict[str, object]]) -> None:
    stored = written(folder_store, rows)

    assert sorted_rows(read(folder_store, stored)) == sorted_rows(rows)
    assert sorted(file.slice_window for file in stored) == sorted({str(row["slice_window"]) for row in rows})
    for file in stored:
        inside = [row for row in rows if row["slice_window"] == file.slice_window]
        assert read(folder_store, [file]) == inside
        assert (file.rows, file.object_bytes) == (len(inside), sum(int(str(row["size"])) for row in inside))
        assert Counter({name: amount[0] for name, amount in file.classes.items()}) == Counter(
            row["storage_class"] for row in inside if row["storage_class"] is not None
        )
        assert all(
            amount[1] == sum(int(str(row["size"])) for row in inside if row["storage_class"] == name)
            for name, amount in file.classes.items()
        )
        assert file.key.startswith(f"{FOLDER}slice_window={file.slice_window}/part-")
        assert file.bytes == folder_store.head(file.key).size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(ROWS, st.integers(0, 25))
def test_a_sample_has_rows_of_the_frame_each_once(
    folder_store: ObjectStore, rows: list[dict[str, object]], count: int
) -> None:
    stored = written(folder_store, rows)

    shown = files.sample(folder_store, stored, LISTED, count)

    assert shown.num_rows == min(count, len(rows))
    assert not Counter(map(repr, shown.to_pylist())) - Counter(map(repr, read(folder_store, stored)))
    assert shown.schema.names == LISTED.names


def test_a_sample_is_from_many_slices_and_windows_but_few_files(store: ObjectStore) -> None:
    stored = []
    for month in range(1, 9):
        slices = [f"slice-{month}-{number // 100}" for number in range(1000)]
        rows = [
            listed(f"data/{month}/{at}", slice=name, slice_window=f"2026-{month:02}") for at, name in enumerate(slices)
        ]
        stored += written(store, rows)
    unread = [replace(file, key="nowhere") for file in stored if file.slice_window in ("2026-03", "2026-05")]
    others = [file for file in stored if file.slice_window not in ("2026-03", "2026-05")]

    shown = files.sample(store, [*others, *unread], LISTED, 20)

    assert shown.num_rows == 20 and len(set(shown.column("slice").to_pylist())) == 20
    assert {"2026-01", "2026-08"} < set(shown.column("slice_window").to_pylist())


def test_a_sample_of_small_files_has_enough_rows_and_reads_no_more(store: ObjectStore) -> None:
    first = written(store, [listed(f"data/{number}") for number in range(19)])
    second = written(store, [listed(f"data/x{number}") for number in range(20)])
    missing = [FrameFile("nowhere", "2026-11", 5, 10**9, "")]

    assert files.sample(store, first + second + missing, LISTED, 20).num_rows == 20


def test_a_full_file_is_put_and_the_next_one_begun(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FILE_BYTES", 1)
    monkeypatch.setattr(files, "_ROWS_WAITING", 7)
    rows = [listed(f"data/{number}") for number in range(20)]

    stored = written(store, rows)

    assert [file.rows for file in stored] == [7, 7, 6]
    assert len({file.key for file in stored}) == 3
    assert sorted_rows(read(store, stored)) == sorted_rows(rows)


def test_rows_of_many_windows_wait_for_each_other(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ROWS_WAITING", 30)
    rows = [listed(f"data/{number}", slice_window=f"2026-1{number % 3}") for number in range(54)]

    stored = written(store, rows)

    groups = [pq.ParquetFile(pa.BufferReader(store.get(file.key))).num_row_groups for file in stored]
    assert groups == [2, 2, 2]  # not one group for each of the eight batches
    assert sorted_rows(read(store, stored)) == sorted_rows(rows)


def test_files_are_put_at_once(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    together, put = threading.Barrier(files._PUT_AT_ONCE, timeout=30), store.put

    def wait_and_put(key: str, data: bytes) -> None:
        together.wait()
        put(key, data)

    monkeypatch.setattr(store, "put", wait_and_put)

    stored = written(store, [listed(f"data/{number}", slice_window=f"w{number}") for number in range(16)])

    assert [file.slice_window for file in stored] == [f"w{number}" for number in range(16)]


def test_a_file_that_cannot_be_put_ends_the_task(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put = store.put

    def refuse(key: str, data: bytes) -> None:
        if "slice_window=w3/" in key:
            raise StorageError(key, "refused")
        put(key, data)

    monkeypatch.setattr(store, "put", refuse)

    with pytest.raises(StorageError, match="refused"):
        written(store, [listed(f"data/{number}", slice_window=f"w{number}") for number in range(16)])


def test_live_frames_have_no_sizes(store: ObjectStore) -> None:
    (file,) = written(store, [live("data/a"), live("data/b")], LIVE)

    assert (file.rows, file.object_bytes) == (2, 0)


def test_a_null_where_none_may_be_is_not_written(store: ObjectStore) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in LIVE])
    writer = FileWriter(store, FOLDER, LIVE)

    with pytest.raises((ValueError, pa.ArrowException)):
        writer.write(batches([{**live("data/a"), "address": None}], nullable)[0])
    assert writer.close() == []


def test_columns_are_put_into_the_order_of_the_frame(store: ObjectStore) -> None:
    turned = pa.schema(list(LIVE)[::-1])
    writer = FileWriter(store, FOLDER, LIVE)
    writer.write(batches([live("data/a")], turned)[0])

    assert read(store, writer.close(), LIVE) == [live("data/a")]


def test_a_task_tells_of_each_file_it_wrote(store: ObjectStore) -> None:
    write = files.write_task(lambda: store, FOLDER, LIVE, lambda batch: batch)
    rows = [live("data/a"), live("data/b", slice_window="legacy")]

    def tasks() -> Iterator[pa.RecordBatch]:
        yield from batches(rows, LIVE)
        yield from batches([], LIVE)

    reported = pa.Table.from_batches(list(write(tasks())), schema=files.WRITTEN)

    stored = list(files.frame_files(reported))
    assert sorted_rows(read(store, stored, LIVE)) == sorted_rows(rows)


def test_a_task_without_rows_tells_of_nothing(store: ObjectStore) -> None:
    write = files.write_task(lambda: store, FOLDER, LIVE, lambda batch: batch)

    assert list(write(iter(LIVE.empty_table().to_batches()))) == []


@pytest.fixture
def one_file(store: ObjectStore) -> FrameFile:
    (file,) = written(store, [listed("data/a"), listed("data/b")])
    return file


def test_a_missing_file_is_noticed(store: ObjectStore, one_file: FrameFile) -> None:
    store.delete([one_file.key])

    with pytest.raises(CorruptFile, match="missing") as caught:
        files.read_file(store, one_file, LISTED)
    assert caught.value.file == one_file.key


@pytest.mark.parametrize("change", ["truncated", "one bit", "longer", "empty"])
def test_a_changed_file_is_noticed(store: ObjectStore, one_file: FrameFile, change: str) -> None:
    data = store.get(one_file.key)
    middle = len(data) // 2
    store.put(
        one_file.key,
        {
            "truncated": data[:-1],
            "one bit": flipped(data, middle),
            "longer": data + b"\0",
            "empty": b"",
        }[change],
    )

    with pytest.raises(CorruptFile, match="changed after it was written"):
        files.read_file(store, one_file, LISTED)


def test_another_number_of_rows_is_noticed(store: ObjectStore, one_file: FrameFile) -> None:
    with pytest.raises(CorruptFile, match="2 rows, its manifest says 3"):
        files.read_file(store, replace(one_file, rows=3), LISTED)


@pytest.mark.parametrize(
    "table",
    [
        pa.Table.from_pylist([live("data/a", new="column")]),
        pa.Table.from_pylist([live("data/a")]).drop_columns(["slice"]),
        pa.table({"address": [1], "slice": ["s"], "slice_window": ["w"]}),
    ],
    ids=["a column more", "a column less", "another type"],
)
def test_other_columns_are_noticed(store: ObjectStore, table: pa.Table) -> None:
    file = put_table(store, "committed_df", table)

    with pytest.raises(CorruptFile, match="columns"):
        files.read_file(store, file, LIVE)


EARLIER = pa.Table.from_pylist([live("data/a"), live("data/b")])


def test_a_column_that_files_of_earlier_versions_lack_is_null_there(store: ObjectStore) -> None:
    file = put_table(store, "committed_df", EARLIER)
    wanted = LIVE.append(pa.field("why", pa.string()))

    found = files.read_file(store, file, wanted, added=("why",))
    assert found.schema == nullable(wanted) and found.column("why").to_pylist() == [None, None]
    assert found.column("address").to_pylist() == ["data/a", "data/b"]
    some = files.read_file(store, file, wanted, ("why", "address"), ("why",))
    assert some.to_pylist() == [{"why": None, "address": "data/a"}, {"why": None, "address": "data/b"}]
    assert files.read_file(store, file, wanted, ("address",), ("why",)).column_names == ["address"]
    assert files.sample(store, [file], wanted, 20, added=("why",)) == found
    with pytest.raises(CorruptFile, match="columns"):
        files.read_file(store, file, wanted)


def test_a_listing_from_before_classes_were_listed_is_read(store: ObjectStore) -> None:
    table = pa.Table.from_pylist([{**listed("data/a"), "why": "w"}], LISTED.append(pa.field("why", pa.string())))
    file = put_table(store, "candidates", table.drop_columns(["storage_class"]))

    found = files.read_file(store, file, table.schema, added=("storage_class", "why"))
    assert found.to_pylist() == table.to_pylist()


def test_of_several_such_columns_a_file_may_have_some(store: ObjectStore) -> None:
    file = put_table(store, "committed_df", EARLIER.append_column("why", pa.array(["a", "b"])))
    wanted = LIVE.append(pa.field("since", pa.string())).append(pa.field("why", pa.string()))

    found = files.read_file(store, file, wanted, ("why", "since"), ("why", "since"))
    assert found.to_pylist() == [{"why": "a", "since": None}, {"why": "b", "since": None}]
    with pytest.raises(CorruptFile, match="columns"):
        files.read_file(store, file, wanted, added=("since",)[:0])


def test_no_parquet_is_noticed(store: ObjectStore) -> None:
    store.put(FOLDER + "x", b"no parquet")
    file = FrameFile(FOLDER + "x", "w", 1, 10, hashlib.sha256(b"no parquet").hexdigest())

    with pytest.raises(CorruptFile, match="cannot be read"):
        files.read_file(store, file, LISTED)


def test_a_null_is_read_for_the_checks_to_see(store: ObjectStore) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in LIVE])
    table = pa.Table.from_pylist([{**live("data/a"), "address": None}], schema=nullable)
    file = put_table(store, "committed_df", table)

    assert files.read_file(store, file, LIVE).column("address").null_count == 1


_READS = """
import os, sys
from pathlib import Path
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FrameFile
from lakefs_gc_assets.collector.frame.frames import LISTED
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import open_store

store = open_store(StoreSettings(local_root=sys.argv[1]), Namespace.parse("local://repository"))
file = FrameFile(**eval(sys.argv[2]))
store.get(file.key)
before = set(os.listdir("/proc/self/task"))
rows = files.read_file(store, file, LISTED).num_rows
print(rows, len(set(os.listdir("/proc/self/task")) - before))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux lists the threads of a process")
def test_reading_begins_no_thread(tmp_path: Path) -> None:
    """A command that ended right after an Arrow thread had started could abort."""
    (tmp_path / "repository").mkdir()
    store = open_store(StoreSettings(local_root=str(tmp_path)), Namespace.parse("local://repository"))
    (file,) = written(store, [listed("data/a"), listed("data/b")])

    command = [sys.executable, "-c", _READS, str(tmp_path), repr(asdict(file))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (ended.stdout, ended.stderr) == ("2 0\n", "")

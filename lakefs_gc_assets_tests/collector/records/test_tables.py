import hashlib
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["store"]

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("size", pa.int64())])
ROWS = pa.table([[f"id {number}" for number in range(100)], [None, *range(99)]], schema=SCHEMA)


Decode = Callable[[bytes], pa.Table]


def at_once(data: bytes) -> pa.Table:
    return tables.decode(SCHEMA, data, "file", "rows")


def in_parts(data: bytes) -> pa.Table:
    return pa.Table.from_batches(tables.decode_parts(SCHEMA, data, "file", "rows"), SCHEMA)


@pytest.fixture(params=[at_once, in_parts])
def decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Decode:
    """Both ways to read a table."""
    monkeypatch.setattr(tables, "_ROWS_OF_A_PART", 7)
    way: Decode = request.param
    return way


def test_no_more_rows_are_read_at_a_time_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS_OF_A_PART", 7)
    parts = tables.decode_parts(SCHEMA, tables.encode(ROWS), "file", "rows")
    assert [part.num_rows for part in parts] == [7] * 14 + [2]


@pytest.mark.parametrize("rows", [ROWS, SCHEMA.empty_table()])
def test_is_read_as_it_was_written(decode: Decode, rows: pa.Table) -> None:
    found = decode(tables.encode(rows))
    assert (found.schema, found.to_pylist()) == (SCHEMA, rows.to_pylist())


def test_the_same_table_is_the_same_file() -> None:
    assert tables.encode(ROWS) == tables.encode(ROWS)


def test_a_changed_page_is_an_error_or_reads_as_written(decode: Decode) -> None:
    ids = [random.Random(number).randbytes(32).hex() for number in range(30)]
    rows = pa.table([ids, list(range(30))], schema=SCHEMA)
    whole = tables.encode(rows)
    errors = 0
    for position in range(4, len(whole) // 2):
        changed = bytearray(whole)
        changed[position] ^= 1
        try:
            assert decode(bytes(changed)).to_pylist() == rows.to_pylist()
        except CorruptFile:
            errors += 1
    assert errors > 500


@pytest.mark.parametrize(
    "other",
    [
        ROWS.select(["id"]),
        ROWS.rename_columns(["name", "size"]),
        pa.table({"id": [None, "x"], "size": [1, 2]}),
        pa.table({"id": ["x"], "size": ["many"]}),
        pa.table(
            {
                "id": pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")),
                "size": [1],
            }
        ),
    ],
)
def test_other_columns_are_an_error(decode: Decode, other: pa.Table) -> None:
    with pytest.raises(CorruptFile, match="file: rows: cannot be read"):
        decode(tables.encode(other))


@pytest.mark.parametrize("rows", [ROWS, SCHEMA.empty_table()])
def test_a_column_that_earlier_versions_did_not_have_is_null(rows: pa.Table) -> None:
    data = tables.encode(rows.select(["id"]))
    parts = tables.decode_parts(SCHEMA, data, "file", "rows", added=["size"])
    found = [tables.decode(SCHEMA, data, "file", "rows", added=["size"]), pa.Table.from_batches(parts, SCHEMA)]
    for table in found:
        assert table.schema == SCHEMA and table.column("id").to_pylist() == rows.column("id").to_pylist()
        assert table.column("size").null_count == rows.num_rows
    with pytest.raises(CorruptFile, match="file: rows: cannot be read"):
        [*tables.decode_parts(SCHEMA, tables.encode(rows.select(["size"])), "file", "rows", added=["size"])]


class ShortFile(pq.ParquetFile):  # type: ignore[misc]
    """Returns one row too few, and raises nothing."""

    def read(self, **options: Any) -> pa.Table:
        return super().read(**options).slice(1)

    def iter_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for place, batch in enumerate(super().iter_batches(*arguments, **options)):
            yield batch if place else batch.slice(1)


def test_a_row_less_than_the_footer_says_is_an_error(decode: Decode, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tables.encode(ROWS)
    monkeypatch.setattr(pq, "ParquetFile", ShortFile)
    with pytest.raises(CorruptFile, match="file: rows: cannot be read: it has 99 rows, but its footer says 100"):
        decode(data)


def test_rows_are_counted_by_the_footer() -> None:
    assert tables.count(tables.encode(ROWS), "file", "rows") == 100
    with pytest.raises(CorruptFile, match="file: rows: cannot be read"):
        tables.count(b"text", "file", "rows")


class TestAddedColumns:
    SCHEMA = pa.schema([*SCHEMA, pa.field("more", pa.int64()), pa.field("most", pa.string())])

    def read(self, rows: pa.Table) -> pa.Table:
        return tables.decode(self.SCHEMA, tables.encode(rows), "file", "rows", ("more", "most"))

    def test_are_null_in_files_that_have_none_of_them(self) -> None:
        found = self.read(ROWS)
        assert found.schema == self.SCHEMA and found.select(SCHEMA.names) == ROWS
        assert found["more"].null_count == found["most"].null_count == 100

    def test_are_read_where_they_are(self) -> None:
        rows = pa.table([*ROWS.columns, range(100), ["x"] * 100], schema=self.SCHEMA)
        assert self.read(rows) == rows

    def test_of_a_later_version_alone_are_null(self) -> None:
        more = ROWS.append_column("more", pa.nulls(100, pa.int64()))
        found = self.read(more)
        assert found.schema == self.SCHEMA and found.select(more.column_names) == more

    def test_of_an_earlier_version_alone_may_not_be_missing(self) -> None:
        with pytest.raises(CorruptFile, match="file: rows: cannot be read"):
            self.read(ROWS.append_column("most", pa.nulls(100, pa.string())))

    def test_are_missing_where_none_may_be_added(self) -> None:
        with pytest.raises(CorruptFile, match="file: rows: cannot be read"):
            tables.decode(self.SCHEMA, tables.encode(ROWS), "file", "rows")


def test_what_repeats_and_what_goes_up_takes_little_space() -> None:
    alike = pa.table({"text": [f"https://example.test/the/same/{number}" for number in range(1000)]})
    assert len(tables.encode(alike)) * 3 < alike.nbytes
    up = pa.table({"number": [10**12 + 7 * number for number in range(10_000)]})
    assert len(tables.encode(up, ["number"])) * 20 < len(tables.encode(up))


def bomb(text: str, rows: int, **options: Any) -> bytes:
    """A small file that expands to many long texts."""
    options.setdefault("store_schema", False)
    buffer = io.BytesIO()
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), [text])
    written = pa.table([texts, pa.nulls(rows, pa.int64())], names=SCHEMA.names)
    pq.write_table(written, buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("rows", "limit", "options"),
    [
        (60_000, 30 << 20, {}),
        (60_000, 30 << 20, {"store_schema": True}),
        (30_000, 2 << 20, {"use_dictionary": False, "compression": "zstd"}),
    ],
)
def test_a_small_file_of_too_many_bytes_is_refused_before_it_takes_memory(
    decode: Decode, monkeypatch: pytest.MonkeyPatch, rows: int, limit: int, options: dict[str, Any]
) -> None:
    data = bomb("x" * 1000, rows, **options)
    assert len(data) < 1_000_000
    monkeypatch.setattr(tables, "_MAX_MEMORY", limit)
    monkeypatch.setattr(tables, "_ROWS_OF_A_PART", rows)

    with pytest.raises(CorruptFile, match="of memory, more than this program writes"):
        decode(data)


def test_repeated_texts_that_fit_into_memory_are_read(decode: Decode) -> None:
    assert decode(bomb("x" * 1000, 50_000)).num_rows == 50_000


# Stored ids.


KEY = "_lakefs/retention/gc/uncommitted/run/ids.parquet"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(st.sets(st.text(st.characters(codec="utf-8"), max_size=8)))
def test_are_read_as_they_were_written(store: ObjectStore, ids: set[str]) -> None:
    sha256 = tables.write_ids(store, KEY, ids)
    assert tables.read_ids(store, KEY) == tables.read_ids(store, KEY, sha256) == ids
    assert tables.count_ids(store, KEY) == tables.count_ids(store, KEY, sha256) == len(ids)
    assert sha256 == hashlib.sha256(store.get(KEY)).hexdigest()


def test_the_same_ids_are_the_same_file(store: ObjectStore) -> None:
    assert tables.write_ids(store, KEY, ["b", "a", "b"]) == tables.write_ids(store, KEY, ["a", "b"])


def test_missing_ones_end_the_run(store: ObjectStore) -> None:
    for asked in (tables.read_ids, tables.count_ids):
        with pytest.raises(CorruptFile, match=f"{KEY}: existence: the file is missing"):
            asked(store, KEY)


@pytest.mark.parametrize("content", [b"", b"text"])
def test_damaged_ones_end_the_run(store: ObjectStore, content: bytes) -> None:
    sha256 = tables.write_ids(store, KEY, ["a"])
    store.put(KEY, content)
    for asked in (tables.read_ids, tables.count_ids):
        with pytest.raises(CorruptFile, match=f"{KEY}: ids: cannot be read"):
            asked(store, KEY)
        with pytest.raises(CorruptFile, match=f"{KEY}: checksum: the file was changed"):
            asked(store, KEY, sha256)


def test_others_than_expected_end_the_run(store: ObjectStore) -> None:
    sha256 = tables.write_ids(store, KEY, ["a"])
    tables.write_ids(store, KEY, ["a", "b"])
    with pytest.raises(CorruptFile, match=f"{KEY}: checksum: the file was changed"):
        tables.read_ids(store, KEY, sha256)


def test_of_another_shape_end_the_run(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tables, "_SCHEMA", pa.schema([("name", pa.string())]))
        tables.write_ids(store, KEY, ["a"])
    with pytest.raises(CorruptFile, match=f"{KEY}: ids: cannot be read"):
        tables.read_ids(store, KEY)

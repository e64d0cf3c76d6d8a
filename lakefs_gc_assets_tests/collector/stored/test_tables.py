import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.stored import tables
from lakefs_gc_assets.errors import CorruptFile

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

"""RocksDB's own code reads the same tables: the reader must agree key for key."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import IngestExternalFileOptions, Options, Rdict, WriteBatch

from lakefs_gc_assets.extensions.playground.embedded.commits import record_value
from lakefs_gc_assets.extensions.playground.embedded.formats import table
from lakefs_gc_assets.lakefs.formats.sstables import read_table
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import (
    Record,
    TableBytes,
    framed,
)

ReadRecords = Callable[[bytes], list[Record]]

_OF_AN_EXTERNAL_FILE = {
    "rocksdb.external_sst_file.version": (2).to_bytes(4, "little"),
    "rocksdb.external_sst_file.global_seqno": bytes(8),
}
"""Required by RocksDB for a table of another program; lakeFS writes them."""


@pytest.fixture(scope="module")
def by_rocksdb() -> Iterator[ReadRecords]:
    """Reads keys and values of tables in turn, in a database that drops each afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        database = Rdict(str(Path(folder, "database")), Options(raw_mode=True))

        def read(data: bytes) -> list[Record]:
            file = Path(folder, "table.sst")
            file.write_bytes(data)
            database.ingest_external_file([str(file)], IngestExternalFileOptions())
            records = list(cast("Iterator[Record]", database.items()))
            # Key by key: leftovers of a deleted range sometimes hid the next table's records.
            forgotten = WriteBatch(raw_mode=True)
            for key, _ in records:
                forgotten.delete(key)
            database.write(forgotten)
            return records

        yield read
        database.close()


def _by_the_reader(data: bytes) -> list[Record]:
    """Keys and framed values from the reader under test."""
    found = read_table(data, "table")
    offsets, joined = found.keys()
    keys, buffer = joined.tobytes(), found.buffer.tobytes()
    return [
        (keys[start:stop], framed(buffer[value[0] : value[1]], buffer[value[2] : value[3]]))
        for start, stop, value in zip(offsets[:-1], offsets[1:], found.values.tolist(), strict=True)
    ]


_KEYS = st.binary(max_size=40) | st.binary(max_size=8).map(lambda tail: b"prefix\x01\0" + tail)
_VALUES = st.tuples(st.binary(max_size=70), st.binary(max_size=40) | st.integers(0, 300).map(lambda n: b"again" * n))
_ROWS = st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=120)


@given(rows=_ROWS)
def test_rocksdb_reads_what_the_embedded_server_writes(
    rows: dict[bytes, tuple[bytes, bytes]], by_rocksdb: ReadRecords
) -> None:
    records = [(key, record_value(*rows[key])) for key in sorted(rows)]
    data = table(records, {"type": "ranges", "count": str(len(records))})
    assert by_rocksdb(data) == _by_the_reader(data) == records


@given(
    rows=_ROWS,
    per_block=st.integers(1, 50),
    interval=st.integers(1, 20),
    blocks_per_index=st.none() | st.integers(1, 4),
    compressed=st.sampled_from([0, 1, 2]),
)
def test_rocksdb_reads_any_mixture_of_blocks_alike(
    rows: dict[bytes, tuple[bytes, bytes]],
    per_block: int,
    interval: int,
    blocks_per_index: int | None,
    compressed: int,
    by_rocksdb: ReadRecords,
) -> None:
    records = [(key, framed(*rows[key])) for key in sorted(rows)]
    data = TableBytes(
        records,
        _OF_AN_EXTERNAL_FILE,
        records_per_block=per_block,
        interval=interval,
        compressed=lambda index: index % 3 < compressed,
        blocks_per_index=blocks_per_index,
    ).build()
    assert by_rocksdb(data) == _by_the_reader(data) == records

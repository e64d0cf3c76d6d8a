"""RocksDB's own code reads the same tables: the reader must agree key for key."""

import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import IngestExternalFileOptions, Options, Rdict, WriteBatch

from lakefs_gc_assets.extensions.playground.embedded.commits import record_value
from lakefs_gc_assets.extensions.playground.embedded.formats import table
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.formats.sstables import read_table
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import (
    Entry,
    RangeData,
    Record,
    TableBytes,
    framed,
    unframed,
)
from lakefs_gc_assets_tests.runs.recordings import MADE_PREFIX, REAL, folder_of, needs_recordings, recorded_and_made

ReadRecords = Callable[[bytes], list[Record]]

_OF_AN_EXTERNAL_FILE = {
    "rocksdb.external_sst_file.version": (2).to_bytes(4, "little"),
    "rocksdb.external_sst_file.global_seqno": bytes(8),
}
"""Required by RocksDB for a table of another program; lakeFS writes them."""
_DIGITS_OF_AN_ID = 64


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


def _tables(name: str) -> Iterator[tuple[str, bytes]]:
    """The ranges and metaranges of a recording, of objects and of references."""
    folder = folder_of(name)
    archives = [*folder.glob("namespace*.tar.*")]
    if archives:
        with tarfile.open(archives[0]) as tar:
            for member in tar:
                content = tar.extractfile(member) if _is_table(member.name) else None
                if content is not None:
                    yield member.name, content.read()
    else:
        for file in sorted((folder / "namespace/_lakefs").iterdir()):
            if _is_table(str(file)):
                yield file.name, file.read_bytes()


def _is_table(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.endswith("_lakefs") and len(name) == _DIGITS_OF_AN_ID


_LEAST = {"small": 20, "merge-dangling": 20, "chain/4": 10, "empty": 3, "large": 2, "random-dag/14": 50, "wide": 500}
"""Recordings of a real server, each with the minimum number of its tables with records."""
_LEAST_MADE = {"empty": 6, "small": 22, "merge-dangling": 38, "chain/4": 42}
"""The same for recordings made by the tests, which use these names if real ones are missing."""
_MANY = [name for name, tables in _LEAST.items() if tables >= 50]
"""Recordings with many tables."""


@pytest.mark.parametrize(
    "name",
    [
        *recorded_and_made(*(name for name in _LEAST if name not in _MANY)),
        *(pytest.param(name, marks=[needs_recordings, pytest.mark.slow]) for name in _MANY),
    ],
)
def test_rocksdb_reads_every_recorded_table_alike(name: str, by_rocksdb: ReadRecords) -> None:
    checked = 0
    for file, data in _tables(name):
        kind = ranges.table_kind(data, file)
        # RocksDB ends the process for a table without keys.
        if kind.count == 0:
            assert _by_the_reader(data) == []
            continue
        records = by_rocksdb(data)
        assert _by_the_reader(data) == records, file
        if kind.entity is None:
            check = _check_range if kind.type == "ranges" else _check_metarange
            check(data, file, records)
        checked += 1
    made = name.startswith(MADE_PREFIX) or not REAL
    assert checked >= (_LEAST_MADE if made else _LEAST)[name.removeprefix(MADE_PREFIX)]


def _check_range(data: bytes, file: str, records: list[Record]) -> None:
    found = ranges.read_range(data, file, columns=("keys", "etags", "identities"))
    assert found.keys is not None and found.etags is not None and found.identities is not None
    values = [unframed(value) for _, value in records]
    entries: list[Any] = [Entry.FromString(content) for _, content in values]
    assert found.keys.to_pylist() == [key for key, _ in records]
    assert found.identities.to_pylist() == [identity for identity, _ in values]
    assert [address.encode() for address in found.addresses.to_pylist()] == [entry.address for entry in entries]
    assert [etag.encode() for etag in found.etags.to_pylist()] == [entry.e_tag for entry in entries]
    assert found.address_types.to_pylist() == [entry.address_type for entry in entries]
    assert found.sizes.to_pylist() == [entry.size for entry in entries]
    assert found.last_modified.to_pylist() == [entry.last_modified.seconds for entry in entries]


def _check_metarange(data: bytes, file: str, records: list[Record]) -> None:
    expected = []
    for key, value in records:
        identity, content = unframed(value)
        stated: Any = RangeData.FromString(content)
        assert stated.max_key == key
        expected.append(ranges.RangeRecord(identity.decode(), stated.min_key, key, stated.count, stated.estimated_size))
    assert ranges.read_metarange(data, file) == expected


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

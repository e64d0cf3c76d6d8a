import struct
from pathlib import Path

import pytest
import rocksdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats import sstables
from lakefs_gc_assets.lakefs.formats.sstables import SSTable, read_layout, read_table
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import SET, TableBytes, block, framed, read_entries, varint

Rows = dict[bytes, tuple[bytes, bytes]]


def _rows(table: SSTable) -> Rows:
    offsets, keys = table.keys()
    joined, buffer = keys.tobytes(), table.buffer.tobytes()
    return {
        joined[start:stop]: (buffer[value[0] : value[1]], buffer[value[2] : value[3]])
        for start, stop, value in zip(offsets[:-1], offsets[1:], table.values.tolist(), strict=True)
    }


def _by_rocksdb(path: Path, rows: Rows, block_size: int, restart_interval: int, two_level: bool) -> bytes:
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_format_version(2)
    blocks.set_checksum_type(rocksdict.ChecksumType.crc32c())
    blocks.set_block_size(block_size)
    blocks.set_block_restart_interval(restart_interval)
    if two_level:
        blocks.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        blocks.set_metadata_block_size(256)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.snappy())
    path.unlink(missing_ok=True)
    writer = rocksdict.SstFileWriter(options)
    writer.open(str(path))
    for key in sorted(rows):
        writer[key] = framed(*rows[key])
    writer.finish()
    return path.read_bytes()


_ROWS = st.dictionaries(
    st.binary(min_size=1, max_size=40) | st.binary(max_size=8).map(lambda tail: b"prefix\x01\0" + tail),
    st.tuples(st.binary(max_size=70), st.binary(max_size=40) | st.integers(0, 300).map(lambda n: b"repeated" * n)),
    min_size=1,
    max_size=120,
)


@given(rows=_ROWS, block_size=st.sampled_from([64, 512, 4096]), interval=st.integers(1, 20), two_level=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_reads_what_rocksdb_wrote(rows: Rows, block_size: int, interval: int, two_level: bool, tmp_path: Path) -> None:
    data = _by_rocksdb(tmp_path / "written.sst", rows, block_size, interval, two_level)
    table = read_table(data, "written.sst")
    assert list(_rows(table).items()) == sorted(rows.items())
    assert (table.first_key, table.last_key) == (min(rows), max(rows))
    assert table.layout.number("rocksdb.num.entries") == len(table) == len(rows)


def test_reads_a_large_table_of_rocksdb_with_two_levels_and_mixed_compression(tmp_path: Path) -> None:
    rows = {
        f"key{number:06}".encode(): (b"i" * 32, (b"same" * 20 if number % 200 < 100 else _noise(number)))
        for number in range(20_000)
    }
    data = _by_rocksdb(tmp_path / "large.sst", rows, 4096, 16, two_level=True)
    layout = read_layout(data, "large.sst")
    assert layout.properties[b"rocksdb.block.based.table.index.type"] == b"\x02\0\0\0"
    assert list(_rows(read_table(data, "large.sst")).items()) == sorted(rows.items())


def _noise(number: int) -> bytes:
    return b"".join((number * 2654435761 + step * 40503 & 0xFFFFFFFF).to_bytes(4) for step in range(60))


@given(
    rows=_ROWS | st.just({}),
    records_per_block=st.integers(1, 50),
    interval=st.integers(1, 20),
    blocks_per_index=st.none() | st.integers(1, 4),
    compressed=st.sampled_from([0, 1, 2]),
)
def test_reads_any_mixture_of_blocks(
    rows: Rows, records_per_block: int, interval: int, blocks_per_index: int | None, compressed: int
) -> None:
    records = [(key, framed(*rows[key]) + b"ignored") for key in sorted(rows)]
    built = TableBytes(
        records,
        records_per_block=records_per_block,
        interval=interval,
        compressed=lambda index: index % 3 < compressed,
        blocks_per_index=blocks_per_index,
    ).build()
    assert list(_rows(read_table(built, "built")).items()) == sorted(rows.items())


def test_a_table_without_records_has_empty_bounds() -> None:
    table = read_table(TableBytes([]).build(), "empty")
    assert (len(table), table.first_key, table.last_key) == (0, b"", b"")


_RECORDS = [(f"key{number:03}".encode(), framed(b"identity", b"data%d" % number)) for number in range(40)]


def _check(table: TableBytes) -> str:
    with pytest.raises(CorruptFile) as caught:
        read_table(table.build(), "table")
    assert caught.value.file == "table"
    return caught.value.check


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("rocksdb.comparator", b"rocksdb.ReverseBytewiseComparator", "comparator"),
        ("rocksdb.comparator", None, "comparator"),
        ("rocksdb.num.entries", varint(41), "number of entries"),
        ("rocksdb.num.entries", varint(39), "number of entries"),
        ("rocksdb.num.entries", None, "properties"),
        ("rocksdb.num.entries", varint(40) + b"\0", "properties"),
        ("rocksdb.num.entries", b"\x80", "properties"),
        ("rocksdb.num.data.blocks", varint(3), "number of blocks"),
        ("rocksdb.num.data.blocks", None, "properties"),
        ("rocksdb.deleted.keys", varint(1), "properties"),
        ("rocksdb.merge.operands", varint(1), "properties"),
        ("rocksdb.num.range-deletions", varint(1), "properties"),
        ("rocksdb.index.key.is.user.key", varint(1), "properties"),
        ("rocksdb.index.value.is.delta.encoded", varint(1), "properties"),
        ("rocksdb.raw.key.size", varint(1), "rocksdb.raw.key.size"),
        ("rocksdb.raw.value.size", varint(1), "rocksdb.raw.value.size"),
        ("rocksdb.block.based.table.index.type", b"\x01\0\0\0", "index type"),
        ("rocksdb.block.based.table.index.type", b"\0", "index type"),
        ("rocksdb.block.based.table.index.type", b"\x02\0\0\0", "block handle"),
    ],
)
def test_properties_must_agree(name: str, value: bytes | None, check: str) -> None:
    assert _check(TableBytes(_RECORDS, {name: value}, compressed=lambda index: False)) == check


def test_reading_stops_at_the_first_entry_too_many() -> None:
    for stated in (0, 1, 39):
        with pytest.raises(CorruptFile, match="there are more entries than the table says"):
            read_table(TableBytes(_RECORDS, {"rocksdb.num.entries": varint(stated)}).build(), "table")


def _replaced(name: str, content: bytes) -> TableBytes:
    return TableBytes(_RECORDS, change=lambda block_name, old: content if block_name == name else old)


@pytest.mark.parametrize("extra", ["rocksdb.range_del", "rocksdb.range_del2", "pebble.range_key", "filter.any"])
def test_another_metaindex_entry_is_refused(extra: str) -> None:
    def change(name: str, content: bytes) -> bytes:
        if name != "metaindex":
            return content
        handle = content[3 + len("rocksdb.properties") : -8]
        return block(sorted([(b"rocksdb.properties", handle), (extra.encode(), varint(0) + varint(8))]), 1)

    assert _check(TableBytes(_RECORDS, change=change)) == "metaindex"
    assert _check(_replaced("metaindex", block([(extra.encode(), varint(0) + varint(8))], 1))) == "metaindex"


def _block_of(entries: list[tuple[bytes, bytes]], **properties: bytes) -> str:
    stated = {
        "rocksdb.num.entries": varint(len(entries)),
        "rocksdb.raw.key.size": varint(sum(len(key) for key, _ in entries)),
        "rocksdb.raw.value.size": varint(sum(len(value) for _, value in entries)),
    }
    content = block(entries)
    return _check(TableBytes(_RECORDS[:1], stated, change=lambda name, old: content if name == "data" else old))


_VALUE = framed(b"identity", b"data")


def test_keys_must_increase_strictly() -> None:
    assert _block_of([(b"b" + SET, _VALUE), (b"a" + SET, _VALUE)]) == "key order"
    assert _block_of([(b"a" + SET, _VALUE), (b"a" + SET, _VALUE)]) == "key order"
    assert _block_of([(b"ab" + SET, _VALUE), (b"a" + SET, _VALUE)]) == "key order"
    assert _block_of([(b"a\x01" + SET, _VALUE), (b"a" + SET, _VALUE)]) == "key order"


def test_keys_must_increase_from_block_to_block() -> None:
    records = [*_RECORDS[:20], *_RECORDS[10:30]]
    assert _check(TableBytes(records, records_per_block=20)) == "key order"
    assert _check(TableBytes([*_RECORDS[:20], *_RECORDS[19:30]], records_per_block=20)) == "key order"


@pytest.mark.parametrize(
    "trailer", [b"\0" + bytes(7), b"\x02" + bytes(7), b"\x01" + bytes(6) + b"\x01", b"\x11" + b"\xff" * 7, b"\x01"]
)
def test_only_plain_sets_are_records(trailer: bytes) -> None:
    assert _block_of([(b"key" + trailer, _VALUE)]) == "key trailer"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        varint(3),
        varint(1) + b"i",
        varint(4) + b"i",
        framed(b"i", b"d")[:-1],
        varint(2) + b"i",
        varint(1) + varint(0),
        varint(0) + varint(1),
    ],
)
def test_a_value_must_hold_identity_and_data(value: bytes) -> None:
    assert _block_of([(b"key" + SET, value)]) == "value"


@pytest.mark.parametrize(
    ("content", "check"),
    [
        (b"", "restart points"),
        (bytes(4), "restart points"),
        (bytes(8), "restart points"),
        (bytes(4) + b"\xff\xff\xff\xff", "restart points"),
        (b"\1\0\0\0" + b"\1\0\0\0", "restart points"),
        (block([(b"key" + SET, _VALUE)])[:-8] + b"\1\0\0\0" + b"\1\0\0\0", "restart points"),
        (block([(b"key" + SET, _VALUE)])[:-8] + bytes(8) + b"\2\0\0\0", "restart points"),
        (b"\x01" + block([(b"key" + SET, _VALUE)])[1:], "block entry"),
        (b"\xff" * 30 + block([(b"key" + SET, _VALUE)]), "block entry"),
    ],
)
def test_a_block_must_be_well_formed(content: bytes, check: str) -> None:
    table = TableBytes(_RECORDS[:1], change=lambda name, old: content if name == "data" else old)
    table.compressed = lambda index: False
    table.properties = {"rocksdb.num.entries": varint(int(b"key" in content))}
    assert _check(table) == check


@pytest.mark.parametrize("added", [1, 8, 1 << 20, 1 << 40, (1 << 63) - 1 - len(_VALUE), -len(_VALUE) - 1])
def test_a_value_ends_where_its_block_does_even_where_the_sum_of_values_agrees(added: int) -> None:
    length = varint(len(_VALUE) + added)
    content = varint(0) + varint(11) + length + b"key" + SET + _VALUE + bytes(4) + b"\1\0\0\0"
    table = TableBytes(_RECORDS[:1], change=lambda name, old: content if name == "data" else old)
    table.properties = {"rocksdb.raw.key.size": varint(11), "rocksdb.raw.value.size": length}
    assert _check(table) == "block entry"


def test_restart_points_are_where_entries_begin_that_share_nothing() -> None:
    content = block([(b"key1" + SET, _VALUE), (b"key2" + SET, _VALUE)])[:-8]
    second = 3 + 4 + len(SET) + len(_VALUE)
    apart = block([(b"key1" + SET, _VALUE), (b"key2" + SET, _VALUE)], interval=1)[:-12]
    stated = {"rocksdb.raw.key.size": varint(24), "rocksdb.raw.value.size": varint(2 * len(_VALUE))}
    records = [(b"key1", _VALUE), (b"key2", _VALUE)]

    def with_restarts(entries: bytes, *restarts: int) -> TableBytes:
        changed = entries + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
        return TableBytes(records, stated, change=lambda name, old: changed if name == "data" else old)

    for right in (with_restarts(content, 0), with_restarts(apart, 0), with_restarts(apart, 0, second)):
        assert len(read_table(right.build(), "table")) == 2
    for wrong in ((0, second), (0, second - 1), (0, second + 1), (0, 0), (second,), (0, second, second), (0, 1 << 31)):
        assert _check(with_restarts(content, *wrong)) == "restart points"
    for wrong in ((0, second - 1), (0, second + 1), (0, second, second), (0, second, second + 1), (1, second)):
        assert _check(with_restarts(apart, *wrong)) == "restart points"


def test_an_index_cannot_leave_out_the_first_block() -> None:
    def leave_out(name: str, content: bytes) -> bytes:
        return block(read_entries(content)[1:], 1) if name == "top" else content

    kept = _RECORDS[10:]
    stated = {
        "rocksdb.num.data.blocks": varint(3),
        "rocksdb.num.entries": varint(len(kept)),
        "rocksdb.raw.key.size": varint(sum(len(key) + len(SET) for key, _ in kept)),
        "rocksdb.raw.value.size": varint(sum(len(value) for _, value in kept)),
    }
    assert _check(TableBytes(_RECORDS, stated, records_per_block=10, change=leave_out)) == "order of blocks"


def test_an_index_cannot_name_a_block_twice() -> None:
    def repeat(name: str, content: bytes) -> bytes:
        if name != "top":
            return content
        entries = read_entries(content)
        return block([entries[0]] * 100 + entries, 1)

    for blocks_per_index in (None, 1):
        built = TableBytes(_RECORDS, records_per_block=10, blocks_per_index=blocks_per_index, change=repeat)
        assert _check(built) == "order of blocks"


def test_blocks_must_fill_the_file_in_order() -> None:
    built = TableBytes(_RECORDS, compressed=lambda index: False, records_per_block=10)
    handles: list[bytes] = []

    def swap(name: str, content: bytes) -> bytes:
        if name == "top":
            entries = read_entries(content)
            handles.extend(value for _, value in entries)
            return block([(entries[0][0], handles[1]), (entries[1][0], handles[0]), *entries[2:]], 1)
        return content

    built.change = swap
    assert _check(built) == "order of blocks"


@pytest.mark.parametrize(
    "handle", [varint(0), varint(0) + varint(1 << 40), varint(1 << 63) + varint(1), b"", b"\0\0\0"]
)
def test_an_index_must_point_into_the_file(handle: bytes) -> None:
    assert _check(_replaced("top", block([(b"key" + SET, handle)], 1))) == "block handle"


@pytest.mark.parametrize("restarts", [(), (1,), (0, 0), (0, 3), (0, 1 << 31)])
def test_restart_points_of_names_are_where_names_begin(restarts: tuple[int, ...]) -> None:
    entries = b"\0\x01\0a" + b"\0\x01\0b"
    content = entries + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    assert _check(_replaced("properties", content)) == "properties"
    right = entries + struct.pack("<3I", 0, 4, 2)
    with pytest.raises(CorruptFile, match="comparator"):
        read_table(_replaced("properties", right).build(), "table")


@pytest.mark.parametrize("names", [b"\0\x01\0b" + b"\0\x01\0a", b"\0\x01\0a" + b"\x01\0\0", b"\0\x02\0a", b"\x01\0\0"])
def test_names_increase_and_end_in_their_block(names: bytes) -> None:
    assert _check(_replaced("properties", names + bytes(4) + b"\1\0\0\0")) == "properties"


def test_a_name_cannot_grow_without_end() -> None:
    entry = varint(0) + varint(1000) + varint(0) + b"n" * 1000
    grown = b"".join(varint(1000 + step) + varint(1) + varint(0) + b"n" for step in range(200))
    assert _check(_replaced("properties", entry + grown + bytes(4) + b"\1\0\0\0")) == "properties"


def test_keys_that_would_fill_the_memory_are_refused_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 1 << 18
    records = [(b"k" * length + bytes((number,)), _VALUE) for number in range(3)]
    built = TableBytes(records, compressed=lambda index: True).build()
    offsets, keys = read_table(built, "long").keys()
    assert offsets.tolist() == [0, length + 1, 2 * length + 2, 3 * length + 3]
    assert keys[-1] == 2
    monkeypatch.setattr(sstables, "MAX_KEY_BYTES", 3 * length)
    with pytest.raises(CorruptFile, match="keys"):
        read_table(built, "long").keys()

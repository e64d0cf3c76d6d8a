import contextlib
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.extensions.playground.embedded.commits import record_value
from lakefs_gc_assets.extensions.playground.embedded.formats import commit_id, table
from lakefs_gc_assets.lakefs.formats.records import DATA_END, DATA_START, IDENTITY_END, IDENTITY_START
from lakefs_gc_assets.lakefs.formats.sstables import SSTable, read_table
from lakefs_gc_assets_tests.replay.recording import commits_in
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, needs_recordings

_keys = st.binary(max_size=60)
_long_keys = st.builds(lambda a, n, b: a * n + b, st.sampled_from([b"a", b"ab", b"\xff"]), st.integers(0, 400), _keys)
_value_parts = st.tuples(st.binary(max_size=40), st.binary(max_size=300))
_records = st.dictionaries(_keys | _long_keys, _value_parts, max_size=300)


def _write(parts: dict[bytes, tuple[bytes, bytes]]) -> bytes:
    records = [(key, record_value(*parts[key])) for key in sorted(parts)]
    return table(records, {"type": "ranges", "count": str(len(records))})


def _read(found: SSTable) -> dict[bytes, tuple[bytes, bytes]]:
    offsets, joined = found.keys()
    keys, buffer = joined.tobytes(), found.buffer.tobytes()
    bounds, values = offsets.tolist(), found.values
    read = {}
    for row, (start, end) in enumerate(pairwise(bounds)):
        identity = buffer[values[row, IDENTITY_START] : values[row, IDENTITY_END]]
        read[keys[start:end]] = (identity, buffer[values[row, DATA_START] : values[row, DATA_END]])
    return read


@given(_records)
def test_the_reader_reads_what_was_written(parts: dict[bytes, tuple[bytes, bytes]]) -> None:
    assert _read(read_table(_write(parts), "written")) == parts


@given(st.integers(1, 4000), st.integers(1, 30), st.integers(0, 200))
def test_tables_of_any_size_are_read(count: int, step: int, size: int) -> None:
    parts = {
        b"tables/events/date=%07d/part.parquet" % (number * step): (b"i" * 32, bytes([number % 251]) * size)
        for number in range(count)
    }
    found = read_table(_write(parts), "written")
    assert len(found) == count
    assert _read(found) == parts


@needs_recordings
@pytest.mark.parametrize("name", ["small", "merge-dangling", "chain/1"])
def test_commits_have_the_ids_of_a_real_server(name: str) -> None:
    answers = [json.loads(line) for line in (FIXTURES / name / "api.jsonl").read_text().splitlines()]
    commits = list(commits_in(answers))
    assert commits
    for commit in commits:
        texts = (commit["committer"], commit["message"], commit["meta_range_id"])
        assert commit["id"] == commit_id(
            *texts, commit["creation_date"], commit.get("metadata") or {}, commit["parents"]
        )


def test_a_large_index_has_two_levels_and_a_small_one_has_one() -> None:
    def levels(count: int) -> tuple[int, int]:
        parts = {b"path/%06d" % number: (b"i" * 32, bytes(100)) for number in range(count)}
        layout = read_table(_write(parts), "written").layout
        kind = int.from_bytes(layout.properties[b"rocksdb.block.based.table.index.type"], "little")
        return kind, layout.number("rocksdb.index.partitions", 1)

    assert levels(20) == (0, 1)
    kind, partitions = levels(20_000)
    assert kind == 2
    assert partitions > 1


def test_blocks_that_shrink_too_little_stay_uncompressed() -> None:
    source = random.Random(1)
    noise = {b"%04d" % number: (b"i" * 32, source.randbytes(2000)) for number in range(40)}
    zeros = {b"%04d" % number: (b"i" * 32, bytes(2000)) for number in range(40)}
    assert len(_write(noise)) > 40 * 2000
    assert len(_write(zeros)) < 40 * 200
    assert _read(read_table(_write(noise | {b"z": (b"", bytes(9000))}), "mixed"))[b"z"] == (b"", bytes(9000))


@given(_records.filter(bool), st.data())
def test_damage_is_found(parts: dict[bytes, tuple[bytes, bytes]], data: st.DataObject) -> None:
    written = bytearray(_write(parts))
    position = data.draw(st.integers(0, len(written) - 1))
    written[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptFile):
        read_table(bytes(written), "damaged")


def test_keys_must_increase() -> None:
    with pytest.raises(ValueError, match="increase"):
        table([(b"b", b""), (b"a", b"")], {})
    with pytest.raises(ValueError, match="increase"):
        table([(b"a", b""), (b"a", b"")], {})


def test_rocksdb_reads_it(tmp_path: Path) -> None:
    records = [(b"path/%06d" % number, b"value %d" % number * (number % 9)) for number in range(3000)]
    file = tmp_path / "table.sst"
    file.write_bytes(table(records, {"type": "ranges"}))
    options = Options(raw_mode=True)
    with contextlib.closing(Rdict(str(tmp_path / "database"), options)) as database:
        database.ingest_external_file([str(file)])
        assert list(database.items()) == records

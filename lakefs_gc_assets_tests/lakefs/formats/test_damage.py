"""Readers report any damage of a file: they never return different content, crash or fill the memory."""

import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats import ranges, refs
from lakefs_gc_assets_tests.fuzzing import tables, targets
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import (
    FOOTER_BYTES,
    TableBytes,
    framed,
    integer,
    sealed,
    text,
    varint,
)
from lakefs_gc_assets_tests.runs.recordings import REAL, folder_of
from lakefs_gc_assets_tests.simulation.seeds import draw_seed

_REFS: dict[str, Any] = {"commit": refs.read_commits, "branch": refs.read_branches, "tag": refs.read_tags}


_EVERY = 25
"""One of this many bytes is changed."""


def _read(data: bytes, kind: ranges.Kind) -> Any:
    if kind.type == "metaranges":
        return ranges.read_metarange(data, "table", entity=kind.entity)
    if kind.entity is not None:
        return _REFS[kind.entity](data, "table")
    return ranges.read_range(data, "table", columns=("keys", "etags", "identities"))


def _recorded(folder: str) -> list[tuple[bytes, ranges.Kind]]:
    files = [path for path in sorted((folder_of(folder) / "namespace/_lakefs").iterdir()) if len(path.name) == 64]
    return [(path.read_bytes(), ranges.table_kind(path.read_bytes(), path.name)) for path in files]


def test_any_byte_changed_is_an_error() -> None:
    tables = _recorded("small")
    assert len(tables) >= 20
    rng = random.Random(draw_seed())
    for data, kind in tables:
        _read(data, kind)
        # Each run draws its positions: all of them would take a quarter of a minute.
        for position in range(rng.randrange(_EVERY), len(data), _EVERY):
            changed = bytearray(data)
            changed[position] ^= rng.randrange(1, 256)
            with pytest.raises(CorruptFile):
                _read(bytes(changed), kind)


def test_every_bit_of_the_footer_counts() -> None:
    for data, kind in _recorded("small")[:4] + (_recorded("large") if REAL else []):
        for bit in range(8 * FOOTER_BYTES):
            changed = bytearray(data)
            changed[len(data) - FOOTER_BYTES + bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptFile):
                _read(bytes(changed), kind)


def test_a_file_cut_short_or_lengthened_is_an_error() -> None:
    data, kind = min(_recorded("small"), key=lambda table: len(table[0]))
    for length in range(len(data)):
        with pytest.raises(CorruptFile):
            _read(data[:length], kind)
        with pytest.raises(CorruptFile):
            _read(data[length + 1 :], kind)
    for added in (b"\0", b"garbage", data):
        with pytest.raises(CorruptFile):
            _read(data + added, kind)
        with pytest.raises(CorruptFile):
            _read(added + data, kind)


def _entry(number: int) -> tuple[bytes, bytes]:
    data = text(1, f"data/slice/object{number}") + integer(3, number) + text(4, f"etag{number}") + integer(6, 1)
    return f"tables/part-{number:05}".encode(), framed(bytes((number % 256,)) * 32, text(2, integer(1, number)) + data)


_RANGE = [_entry(number) for number in range(60)]


_BOMB = varint(1 << 31) + b"\xf0" + bytes(64)


def _with_first_block(stored: bytes, kind: int) -> bytes:
    """A table with its only data block replaced by these stored bytes and zeros, with a valid checksum."""
    lengths: list[int] = []

    def note(name: str, content: bytes) -> bytes:
        lengths.append(len(content))
        return content

    built = TableBytes(_RANGE[:20], compressed=lambda index: False, change=note).build()
    block = sealed(stored.ljust(lengths[0], b"\0"), kind)
    return block + built[len(block) :]


@pytest.mark.parametrize(
    ("stored", "kind", "check"),
    [
        (_BOMB, 1, "block length"),
        (varint((1 << 32) - 1), 1, "block length"),
        (varint(60 << 20), 1, "block length"),
        (varint(5000), 1, "block compression"),
        (varint(10) + b"\x10" + b"four+", 1, "block compression"),
        (varint(3) + b"\x10" + b"four+", 1, "block compression"),
        (b"\xff" * 12, 1, "block length"),
        (b"\x05\xfc", 1, "block compression"),
        (b"", 7, "block compression"),
        (b"", 4, "block compression"),
    ],
)
def test_stored_bytes_that_no_writer_makes_are_refused_before_memory_is_taken(
    stored: bytes, kind: int, check: str
) -> None:
    built = _with_first_block(stored, kind)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile) as caught:
            ranges.read_range(built, "table")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.check == check
    assert peak < 20 << 20


@pytest.mark.parametrize("count", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_lie_about_the_number_of_entries_takes_no_memory(count: int) -> None:
    built = TableBytes(_RANGE, {"rocksdb.num.entries": varint(count)}).build()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile, match="number of entries"):
            ranges.read_range(built, "table")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


@pytest.mark.slow
def test_compiled_code_stays_inside_its_arrays(tmp_path: Path) -> None:
    """Fuzzes tables with numba's bounds checks, which turn a stray access into an IndexError."""
    environment = {
        **os.environ,
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    arguments = [sys.executable, "-m", targets.__name__, "200", "1", *(target.name for target in tables.TARGETS)]
    finished = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]

"""Entries of lakeFS ranges decoded per second and core: the compiled reader compared with google.protobuf."""

import time
from collections.abc import Callable
from typing import Any

from benchmarks import repositories
from benchmarks.marks import Measure, at_least, figure
from lakefs_gc_assets.extensions.playground.embedded.formats import table
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import Entry, read_records

_RANGES, _ENTRIES = 8, 12_500
_ROUNDS = 20


def measured() -> list[Measure]:
    """The compiled reader's rate, with all checks, and the rate of plain protobuf decoding of the same bytes."""
    files = list(_files())
    for data in files:
        if ranges.read_range(data, "range").addresses.to_pylist() != _plain(data):
            raise AssertionError("the two readers disagree")
    entries = _RANGES * _ENTRIES
    compiled = entries / _best(lambda data: ranges.read_range(data, "range"), files, _ROUNDS)
    plain = entries / _best(_plain, files, 1)
    return [
        at_least("decode: entries to an Arrow column, per second and core", compiled, "entries/s", 2_500_000),
        figure("decode: plain protobuf", plain, "entries/s"),
    ]


def _files() -> list[bytes]:
    names = list(repositories.addresses(_RANGES * _ENTRIES, repositories.BORN))
    made = [
        repositories.range_file(names[start : start + _ENTRIES], start)[0] for start in range(0, len(names), _ENTRIES)
    ]
    return [table(file.records, file.properties) for file in made]


def _plain(data: bytes) -> list[str]:
    entries: list[Any] = [Entry.FromString(message) for _, _, message in read_records(data)]
    return [entry.address.decode() for entry in entries]


def _best(read: Callable[[bytes], object], files: list[bytes], rounds: int) -> float:
    """Processor seconds of the best round, unaffected by other users of the machine."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for data in files:
            read(data)
        best = min(best, time.process_time() - began)
    return best

"""What notes of ranges cost: `python -m lakefs_gc_assets_tests.retention_base.costs` prints it.

Ranges of 50,000 entries are made up: runs of neighbours were written in the same hour, as when folders are written. All
rates are for one core.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.collector import address_hashes
from lakefs_gc_assets.collector.address_hashes import Hashes, HashSet
from lakefs_gc_assets.collector.stored import tables
from lakefs_gc_assets.lakefs import xids

_RANGES, _ENTRIES = 10, 50_000
_HOURS = 24 * 300
_LARGEST_GROUP = 400
_METARANGES, _RANGES_OF_ONE, _CHANGED = 300, 280, 4
_NOTES = pa.schema([pa.field("range_id", pa.string()), pa.field("hashes", pa.list_(pa.int64()))])
_MAP = pa.schema([pa.field("metarange_id", pa.string()), pa.field("range_ids", pa.list_(pa.string()))])

Result = TypeVar("Result")


def main() -> None:
    """Measures and prints."""
    chance = random.Random(1)
    ranges = [_addresses(chance) for _ in range(_RANGES)]
    total = _RANGES * _ENTRIES
    address_hashes.hashes(ranges[0])
    noted, seconds = _timed(lambda: [np.sort(address_hashes.hashes(each)) for each in ranges])
    print(f"hashes made and sorted: {total / seconds / 1e6:.0f} million a second")
    encoded = tables.encode(_notes(noted), ascending=("hashes.list.element",))
    print(f"notes of hashes: {len(encoded) / total:.1f} bytes an entry")
    _, seconds = _timed(lambda: tables.decode(_NOTES, encoded, "notes", "notes"))
    print(f"notes read: {total / seconds / 1e6:.0f} million a second")
    everything = np.tile(np.concatenate(noted), 4)
    for wanted in (1_000, 1_000_000, 8_000_000):
        others = np.random.default_rng(0).integers(0, 2**63, wanted).astype(np.uint64)
        known = HashSet.made(others)
        known.has(everything[:1])
        _, seconds = _timed(partial(known.has, everything))
        print(f"compared with {wanted:,} objects: {len(everything) / seconds / 1e6:.0f} million a second")
    references = _METARANGES * _RANGES_OF_ONE
    print(f"ranges of metaranges: {len(tables.encode(_map(chance))) / references:.2f} bytes a reference")


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What work gives, and its processor seconds."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


def _addresses(chance: random.Random) -> pa.StringArray:
    """Addresses of a range, in order of paths."""
    objects, start = xids.Generator(bytes(5), 0), datetime(2025, 1, 1, tzinfo=UTC)
    found: list[str] = []
    while len(found) < _ENTRIES:
        hour = start + timedelta(hours=chance.randrange(_HOURS))
        slice_ = xids.Generator(bytes(5), 0).descending(hour)
        for _ in range(chance.randrange(1, _LARGEST_GROUP)):
            written = hour + timedelta(seconds=chance.randrange(3600))
            found.append(f"data/{slice_}/{objects.ascending(written)}")
    return pa.array(found[:_ENTRIES], pa.string())


def _notes(noted: list[Hashes]) -> pa.Table:
    offsets = pa.array(np.arange(_RANGES + 1) * _ENTRIES, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(noted).view(np.int64)))
    return pa.table([[_id(number) for number in range(_RANGES)], lists], schema=_NOTES)


def _map(chance: random.Random) -> pa.Table:
    """Metaranges of one line, each of which has a few ranges that the one before it has not."""
    current = [_id(chance.getrandbits(256)) for _ in range(_RANGES_OF_ONE)]
    lists: list[list[str]] = []
    for _ in range(_METARANGES):
        for _ in range(_CHANGED):
            current[chance.randrange(_RANGES_OF_ONE)] = _id(chance.getrandbits(256))
        lists.append(list(current))
    return pa.table([[_id(number) for number in range(_METARANGES)], lists], schema=_MAP)


def _id(number: int) -> str:
    return f"{number:064x}"


if __name__ == "__main__":
    main()

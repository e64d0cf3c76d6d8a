"""How old and how large garbage is, counted in the tasks that read it, for the pictures of `candidates`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame.kinds import CandidateFigures
from lakefs_gc_assets.collector.frame.stored import LOCAL_ROWS, StoredFrame
from lakefs_gc_assets.collector.sizes import size
from lakefs_gc_assets.defs.pictures import bars
from lakefs_gc_assets.spark import tasks
from lakefs_gc_assets.spark.engine import SparkEngine

_DAY = timedelta(days=1)
AGES: Mapping[str, timedelta] = {
    "< 2 days": timedelta(),
    "2 to 7 days": 2 * _DAY,
    "8 to 30 days": 8 * _DAY,
    "31 to 90 days": 31 * _DAY,
    "91 to 365 days": 91 * _DAY,
    "over a year": 366 * _DAY,
}
"""From which age on an object belongs to each group."""

_MIB = 2**20
SIZES: Mapping[str, int] = {
    "< 64 KiB": 0,
    "64 KiB to 1 MiB": 2**16,
    "1 to 16 MiB": _MIB,
    "16 to 256 MiB": 16 * _MIB,
    "256 MiB to 4 GiB": 256 * _MIB,
    "> 4 GiB": 4096 * _MIB,
}
"""From which size on an object belongs to each group."""

_COUNTED = pa.schema(
    [
        pa.field("by", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("oldest", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True)
class Garbage:
    """What the candidates are.

    Attributes:
        by_age, by_size: objects and bytes of each group that has any, by its name.
        oldest: when the oldest of them was written, UTC; None where there is none.
    """

    by_age: Mapping[str, tuple[int, int]]
    by_size: Mapping[str, tuple[int, int]]
    oldest: datetime | None

    @classmethod
    def of_counts(cls, counts: Iterable[pa.RecordBatch]) -> "Garbage":
        """Adds up what `count_batches` counted."""
        sums: dict[str, dict[str, tuple[int, int]]] = {"age": {}, "size": {}}
        oldest: datetime | None = None
        for row in (row for batch in counts for row in batch.to_pylist()):
            objects, total = sums[row["by"]].get(row["group"], (0, 0))
            sums[row["by"]][row["group"]] = objects + row["objects"], total + row["bytes"]
            oldest = min(filter(None, (oldest, row["oldest"])), default=None)
        return cls(sums["age"], sums["size"], oldest)


def count_garbage(frame: StoredFrame[CandidateFigures], engine: SparkEngine, now: datetime) -> Garbage:
    """Counts candidates by age and size.

    Args:
        now: the moment that ages count back from, UTC.
    """
    columns = ("last_modified", "size")
    if frame.count <= LOCAL_ROWS:
        return Garbage.of_counts(count_batches(frame.table().select(columns).to_batches(), now))
    rows = tasks.map_batches(frame.rows(engine, *columns), partial(count_batches, now=now), _COUNTED)
    return Garbage.of_counts(rows.toArrow().to_batches())


def count_batches(batches: Iterable[pa.RecordBatch], now: datetime) -> Iterator[pa.RecordBatch]:
    """Counts the rows of each batch by age and size (_COUNTED)."""
    for batch in batches:
        if not batch.num_rows:
            continue
        written, sizes = batch.column("last_modified"), batch.column("size")
        ages = pc.subtract(pa.scalar(now, written.type), written).cast(pa.int64())
        least_ages = [int(age / timedelta(microseconds=1)) for age in AGES.values()]
        rows = [
            {"by": by, "group": group, "objects": len(inside), "bytes": pc.sum(inside).as_py() or 0}
            for by, groups, values, least in (
                ("age", AGES, ages, least_ages),
                ("size", SIZES, sizes, [*SIZES.values()]),
            )
            for group, inside in zip(groups, _split(sizes, values, least), strict=True)
        ]
        oldest = pc.min(written).as_py()
        yield pa.RecordBatch.from_pylist([{**row, "oldest": oldest} for row in rows if row["objects"]], _COUNTED)


def _split(sizes: pa.Array, values: pa.Array, least: Sequence[int]) -> Iterator[pa.Array]:
    """The sizes of each group: of rows whose value is at least the group's and less than that of the next one.

    What is less than all belongs to the first group: a clock may be behind.
    """
    groups = [pc.greater_equal(values, border) for border in least[1:]]
    for place in range(len(least)):
        inside = pc.invert(groups[place]) if place < len(groups) else None
        from_here = groups[place - 1] if place else None
        chosen = [each for each in (inside, from_here) if each is not None]
        yield sizes.filter(chosen[0] if len(chosen) == 1 else pc.and_(*chosen))


def pictures(frame: StoredFrame[CandidateFigures], garbage: Garbage, now: datetime) -> dict[str, Any]:
    """What the page of `candidates` shows: garbage by age, by size, and by the month of its slice."""
    months: dict[str, tuple[int, int]] = {}
    for file in frame.manifest.files:
        month = file.slice_window[: len("2026-11")]
        rows, total = months.get(month, (0, 0))
        months[month] = rows + file.rows, total + file.object_bytes
    shown: dict[str, Any] = {
        "garbage_by_age": _drawn("garbage by age", garbage.by_age, AGES),
        "garbage_by_size": _drawn("garbage by size", garbage.by_size, SIZES),
        "garbage_by_month": _drawn("garbage by the month of its slice", months, sorted(months)[-6:]),
    }
    if garbage.oldest is not None:
        # As a text: a number of the whole run would be plotted for each of its windows.
        shown["oldest_garbage_days"] = f"{(now - garbage.oldest) / _DAY:.1f}"
    return shown


def _drawn(title: str, groups: Mapping[str, tuple[int, int]], order: Iterable[str]) -> dg.MarkdownMetadataValue:
    """Bars by bytes, or by objects where all are empty."""
    by_bytes = any(total for _, total in groups.values())
    found = [(name, *groups[name]) for name in order if name in groups]
    rows = [(f"{name}: {objects:,}, {size(total)}", total if by_bytes else objects) for name, objects, total in found]
    return bars(title, rows)

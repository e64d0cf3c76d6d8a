"""Converts range records of tests to columns."""

from collections.abc import Iterable

import pyarrow as pa

from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord


def range_records(records: Iterable[RangeRecord]) -> RangeRecords:
    """The records in columns."""
    values = [[getattr(record, name) for name in RANGES.names] for record in records]
    columns = zip(*values, strict=True) if values else [[] for _ in RANGES]
    return RangeRecords.of_rows(pa.table([*columns], schema=RANGES))

"""The ranges that were live when a run by retention rules marked: they hold whatever it left in sealed slices.

It does not matter by which definition they were live, nor why one of them is live no more: the next run looks again at
what such a range holds.
"""

import pyarrow as pa

from lakefs_gc_assets.collector.frame.schemas import RANGES
from lakefs_gc_assets.collector.live.range_records import RangeRecords
from lakefs_gc_assets.collector.stored import run_folder, tables
from lakefs_gc_assets.storage.interface import ObjectStore

_WHAT = "tracked ranges"


def write(store: ObjectStore, run_id: str, attempt: str, records: RangeRecords) -> str:
    """Stores the ranges that are live at the commits step of an attempt; returns the file's SHA-256."""
    return tables.put(store, _key(run_id, attempt), records.rows)


def read(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> RangeRecords:
    """The ranges that were live then. Raises CorruptFile where the file is missing, damaged or another one."""
    key = _key(run_id, attempt)
    parts = tables.decode_parts(RANGES, tables.get(store, key, sha256), key, _WHAT)
    return RangeRecords.of_rows(pa.Table.from_batches(parts, RANGES))


def count(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> int:
    """How many ranges `read` gives, for less. Raises CorruptFile where the file is missing, or another one."""
    key = _key(run_id, attempt)
    return tables.count(tables.get(store, key, sha256), key, _WHAT)


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}tracked-{attempt}.parquet"

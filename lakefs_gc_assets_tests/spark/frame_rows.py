"""Hand-made frames for tests that need no repository."""

import hashlib
import io
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.collector.frame.files import FrameFile, Span
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.storage.interface import ObjectStore

RUN_ID = "ft5dgg5c83vpm1manb80"
NOW = datetime(2026, 11, 23, 12, 30, 0, 123456, UTC)
SLICE = "ft6p2lhksdu988af3vb0"


def span(frame: str = "store_df", attempt: str = "a1") -> Span:
    """The span of a frame that took no time."""
    return Span(frame, RUN_ID, attempt, NOW, NOW)


def listed(address: str, **changed: Any) -> dict[str, Any]:
    """One row of a listing."""
    usual = {
        "address": address,
        "slice": SLICE,
        "slice_window": "2026-11",
        "layout": "slice",
        "issued_at": datetime(2026, 10, 1, tzinfo=UTC),
        "last_modified": datetime(2026, 10, 1, tzinfo=UTC),
        "size": 10,
        "etag": hashlib.md5(address.encode("utf-8", "surrogatepass")).hexdigest(),
        "storage_class": None,
    }
    return {**usual, **changed}


def live(address: str, **changed: Any) -> dict[str, Any]:
    """One referenced address."""
    return {"address": address, "slice": SLICE, "slice_window": "2026-11", **changed}


def table_file(key: str, window: str, table: pa.Table) -> tuple[bytes, FrameFile]:
    """A table with any columns as a file of a frame, and its entry in a manifest."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    data = buffer.getvalue()
    return data, FrameFile(key, window, table.num_rows, len(data), hashlib.sha256(data).hexdigest())


def put_table(store: ObjectStore, frame: str, table: pa.Table) -> FrameFile:
    """Stores a table as a file of a frame."""
    key = f"{run_folder.frame(RUN_ID, frame)}slice_window=2026-11/part-by-hand.parquet"
    data, file = table_file(key, "2026-11", table)
    store.put(key, data)
    return file

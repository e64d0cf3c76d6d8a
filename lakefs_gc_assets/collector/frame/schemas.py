"""Arrow schemas of the plain tables that the domain makes; frames are stored in the same columns.

Addresses are relative to the storage namespace, times UTC, sizes bytes.
"""

import pyarrow as pa

from lakefs_gc_assets.collector.frame.columns import (
    LISTED_COLUMNS,
    LIVE_COLUMNS,
    RECEIPT_COLUMNS,
    SIGHTING_COLUMNS,
    UNRECOGNISED_COLUMNS,
    arrow_schema,
)

LISTED = arrow_schema(LISTED_COLUMNS)
"""Objects of the store. `slice` and `issued_at` are null where the name has none."""

LIVE = arrow_schema(LIVE_COLUMNS)
"""Addresses that are referenced."""

RANGES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("min_key", pa.binary(), nullable=False),
        pa.field("max_key", pa.binary(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("estimated_size", pa.int64(), nullable=False),
    ]
)
"""Ranges as metaranges name them: a RangeRecord as a row."""

HEAD_ENTRIES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("path", pa.binary(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("key", pa.string()),
    ]
)
"""Entries of branch heads that may hide a staged entry of the same content.

`etag` is the entry's checksum; `key` is where the committed object lies, null where that is not below the storage
namespace or not certain.
"""

RECEIPTS = arrow_schema(RECEIPT_COLUMNS)
"""Outcome of each candidate. `version_id` is that of the delete marker that a bucket with versions made."""

COPIES = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("key", pa.string(), nullable=False),
    ]
)
"""Copies in quarantine: `address` is where each was, `key` where it is; the ETag is the copy's."""

UNRECOGNISED = arrow_schema(UNRECOGNISED_COLUMNS)
"""Unreferenced objects whose names lakeFS never makes."""

SIGHTINGS = arrow_schema(SIGHTING_COLUMNS)
"""Unreferenced objects uploaded in parts, and when a run listed them for the first time."""

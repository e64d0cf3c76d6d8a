"""Arrow schemas of the plain tables that the domain makes; frames are stored in the same columns.

Addresses are relative to the storage namespace, times UTC, sizes bytes.
"""

import pyarrow as pa

TIME = pa.timestamp("us", "UTC")

LISTED = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string(), nullable=False),
        pa.field("layout", pa.string(), nullable=False),
        pa.field("issued_at", TIME),
        pa.field("last_modified", TIME, nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("etag", pa.string()),
    ]
)
"""Objects of the store. `slice` and `issued_at` are null where the name has none."""

LIVE = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string(), nullable=False),
    ]
)
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

RECEIPTS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("decided_at", TIME, nullable=False),
        pa.field("attempt", pa.string()),
        pa.field("version_id", pa.string()),
    ]
)
"""What became of each candidate. `version_id` is that of the delete marker that a bucket with versions made."""

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

UNRECOGNISED = pa.schema([LISTED.field("address"), LISTED.field("slice_window"), LISTED.field("size")])
"""Unreferenced objects whose names lakeFS never makes."""

SIGHTINGS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("slice_window", pa.string(), nullable=False),
        pa.field("first_listed_at", TIME, nullable=False),
    ]
)
"""Unreferenced objects uploaded in parts, and when a run listed them for the first time."""

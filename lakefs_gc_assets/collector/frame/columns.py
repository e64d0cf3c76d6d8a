"""The columns of stored frames, each declared once: name, type, meaning, and which values it may have.

The Arrow schemas by which frames are stored, the pandera models by which they are checked, and what the UI says of them
follow from this. Addresses are relative to the storage namespace, times UTC, sizes bytes.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

import pyarrow as pa

from lakefs_gc_assets.collector.records.outcomes import Outcome, Why
from lakefs_gc_assets.lakefs.layout import Layout

TIME = pa.timestamp("us", "UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """A moment as columns of TIME have it, exact: a float of seconds is not."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a frame.

    Attributes:
        description: a sentence that says what it means.
        allowed: the only values that it may have; none for any.
        least: the smallest value that it may have; None for any.
        added: true if files of earlier versions lack it; it is null there.
    """

    name: str
    type: pa.DataType
    description: str
    nullable: bool = False
    allowed: tuple[str, ...] = ()
    least: int | None = None
    added: bool = False


Columns = tuple[Column, ...]


@cache
def arrow_schema(columns: Columns) -> pa.Schema:
    """The Arrow schema of a table with these columns."""
    return pa.schema([pa.field(column.name, column.type, nullable=column.nullable) for column in columns])


ADDRESS = Column("address", pa.string(), "Namespace-relative address, exactly as the object store spells the key.")
SLICE = Column("slice", pa.string(), "Slice that lakeFS wrote the object into; null outside of `data/<slice>/`.", True)
SLICE_WINDOW = Column(
    "slice_window",
    pa.string(),
    "Window that the slice falls into: the partition; `legacy` where there is no slice.",
)
SIZE = Column("size", pa.int64(), "Size in bytes.", least=0)

LISTED_COLUMNS: Columns = (
    ADDRESS,
    SLICE,
    SLICE_WINDOW,
    Column(
        "layout",
        pa.string(),
        "Which layout the name belongs to; unrecognised ones are kept.",
        allowed=tuple(layout.value for layout in Layout if layout is not Layout.SPECIAL),
    ),
    Column("issued_at", TIME, "When the name was issued; null where it has no time.", True),
    Column("last_modified", TIME, "When the store says it was written."),
    SIZE,
    Column("etag", pa.string(), "ETag without quotes; null where the store has none, or nothing was listed.", True),
)

CANDIDATE_COLUMNS: Columns = (
    *LISTED_COLUMNS,
    Column(
        "why",
        pa.string(),
        "Why it is garbage, as far as the run knows; null in frames of earlier versions.",
        nullable=True,
        allowed=tuple(each.value for each in Why),
        added=True,
    ),
)

LIVE_COLUMNS: Columns = (ADDRESS, SLICE, SLICE_WINDOW)

RECEIPT_COLUMNS: Columns = (
    ADDRESS,
    SIZE,
    SLICE,
    SLICE_WINDOW,
    Column(
        "outcome",
        pa.string(),
        "dry_run, accepted by the store, quarantined, failed, kept_live at the recheck, or deleted_by_another_run.",
        allowed=tuple(each.value for each in Outcome if each not in (Outcome.COPIED, Outcome.RESTORED, Outcome.PURGED)),
    ),
    Column("error", pa.string(), "What the store said of a failed deletion.", True),
    Column("decided_at", TIME, "When the outcome was known."),
    Column("attempt", pa.string(), "The attempt of the run that decided.", True),
    Column(
        "version_id",
        pa.string(),
        "Version of the delete marker that the store made; null where its bucket keeps no versions.",
        True,
    ),
)

UNRECOGNISED_COLUMNS: Columns = (ADDRESS, SLICE_WINDOW, SIZE)

SIGHTING_COLUMNS: Columns = (
    ADDRESS,
    SLICE_WINDOW,
    Column("first_listed_at", TIME, "When a run listed it for the first time."),
)

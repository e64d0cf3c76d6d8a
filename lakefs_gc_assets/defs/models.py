"""What the columns of each frame hold: pandera models, checked against the stored frames.

Addresses are relative to the storage namespace, times UTC, sizes bytes.
"""

from typing import Any

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel

from lakefs_gc_assets.collector.sweep.receipts import Outcome
from lakefs_gc_assets.lakefs.layout import Layout

ADDRESS = "Namespace-relative address, exactly as the object store spells the key."
SLICE = "Slice that lakeFS wrote the object into; null outside of `data/<slice>/`."
SLICE_WINDOW = "Window that the slice falls into: the partition; `legacy` where there is no slice."
_LISTED_LAYOUTS = [layout.value for layout in Layout if layout is not Layout.SPECIAL]


class Frame(DataFrameModel):  # type: ignore[type-arg]
    """What all frames have in common."""

    class Config:
        """Columns that are not described are an error."""

        strict = True


class StoreFrame(Frame):
    """Every object of the store that a run looked at."""

    address: T.StringType() = pa.Field(nullable=False, description=ADDRESS)
    slice: T.StringType() = pa.Field(nullable=True, description=SLICE)
    slice_window: T.StringType() = pa.Field(nullable=False, description=SLICE_WINDOW)
    layout: T.StringType() = pa.Field(
        nullable=False,
        isin=_LISTED_LAYOUTS,
        description="Which layout the name belongs to; unrecognised ones are kept.",
    )
    issued_at: T.TimestampType() = pa.Field(
        nullable=True, description="When the name was issued; null where it has no time."
    )
    last_modified: T.TimestampType() = pa.Field(nullable=False, description="When the store says it was written.")
    size: T.LongType() = pa.Field(nullable=False, ge=0, description="Size in bytes.")
    etag: T.StringType() = pa.Field(nullable=True, description="ETag without quotes; null where the store has none.")


class UncommittedFrame(Frame):
    """Every address that is staged or tracked as copied."""

    address: T.StringType() = pa.Field(nullable=False, description=ADDRESS)
    slice: T.StringType() = pa.Field(nullable=True, description=SLICE)
    slice_window: T.StringType() = pa.Field(nullable=False, description=SLICE_WINDOW)


class CommittedFrame(Frame):
    """Every address that a live commit holds."""

    address: T.StringType() = pa.Field(nullable=False, description=ADDRESS)
    slice: T.StringType() = pa.Field(nullable=True, description=SLICE)
    slice_window: T.StringType() = pa.Field(nullable=False, description=SLICE_WINDOW)


class CandidatesFrame(StoreFrame):
    """Objects that nothing references and that are old enough: what a sweep deletes."""


class DeletedReportFrame(Frame):
    """What became of each candidate."""

    address: T.StringType() = pa.Field(nullable=False, description=ADDRESS)
    size: T.LongType() = pa.Field(nullable=False, ge=0, description="Size in bytes.")
    slice: T.StringType() = pa.Field(nullable=True, description=SLICE)
    slice_window: T.StringType() = pa.Field(nullable=False, description=SLICE_WINDOW)
    outcome: T.StringType() = pa.Field(
        nullable=False,
        isin=[outcome.value for outcome in Outcome if outcome not in (Outcome.COPIED, Outcome.RESTORED)],
        description="dry_run, accepted by the store, quarantined, failed, or kept_live at the recheck.",
    )
    error: T.StringType() = pa.Field(nullable=True, description="What the store said of a failed deletion.")
    decided_at: T.TimestampType() = pa.Field(nullable=False, description="When the outcome was known.")
    attempt: T.StringType() = pa.Field(nullable=True, description="The attempt of the run that decided.")
    version_id: T.StringType() = pa.Field(
        nullable=True,
        description="Version of the delete marker that the store made; null where its bucket keeps no versions.",
    )


MODELS: dict[str, type[Frame]] = {
    "store_df": StoreFrame,
    "uncommitted_df": UncommittedFrame,
    "committed_df": CommittedFrame,
    "candidates": CandidatesFrame,
    "deleted_report": DeletedReportFrame,
}
"""The model of each asset's frame."""


def description(model: type[Frame], column: str) -> str:
    """What a column means."""
    field: Any = model.to_schema().columns[column]
    return str(field.description or "")

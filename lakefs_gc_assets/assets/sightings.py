"""Objects uploaded in parts, and when a run listed them first.

The LastModified of such an object may be the moment its upload began, so it is collected only when an earlier run
listed it long enough ago. Each run keeps its sightings beside its frames, dry runs too.
"""

from datetime import datetime
from itertools import islice

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import run_folder
from lakefs_gc_assets.collection.eligibility import MULTIPART_ETAG, MULTIPART_SIGHTING_SECONDS
from lakefs_gc_assets.collection.tables import SIGHTINGS
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.sources import tasks

FRAME = "sightings"
_RUNS = 20


def earlier(run: Step, before: datetime) -> DataFrame:
    """First sightings (SIGHTINGS) of the newest runs that listed before a moment."""
    found: list[StoredFrame] = []
    for run_id in islice(run_folder.newest_runs(run.repository.store), _RUNS):
        try:
            frame = run.stored_of(run_id, FRAME)
        except OrderViolation:
            continue
        if frame.manifest.span.ended_at <= before and run_id != run.plan.run_id:
            found.append(frame)
    rows = tasks.of_table(run.spark, SIGHTINGS.empty_table())
    for frame in found:
        rows = rows.unionAll(frame.dataframe(run.spark))
    return rows.groupBy("address").agg(F.min("first_listed_at").alias("first_listed_at"))


def old_enough(sightings: DataFrame, listing_started_at: datetime) -> DataFrame:
    """Sightings long enough before this run's listing."""
    limit = _moment(listing_started_at) - F.expr(f"INTERVAL {MULTIPART_SIGHTING_SECONDS} SECONDS")
    return sightings.where(F.col("first_listed_at") <= limit)


def keep(run: Step, unreferenced: DataFrame | None, sightings: DataFrame, listing_ended_at: datetime) -> None:
    """Stores the sightings of this run: unreferenced objects uploaded in parts, with the end of their first listing.

    Args:
        unreferenced: rows of the listing; None where none of them was uploaded in parts.
        listing_ended_at: by then they were there; at its start they may not have been.
    """
    if unreferenced is None:
        run.store(FRAME, None)
        return
    seen = unreferenced.where(F.col("etag").rlike(MULTIPART_ETAG)).select("address", "slice_window")
    first = F.coalesce(F.col("first_listed_at"), _moment(listing_ended_at)).alias("first_listed_at")
    run.store(FRAME, seen.join(sightings, "address", "left").select("address", "slice_window", first))


def _moment(moment: datetime) -> Column:
    return F.timestamp_micros(F.lit(int(moment.timestamp() * 1_000_000)))

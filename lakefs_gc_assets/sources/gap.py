"""Live addresses that the listing lacks: a sign that references and objects are spelled differently or do not belong
together, so that the subtraction would miss what is live.
"""

from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.sources.subtraction import without

_ID_AT = len(DATA_PREFIX) + xids.LENGTH + len("/") + 1
"""Where the id begins in the name of an object that has a slice, counted from 1."""


def expected(live: DataFrame, slices: Iterable[str], cutoff: datetime) -> DataFrame:
    """Live addresses that a listing of the slices must have: those named before the cutoff.

    Ids sort by the time in them, so the cutoff is compared as the id that it would begin.
    """
    schema = pa.schema([pa.field("listed_slice", pa.string(), nullable=False)])
    listed = tasks.of_table(live.sparkSession, pa.table({"listed_slice": list(slices)}, schema))
    limit = xids.encode(int(cutoff.timestamp()).to_bytes(4) + bytes(8))
    of_slices = live.join(F.broadcast(listed), live["slice"] == listed["listed_slice"], "left_semi")
    return of_slices.where(F.substring("address", _ID_AT, xids.LENGTH) < F.lit(limit))


def missing(expected_addresses: DataFrame, listing: DataFrame) -> DataFrame:
    """Expected addresses that the listing lacks."""
    return without(expected_addresses, listing)

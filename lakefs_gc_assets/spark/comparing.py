"""Pure functions over DataFrames, those that take more than a line: why an object stays, what may be equal."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from lakefs_gc_assets.collector.eligibility import EMPTY_MD5, MULTIPART_ETAG, PLAIN_ETAG, Kept
from lakefs_gc_assets.collector.engine import KEPT_COUNTS, OUTCOME_COUNTS
from lakefs_gc_assets.collector.frame.columns import microseconds
from lakefs_gc_assets.lakefs.layout import Layout

# What a row is found by beside its content: that it is there, and that its content is not known.
_ANY, _UNKNOWN = "any", "unknown"


def moment(time: datetime) -> Column:
    """A moment as a column."""
    return F.timestamp_micros(F.lit(microseconds(time)))


def kept_because(
    unreferenced: DataFrame, cutoff: datetime, windows: Collection[str], sighted: DataFrame | None
) -> DataFrame:
    """Adds the column `kept`: why an unreferenced object stays (a value of Kept), null where it may go.

    Args:
        unreferenced: rows of the listing that nothing references.
        cutoff: LastModified and the time in the name must both be earlier.
        windows: the windows that the run collects.
        sighted: addresses (`address`) of objects uploaded in parts that an earlier run listed long enough ago; None
            where there are none.
    """
    limit = moment(cutoff)
    multipart = F.col("etag").rlike(MULTIPART_ETAG)
    if sighted is not None:
        multipart &= F.col("sighted").isNull()
    young = (F.col("last_modified") >= limit) | (F.col("issued_at") >= limit)
    timed = F.col("layout").isin(Layout.SLICE.value, Layout.SHARDED.value)
    reason = (
        F.when(F.col("layout") == Layout.UNRECOGNISED.value, F.lit(Kept.UNRECOGNISED.value))
        .when(F.coalesce(young, F.lit(False)) | (timed & F.col("issued_at").isNull()), F.lit(Kept.YOUNG.value))
        .when(~F.col("slice_window").isin(*windows), F.lit(Kept.OTHER_WINDOW.value))
        .when(F.coalesce(multipart, F.lit(False)), F.lit(Kept.MULTIPART.value))
    )
    told = unreferenced
    if sighted is not None:
        seen = sighted.select("address").distinct().withColumn("sighted", F.lit(True))
        told = told.join(seen, "address", "left")
    return told.withColumn("kept", reason).select(*unreferenced.columns, "kept")


def count_kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts the rows of each batch by why they stay (KEPT_COUNTS), and those of them that were uploaded in parts."""
    for batch in batches:
        ones = pa.array([1] * batch.num_rows, pa.int64())
        parts = pc.fill_null(pc.match_substring_regex(batch.column("etag"), MULTIPART_ETAG), False).cast(pa.int64())
        rows = pa.table([batch.column("kept"), ones, parts], schema=KEPT_COUNTS)
        yield from added_up(rows, KEPT_COUNTS).to_batches()


def count_outcomes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts receipts of each batch, and their bytes, by outcome (OUTCOME_COUNTS)."""
    for batch in batches:
        ones = pa.array([1] * batch.num_rows, pa.int64())
        rows = pa.table([batch.column("outcome"), ones, batch.column("size")], schema=OUTCOME_COUNTS)
        yield from added_up(rows, OUTCOME_COUNTS).to_batches()


def added_up(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Sums of all other columns for each value of the first."""
    first, *others = schema.names
    summed = rows.group_by(first).aggregate([(name, "sum") for name in others])
    columns = [summed.column(first), *(summed.column(f"{name}_sum") for name in others)]
    return pa.table(columns, names=schema.names).cast(schema)


def same_content(frame: DataFrame, others: DataFrame) -> DataFrame:
    """Rows of a frame that have the size of some row of another one, and its ETag where both are plain MD5.

    Both frames have `size` and `etag`. Objects of size 0 are the same whatever their ETags say.
    """
    content, present, unknown = _content(), F.lit(_ANY), F.lit(_UNKNOWN)
    mine = F.when(content.isNull(), F.array(present)).otherwise(F.array(content, unknown))
    theirs = F.when(content.isNull(), F.array(present, unknown)).otherwise(F.array(content, present))
    rows = frame.withColumn("alike", F.explode(mine))
    wanted = others.select("size", F.explode(theirs).alias("alike")).distinct()
    return rows.join(wanted, ["size", "alike"], "left_semi").select(*frame.columns).distinct()


def _content() -> Column:
    """The MD5 of an object's content, null where neither its size nor its ETag says.

    An encrypted object's ETag may look like an MD5; that of nothing needs no ETag.
    """
    return F.when(F.col("size") == 0, F.lit(EMPTY_MD5)).when(F.col("etag").rlike(PLAIN_ETAG), F.col("etag"))

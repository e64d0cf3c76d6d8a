"""Pure functions over DataFrames, those that take more than a line: what may be equal."""

from datetime import datetime

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from lakefs_gc_assets.collector.frame.columns import microseconds
from lakefs_gc_assets.collector.records.outcomes import EMPTY_MD5, PLAIN_ETAG

# What a row is found by beside its content: that it is there, and that its content is not known.
_ANY, _UNKNOWN = "any", "unknown"


def moment(time: datetime) -> Column:
    """A moment as a column."""
    return F.timestamp_micros(F.lit(microseconds(time)))


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

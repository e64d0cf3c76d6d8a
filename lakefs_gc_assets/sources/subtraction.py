"""Pure functions over frames: subtracting what is live, and telling what may go from what is kept all the same."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import pyspark.sql.functions as F
from pyspark.sql import Column, DataFrame

from lakefs_gc_assets.collection.eligibility import MULTIPART_ETAG, PLAIN_ETAG, Kept
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.sources import blocks, tasks
from lakefs_gc_assets.sources.tasks import Rows

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
# What a row is found by beside its content: that it is there, and that its content is not known.
_ANY, _UNKNOWN = "any", "unknown"
_FEW_ADDRESSES = 300_000
"""So many take about 100 MB of every executor, which is less work than to shuffle what they are joined with."""


def without(universe: Rows, *live: Rows, rows: int) -> DataFrame:
    """Rows whose address is in none of the live frames.

    Compared by a 64-bit hash: a collision keeps an object, it never loses one. Never use it for an intersection.

    Args:
        rows: how many rows all frames have together, about; it decides how much memory a task takes.
    """
    parts = blocks.parts_of(universe, rows)
    cut = [blocks.cut(universe, parts), *(blocks.cut_hashes(frame, parts, frame=1) for frame in live)]
    return blocks.compared(cut, blocks.unmatched, tasks.schema_of(universe))


def without_exactly(frame: DataFrame, addresses: DataFrame, rows: int | None = None) -> DataFrame:
    """Rows whose address is not among the addresses, compared as strings.

    Args:
        rows: how many addresses there are, where that is known.
    """
    return frame.join(_sent(addresses.select("address"), rows, _FEW_ADDRESSES), "address", "left_anti")


def among_exactly(frame: DataFrame, addresses: DataFrame, rows: int | None = None) -> DataFrame:
    """Rows whose address is among the addresses, compared as strings.

    Args:
        rows: how many addresses there are, where that is known.
    """
    return frame.join(_sent(addresses.select("address"), rows, _FEW_ADDRESSES), "address", "left_semi")


def _sent(frame: DataFrame, rows: int | None, few: int) -> DataFrame:
    """A frame to join with: where it has few rows it is sent to every task, else both sides are sorted into tasks."""
    return F.broadcast(frame) if rows is not None and rows <= few else frame


def count_by_sets(*frames: Rows, rows: int) -> dict[int, int]:
    """How many addresses are in the same frames, of at most eight, with one action: bit k of a key is frame k's.

    Compared by 128 bits: that two of a billion addresses have the same is less likely than one in 10^20.

    Args:
        rows: how many rows all frames have together, about.
    """
    parts = blocks.parts_of(frames[0], rows)
    cut = [blocks.cut_hashes(frame, parts, number, twice=True) for number, frame in enumerate(frames)]
    counts: Counter[int] = Counter()
    for row in blocks.compared(cut, blocks.counted, blocks.SETS).collect():
        counts[row["sets"]] += row["addresses"]
    return dict(counts)


def kept_because(unreferenced: DataFrame, cutoff: datetime, windows: Sequence[str], sighted: DataFrame) -> DataFrame:
    """Adds the column `kept`: why an unreferenced object stays (a value of Kept), null where it may go.

    Args:
        unreferenced: rows of the listing that nothing references.
        cutoff: LastModified and the time in the name must both be earlier.
        windows: the windows that the run collects.
        sighted: addresses (`address`) of objects uploaded in parts that an earlier run listed long enough ago.
    """
    moment = F.timestamp_micros(F.lit(int(cutoff.timestamp() * 1_000_000)))
    seen = sighted.select("address").distinct().withColumn("sighted", F.lit(True))
    multipart = F.col("etag").rlike(MULTIPART_ETAG) & F.col("sighted").isNull()
    young = (F.col("last_modified") >= moment) | (F.col("issued_at") >= moment)
    timed = F.col("layout").isin(Layout.SLICE.value, Layout.SHARDED.value)
    reason = (
        F.when(F.col("layout") == Layout.UNRECOGNISED.value, F.lit(Kept.UNRECOGNISED.value))
        .when(F.coalesce(young, F.lit(False)) | (timed & F.col("issued_at").isNull()), F.lit(Kept.YOUNG.value))
        .when(~F.col("slice_window").isin(*windows), F.lit(Kept.OTHER_WINDOW.value))
        .when(F.coalesce(multipart, F.lit(False)), F.lit(Kept.MULTIPART.value))
    )
    return unreferenced.join(seen, "address", "left").withColumn("kept", reason).drop("sighted")


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

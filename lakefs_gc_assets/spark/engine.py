"""The product's engine: tables of addresses on Spark."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collector.eligibility import MULTIPART_ETAG
from lakefs_gc_assets.collector.engine import ChangeBatches, ChangePart, Holds, Item, ReadItem, Result
from lakefs_gc_assets.collector.frame.schemas import LISTED
from lakefs_gc_assets.spark import blocks, comparing, tasks
from lakefs_gc_assets.spark.tasks import Reading, Rows, dataframe_of

FEW_ADDRESSES = 300_000
"""Up to so many are sent to every executor, about 100 MB: less work than to shuffle what they are joined with."""


class SparkEngine:
    """Makes and compares tables of addresses on Spark; `collector.engine.Engine` says what each operation gives.

    What a task can do alone with the rows that it reads is done in that task, before Spark gets the rows.
    """

    def __init__(self, spark: SparkSession, tasks: int) -> None:
        self._spark, self._tasks = spark, tasks

    @property
    def tasks(self) -> int:
        """How many tasks read or write files where no setting says otherwise."""
        return self._tasks

    def table(self, table: pa.Table) -> Rows:
        """Rows that the driver holds; a file's worth, since they travel with the plan."""
        return tasks.of_table(self._spark, table)

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> Rows:
        """Rows that tasks read, of at most a few hundred megabytes of items: these travel with the function."""
        return Reading(self._spark, groups, read, schema)

    def union(self, first: Rows, *more: Rows) -> Rows:
        """All rows of frames that have the same columns, in the tasks that each of them has."""
        return tasks.union([first, *more]) if more else first

    def select(self, rows: Rows, *columns: str) -> Rows:
        """Some columns, in this order."""
        return tasks.select(rows, *columns)

    def where(self, rows: Rows, holds: Holds) -> Rows:
        """The rows of which something holds."""
        return tasks.where(rows, holds)

    def where_among(self, rows: Rows, column: str, values: Sequence[str | None]) -> Rows:
        """The rows whose text in a column is among the values; None stands for null."""
        return tasks.where_among(rows, column, values)

    def map_batches(self, rows: Rows, change: ChangeBatches, schema: pa.Schema) -> Rows:
        """What a function makes of the rows of each task, in the task that reads them."""
        return tasks.map_batches(rows, change, schema)

    def map_distinct(self, frames: Sequence[Rows], change: ChangeBatches, schema: pa.Schema, count: int) -> Rows:
        """What a function makes of one row for each address; it runs once in each task, which has many parts."""
        parts = blocks.parts_of(frames[0], count)
        return blocks.merged([blocks.cut_once(rows, parts) for rows in frames], change, schema)

    def map_by_address(self, rows: Rows, change: ChangePart, schema: pa.Schema, count: int) -> Rows:
        """What a function makes of the rows, which it gets in parts: all of one address are in one part."""
        return blocks.compared([blocks.cut(rows, blocks.parts_of(rows, count))], blocks.changed(change), schema)

    def distinct(self, rows: Rows) -> Rows:
        """Each row once."""
        return dataframe_of(rows).distinct()

    def without(self, rows: Rows, *live: Rows, count: int) -> Rows:
        """The rows whose address is in none of the live frames, compared by a 64-bit hash: a collision keeps."""
        parts = blocks.parts_of(rows, count)
        cut = [blocks.cut(rows, parts), *(blocks.cut_hashes(frame, parts, frame=1) for frame in live)]
        return blocks.compared(cut, blocks.unmatched, tasks.schema_of(rows))

    def without_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        """The rows whose address is not among the addresses; few of these are sent to every task."""
        return _joined(rows, tasks.select(addresses, "address"), ["address"], "left_anti", count)

    def among_exactly(self, rows: Rows, addresses: Rows, count: int | None = None) -> Rows:
        """The rows whose address is among the addresses; few of these are sent to every task."""
        return _joined(rows, tasks.select(addresses, "address"), ["address"], "left_semi", count)

    def without_matching(self, rows: Rows, others: Rows, columns: Sequence[str]) -> Rows:
        """The rows that have no equal in all of these columns; null equals nothing."""
        return _joined(rows, tasks.select(others, *columns), columns, "left_anti")

    def kept_because(self, unreferenced: Rows, cutoff: datetime, windows: Collection[str], sighted: Rows) -> Rows:
        """Adds the column `kept`: why an unreferenced object stays, null where it may go."""
        return comparing.kept_because(dataframe_of(unreferenced), cutoff, windows, dataframe_of(sighted))

    def same_content(self, rows: Rows, others: Rows) -> Rows:
        """Rows, each once, that have the size of some row of `others`, and its ETag where both are plain MD5."""
        return comparing.same_content(dataframe_of(rows), dataframe_of(others))

    def youngest_of_each(self, rows: Rows) -> Rows:
        """One row (LISTED) for each address: the one that was modified last."""
        newest = F.max_by(F.struct(*LISTED.names), "last_modified").alias("row")
        return dataframe_of(rows).groupBy("address").agg(newest).select("row.*")

    def earliest_sightings(self, rows: Rows) -> Rows:
        """For each address its earliest `first_listed_at`."""
        return dataframe_of(rows).groupBy("address").agg(F.min("first_listed_at").alias("first_listed_at"))

    def sightings_of(self, rows: Rows, earlier: Rows, listed_at: datetime) -> Rows:
        """The rows as sightings (SIGHTINGS): listed first when an earlier sighting says, else at a moment."""
        seen = dataframe_of(tasks.select(rows, "address", "slice_window"))
        first = F.coalesce(F.col("first_listed_at"), comparing.moment(listed_at)).alias("first_listed_at")
        return seen.join(dataframe_of(earlier), "address", "left").select("address", "slice_window", first)

    def count(self, rows: Rows) -> int:
        """How many rows there are."""
        return dataframe_of(rows).count()

    def collect(self, rows: Rows, limit: int | None = None) -> pa.Table:
        """The rows in the driver, at most so many: no task sends more."""
        found = dataframe_of(rows)
        return (found if limit is None else found.limit(limit)).toArrow()

    def count_by_sets(self, *frames: Rows, count: int) -> dict[int, int]:
        """How many distinct addresses are in the same frames, with one action: bit k of a key is frame k's."""
        parts = blocks.parts_of(frames[0], count)
        cut = [blocks.cut_hashes(frame, parts, number, twice=True) for number, frame in enumerate(frames)]
        counts: Counter[int] = Counter()
        for row in blocks.compared(cut, blocks.counted, blocks.SETS).collect():
            counts[row["sets"]] += row["addresses"]
        return dict(counts)

    def count_kept(self, rows: Rows) -> pa.Table:
        """Rows with the column `kept` counted by it: `kept` (null: may go), `objects` and `multipart`."""
        multipart = F.count_if(F.col("etag").rlike(MULTIPART_ETAG)).alias("multipart")
        return dataframe_of(rows).groupBy("kept").agg(F.count("*").alias("objects"), multipart).toArrow()

    def count_outcomes(self, receipts: Rows) -> pa.Table:
        """Receipts counted by outcome: columns `outcome`, `objects` and `bytes`."""
        counted = F.count("*").alias("objects"), F.sum("size").alias("bytes")
        return dataframe_of(receipts).groupBy("outcome").agg(*counted).toArrow()

    def cached(self, rows: Rows, at_most: int) -> AbstractContextManager[Rows]:
        """Rows for several uses: the driver collects them where they are few; else Spark keeps them until the exit."""
        return tasks.cached(dataframe_of(rows), at_most)

    def in_background(self, work: Callable[[], Result]) -> AbstractContextManager[Callable[[], Result]]:
        """Does a piece of the driver's work in another thread."""
        return tasks.in_background(work)


def _joined(rows: Rows, others: Rows, columns: Sequence[str], how: str, count: int | None = None) -> DataFrame:
    """A frame joined with another one, which is sent to every task where it is known to have few rows.

    Else both are sorted into tasks, unless Spark itself knows better.
    """
    frame, found = dataframe_of(rows), dataframe_of(others)
    sent = F.broadcast(found) if count is not None and count <= FEW_ADDRESSES else found
    return frame.join(sent, list(columns), how).select(*frame.columns)

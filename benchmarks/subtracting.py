"""Subtraction of committed from listed addresses beside Spark's EXCEPT of the same frames, in one session."""

import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks import repositories
from benchmarks.marks import Measure, at_least, figure
from lakefs_gc_assets.configuration import SparkSettings
from lakefs_gc_assets.resources import SparkResource
from lakefs_gc_assets.sources import subtraction

_COMMITTED, _LISTED, _GARBAGE = 6_000_000, 3_000_000, 1_000_000
_FILES = 8
_ROUNDS = 2


def measured() -> list[Measure]:
    """Seconds of both, the better of two rounds each, and how many times ours is as fast."""
    spark = SparkResource(**SparkSettings().model_dump()).session()
    with tempfile.TemporaryDirectory() as folder:
        names = pa.array(repositories.addresses(_COMMITTED + _GARBAGE, repositories.BORN), pa.string())
        committed, listed = names.slice(0, _COMMITTED), names.slice(_COMMITTED + _GARBAGE - _LISTED)
        for kind, addresses in (("committed", committed), ("listed", listed)):
            _write(Path(folder, kind), addresses)
        live = spark.read.parquet(f"{folder}/committed")
        universe = spark.read.parquet(f"{folder}/listed")
        ours, theirs = float("inf"), float("inf")
        for _ in range(_ROUNDS):
            ours = min(ours, _seconds(subtraction.without(universe, live)))
            theirs = min(theirs, _seconds(universe.subtract(live)))
    spark.stop()
    return [
        figure("subtraction: 3 million listed, 6 million committed", ours, "s"),
        figure("subtraction: Spark's EXCEPT", theirs, "s"),
        at_least("subtraction: times as fast as EXCEPT", theirs / ours, "times", 3),
    ]


def _write(folder: Path, addresses: pa.StringArray) -> None:
    folder.mkdir()
    size = -(-len(addresses) // _FILES)
    for number in range(_FILES):
        part = pa.table({"address": addresses.slice(number * size, size)})
        pq.write_table(part, folder / f"{number}.parquet")


def _seconds(frame: DataFrame) -> float:
    began = time.perf_counter()
    count = frame.count()
    seconds = time.perf_counter() - began
    if count != _GARBAGE:
        raise AssertionError(f"{count:,} candidates, {_GARBAGE:,} are right")
    return seconds

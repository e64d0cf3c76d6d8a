"""Subtraction of committed from listed objects beside what Spark has for it, of the same files, in one session."""

import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyspark.sql.functions as F

from benchmarks import repositories
from benchmarks.marks import Measure, at_least, figure
from lakefs_gc_assets.collector.frame.columns import LISTED_COLUMNS, LIVE_COLUMNS
from lakefs_gc_assets.collector.frame.files import FileWriter
from lakefs_gc_assets.collector.frame.kinds import Frame, NoFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.order import Span
from lakefs_gc_assets.defs.resources import SparkResource
from lakefs_gc_assets.settings import SparkSettings, StoreSettings
from lakefs_gc_assets.spark.engine import FEW_HASHES, SparkEngine
from lakefs_gc_assets.spark.tasks import Rows, dataframe_of
from lakefs_gc_assets.storage.opening import StoreOpener

_COMMITTED, _LISTED, _GARBAGE = 6_000_000, 3_000_000, 1_000_000
_COMMITTED_DF = Frame("committed", "What commits hold.", LIVE_COLUMNS, NoFigures)
_LISTED_DF = Frame("listed", "What is stored.", LISTED_COLUMNS, NoFigures)
_FILES = 8
_ROUNDS = 3
_HASHES_FIRST, _ROWS_TRAVEL = "hashes first", "rows travel"
_EXCEPT, _ANTI_JOIN, _HASHED_ANTI_JOIN = "Spark's EXCEPT", "Spark's left_anti", "Spark's left_anti on xxhash64"


def measured() -> list[Measure]:
    """Seconds of each way, the median of three rounds, and how many times the slower one of ours is as fast as Spark's.

    Spark compares all columns by EXCEPT, so it gets the addresses alone; all others give whole rows.
    """
    spark = SparkResource(**SparkSettings().model_dump()).session()
    engine = SparkEngine(spark, _FILES)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "frames").mkdir()
        names = pa.array(repositories.addresses(_COMMITTED + _GARBAGE, repositories.BORN), pa.string())
        committed = _stored(folder, _COMMITTED_DF, names.slice(0, _COMMITTED))
        listed = _stored(folder, _LISTED_DF, names.slice(_COMMITTED + _GARBAGE - _LISTED))
        universe, live = (
            spark.read.parquet(*(f"{folder}/frames/{file.key}" for file in frame.manifest.files))
            for frame in (listed, committed)
        )
        held, digest = live.select("address"), F.xxhash64("address").alias("digest")

        def ours(least: int) -> Rows:
            committed_rows = committed.rows(engine, "address")
            return engine.without(listed.rows(engine), committed_rows, count=_LISTED + _COMMITTED, least=least)

        ways: dict[str, Callable[[], Rows]] = {
            _HASHES_FIRST: lambda: ours(0),
            _ROWS_TRAVEL: lambda: ours(FEW_HASHES + 1),
            _EXCEPT: lambda: universe.select("address").subtract(held),
            _ANTI_JOIN: lambda: universe.join(held, "address", "left_anti"),
            _HASHED_ANTI_JOIN: lambda: universe.select("*", digest).join(held.select(digest), "digest", "left_anti"),
        }
        rounds = [{name: _seconds(way) for name, way in ways.items()} for _ in range(_ROUNDS)]
    spark.stop()
    took = {name: statistics.median(each[name] for each in rounds) for name in ways}
    times = took[_EXCEPT] / max(took[_HASHES_FIRST], took[_ROWS_TRAVEL])
    return [
        *(figure(f"subtraction, 6 from 3 million: {name}", seconds, "s") for name, seconds in took.items()),
        at_least("subtraction: times as fast as EXCEPT", times, "times", 3),
    ]


def _stored(folder: str, frame: Frame[NoFigures], addresses: pa.StringArray) -> StoredFrame[NoFigures]:
    """A frame of these addresses in a local folder; its other columns are alike in all rows."""
    opener = StoreOpener(StoreSettings(local_root=folder), "local://frames")
    now, schema = datetime.now(UTC), frame.schema
    usual = {"slice_window": "2026-11", "layout": "slice", "last_modified": now, "size": 1}
    files = []
    for number in range(_FILES):
        part = addresses.slice(number * len(addresses) // _FILES, len(addresses) // _FILES)
        others = (pa.repeat(pa.scalar(usual.get(column.name), column.type), len(part)) for column in list(schema)[1:])
        writer = FileWriter(opener.open(), f"{frame.name}/", schema)
        for batch in pa.table([part, *others], schema=schema).to_batches(max_chunksize=65_536):
            writer.write(batch)
        files += writer.close()
    return StoredFrame(frame, Manifest(Span(frame.name, "", "", now, now), tuple(files), NoFigures()), opener)


def _seconds(way: Callable[[], Rows]) -> float:
    began = time.perf_counter()
    # All columns are made: a mere count would let Spark leave them out.
    found = dataframe_of(way()).agg(F.count("*"), F.max("address")).collect()
    seconds = time.perf_counter() - began
    if found[0][0] != _GARBAGE:
        raise AssertionError(f"{found[0][0]:,} candidates, {_GARBAGE:,} are right")
    return seconds

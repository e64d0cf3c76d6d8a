"""Subtraction of committed from listed addresses beside Spark's EXCEPT of the same files, in one session."""

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from benchmarks import repositories
from benchmarks.marks import Measure, at_least, figure
from lakefs_gc_assets.collector.frame.files import FileWriter
from lakefs_gc_assets.collector.frame.kinds import Frame, NoFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.frame.schemas import LISTED, LIVE
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.order import Span
from lakefs_gc_assets.defs.resources import SparkResource
from lakefs_gc_assets.settings import SparkSettings, StoreSettings
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.tasks import Rows, dataframe_of
from lakefs_gc_assets.storage.opening import StoreOpener

_COMMITTED, _LISTED, _GARBAGE = 6_000_000, 3_000_000, 1_000_000
_FILES = 8
_ROUNDS = 2


def measured() -> list[Measure]:
    """Seconds of both, the better of two rounds each, and how many times ours is as fast."""
    spark = SparkResource(**SparkSettings().model_dump()).session()
    engine = SparkEngine(spark, _FILES)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "frames").mkdir()
        names = pa.array(repositories.addresses(_COMMITTED + _GARBAGE, repositories.BORN), pa.string())
        committed = _stored(folder, Frame("committed", LIVE, NoFigures), names.slice(0, _COMMITTED))
        listed = _stored(folder, Frame("listed", LISTED, NoFigures), names.slice(_COMMITTED + _GARBAGE - _LISTED))
        universe, live = (
            spark.read.parquet(*(f"{folder}/frames/{file.key}" for file in frame.manifest.files)).select("address")
            for frame in (listed, committed)
        )
        ours, theirs = float("inf"), float("inf")
        for _ in range(_ROUNDS):
            left = engine.without(
                listed.rows(engine, "address"), committed.rows(engine, "address"), count=_LISTED + _COMMITTED
            )
            ours = min(ours, _seconds(left))
            theirs = min(theirs, _seconds(universe.subtract(live)))
    spark.stop()
    return [
        figure("subtraction: 3 million listed, 6 million committed", ours, "s"),
        figure("subtraction: Spark's EXCEPT", theirs, "s"),
        at_least("subtraction: times as fast as EXCEPT", theirs / ours, "times", 3),
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


def _seconds(rows: Rows) -> float:
    began = time.perf_counter()
    count = dataframe_of(rows).count()
    seconds = time.perf_counter() - began
    if count != _GARBAGE:
        raise AssertionError(f"{count:,} candidates, {_GARBAGE:,} are right")
    return seconds

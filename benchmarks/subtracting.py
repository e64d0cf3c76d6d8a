"""Subtraction of committed from listed objects, compared with Spark's and libraries' operations on the same files.

polars and duckdb are optional: they are measured if they are installed.
"""

import importlib.util
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from benchmarks import processes, repositories
from benchmarks.collecting import in_session_of_spark
from benchmarks.marks import Measure, figure
from lakefs_gc_assets.collector.engine import work
from lakefs_gc_assets.collector.engine.hashing import Flags, Hashes
from lakefs_gc_assets.collector.frame.files import FileWriter, Manifest, Span, StoredFrame
from lakefs_gc_assets.collector.frame.frames import LISTED_COLUMNS, LIVE_COLUMNS, Frame, NoFigures
from lakefs_gc_assets.defs.resources import session
from lakefs_gc_assets.settings import SparkSettings, StoreSettings
from lakefs_gc_assets.spark import blocks, tasks
from lakefs_gc_assets.spark.engine import FEW_HASHES, SparkEngine
from lakefs_gc_assets.spark.tasks import Rows, dataframe_of
from lakefs_gc_assets.storage.opening import StoreOpener

_COMMITTED, _LISTED, _GARBAGE = 6_000_000, 3_000_000, 1_000_000
_COMMITTED_DF = Frame("committed", "What commits hold.", LIVE_COLUMNS, NoFigures)
_LISTED_DF = Frame("listed", "What is stored.", LISTED_COLUMNS, NoFigures)
_FILES = 8
_ROUNDS = 3
_ROWS_AT_ONCE = 262_144

Hash = Callable[[pa.StringArray], Hashes]
Among = Callable[[Hashes, Hashes], Flags]
AntiJoin = Callable[[pa.Table, pa.Table], pa.Table]
Compare = Callable[[DataFrame, DataFrame, int], DataFrame]
"""Rows of the first frame whose address is missing from the second; the number is the approximate sum of both."""


@dataclass(frozen=True)
class _Stored:
    """Two frames in a local folder; the second is subtracted."""

    folder: str
    listed: StoredFrame[NoFigures]
    committed: StoredFrame[NoFigures]

    def paths(self, frame: StoredFrame[NoFigures]) -> list[str]:
        """The Parquet files of a frame, for libraries that read files themselves and check no digests."""
        return [f"{self.folder}/frames/{file.key}" for file in frame.manifest.files]


Way = Callable[[SparkEngine, _Stored], Rows | pa.Table]
"""Finds rows of the listed frame whose address is missing from the committed frame."""


@dataclass(frozen=True)
class _Cost:
    """Medians of rounds over all processes of a session, with its peak memory; shared pages count once."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measured() -> list[Measure]:
    """The cost by way, in separate sessions, and the speedup of our slower way over EXCEPT.

    Spark's EXCEPT compares all columns, so it gets only addresses; all other ways return whole rows.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "frames").mkdir()
        names = pa.array(repositories.addresses(_COMMITTED + _GARBAGE, repositories.BORN), pa.string())
        committed = _stored(folder, _COMMITTED_DF, names.slice(0, _COMMITTED))
        listed = _stored(folder, _LISTED_DF, names.slice(_COMMITTED + _GARBAGE - _LISTED))
        del names
        found = {name: _measured_apart(name, _Stored(folder, listed, committed)) for name in _ways()}
    times = found[_EXCEPT].seconds / max(found[_HASHES_FIRST].seconds, found[_ROWS_TRAVEL].seconds)
    return [
        *(
            measure
            for name, cost in found.items()
            for measure in (
                figure(f"6 from 3 million: {name}", cost.seconds, "s"),
                figure(f"6 from 3 million: {name}", cost.cpu_seconds, "processor s"),
                figure(f"6 from 3 million: {name}", cost.peak_bytes / 1e9, "GB"),
            )
        ),
        figure("subtraction: times as fast as EXCEPT", times, "times"),
    ]


def _measured_apart(name: str, stored: _Stored) -> _Cost:
    """The cost of a way in a separate process, whose heap and Java no other way has used.

    Spark's own ways, and libraries called by Spark, get a session with Spark's settings.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_measured_here, name, stored).result()


def _measured_here(name: str, stored: _Stored) -> _Cost:
    settings = SparkSettings()
    is_ours = name in (_HASHES_FIRST, _ROWS_TRAVEL) or name.endswith("in our blocks")
    spark = session(settings if is_ours else in_session_of_spark(settings))
    way, engine = _ways()[name], SparkEngine(spark, _FILES)
    spark.range(0, 2, 1, 2).mapInArrow(_same, "id long").distinct().collect()
    rounds = []
    with processes.sampled(os.getpid()) as memory:
        for _ in range(_ROUNDS):
            began, used = time.perf_counter(), processes.processor_seconds(os.getpid())
            _require(way(engine, stored))
            rounds.append((time.perf_counter() - began, processes.processor_seconds(os.getpid()) - used))
    spark.stop()
    seconds, cpu_seconds = (statistics.median(each) for each in zip(*rounds, strict=True))
    return _Cost(seconds, cpu_seconds, memory.peak())


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _require(found: Rows | pa.Table) -> None:
    """Requests all rows with all columns: for a mere count, Spark would skip the columns."""
    if isinstance(found, pa.Table):
        rows, last = found.num_rows, pc.max(found.column("address")).as_py()
    else:
        rows, last = dataframe_of(found).agg(F.count("*"), F.max("address")).collect()[0]
    if rows != _GARBAGE or last is None:
        raise AssertionError(f"{rows:,} candidates, {_GARBAGE:,} are right")


_HASHES_FIRST, _ROWS_TRAVEL = "hashes first", "rows travel"
_EXCEPT = "Spark's EXCEPT"


def _ways() -> dict[str, Way]:
    """Ways of this project, of Spark and of installed libraries, by their names in figures."""
    ways: dict[str, Way] = {
        _HASHES_FIRST: partial(_ours, 0),
        _ROWS_TRAVEL: partial(_ours, FEW_HASHES + 1),
        _EXCEPT: _by_except,
        "Spark's left_anti": partial(_by, by_address),
        "Spark's left_anti on xxhash64": partial(_by, by_hash),
        "pyarrow in cogrouped parts": partial(_by, partial(in_parts, _anti_join_of_pyarrow)),
    }
    if importlib.util.find_spec("polars"):
        ways |= {
            "polars in cogrouped parts": partial(_by, partial(in_parts, anti_join_of_polars)),
            "polars' hashes and look-up in our blocks": partial(_in_blocks, _hash_of_polars, _among_of_polars),
            "polars alone, without Spark": _polars_alone,
        }
    if importlib.util.find_spec("duckdb"):
        ways |= {
            "duckdb in cogrouped parts": partial(_by, partial(in_parts, anti_join_of_duckdb)),
            "duckdb's hashes and look-up in our blocks": partial(_in_blocks, _hash_of_duckdb, _among_of_duckdb),
            "duckdb alone, without Spark": _duckdb_alone,
        }
    return ways


def _ours(least: int, engine: SparkEngine, stored: _Stored) -> Rows:
    committed = stored.committed.rows(engine, "address")
    return engine.without(stored.listed.rows(engine), committed, count=_LISTED + _COMMITTED, least=least)


def _read_by_spark(engine: SparkEngine, stored: _Stored) -> tuple[DataFrame, DataFrame]:
    """The listed rows, and the addresses of the committed rows."""
    read = engine.spark.read.parquet
    return read(*stored.paths(stored.listed)), read(*stored.paths(stored.committed)).select("address")


def _by_except(engine: SparkEngine, stored: _Stored) -> Rows:
    listed, committed = _read_by_spark(engine, stored)
    return listed.select("address").subtract(committed)


def _by(compare: Compare, engine: SparkEngine, stored: _Stored) -> Rows:
    return compare(*_read_by_spark(engine, stored), _LISTED + _COMMITTED)


def by_address(rows: DataFrame, live: DataFrame, count: int) -> DataFrame:
    """By Spark's own join of strings."""
    return rows.join(live, "address", "left_anti").select(*rows.columns)


def by_hash(rows: DataFrame, live: DataFrame, count: int) -> DataFrame:
    """By Spark's own join of hashes; a collision keeps a row."""
    digest = F.xxhash64("address").alias("digest")
    joined = rows.select("*", digest).join(live.select(digest), "digest", "left_anti")
    return joined.select(*rows.columns)


def in_parts(anti_join: AntiJoin, rows: DataFrame, live: DataFrame, count: int) -> DataFrame:
    """Lets a library compare, and Spark do all else: rows of a partition meet in one task."""
    part = F.pmod(F.xxhash64("address"), F.lit(blocks.parts_of(rows, count)))
    names = rows.columns

    def compare(mine: pa.Table, theirs: pa.Table) -> pa.Table:
        return anti_join(mine, theirs).select(names).cast(mine.schema)

    return rows.groupBy(part).cogroup(live.groupBy(part)).applyInArrow(compare, rows.schema)


def _in_blocks(hash_addresses: Hash, among: Among, engine: SparkEngine, stored: _Stored) -> Rows:
    """Our blocks, with a library's hashes and lookup in place of ours."""
    listed, committed = stored.listed.rows(engine), stored.committed.rows(engine, "address")
    parts = blocks.parts_of(listed, _LISTED + _COMMITTED)

    def cut_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in work.gather(batches, _ROWS_AT_ONCE):
            yield blocks._cut_hashed(parts, 0, rows, hash_addresses(rows.column("address")))

    def cut_hashes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in work.gather(batches, _ROWS_AT_ONCE):
            hashes = hash_addresses(rows.column("address"))
            cuts = blocks.Cuts.by_part(hashes, parts)
            yield cuts.blocks(1, cuts.binary(hashes))

    def unmatched(part: pa.Table) -> pa.Table:
        universe, others = blocks._divided(part)
        hashes, live = (blocks._numbers(each, "hashes") for each in (universe, others))
        return blocks._rows(universe).filter(pa.array(~among(hashes, live))) if universe.num_rows else pa.table({})

    cut = [tasks.map_batches(listed, cut_rows, blocks.BLOCKS), tasks.map_batches(committed, cut_hashes, blocks.BLOCKS)]
    return blocks.compared(cut, parts, unmatched, tasks.schema_of(listed))


def _anti_join_of_pyarrow(mine: pa.Table, theirs: pa.Table) -> pa.Table:
    return mine.join(theirs, "address", join_type="left anti", use_threads=False)


def _polars() -> Any:
    """polars with one thread, as a Spark task has one core."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars

    return polars


def anti_join_of_polars(mine: pa.Table, theirs: pa.Table) -> pa.Table:
    """Rows of `mine` whose address is missing from `theirs`."""
    polars = _polars()
    joined = polars.from_arrow(mine).join(polars.from_arrow(theirs), on="address", how="anti")
    return joined.to_arrow(compat_level=polars.CompatLevel.oldest())


def _hash_of_polars(addresses: pa.StringArray) -> Hashes:
    hashes: Hashes = _polars().from_arrow(addresses).hash(seed=0).to_numpy()
    return hashes


def _among_of_polars(wanted: Hashes, others: Hashes) -> Flags:
    polars = _polars()
    flags: Flags = polars.Series(wanted).is_in(polars.Series(others).implode()).to_numpy()
    return flags


def _polars_alone(engine: SparkEngine, stored: _Stored) -> pa.Table:
    import polars

    listed, committed = (polars.scan_parquet(stored.paths(frame)) for frame in (stored.listed, stored.committed))
    joined = listed.join(committed.select("address"), on="address", how="anti").collect(engine="streaming")
    return joined.to_arrow(compat_level=polars.CompatLevel.oldest())


def _duckdb(threads: int = 1) -> Any:
    import duckdb

    return duckdb.connect(config={"threads": threads})


def anti_join_of_duckdb(mine: pa.Table, theirs: pa.Table) -> pa.Table:
    """Rows of `mine` whose address is missing from `theirs`."""
    database = _duckdb().register("mine", mine).register("theirs", theirs)
    return database.sql("SELECT * FROM mine ANTI JOIN theirs USING (address)").to_arrow_table()


def _hash_of_duckdb(addresses: pa.StringArray) -> Hashes:
    database = _duckdb().register("rows", pa.table({"address": addresses}))
    hashes: Hashes = database.sql("SELECT hash(address) AS hash FROM rows").to_arrow_table().column("hash").to_numpy()
    return hashes


def _among_of_duckdb(wanted: Hashes, others: Hashes) -> Flags:
    database = _duckdb().register("wanted", pa.table({"hash": wanted})).register("others", pa.table({"hash": others}))
    found = database.sql("SELECT hash IN (SELECT hash FROM others) AS among FROM wanted").to_arrow_table()
    flags: Flags = found.column("among").to_numpy()
    return flags


def _duckdb_alone(engine: SparkEngine, stored: _Stored) -> pa.Table:
    database = _duckdb(os.cpu_count() or 1)
    for name, frame in (("listed", stored.listed), ("committed", stored.committed)):
        database.read_parquet(stored.paths(frame)).create_view(name)
    return database.sql("SELECT * FROM listed ANTI JOIN committed USING (address)").to_arrow_table()


def _stored(folder: str, frame: Frame[NoFigures], addresses: pa.StringArray) -> StoredFrame[NoFigures]:
    """A frame with these addresses in a local folder; all rows have the same values in other columns."""
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

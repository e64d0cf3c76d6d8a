import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.frame.frames import LISTED, LIVE
from lakefs_gc_assets.errors import EngineFault
from lakefs_gc_assets.spark import blocks, tasks
from lakefs_gc_assets.spark.faults import from_worker
from lakefs_gc_assets.spark.tasks import Reading, Rows
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

# Each example takes a few Spark jobs, so there are few examples with many rows each.
FEW = settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
NAMES = st.text(max_size=70) | st.sampled_from([f"data/slice/{number}" for number in range(20)])
ADDRESSES = st.lists(NAMES, max_size=80)
PARTS = st.integers(1, 40)


@pytest.fixture(scope="module", autouse=True)
def session(spark: SparkSession) -> SparkSession:
    return spark


def read_by_tasks(spark: SparkSession, table: pa.Table) -> Rows:
    half = table.num_rows // 2
    return Reading(spark, [[table.slice(0, half)], [table.slice(half)]], pa.Table.to_batches, table.schema)


def held_by_spark(spark: SparkSession, table: pa.Table) -> Rows:
    return tasks.of_table(spark, table)


@pytest.fixture(params=[read_by_tasks, held_by_spark])
def made(request: pytest.FixtureRequest, spark: SparkSession) -> Callable[[pa.Table], Rows]:
    return partial(request.param, spark)


Made = Callable[[pa.Table], Rows]


def listing(addresses: list[str]) -> pa.Table:
    return pa.Table.from_pylist([listed(address, size=place) for place, address in enumerate(addresses)], LISTED)


def living(addresses: list[str]) -> pa.Table:
    return pa.Table.from_pylist([live(address) for address in addresses], LIVE)


@FEW
@given(ADDRESSES, ADDRESSES, ADDRESSES, PARTS)
def test_rows_that_no_other_frame_has(
    made: Made, universe: list[str], one: list[str], other: list[str], parts: int
) -> None:
    rows = listing(universe)
    cut = [
        blocks.cut(made(rows), parts),
        blocks.cut_hashes(made(living(one)), parts, 1),
        blocks.cut_hashes(made(living(other)), parts, 1),
    ]

    found = tasks.collect(tasks.dataframe_of(blocks.compared(cut, parts, blocks.unmatched, LISTED)))

    left = [row for row in rows.to_pylist() if row["address"] not in {*one, *other}]
    assert sorted(found.to_pylist(), key=str) == sorted(left, key=str)


@FEW
@given(ADDRESSES)
def test_hashes_are_those_of_spark(spark: SparkSession, addresses: list[str]) -> None:
    frame = tasks.of_table(spark, pa.table({"address": pa.array(addresses, pa.string())}))
    theirs = frame.select("address", F.xxhash64("address").alias("hash")).collect()

    ours = hashing.hashes(pa.array([row["address"] for row in theirs], pa.string())).astype(np.int64)

    assert ours.tolist() == [row["hash"] for row in theirs]


@pytest.mark.parametrize("parts", [1, 7, 5000])
def test_each_row_is_in_the_block_of_its_part_as_a_stream_of_arrow(parts: int) -> None:
    rows = pa.concat_batches(listing([f"data/{number}" for number in range(300)]).to_batches())
    cut = pa.Table.from_batches([blocks._cut_rows(parts, 3, False, rows)])
    by_arrow = [tasks.of_stream(stream.as_buffer()) for stream in cut["rows"]]
    assert blocks._rows(cut).equals(pa.concat_tables(by_arrow))
    assert blocks._rows(cut).sort_by("address").to_pylist() == pa.table(rows).sort_by("address").to_pylist()
    for part, hashed, of_part in zip(cut["part"].to_pylist(), cut["hashes"].to_pylist(), by_arrow, strict=True):
        hashes = hashing.hashes(of_part["address"].combine_chunks())
        assert hashed == hashes.tobytes() and set(hashing.parts(hashes, parts).tolist()) == {part}


def test_rows_of_blocks_that_lack_other_columns_are_not_mixed_up() -> None:
    few = pa.record_batch({"address": ["data/1"]})
    whole = blocks._cut_rows(1, 0, False, pa.concat_batches(listing(["data/2"]).to_batches()))
    with pytest.raises(pa.ArrowInvalid):
        blocks._rows(pa.Table.from_batches([whole, blocks._cut_rows(1, 0, False, few)]))


def witness(part: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"part": part, "frame": blocks._WITNESS, "hashes": b""}], blocks.BLOCKS)


def in_order(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Blocks as Spark hands them over."""
    order = [("part", "ascending"), ("frame", "ascending")]
    return pa.Table.from_batches(batches).sort_by(order).combine_chunks()


@pytest.mark.parametrize("witnesses", [[0], [0, 1, 1], []])
def test_a_part_without_its_witness_is_an_error(witnesses: list[int]) -> None:
    cut = list(blocks._blocks(2, partial(blocks._cut_first, 2), living(["a", "b", "c", "d"]).to_batches()))

    with pytest.raises(EngineFault, match="to several tasks"):
        list(blocks._each_part(in_order([*cut, *map(witness, witnesses)]).to_batches()))


@given(ADDRESSES, ADDRESSES, ADDRESSES, PARTS, st.integers(1, 5))
def test_a_task_that_is_ended_takes_no_part_for_a_whole_one(
    universe: list[str], one: list[str], other: list[str], parts: int, rows_of_a_batch: int
) -> None:
    """Spark may stop passing on rows after any batch: finished parts are right, and the others are not made."""
    cut = [
        *blocks._blocks(parts, partial(blocks._cut_rows, parts, 0, False), listing(universe).to_batches()),
        *blocks._blocks(parts, partial(blocks._cut_hashes, parts, 1, False), living(one).to_batches()),
        *blocks._blocks(parts, partial(blocks._cut_hashes, parts, 1, False), living(other).to_batches()),
    ]
    batches = in_order([*cut, *map(witness, range(parts))]).to_batches(max_chunksize=rows_of_a_batch)

    for handed_over in range(len(batches) + 1):
        made: list[str] = []
        with contextlib.suppress(EngineFault):
            for part in blocks._each_part(batches[:handed_over]):
                left = blocks.unmatched(part)
                made += left.column("address").to_pylist() if left.num_rows else []
        assert not {*made}.intersection(one, other)
    assert sorted(made) == sorted(address for address in universe if address not in {*one, *other})


def test_blocks_come_in_the_order_of_their_frames(spark: SparkSession) -> None:
    """The witness comes last, so any truncated part lacks it."""
    frames = [listing([f"data/{number}" for number in range(300)]), living([f"data/{number}" for number in range(9)])]
    cut = [blocks.cut_hashes(held_by_spark(spark, each), 4, number) for number, each in enumerate(frames)]

    found = tasks.collect(blocks._in_parts(cut[::-1], 4)).select(["part", "frame"]).to_pylist()

    for part in range(4):
        of_part = [row["frame"] for row in found if row["part"] == part]
        assert of_part == sorted(of_part) and of_part[-1] == blocks._WITNESS


def test_of_a_part_that_spark_gives_to_two_tasks_nothing_is_made(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts = blocks._in_parts
    monkeypatch.setattr(blocks, "_in_parts", lambda *cut: in_parts(*cut).repartition(2, F.rand(1)))
    universe, live = held_by_spark(spark, listing(["a", "b", "c"])), held_by_spark(spark, living(["a"]))
    cut = [blocks.cut(universe, 3), blocks.cut_hashes(live, 3, 1)]

    with pytest.raises(Exception, match="EngineFault") as failure:
        tasks.collect(tasks.dataframe_of(blocks.compared(cut, 3, blocks.unmatched, LISTED)))

    assert isinstance(from_worker(failure.value), EngineFault)


def test_a_part_may_come_in_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_AT_ONCE", 3)
    monkeypatch.setattr(blocks, "_OF_A_PART", 0)
    rows = living([f"data/{number % 30}" for number in range(100)])
    cut = list(blocks._blocks(4, partial(blocks._cut_first, 4), rows.to_batches(max_chunksize=2)))
    together = in_order([*cut, *map(witness, range(4))])

    def batches() -> Iterator[pa.RecordBatch]:
        yield from blocks.BLOCKS.empty_table().to_batches()
        yield from together.combine_chunks().to_batches(max_chunksize=5)

    parts = list(blocks._each_part(batches()))

    assert [part.column("part").unique().to_pylist() for part in parts] == [[0], [1], [2], [3]]
    assert len(cut) > 10
    found = pa.Table.from_batches(map(blocks._each_once, parts))
    assert sorted(found.column("address").to_pylist()) == sorted({f"data/{number}" for number in range(30)})


@pytest.mark.parametrize(
    ("rows", "expected"), [(0, 1), (19_999, 1), (100_000, 5), (10**6, 16), (10**7, 40), (10**9, 4000)]
)
def test_parts_grow_with_the_rows(spark: SparkSession, rows: int, expected: int) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 4)
    try:
        assert blocks.parts_of(spark.range(1), rows) == expected
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "")

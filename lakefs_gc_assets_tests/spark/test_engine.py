import io
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import sum_all, youngest_of_each
from lakefs_gc_assets.collector.frame.frames import LISTED, LIVE
from lakefs_gc_assets.spark import blocks, tasks
from lakefs_gc_assets.spark import engine as spark_engine
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.tasks import Reading, Rows, dataframe_of
from lakefs_gc_assets_tests.collector.engine.engine_contract import (
    COLLISIONS,
    CUTOFF,
    ODD_ADDRESSES,
    SAME_HASH,
    EngineContract,
)
from lakefs_gc_assets_tests.spark.frame_rows import listed, live


class TestSparkEngine(EngineContract[Rows]):
    """Tables stay in the driver, and are combined with rows of tasks."""

    examples = 1
    least = 70
    most = 120
    shrinks = False
    hashes = True

    @pytest.fixture
    def engine(self, spark: SparkSession) -> Engine[Rows]:
        return SparkEngine(lambda: spark, 2)


@pytest.mark.slow
class TestSparkEngineOfManyRows(TestSparkEngine):
    """Tables never stay in the driver, however small they are."""

    @pytest.fixture
    def engine(self, spark: SparkSession, all_with_spark: None) -> Engine[Rows]:
        return SparkEngine(spark, 2)


@pytest.fixture
def all_with_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps nothing in the driver, and sends no work with the function of a task."""
    monkeypatch.setattr(spark_engine, "LOCAL_ROWS", -1)
    monkeypatch.setattr(tasks, "WITH_FUNCTION", 0)


@pytest.fixture
def engine(spark: SparkSession) -> SparkEngine:
    return SparkEngine(spark, 2)


def test_the_driver_works_on_the_rows_of_one_operation_at_a_time(engine: SparkEngine) -> None:
    """Each operation has tables of its own, so two at once would take twice the memory."""
    rows = engine.table(pa.table({"address": ["a"]}))
    both, working, most = threading.Event(), list[int](), list[int]()

    def is_wanted(batch: pa.RecordBatch) -> pa.BooleanArray:
        working.append(batch.num_rows)
        most.append(len(working))
        if len(working) > 1:
            both.set()
        both.wait(0.3)
        working.pop()
        return pa.array([True] * batch.num_rows)

    with engine.in_background(lambda: engine.count(engine.where(rows, is_wanted))) as counted:
        assert engine.count(engine.where(rows, is_wanted)) == counted() == 1
    assert most == [1, 1]


def test_only_a_task_makes_a_session(spark: SparkSession) -> None:
    made = []

    def make() -> SparkSession:
        made.append(spark)
        return spark

    engine = SparkEngine(make, 2)
    rows = engine.union(engine.table(living("data/a", "data/b")), engine.read([], pa.Table.to_batches, LIVE))
    with engine.cached(engine.spread(engine.hold(engine.distinct(rows), 2)), 2) as few:
        left = engine.without(few, engine.table(living("data/b")), count=3)
        assert engine.collect(left).column("address").to_pylist() == ["data/a"]
        assert engine.count_by_sets(rows, left, count=3) == {1: 1, 3: 1}
    assert tasks.columns_of(rows).columns == LIVE.names
    assert (made, engine.ran_on) == ([], "this process")

    assert engine.count(engine.read([[living("data/a")]], pa.Table.to_batches, LIVE)) == 1
    assert (made, engine.ran_on) == ([spark], "Spark")


def listing(*addresses: str) -> pa.Table:
    return pa.Table.from_pylist([listed(address) for address in addresses], schema=LISTED)


def living(*addresses: str) -> pa.Table:
    return pa.Table.from_pylist([live(address) for address in addresses], schema=LIVE)


def explained(rows: Rows) -> str:
    """The plan before Spark has seen any row, in lower case."""
    with redirect_stdout(io.StringIO()) as plan:
        dataframe_of(rows).explain()
    return plan.getvalue().lower()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.usefixtures("all_with_spark")
def test_where_a_session_hands_over_large_strings_no_address_is_missed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """A user's session may have this setting; `later` stands for one that gets it after it was taken over."""
    monkeypatch.setattr(blocks, "_LEAST", 1)
    addresses = [f"data/slice/{number}" for number in range(200)]
    live = tasks.of_table(spark, living(*addresses[::2]))
    name = "spark.sql.execution.arrow.useLargeVarTypes"
    try:
        spark.conf.set(name, "true")
        engine = SparkEngine(spark, 2)
        assert spark.conf.get(name) == "false"
        spark.conf.set(name, str(later).lower())
        rows = engine.read([[listing(*addresses[start::3])] for start in range(3)], pa.Table.to_batches, LISTED)
        with engine.cached(live, 100) as held:
            assert isinstance(held, DataFrame)
            assert engine.count_by_sets(rows, held, count=300) == Counter({1: 100, 3: 100})
            for left in (engine.without(rows, held, count=300), engine.without_exactly(rows, held, 300)):
                assert sorted(engine.collect(left).column("address").to_pylist()) == sorted(addresses[1::2])
            assert engine.count(engine.among_exactly(rows, held, 300)) == 100
    finally:
        spark.conf.unset(name)


@pytest.mark.usefixtures("all_with_spark")
def test_times_are_those_of_utc_in_a_session_of_another_zone(spark: SparkSession) -> None:
    name = "spark.sql.session.timeZone"
    before = spark.conf.get(name) or "UTC"
    try:
        spark.conf.set(name, "Asia/Kolkata")
        engine = SparkEngine(spark, 2)
        read = engine.read([[listing("data/a", "data/b")]], pa.Table.to_batches, LISTED)
        with engine.cached(read, 2) as held:
            found = engine.map_by_address(engine.union(held, read), pa.Table.combine_chunks, LISTED, 4)
            rows = engine.collect(found).sort_by("address").to_pylist()
        assert rows == listing("data/a", "data/a", "data/b", "data/b").to_pylist()
    finally:
        spark.conf.set(name, before)


@pytest.mark.parametrize(("count", "joined"), [(None, True), (9, False), (10**6, False)])
@pytest.mark.usefixtures("all_with_spark")
def test_addresses_are_compared_as_strings_however_many_there_are(
    engine: SparkEngine, count: int | None, joined: bool
) -> None:
    """Spark joins them only if their number is unknown; two addresses with the same hash stay different."""
    pairs = [*COLLISIONS, *((f"data/{number}", f"data/{number}" * (number % 3)) for number in range(300))]
    addresses, others = zip(*pairs, strict=True)
    rows = engine.read([[listing(*addresses[start::3])] for start in range(3)], pa.Table.to_batches, LISTED)
    some = engine.table(living(*(each for each in (*others, "elsewhere", others[-1]) if each)))
    for compare, among in ((engine.without_exactly, False), (engine.among_exactly, True)):
        found = compare(rows, some, count)
        expected = sorted(each for each in addresses if (each in others) is among)
        assert sorted(engine.collect(found).column("address").to_pylist()) == expected
        assert tasks.schema_of(found).names == LISTED.names
        assert ("join" in explained(found)) is joined
    nothing = engine.table(LIVE.empty_table())
    assert engine.count(engine.without_exactly(rows, nothing, count)) == len(addresses)
    assert engine.count(engine.among_exactly(rows, nothing, count)) == 0


@pytest.mark.usefixtures("all_with_spark")
def test_a_collision_keeps_an_object(engine: SparkEngine) -> None:
    """The pairs collide as intended, and no live object is ever left for deletion."""
    same_first_hash, same_other_hash = COLLISIONS[::2], COLLISIONS[1::2]

    for number, pairs in ((0, same_first_hash), (len(same_other_hash), same_other_hash)):
        rows, held = (living(*addresses) for addresses in zip(*pairs, strict=True))
        assert engine.count(engine.without(engine.table(rows), engine.table(held), count=9)) == number
        assert engine.count_by_sets(engine.table(rows), engine.table(held), count=9) == {1: len(pairs), 2: len(pairs)}


def test_all_live_rows_that_the_driver_kept_of_several_tables_are_subtracted(engine: SparkEngine) -> None:
    """The driver keeps no row of the middle table, which leaves an empty batch before the last one."""
    held = engine.table(pa.concat_tables([living("a"), living("b"), living("c")]))
    live = engine.where(held, lambda batch: pc.not_equal(batch.column("address"), "b"))
    rows = engine.read([[living("a", "b", "c")]], pa.Table.to_batches, LIVE)

    assert engine.collect(engine.without(rows, live, count=6)).column("address").to_pylist() == ["b"]
    assert engine.count_by_sets(rows, live, count=6) == {1: 1, 3: 2}


@pytest.mark.parametrize(("few", "least", "twice"), [(10**6, 0, True), (0, 0, False), (10**6, 10**7, False)])
@pytest.mark.usefixtures("all_with_spark")
def test_rows_that_few_are_left_of_do_not_travel(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, few: int, least: int, twice: bool
) -> None:
    """The remaining rows are the same whether or not their hashes are few enough to send to tasks.

    An object whose hash collides with a live one is kept.
    """
    monkeypatch.setattr(spark_engine, "MANY_ADDRESSES", 0)
    monkeypatch.setattr(spark_engine, "FEW_HASHES", few)
    same_hash, met = COLLISIONS[0]
    addresses = [*ODD_ADDRESSES, *ODD_ADDRESSES[:3], same_hash, *(f"data/{number}" for number in range(500))]
    live = [met, ODD_ADDRESSES[1], *(f"data/{number}" for number in range(0, 500, 2))]
    groups = [[listing(*addresses[start::3])] for start in range(3)]
    read = engine.read(groups, pa.Table.to_batches, LISTED)
    travelled: list[Rows] = []
    cut = blocks.cut

    def noting(rows: Rows, parts: int) -> Rows:
        travelled.append(rows)
        return cut(rows, parts)

    monkeypatch.setattr(blocks, "cut", noting)
    held = engine.table(living(*live)), engine.table(living())

    left = engine.without(read, *held, count=1000, least=least)

    expected = sorted(each for each in addresses if each not in {*live, same_hash})
    assert sorted(engine.collect(engine.select(left, "address")).column("address").to_pylist()) == expected
    assert engine.count(travelled[0]) == (len(expected) if twice else len(addresses))
    everything = engine.without(read, engine.table(living(*addresses)), count=1000, least=least)
    assert engine.count(everything) == 0


@pytest.mark.usefixtures("all_with_spark")
def test_a_row_without_an_address_ends_both_readings(engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_engine, "MANY_ADDRESSES", 0)
    nameless = pa.table({"address": pa.array(["a", None])})
    read = engine.read([[nameless]], pa.Table.to_batches, nameless.schema)
    with pytest.raises(Exception, match="an address is null"):
        engine.count(engine.without(read, engine.table(living("b")), count=1000))


def test_no_more_tasks_work_on_what_is_spread_than_are_wanted(engine: SparkEngine) -> None:
    rows = listing(*(f"{number:05}" for number in range(3000)))
    read = engine.read([[rows.slice(start, 500)] for start in range(0, 3000, 500)], pa.Table.to_batches, LISTED)
    one_each = pa.schema([("tasks", pa.int64())])

    def count_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        yield pa.RecordBatch.from_pydict({"tasks": [1]}, one_each)

    for spread in (engine.spread(read, 2), engine.spread(engine.table(rows), 2)):
        assert engine.count(engine.map_batches(spread, count_task, one_each)) == 2
        assert engine.count(spread) == 3000


def test_what_is_done_to_rows_that_tasks_read_is_done_while_they_read(engine: SparkEngine) -> None:
    """Spark sees one operation that runs Python."""
    read = engine.read([[living("a", "b")], [living("c")]], pa.Table.to_batches, LIVE)

    named = engine.where(read, lambda batch: pc.is_valid(batch.column("address")))
    some = engine.select(engine.where_among(named, "address", ["a", "c"]), "address")

    assert isinstance(some, Reading)
    assert engine.count(some) == 2
    assert explained(engine.map_batches(some, iter, some.schema)).count("mapinarrow") == 1


_SIZES = pa.schema([("kept", pa.string()), ("size", pa.int64())])


def _kept_and_size(batch: pa.RecordBatch) -> list[pa.Array]:
    return [batch.column("kept"), batch.column("size")]


def marked(engine: Engine[R], seed: int) -> list[Counter[tuple[object, ...]]]:
    """Results of a mark and a recheck, with all steps between, for addresses without hash collisions."""
    chance = random.Random(seed)
    names = sorted({f"{address}{number}" for address in ODD_ADDRESSES for number in ("", "0")} - SAME_HASH.keys())

    def some(share: float) -> list[str]:
        return [name for name in names if chance.random() < share]

    objects = [
        listed(
            name,
            last_modified=CUTOFF + timedelta(microseconds=chance.randint(-3, 1)),
            issued_at=chance.choice([None, CUTOFF - timedelta(days=1)]),
            layout=chance.choice(["slice", "token", "flat", "unrecognised"]),
            slice_window=chance.choice(["2026-11", "2026-10"]),
            size=chance.randint(0, 3),
            etag=chance.choice(["a" * 32, "b" * 32, "a" * 32 + "-2", None]),
        )
        for name in names
    ]
    table = pa.Table.from_pylist(objects, schema=LISTED)
    pieces = [table.slice(start, 30) for start in range(0, table.num_rows, 30)]
    stored = engine.read([pieces[::2], pieces[1::2]], pa.Table.to_batches, LISTED)
    uncommitted, committed, sighted, again = (engine.table(living(*some(share))) for share in (0.1, 0.5, 0.5, 0.2))
    left = engine.without(stored, uncommitted, committed, count=300)
    rows = engine.kept_because(left, CUTOFF, ["2026-11"], sighted)
    with engine.cached(rows, len(names)) as unreferenced:
        candidates = engine.select(engine.where_among(unreferenced, "kept", [None]), *LISTED.names)
        alike = engine.same_content(candidates, engine.where_among(unreferenced, "slice_window", ["2026-10"]))
        with engine.cached(engine.distinct(engine.among_exactly(again, candidates, 30)), 30) as live_again:
            tables = [
                engine.collect(unreferenced),
                sum_all(engine, unreferenced, _kept_and_size, "kept", _SIZES),
                engine.collect(alike),
                engine.collect(engine.without_exactly(candidates, live_again, 30)),
                engine.collect(engine.map_by_address(engine.union(candidates, stored), youngest_of_each, LISTED, 60)),
            ]
    counts = engine.count_by_sets(stored, uncommitted, committed, again, count=300)
    rows_of = [Counter(tuple(sorted(row.items(), key=str)) for row in table.to_pylist()) for table in tables]
    return [*rows_of, Counter({(sets,): count for sets, count in counts.items()})]


def test_both_engines_agree_on_a_mark(engine: SparkEngine) -> None:
    assert marked(engine, 0) == marked(LocalEngine(), 0)

import io
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from lakefs_gc_assets.errors import CollectionError, CorruptFile, EngineFault, LockLost
from lakefs_gc_assets.spark import tasks
from lakefs_gc_assets.spark.faults import from_worker
from lakefs_gc_assets.spark.tasks import DriverRows, Reading

NUMBERS = pa.schema([pa.field("number", pa.int64()), pa.field("share", pa.int64())])
COUNT = pa.schema([pa.field("number", pa.int64())])


def squares(item: int) -> Iterator[pa.RecordBatch]:
    for part in range(item % 3):
        yield pa.RecordBatch.from_pydict({"number": [item * item] * 2, "share": [part] * 2}, schema=NUMBERS)


def test_each_item_is_read_once_in_a_task_of_its_group(spark: SparkSession) -> None:
    groups = [[1, 2], [], [3], [4, 5, 6]]

    frame = tasks.dataframe_of(Reading(spark, groups, squares, NUMBERS))

    assert frame.rdd.getNumPartitions() == 3
    found = Counter((row.number, row.share) for row in frame.collect())
    assert found == {(item * item, part): 2 for group in groups for item in group for part in range(item % 3)}


@pytest.mark.parametrize("sizes", [[0, 0, 3], [2, 0, 3], [0, 2, 0, 0, 3, 0], [0, 0], []])
def test_a_table_keeps_the_rows_behind_a_batch_that_has_none(spark: SparkSession, sizes: list[int]) -> None:
    batches = [pa.record_batch([pa.array([size] * size, pa.int64())], COUNT) for size in sizes]

    frame = tasks.of_table(spark, pa.Table.from_batches(batches, COUNT))

    assert [row.number for row in frame.collect()] == [size for size in sizes for _ in range(size)]


class Telling:
    """An item that appends a line to a file whenever a process unpickles it."""

    def __init__(self, number: int, into: Path) -> None:
        self.number, self._into = number, into

    def __reduce__(self) -> tuple[object, ...]:
        return _unpacked, (self.number, self._into)


def _unpacked(number: int, into: Path) -> Telling:
    with into.open("a") as reported:
        reported.write(f"{number}\n")
    return Telling(number, into)


@pytest.fixture(params=["with the function", "as rows", "as rows in many pieces"])
def travelling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways in which work reaches tasks."""
    if request.param != "with the function":
        monkeypatch.setattr(tasks, "WITH_FUNCTION", 0)
    if request.param == "as rows in many pieces":
        monkeypatch.setattr(tasks, "_PIECE", 50)


@pytest.mark.usefixtures("travelling")
def test_only_the_worker_that_reads_an_item_unpacks_it(spark: SparkSession, tmp_path: Path) -> None:
    reported = tmp_path / "unpacked"
    groups = [[Telling(10 * group + place, reported) for place in range(group % 4)] for group in range(9)]
    numbers = [each.number for group in groups for each in group]

    def read(item: Telling) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        yield pa.RecordBatch.from_pydict({"number": [item.number], "share": [task.partitionId()]}, schema=NUMBERS)

    found = tasks.dataframe_of(Reading(spark, groups, read, NUMBERS)).collect()

    assert sorted(row.number for row in found) == numbers
    assert sorted(map(int, reported.read_text().split())) == numbers
    assert len({row.share for row in found}) == sum(1 for group in groups if group)
    assert len({(row.number // 10, row.share) for row in found}) == len({row.share for row in found})


@pytest.mark.parametrize("with_function", [tasks.WITH_FUNCTION, 0])
def test_a_task_without_its_work_is_an_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, with_function: int
) -> None:
    """Spark ends a task by passing on no more rows, without saying so."""
    monkeypatch.setattr(tasks, "WITH_FUNCTION", with_function)
    reading = tasks._distributed(Reading(spark, [[1], [2]], squares, NUMBERS))
    with pytest.raises(EngineFault, match="run again"):
        list(reading.change([]))


def test_no_work_is_an_empty_frame_of_the_same_columns(spark: SparkSession) -> None:
    frame = tasks.dataframe_of(Reading(spark, [[], []], squares, NUMBERS))

    assert (frame.count(), frame.columns) == (0, ["number", "share"])


@pytest.fixture(params=["read by tasks", "made by Spark", "made in tasks", "of several frames"])
def numbers(request: pytest.FixtureRequest, spark: SparkSession) -> tasks.Rows:
    """The squares of 1 to 6, some of which repeat, in three tasks or places."""
    reading = tasks.Reading(spark, [[1, 2], [3], [4, 5, 6]], squares, NUMBERS)
    if request.param == "made by Spark":
        return tasks.dataframe_of(reading)
    if request.param == "made in tasks":
        return tasks.map_batches(reading, iter, NUMBERS)
    if request.param == "of several frames":
        held = pa.Table.from_batches([batch for item in (4, 5, 6) for batch in squares(item)], NUMBERS)
        return tasks.union([replace(reading, groups=[[1, 2], [3]]), DriverRows.of_table(spark, held)])
    return reading


SQUARES = [item * item for item in range(1, 7) for _ in range(2 * (item % 3))]


def test_rows_are_the_same_whoever_has_them(numbers: tasks.Rows, spark: SparkSession) -> None:
    assert sorted(row.number for row in tasks.dataframe_of(numbers).collect()) == SQUARES
    assert sorted(row.number for row in tasks.dataframe_of(tasks.union([numbers, numbers])).collect()) == sorted(
        SQUARES * 2
    )
    assert tasks.schema_of(numbers).names == NUMBERS.names
    assert tasks.session_of(numbers) is spark


def test_rows_that_a_condition_leaves_out_are_gone(numbers: tasks.Rows) -> None:
    def large(batch: pa.RecordBatch) -> pa.BooleanArray:
        above = pc.greater(batch.column("number"), 4)
        return pc.if_else(pc.equal(batch.column("number"), 25), None, above)

    left = tasks.dataframe_of(tasks.where(numbers, large))

    assert sorted(row.number for row in left.collect()) == [number for number in SQUARES if number > 4 and number != 25]
    assert left.columns == NUMBERS.names


def test_what_becomes_of_rows_is_asked_once_for_each_task(numbers: tasks.Rows) -> None:
    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": [sum(batch.num_rows for batch in batches)]}, schema=COUNT)

    counts = [row.number for row in tasks.dataframe_of(tasks.map_batches(numbers, counted, COUNT)).collect()]

    assert sum(counts) == len(SQUARES)
    assert len(counts) == 3


def test_what_is_done_to_rows_one_after_the_other_is_done_by_one_worker(spark: SparkSession) -> None:
    table = spark.range(9).withColumnRenamed("id", "number")

    def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.multiply(batch.column("number"), 2)], schema=COUNT)

    rows = tasks.map_batches(tasks.map_batches(table, doubled, COUNT), doubled, COUNT)
    some = tasks.select(tasks.where(rows, lambda batch: pc.greater(batch.column("number"), 20)), "number")

    with redirect_stdout(io.StringIO()) as plan:
        tasks.dataframe_of(some).explain()
    assert plan.getvalue().count("MapInArrow") == 1
    assert sorted(row.number for row in tasks.dataframe_of(some).collect()) == [24, 28, 32]


def test_columns_made_other_than_promised_are_an_error(spark: SparkSession) -> None:
    reading = Reading(spark, [[1]], squares, NUMBERS)

    with pytest.raises(Exception, match="made other than promised"):
        tasks.dataframe_of(tasks.map_batches(reading, iter, COUNT)).collect()


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_each_number_is_sent_to_a_partition_of_its_own(spark: SparkSession, count: int) -> None:
    numbers = tasks.numbers_of_partitions(count)
    assert numbers == sorted(set(numbers)) and len(numbers) == count
    frame = tasks.of_table(spark, pa.table({"task": pa.array(numbers, pa.int32())})).repartition(count, "task")
    assert sorted(row[0] for row in frame.select(F.spark_partition_id()).collect()) == list(range(count))


@pytest.mark.parametrize(("rows", "count"), [(10, 3), (3, 3), (1, 1)])
def test_rows_of_the_driver_are_dealt_out_as_they_are(spark: SparkSession, rows: int, count: int) -> None:
    table = pa.table({"number": pa.array([None, *range(1, rows)], pa.int64()), "text": ["é"] * rows})

    dealt = tasks.deal(spark, table, count)

    assert len(dealt.groups) == count
    assert all(len(list(dealt.read(stream))) == 1 for (stream,) in dealt.groups)
    assert tasks.collect(tasks.dataframe_of(dealt)).sort_by("number").equals(table.sort_by("number"))


def test_names_and_types_are_asked_of_no_rows(spark: SparkSession) -> None:
    table = pa.Table.from_batches(squares(3), NUMBERS)

    columns = tasks.columns_of(DriverRows.of_table(spark, table))

    assert columns.schema == tasks.of_table(spark, table).schema


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (CorruptFile("_lakefs/abc", "magic", "not a table"), CollectionError, "_lakefs/abc: magic: not a table."),
        (LockLost("the lock is gone: run again"), LockLost, "the lock is gone: run again"),
    ],
)
def test_what_a_worker_raised_comes_back_as_its_message(
    spark: SparkSession, raised: Exception, kind: type[Exception], said: str
) -> None:
    def fail(item: int) -> Iterator[pa.RecordBatch]:
        raise raised

    with pytest.raises(Exception) as caught:
        tasks.dataframe_of(Reading(spark, [[1]], fail, NUMBERS)).collect()

    ours = from_worker(caught.value)
    assert type(ours) is kind
    assert str(ours).startswith(said)
    assert "Traceback" not in str(ours)


def test_what_somebody_else_raised_is_not_ours(spark: SparkSession) -> None:
    def fail(item: int) -> Iterator[pa.RecordBatch]:
        raise ValueError("lakefs_gc_assets is not to blame")

    with pytest.raises(Exception) as caught:
        tasks.dataframe_of(Reading(spark, [[1]], fail, NUMBERS)).collect()

    assert from_worker(caught.value) is None


def test_two_pieces_of_work_are_done_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def meet() -> str:
        both.wait(timeout=900)
        return "met"

    with tasks.in_background(meet) as met:
        both.wait(timeout=900)
        assert met() == "met"


def test_a_failure_of_work_done_meanwhile_is_raised_where_its_result_is_asked_for() -> None:
    def fail() -> None:
        raise CorruptFile("lakefs://files/a", "digest", "not the one that was written")

    with tasks.in_background(fail) as result, pytest.raises(CorruptFile, match="not the one"):
        result()


def test_work_done_meanwhile_has_ended_when_something_else_fails() -> None:
    began, ended = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        time.sleep(0.2)
        ended.set()

    with pytest.raises(LockLost), tasks.in_background(work):
        began.wait(timeout=900)
        raise LockLost("the lock is somebody else's")
    assert ended.is_set()


def test_queries_of_two_threads_give_each_its_own_rows(spark: SparkSession) -> None:
    def numbers(first: int) -> list[int]:
        return [row.id for row in spark.range(first, first + 1000).repartition(3).sort("id").collect()]

    with tasks.in_background(lambda: [numbers(first) for first in range(0, 5000, 1000)]) as others:
        own = [numbers(first) for first in range(5000, 10000, 1000)]
        found = [*others(), *own]
        assert [number for each in found for number in each] == list(range(10000))


def test_an_older_spark_gets_a_large_table_of_the_driver_in_several_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(spark, "_jsc"):
        pytest.skip("Spark Connect has no partitions to look at")
    monkeypatch.setattr(tasks, "_HAS_ARROW", False)
    monkeypatch.setattr(tasks, "_PIECE", 1000)
    texts = pa.table({"text": [f"{number:0996}" for number in range(8)]})

    dealt = tasks.of_table(spark, texts)

    assert dealt.rdd.getNumPartitions() == 8
    assert tasks.collect(dealt).column("text").to_pylist() == texts.column("text").to_pylist()

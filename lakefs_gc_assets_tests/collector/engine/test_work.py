import threading
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.work import (
    first_of_each,
    gather,
    merge,
    runs_by_weight,
    spread,
    spread_by_weight,
    sum_by,
    sum_in_task,
    work_ahead,
    youngest_of_each,
)
from lakefs_gc_assets.errors import StorageError

COUNT = pa.schema([pa.field("number", pa.int64())])
ITEMS = st.lists(st.integers(0, 1000), max_size=50)


@given(ITEMS, st.integers(1, 20))
def test_items_are_dealt_out_evenly(items: list[int], partitions: int) -> None:
    groups = spread(items, partitions)

    assert Counter(item for group in groups for item in group) == Counter(items)
    assert len(groups) == min(partitions, len(items))
    assert max(map(len, groups), default=0) - min(map(len, groups), default=0) <= 1


@given(ITEMS, st.integers(1, 20))
def test_no_group_weighs_much_more_than_another(items: list[int], partitions: int) -> None:
    groups = spread_by_weight(items, partitions, lambda item: item)

    assert Counter(item for group in groups for item in group) == Counter(items)
    assert len(groups) <= partitions
    weights = [sum(group) for group in groups]
    assert max(weights, default=0) - min(weights, default=0) <= max(items, default=0)


@given(ITEMS, st.integers(1, 20))
def test_neighbours_stay_together_and_no_run_of_them_weighs_much(items: list[int], partitions: int) -> None:
    runs = runs_by_weight(items, partitions, lambda item: item)

    assert [item for run in runs for item in run] == items
    assert len(runs) <= partitions
    assert all(runs)
    # The middles of a run's first and last items are inside the run.
    assert all(sum(run) <= sum(items) / partitions + max(items) for run in runs)


def test_a_heavy_item_has_a_run_almost_to_itself() -> None:
    runs = runs_by_weight([10] * 50 + [1000] + [10] * 50, 16, lambda item: item)

    assert len(next(run for run in runs if 1000 in run)) <= 10
    assert len(runs) >= 8


@given(st.lists(st.lists(st.integers(0, 30), max_size=9), min_size=1, max_size=20), st.integers(1, 30))
def test_rows_are_merged_as_their_tables_come(numbers: list[list[int]], rows: int) -> None:
    given = list[int]()

    def each_once(table: pa.Table) -> pa.Table:
        given.append(table.num_rows)
        return table.group_by("number").aggregate([])

    found = merge((pa.table({"number": pa.array(some, pa.int64())}) for some in numbers), each_once, rows)

    assert sorted(found.column("number").to_pylist()) == sorted({number for some in numbers for number in some})
    # Remaining rows wait: at most twice the final number, or `rows`, plus one table.
    assert max(given) <= max(rows, 2 * found.num_rows) + 9
    # Each row is passed on again at most about as often as it is read.
    assert sum(given) <= 4 * sum(map(len, numbers)) + found.num_rows + rows


AMOUNTS = pa.schema([pa.field(name, pa.int64()) for name in ("size", "number", "bytes")])


@given(st.lists(st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(0, 9)), max_size=9), max_size=9))
def test_amounts_are_summed_by_key_in_tasks_and_over_all_of_them(tasks: list[list[tuple[int | None, int]]]) -> None:
    totals = Counter[int | None]()
    for task in tasks:
        for key, amount in task:
            totals[key] += amount

    def of_task(rows: list[tuple[int | None, int]]) -> list[pa.RecordBatch]:
        tables = (pa.table([[key], [amount], [2 * amount]], schema=AMOUNTS) for key, amount in rows)
        return [*sum_in_task(tables, ("size",), AMOUNTS)]

    batches = [batch for task in tasks for batch in of_task(task)]
    assert sum(batch.num_rows for batch in batches) == sum(len({key for key, _ in task}) for task in tasks)
    rows = sum_by(pa.Table.from_batches(batches, AMOUNTS), ("size",)).to_pylist()
    assert {row["size"]: row["number"] for row in rows} == {key: totals[key] for task in tasks for key, _ in task}
    assert all(row["bytes"] == 2 * row["number"] for row in rows) and len(rows) == len({row["size"] for row in rows})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9)), max_size=12))
def test_one_row_of_each_address_is_left(rows: list[tuple[str, int, int]]) -> None:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("address", "last_modified", "size"))}
    table = pa.table(
        columns, pa.schema([("address", pa.string()), ("last_modified", pa.int64()), ("size", pa.int64())])
    )

    first = {address: (address, at, size) for address, at, size in reversed(rows)}
    youngest = {address: max(at for name, at, _ in rows if name == address) for address in first}
    assert {row["address"]: tuple(row.values()) for row in first_of_each(table).to_pylist()} == first
    found = youngest_of_each(table)
    assert {row["address"]: row["last_modified"] for row in found.to_pylist()} == youngest
    assert {tuple(row.values()) for row in found.to_pylist()} <= {*rows} and found.num_rows == len(youngest)


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 30))
def test_gathered_batches_have_the_same_rows_and_are_large(sizes: list[int], rows: int) -> None:
    numbers = iter(range(sum(sizes)))
    batches = [pa.RecordBatch.from_pydict({"number": [next(numbers) for _ in range(size)]}, COUNT) for size in sizes]

    found = list(gather(batches, rows))

    assert [number for batch in found for number in batch.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows >= rows for batch in found[:-1])
    assert all(batch.num_rows for batch in found)


@given(ITEMS, st.integers(1, 5))
def test_what_is_worked_ahead_comes_in_order(items: list[int], at_once: int) -> None:
    under_way = [0]
    most = [0]

    def work(item: int) -> int:
        most[0] = max(most[0], item)
        return -item

    numbered = list(range(len(items)))
    for done, result in enumerate(work_ahead(work, numbered, at_once)):
        under_way.append(most[0] - done)
        assert result == -done
    assert len(under_way) == len(items) + 1
    assert max(under_way) < at_once


def test_several_items_are_worked_at_at_the_same_time() -> None:
    together = threading.Barrier(3)
    assert list(work_ahead(lambda item: together.wait(timeout=900) >= 0, range(6), 3)) == [True] * 6


def test_a_failure_is_raised_in_its_turn_and_ends_the_work() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 1:
            raise StorageError("the store is gone")
        return item

    results = work_ahead(work, range(100), 2)
    assert next(results) == 0
    with pytest.raises(StorageError, match="the store is gone"):
        next(results)
    assert set(begun) <= {0, 1, 2}

"""Dealing work out to tasks and threads, and gathering small batches into larger ones."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import Engine, R

Item = TypeVar("Item")
Result = TypeVar("Result")

ROWS_ADDED = 65_536
"""Minimum rows that a task collects before it sums them up."""


def spread(items: Sequence[Item], partitions: int) -> list[list[Item]]:
    """Deals items out to at most `partitions` groups; neighbours go to different groups."""
    return [list(items[start::partitions]) for start in range(min(partitions, len(items)))]


def runs_by_weight(items: Sequence[Item], partitions: int, weight: Callable[[Item], int]) -> list[list[Item]]:
    """Cuts a sequence into at most `partitions` runs of neighbours with about equal weight; items stay in order."""
    weights = np.fromiter(map(weight, items), np.int64, len(items))
    return [list(items[start:end]) for start, end in cut_by_weight(weights, partitions)]


def cut_by_weight(weights: npt.NDArray[np.int64], partitions: int) -> list[tuple[int, int]]:
    """Start and end of the runs that `runs_by_weight` makes from items with these weights; no run is empty."""
    middles = np.cumsum(weights) - weights / 2
    runs = np.minimum(partitions - 1, (middles * partitions / max(1, weights.sum())).astype(np.int64))
    bounds = np.searchsorted(runs, np.arange(partitions + 1)).tolist()
    return [(start, end) for start, end in pairwise(bounds) if start < end]


def spread_by_weight(items: Sequence[Item], partitions: int, weight: Callable[[Item], int]) -> list[list[Item]]:
    """Deals items out to at most `partitions` groups with about equal weight: heaviest first, to the lightest group."""
    groups: list[list[Item]] = [[] for _ in range(min(partitions, len(items)))]
    loads = [(0, index) for index in range(len(groups))]
    for item in sorted(items, key=weight, reverse=True):
        load, index = heapq.heappop(loads)
        groups[index].append(item)
        heapq.heappush(loads, (load + weight(item), index))
    return groups


def gather(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Joins batches, so that all but the last have at least `rows` rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting += [batch] if batch.num_rows else []
        if sum(each.num_rows for each in waiting) >= rows:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def merge(tables: Iterable[pa.Table], change: Callable[[pa.Table], pa.Table], rows: int) -> pa.Table:
    """The result of a function for the rows of all tables. There must be at least one table.

    It runs on the first tables, and then on its own result together with the tables that follow.

    Args:
        change: returns as many rows or fewer.
        rows: minimum rows to call it before all tables have come.
    """
    waiting: list[pa.Table] = []
    count, enough = 0, rows
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        if count >= enough:
            waiting = [change(pa.concat_tables(waiting))]
            count = waiting[0].num_rows
            enough = max(rows, 2 * count)
    return change(pa.concat_tables(waiting))


def first_of_each(rows: pa.Table) -> pa.Table:
    """The first row for each address."""
    numbered = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    first = numbered.group_by("address").aggregate([("row", "min")]).column("row_min")
    return rows.take(first.combine_chunks().sort())


def youngest_of_each(rows: pa.Table) -> pa.Table:
    """The row for each address that was modified last, by the column `last_modified`."""
    return first_of_each(rows.sort_by([("last_modified", "descending")]))


def sum_by(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """One row for each distinct value of the key columns, with the sums of the other columns."""
    amounts = [name for name in rows.column_names if name not in keys]
    added = rows.group_by(keys).aggregate([(name, "sum") for name in amounts])
    ordered = added.select([name if name in keys else f"{name}_sum" for name in rows.column_names])
    return ordered.rename_columns(rows.column_names).cast(rows.schema)


def sum_in_task(tables: Iterable[pa.Table], keys: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Sums by key of a task's tables, which have this schema; `sum_by` combines the sums of all tasks."""
    yield from merge(chain([schema.empty_table()], tables), partial(sum_by, keys=keys), ROWS_ADDED).to_batches()


def sum_all(
    engine: Engine[R], rows: R, amounts: Callable[[pa.RecordBatch], Sequence[pa.Array]], key: str, schema: pa.Schema
) -> pa.Table:
    """Sums by a column over all rows, with one action.

    Args:
        amounts: returns the columns of the schema for a batch; it runs in a worker.
    """

    def sums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return sum_in_task((pa.table(amounts(batch), schema=schema) for batch in batches), (key,), schema)

    return sum_by(engine.collect(engine.map_batches(rows, sums, schema)), (key,))


def work_ahead(work: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> Iterator[Result]:
    """Yields the result for each item, in order; threads work on the next items while the caller uses a result.

    Args:
        at_once: maximum items that are in work, or done and waiting for the caller.
    """
    with ThreadPoolExecutor(at_once) as threads:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(threads.submit(work, item))
                if len(waiting) == at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

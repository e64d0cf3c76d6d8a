"""The work of tasks as it travels to them: each worker unpacks that of its own tasks alone.

Little work travels with the function of the tasks, which each worker gets. More travels as rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.serializers import CPickleSerializer

WITH_FUNCTION = 1024 * 1024
"""So many bytes of work travel with the function of its tasks; of more Spark would make a broadcast."""
WORK = pa.schema([pa.field("task", pa.int32()), pa.field("piece", pa.int32()), pa.field("data", pa.binary())])
"""The work of each task, in pieces."""
_PIECE = 4 * 1024 * 1024
"""Bytes of a piece: Spark sends none of more than 128 MB to a task."""
_PICKLED = CPickleSerializer()


def pack(groups: Iterable[Sequence[Any]]) -> list[bytes]:
    """The work of each task that has some."""
    return [_PICKLED.dumps(tuple(group)) for group in groups if group]  # type: ignore[no-untyped-call]


def as_rows(work: Sequence[bytes]) -> pa.Table:
    """What `pack` gave, as rows (WORK), each in a batch of its own: of many bytes Spark makes a task for each batch."""
    pieces = [
        pa.record_batch([[task], [piece], [data[start : start + _PIECE]]], schema=WORK)
        for task, data in enumerate(work)
        for piece, start in enumerate(range(0, len(data), _PIECE))
    ]
    return pa.Table.from_batches(pieces, WORK)


def of_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """The items of a task, of its rows (WORK) in any order; should Spark put several tasks together, those of all."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    for _, pieces in groupby(sorted(rows, key=itemgetter("task", "piece")), itemgetter("task")):
        yield from _unpack(b"".join(row["data"] for row in pieces))


def of_numbers(work: Sequence[bytes], batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """The items of a task, of rows with one number: a place in what `pack` gave."""
    for batch in batches:
        for place in batch.column(0).to_pylist():
            yield from _unpack(work[place])


def _unpack(data: bytes) -> Sequence[Any]:
    items: Sequence[Any] = _PICKLED.loads(data)  # type: ignore[no-untyped-call]
    return items

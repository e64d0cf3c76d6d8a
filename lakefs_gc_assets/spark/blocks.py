"""Frames partitioned by address: rows are shuffled in blocks, so that Spark handles only a few rows per task.

Spark's JVM takes more than a microsecond per row to convert Arrow to its own rows and back. That is several times as
long as a task needs to read an address, hash it and look it up. So the task that reads a piece of a frame hashes its
addresses (`collector.engine.hashing`), which divides the rows into parts of the hash space. It packs the rows of a part
into a block, which is a single row for Spark. One task gets all blocks of a part, from all frames.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakefs_gc_assets.collector.engine import hashing, work
from lakefs_gc_assets.collector.engine.hashing import Hashes, distinct
from lakefs_gc_assets.collector.engine.port import ChangeBatches, ChangePart, nullable
from lakefs_gc_assets.errors import EngineFault
from lakefs_gc_assets.spark import tasks
from lakefs_gc_assets.spark.tasks import Mapped, Rows
from lakefs_gc_assets.spark.work_names import renamed

BLOCKS = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("frame", pa.int32(), nullable=False),
        pa.field("hashes", pa.binary(), nullable=False),
        pa.field("others", pa.binary()),
        pa.field("rows", pa.binary()),
    ]
)
"""Rows of a frame in one part. `hashes` and `others` have 64 bits per row; `rows` is a stream in Arrow's IPC format."""

SETS = pa.schema([pa.field("sets", pa.int64(), nullable=False), pa.field("addresses", pa.int64(), nullable=False)])
"""Number of addresses for each combination of frames: bit k of `sets` stands for frame k."""

LEFT = pa.schema([pa.field("rows", pa.int64(), nullable=False), pa.field("hashes", pa.binary())])
"""Number of remaining hashes of a part, and the hashes of 64 bits, null if they are too many."""

Indices = npt.NDArray[np.int64]

_AT_ONCE, _LARGEST_CUT = 131_072, 524_288
"""Rows that a task partitions together: the minimum, and the maximum if there are thousands of parts."""
_OF_A_PART = 32
"""Target rows per part that a task partitions together. With fewer, blocks take more time than their rows."""
_LEAST, _MOST = 20_000, 250_000
"""Rows of a part. With fewer, blocks take more time than their rows; more, with all columns, take over 50 MB."""
_WITNESS = 2**31 - 1
"""Frame number of the witness, the last block of a part, which shows that the part is complete."""


def parts_of(frame: Rows, rows: int) -> int:
    """Number of parts for a frame and for all frames compared with it.

    Args:
        rows: approximate number of rows of all frames together.
    """
    partitions = int(tasks.session_of(frame).conf.get("spark.sql.shuffle.partitions") or 1)
    return max(1, min(rows // _LEAST, 4 * partitions), rows // _MOST)


def cut(rows: Rows, parts: int, frame: int = 0, *, with_nulls: bool = False) -> Rows:
    """The rows of a frame as blocks (BLOCKS).

    Args:
        rows: rows with a column `address`, among others.
        frame: number of the frame in its blocks.
        with_nulls: True if rows may lack an address, which is otherwise an error.
    """
    return _cut(rows, parts, partial(_cut_rows, parts, frame, with_nulls))


def cut_once(rows: Rows, parts: int) -> Rows:
    """The rows of a frame as blocks for `merged`; rows that are partitioned together are deduplicated by address."""
    return _cut(rows, parts, partial(_cut_first, parts))


def cut_hashes(rows: Rows, parts: int, frame: int, twice: bool = False) -> Rows:
    """The hashes of a frame's addresses as blocks (BLOCKS), without the rows.

    Args:
        twice: True to hash addresses by 128 bits.
    """
    return _cut(tasks.select(rows, "address"), parts, partial(_cut_hashes, parts, frame, twice))


def _cut(rows: Rows, parts: int, cut: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Rows:
    return tasks.map_batches(rows, renamed(partial(_blocks, parts, cut), cut), BLOCKS)


def compared(
    blocks: Sequence[Rows], parts: int, compare: Callable[[pa.Table], pa.Table], schema: pa.Schema | StructType
) -> Rows:
    """Applies `compare` to each part: to all its blocks, from all tasks and frames.

    Args:
        parts: number of parts of all frames.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in _each_part(batches):
            compared_part = compare(part)
            if compared_part.num_rows:
                yield from compared_part.to_batches()

    columns = schema if isinstance(schema, StructType) else from_arrow_schema(schema)
    return Mapped(_in_parts(blocks, parts), renamed(run, compare), columns)


def merged(blocks: Sequence[Rows], parts: int, change: ChangeBatches, schema: pa.Schema) -> Rows:
    """Applies `change` to the rows of all blocks, deduplicated by address, compared as strings.

    Unlike with `compared`, one call gets the rows of all parts of a task.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from change(map(_each_once, _each_part(batches)))

    return Mapped(_in_parts(blocks, parts), renamed(run, "first of each address", change), from_arrow_schema(schema))


def _in_parts(blocks: Sequence[Rows], parts: int) -> DataFrame:
    """The blocks of all frames, shuffled so that all blocks of a part are adjacent in one task, then its witness.

    If Spark broke this promise, live objects could be taken for garbage. One sentinel row per part, the witness, lets
    tasks detect an incomplete part: if Spark splits a part between tasks, at least one lacks the witness. The witness
    comes last, because a task that Spark kills just gets no more rows, which looks like the regular end to Python.
    """
    witnesses = tasks.session_of(blocks[0]).range(0, parts, 1, 1)
    columns = [F.col("id").cast("int").alias("part"), F.lit(_WITNESS).alias("frame"), F.lit(b"").alias("hashes")]
    nothing = [F.lit(None).cast("binary").alias(name) for name in ("others", "rows")]
    together = tasks.union_all([*map(tasks.dataframe_of, blocks), witnesses.select(*columns, *nothing)])
    return together.repartition("part").sortWithinPartitions("part", "frame")


def changed(change: ChangePart) -> Callable[[pa.Table], pa.Table]:
    """Function that applies `change` to the rows of a part."""
    return renamed(lambda part: change(_rows(part)), change)


def unmatched(part: pa.Table) -> pa.Table:
    """Rows of frame 0 whose hash is in no other frame."""
    universe, others = _divided(part)
    if not universe.num_rows:
        return pa.table({})
    hashes, live = _numbers(universe, "hashes"), _numbers(others, "hashes")
    return _rows(universe).filter(pa.array(~hashing.among(hashes, live)))


def compared_exactly(among: bool) -> Callable[[pa.Table], pa.Table]:
    """Function that selects the rows of frame 0 whose address is in the other frames, or is not, compared as strings.

    A row without an address is in no other frame.
    """

    def choose(part: pa.Table) -> pa.Table:
        universe, others = _divided(part)
        if not universe.num_rows:
            return pa.table({})
        rows = _rows(universe)
        if not others.num_rows:
            return rows.slice(0, 0) if among else rows
        value_set = _rows(others).column("address").combine_chunks()
        named = pc.is_in(rows.column("address"), value_set=value_set, skip_nulls=True)
        return rows.filter(named if among else pc.invert(named))

    return renamed(choose, "keep matching" if among else "keep unmatched")


def unmatched_hashes(most: int) -> Callable[[pa.Table], pa.Table]:
    """Function that finds hashes of frame 0 that are in no other frame (LEFT); null if a part has more than `most`."""

    def find_unmatched(part: pa.Table) -> pa.Table:
        hashes, live = (_numbers(blocks, "hashes") for blocks in _divided(part))
        unmatched = distinct(hashes[~hashing.among(hashes, live)])
        return pa.table([[len(unmatched)], [unmatched.tobytes() if len(unmatched) <= most else None]], schema=LEFT)

    return renamed(find_unmatched, "find unmatched hashes")


def counted(part: pa.Table) -> pa.Table:
    """Number of a part's addresses for each combination of frames (SETS), compared by 128 bits."""
    each = pc.binary_length(part.column("hashes")).to_numpy() // 8
    bits = np.repeat(1 << part.column("frame").to_numpy(), each).astype(np.uint8)
    counts = hashing.count_by_sets(_numbers(part, "hashes"), _numbers(part, "others"), bits)
    sets = np.flatnonzero(counts)
    return pa.table([pa.array(sets), pa.array(counts[sets])], schema=SETS)


def _divided(part: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The blocks of frame 0, and all other blocks."""
    mine = pc.equal(part.column("frame"), 0)
    return part.filter(mine), part.filter(pc.invert(mine))


def _each_once(part: pa.Table) -> pa.RecordBatch:
    rows = pa.concat_batches(_rows(part).to_batches())
    return rows.filter(pa.array(hashing.first_of_each(rows.column("address"), _numbers(part, "hashes"))))


def _blocks(
    parts: int, cut: Callable[[pa.RecordBatch], pa.RecordBatch], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for rows in work.gather(batches, min(max(_AT_ONCE, _OF_A_PART * parts), _LARGEST_CUT)):
        yield cut(rows)


def _cut_rows(parts: int, frame: int, with_nulls: bool, rows: pa.RecordBatch) -> pa.RecordBatch:
    addresses = rows.column("address")
    return _cut_hashed(parts, frame, rows, hashing.hashes(addresses.fill_null("") if with_nulls else addresses))


def _cut_hashed(parts: int, frame: int, rows: pa.RecordBatch, hashes: Hashes) -> pa.RecordBatch:
    cuts = Cuts.by_part(hashes, parts)
    return cuts.blocks(frame, cuts.binary(hashes), rows=cuts.streams(rows))


def _cut_first(parts: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    addresses = rows.column("address")
    hashes = hashing.hashes(addresses)
    first = hashing.first_of_each(addresses, hashes)
    return _cut_hashed(parts, 0, rows.filter(pa.array(first)), hashes[first])


def _cut_hashes(parts: int, frame: int, twice: bool, rows: pa.RecordBatch) -> pa.RecordBatch:
    addresses = rows.column("address").drop_null()
    hashes = hashing.hashes(addresses)
    cuts = Cuts.by_part(hashes, parts)
    others = cuts.binary(hashing.hashes(addresses, hashing.OTHER_SEED)) if twice else None
    return cuts.blocks(frame, cuts.binary(hashes), others)


@dataclass(frozen=True)
class Cuts:
    """Partitioning of rows.

    Attributes:
        order: permutation of rows that makes the rows of a part adjacent.
        parts: parts with rows, ascending.
        bounds: start of each part in that order, and the end of the last.
    """

    order: Indices
    parts: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int32]

    @classmethod
    def by_part(cls, hashes: Hashes, parts: int) -> "Cuts":
        """The partitioning of hashes by part."""
        part_of = hashing.parts(hashes, parts)
        order = np.argsort(part_of, kind="stable")
        ordered = part_of[order].astype(np.int32)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        return cls(order, ordered[starts], np.append(starts, len(order)).astype(np.int32))

    def binary(self, hashes: Hashes) -> pa.BinaryArray:
        """The hashes by part."""
        return _binary(pa.py_buffer(hashes[self.order]), self.bounds * np.int32(hashes.itemsize))

    def streams(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Rows by part, each part as a stream in Arrow's IPC format, assembled from its messages.

        Arrow's own stream writer takes 40 µs per stream, several times as long as the rows of a small part.
        """
        ordered = rows.take(pa.array(self.order))
        schema = nullable(rows.schema)
        ordered = pa.RecordBatch.from_arrays(ordered.columns, schema=schema)
        head, sink = schema.serialize(), pa.BufferOutputStream()
        ends = [0]
        for start, end in pairwise(self.bounds.tolist()):
            sink.write(head)
            sink.write(ordered.slice(start, end - start).serialize())
            ends.append(sink.tell())
        return _binary(sink.getvalue(), np.array(ends, np.int32))

    def blocks(
        self,
        frame: int,
        hashes: pa.BinaryArray,
        others: pa.BinaryArray | None = None,
        rows: pa.BinaryArray | None = None,
    ) -> pa.RecordBatch:
        """A block for each part (BLOCKS)."""
        count = len(self.parts)
        nothing = pa.nulls(count, pa.binary())
        frames = pa.array(np.full(count, frame, np.int32))
        columns = [pa.array(self.parts), frames, hashes, others or nothing, rows or nothing]
        return pa.RecordBatch.from_arrays(columns, schema=BLOCKS)


def _binary(data: pa.Buffer, bounds: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """Adjacent pieces of a buffer as an array."""
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), data])


def _each_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The blocks by part, without empty parts. The input is sorted by part, in batches that may end anywhere.

    Raises EngineFault unless the last block of a part is its witness.
    """
    for part in _runs_of_a_part(batches):
        witness = pc.equal(part.column("frame"), _WITNESS)
        if pc.sum(witness).as_py() != 1 or not witness[-1].as_py():
            raise EngineFault(
                f"Spark gave part {part.column('part')[0]} of the rows to several tasks, or ended this task before it "
                "had all rows, so that no task can decide which objects are live. No result was stored. Run again. If "
                "this recurs and no task was killed, change Spark's settings, and report them as a bug"
            )
        blocks = part.filter(pc.invert(witness))
        if blocks.num_rows:
            yield blocks


def _runs_of_a_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        numbers = batch.column("part").to_numpy()
        if not len(numbers):
            continue
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(bounds):
            if waiting and waiting[-1].column("part")[0].as_py() != numbers[start]:
                yield pa.Table.from_batches(waiting)
                waiting = []
            waiting.append(batch.slice(start, end - start))
    if waiting:
        yield pa.Table.from_batches(waiting)


def _numbers(blocks: pa.Table, column: str) -> Hashes:
    return np.frombuffer(b"".join(blocks.column(column).to_pylist()), np.uint64)


def _rows(blocks: pa.Table) -> pa.Table:
    """The rows of blocks from `streams`. Each block is a schema and one batch; equal schemas are parsed only once."""
    head, schema = pa.py_buffer(b""), pa.schema([])
    batches = []
    for stream in blocks.column("rows"):
        buffer = stream.as_buffer()
        if not head.size or not buffer[: head.size].equals(head):
            message = pa.ipc.read_message(buffer)
            head, schema = message.serialize(), pa.ipc.read_schema(message)
        batches.append(pa.ipc.read_record_batch(buffer[head.size :], schema))
    return pa.Table.from_batches(batches, schema)

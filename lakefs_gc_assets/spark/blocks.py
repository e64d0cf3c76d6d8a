"""Frames cut up by address: rows travel in blocks, so that comparing addresses costs Spark a few rows for each task.

Row by row, Spark's JVM takes more than a microsecond to turn Arrow into rows of its own and back: several times as long
as a task needs to read an address, hash it and look it up. So the task that reads a piece of a frame hashes its
addresses (`collector.engine.hashing`) and hands on one row for each part of all hashes: a block. Blocks of one part
meet in one task, whichever frames they come from.
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

BLOCKS = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("frame", pa.int32(), nullable=False),
        pa.field("hashes", pa.binary(), nullable=False),
        pa.field("others", pa.binary()),
        pa.field("rows", pa.binary()),
    ]
)
"""Some rows of a frame. `hashes` and `others` have 64 bits for each row; `rows` is a stream of Arrow's IPC format."""

SETS = pa.schema([pa.field("sets", pa.int64(), nullable=False), pa.field("addresses", pa.int64(), nullable=False)])
"""Numbers of addresses in the same frames: bit k of `sets` stands for frame k."""

LEFT = pa.schema([pa.field("rows", pa.int64(), nullable=False), pa.field("hashes", pa.binary())])
"""Number of hashes that remain in a part and, where they are few enough, the hashes: 64 bits each."""

Indices = npt.NDArray[np.int64]

_AT_ONCE, _LARGEST_CUT = 131_072, 524_288
"""Rows that a task cuts up together: the least, and the most where there are thousands of parts."""
_OF_A_PART = 32
"""Rows of each part that a task cuts up together, if that is not too many: fewer take less time than their blocks."""
_LEAST, _MOST = 20_000, 250_000
"""Rows of a part: fewer take more time for their blocks than for themselves; more, with all columns, over 50 MB."""
_WITNESS = 2**31 - 1
"""The frame of a block that shows that all of a part is there: the last one of a part."""


def parts_of(frame: Rows, rows: int) -> int:
    """Into how many parts a frame is cut, with all frames that it meets.

    Args:
        rows: how many rows all of them have together, about.
    """
    partitions = int(tasks.session_of(frame).conf.get("spark.sql.shuffle.partitions") or 1)
    return max(1, min(rows // _LEAST, 4 * partitions), rows // _MOST)


def cut(rows: Rows, parts: int, frame: int = 0, *, with_nulls: bool = False) -> Rows:
    """The rows of a frame as blocks (BLOCKS).

    Args:
        rows: with a column `address`, among others.
        frame: what tells its blocks from those of other frames.
        with_nulls: whether a row may have no address; it is an error otherwise.
    """
    return tasks.map_batches(rows, partial(_blocks, parts, partial(_cut_rows, parts, frame, with_nulls)), BLOCKS)


def cut_once(rows: Rows, parts: int) -> Rows:
    """The rows of a frame as blocks for `merged`; of rows with one address that are cut together, only the first."""
    return tasks.map_batches(rows, partial(_blocks, parts, partial(_cut_first, parts)), BLOCKS)


def cut_hashes(rows: Rows, parts: int, frame: int, twice: bool = False) -> Rows:
    """The hashes of a frame's addresses as blocks (BLOCKS), without the rows.

    Args:
        twice: whether addresses are hashed by 128 bits.
    """
    return tasks.map_batches(
        tasks.select(rows, "address"), partial(_blocks, parts, partial(_cut_hashes, parts, frame, twice)), BLOCKS
    )


def compared(
    blocks: Sequence[Rows], parts: int, compare: Callable[[pa.Table], pa.Table], schema: pa.Schema | StructType
) -> Rows:
    """Applies `compare` to each part: to all its blocks, whoever cut them, and all columns or none.

    Args:
        parts: number of parts that all frames were cut into.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in _each_part(batches):
            compared_part = compare(part)
            if compared_part.num_rows:
                yield from compared_part.to_batches()

    columns = schema if isinstance(schema, StructType) else from_arrow_schema(schema)
    return Mapped(_in_parts(blocks, parts), run, columns)


def merged(blocks: Sequence[Rows], parts: int, change: ChangeBatches, schema: pa.Schema) -> Rows:
    """Applies `change` to the rows of all blocks, one row for each address, compared as strings.

    Unlike with `compared`, one call of it gets the rows of many parts: all that a task has.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from change(map(_each_once, _each_part(batches)))

    return Mapped(_in_parts(blocks, parts), run, from_arrow_schema(schema))


def _in_parts(blocks: Sequence[Rows], parts: int) -> DataFrame:
    """The blocks of all frames, all of a part in one task and one after the other, each part with a witness.

    That they are is Spark's promise, and all that keeps live objects apart from garbage. There is one witness of each
    part, so that a task which has some of a part without the rest of it lacks the witness, unless another one does. It
    comes last, since a task that Spark ends gets no more rows and no word of it: to Python that is the end of all rows.
    """
    witnesses = tasks.session_of(blocks[0]).range(0, parts, 1, 1)
    columns = [F.col("id").cast("int").alias("part"), F.lit(_WITNESS).alias("frame"), F.lit(b"").alias("hashes")]
    nothing = [F.lit(None).cast("binary").alias(name) for name in ("others", "rows")]
    together = tasks.union_all([*map(tasks.dataframe_of, blocks), witnesses.select(*columns, *nothing)])
    return together.repartition("part").sortWithinPartitions("part", "frame")


def changed(change: ChangePart) -> Callable[[pa.Table], pa.Table]:
    """A function that applies `change` to the rows of a part."""
    return lambda part: change(_rows(part))


def unmatched(part: pa.Table) -> pa.Table:
    """Rows of frame 0 whose hash no other frame has."""
    universe, others = _divided(part)
    if not universe.num_rows:
        return pa.table({})
    hashes, live = _numbers(universe, "hashes"), _numbers(others, "hashes")
    return _rows(universe).filter(pa.array(~hashing.among(hashes, live)))


def compared_exactly(among: bool) -> Callable[[pa.Table], pa.Table]:
    """A function that selects the rows of frame 0 whose address is in the other frames, or is not, as strings.

    A row without an address is among none.
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

    return choose


def unmatched_hashes(most: int) -> Callable[[pa.Table], pa.Table]:
    """A function that finds hashes of frame 0 that no other frame has (LEFT), if a part has at most `most` of them."""

    def tell(part: pa.Table) -> pa.Table:
        hashes, live = (_numbers(blocks, "hashes") for blocks in _divided(part))
        unmatched = distinct(hashes[~hashing.among(hashes, live)])
        return pa.table([[len(unmatched)], [unmatched.tobytes() if len(unmatched) <= most else None]], schema=LEFT)

    return tell


def counted(part: pa.Table) -> pa.Table:
    """The numbers of addresses of a part in the same frames (SETS), compared by 128 bits."""
    each = pc.binary_length(part.column("hashes")).to_numpy() // 8
    bits = np.repeat(1 << part.column("frame").to_numpy(), each).astype(np.uint8)
    counts = hashing.count_by_sets(_numbers(part, "hashes"), _numbers(part, "others"), bits)
    sets = np.flatnonzero(counts)
    return pa.table([pa.array(sets), pa.array(counts[sets])], schema=SETS)


def _divided(part: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The blocks of frame 0, and those of the other frames."""
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
    """Where rows are cut.

    Attributes:
        order: of rows that puts those of a part together.
        parts: those that have rows, ascending.
        bounds: where each of them begins in that order, and where the last one ends.
    """

    order: Indices
    parts: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int32]

    @classmethod
    def by_part(cls, hashes: Hashes, parts: int) -> "Cuts":
        """The cuts between the parts of hashes."""
        part_of = hashing.parts(hashes, parts)
        order = np.argsort(part_of, kind="stable")
        ordered = part_of[order].astype(np.int32)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        return cls(order, ordered[starts], np.append(starts, len(order)).astype(np.int32))

    def binary(self, hashes: Hashes) -> pa.BinaryArray:
        """The hashes of each part."""
        return _binary(pa.py_buffer(hashes[self.order]), self.bounds * np.int32(hashes.itemsize))

    def streams(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The rows of each part as a stream of Arrow's IPC format, put together here from its messages.

        Arrow's own writer of streams takes 40 µs for each, several times as much as the rows of a small part.
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
    """Pieces of a buffer, one after the other."""
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), data])


def _each_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Blocks of each part together, of those that have any; they come sorted by part, in batches that may end anywhere.

    Raises EngineFault where the witness of a part is not the last of its blocks.
    """
    for part in _runs_of_a_part(batches):
        witness = pc.equal(part.column("frame"), _WITNESS)
        if pc.sum(witness).as_py() != 1 or not witness[-1].as_py():
            raise EngineFault(
                f"Spark gave part {part.column('part')[0]} of what is compared to several tasks, or ended this task "
                "before it had all: none of them can know what is live. Nothing was made of it. Run again, and where "
                "nobody ended anything, with other settings of Spark, and tell us of them"
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
    """The rows of blocks that `streams` made: each is one batch behind its schema, which is read where it changes."""
    head, schema = pa.py_buffer(b""), pa.schema([])
    batches = []
    for stream in blocks.column("rows"):
        buffer = stream.as_buffer()
        if not head.size or not buffer[: head.size].equals(head):
            message = pa.ipc.read_message(buffer)
            head, schema = message.serialize(), pa.ipc.read_schema(message)
        batches.append(pa.ipc.read_record_batch(buffer[head.size :], schema))
    return pa.Table.from_batches(batches, schema)

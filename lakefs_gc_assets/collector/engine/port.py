"""The port through which a run works with tables of addresses, wherever they are.

The product's engine works on Spark (`spark/engine.py`). Rows that the driver holds stay in the driver, on the local
engine (`local.py`). Simulations run the same protocol on the local engine alone. A plain reference engine lives in the
tests. All three pass one contract suite (`lakefs_gc_assets_tests/collector/engine/engine_contract.py`).

Functions on single Arrow batches stand beside the port. They are pure, run in compiled code, and serve both engines of
the product.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import reduce
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, Kept
from lakefs_gc_assets.lakefs.layout import LEFTOVER, Layout

LOCAL_ROWS = 400_000
"""Maximum rows of a frame that the driver reads and keeps itself, about 100 MB: starting tasks takes longer."""

R = TypeVar("R")
"""The rows of an engine."""
Item = TypeVar("Item")
Result = TypeVar("Result")

ChangeBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Changes all batches of a task. It runs in a worker, so everything that it captures must be picklable."""

ChangePart = Callable[[pa.Table], pa.Table]
"""Changes a part of the rows. It runs in a worker, so everything that it captures must be picklable."""

ReadItem = Callable[[Item], Iterable[pa.RecordBatch]]
"""Reads an item in a worker, as batches of rows."""

Holds = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Returns true for each row of a batch that meets a condition; null counts as false. It runs in a worker."""


def nullable(schema: pa.Schema) -> pa.Schema:
    """The columns, all nullable, as engines read them: otherwise Spark would hide nulls from the checks."""
    return pa.schema([column.with_nullable(True) for column in schema])


class Engine(Protocol[R]):
    """Makes and compares tables of addresses.

    Rows are lazy: they are read when an operation with a result (`count`, `collect`, `count_…`) asks for them. Rows
    that two such operations use are computed twice unless they are `cached`. Only the right operand of a comparison may
    be computed at once, if it is a few rows that the driver holds. Rows have no order. An address that is null equals
    no address.

    Several operations take `count`: the approximate number of rows of all operands together. It decides how the work is
    split and must not change the result.

    Attributes:
        tasks: number of tasks that read or write files, unless a setting says otherwise.
        tasks_at_once: number of tasks that run at the same time.
    """

    tasks: int
    tasks_at_once: int

    @property
    def ran_on(self) -> str:
        """Place of the work so far, for the log: Spark or this process."""
        ...

    def table(self, table: pa.Table) -> R:
        """Rows that the driver holds already."""
        ...

    def read(self, groups: Sequence[Sequence[Item]], read: ReadItem[Item], schema: pa.Schema) -> R:
        """Rows that tasks read, one task for each group of items; `read` yields batches of the schema."""
        ...

    def union(self, first: R, *more: R) -> R:
        """All rows of frames that have the same columns."""
        ...

    def select(self, rows: R, *columns: str) -> R:
        """Some columns, in this order."""
        ...

    def where(self, rows: R, holds: Holds) -> R:
        """The rows for which a condition holds."""
        ...

    def where_among(self, rows: R, column: str, values: Sequence[str | None]) -> R:
        """The rows whose text in a column is among the values; None stands for null."""
        ...

    def map_batches(self, rows: R, change: ChangeBatches, schema: pa.Schema) -> R:
        """The result of a function for each task's rows, in columns of the schema."""
        ...

    def map_distinct(self, frames: Sequence[R], change: ChangeBatches, schema: pa.Schema, count: int) -> R:
        """The result of a function for one row per distinct address in all frames; addresses compare as strings.

        A row without an address is an error.
        """
        ...

    def map_by_address(self, rows: R, change: ChangePart, schema: pa.Schema, count: int) -> R:
        """The result of a function for parts of the rows: all rows of an address are in one part, and no part
        is empty.

        A row without an address is an error.
        """
        ...

    def distinct(self, rows: R) -> R:
        """Distinct rows."""
        ...

    def without(self, rows: R, *live: R, count: int, least: int = 0) -> R:
        """The rows whose address is in none of the live frames.

        Addresses may be compared by a hash: a collision keeps an object and never loses one. So the right side must be
        live addresses, and this must never be used for an intersection. The resulting rows may be deleted: a row
        without an address is an error.

        Args:
            count: approximate number of rows of all frames together.
            least: minimum rows that remain, if known.
        """
        ...

    def without_exactly(self, rows: R, addresses: R, count: int | None = None) -> R:
        """The rows whose address is not among the addresses, compared as strings.

        Args:
            count: approximate number of rows of both together, if known.
        """
        ...

    def among_exactly(self, rows: R, addresses: R, count: int | None = None) -> R:
        """The rows whose address is among the addresses, compared as strings.

        Args:
            count: approximate number of rows of both together, if known.
        """
        ...

    def without_matching(self, rows: R, others: R, columns: Sequence[str]) -> R:
        """The rows that have no equal in the given columns; null equals nothing."""
        ...

    def kept_because(self, unreferenced: R, cutoff: datetime, windows: Collection[str], sighted: R) -> R:
        """Adds the column `kept`: the reason to keep an unreferenced object (a value of Kept), null if it may go.

        Args:
            unreferenced: rows of the listing (LISTED) that nothing references.
            cutoff: LastModified and the time in the name must both be earlier; UTC.
            windows: the windows that the run collects.
            sighted: addresses of objects uploaded in parts that an earlier run listed long enough ago.
        """
        ...

    def same_content(self, rows: R, others: R) -> R:
        """Distinct rows that have the size of some row in `others`, and its ETag if both are plain MD5.

        Both have the columns `size` and `etag`. Objects with size 0 are the same, even if their ETags differ.
        """
        ...

    def count(self, rows: R) -> int:
        """Number of rows."""
        ...

    def collect(self, rows: R, limit: int | None = None) -> pa.Table:
        """The rows in this process, at most `limit`; nullability of columns is not promised."""
        ...

    def count_by_sets(self, *frames: R, count: int) -> dict[int, int]:
        """Distinct addresses by the frames that hold them, at most eight frames: bit k of a key is frame k's.

        Addresses compare by 128 bits or more: a collision among a billion addresses is less likely than one in 10^20.
        """
        ...

    def hold(self, rows: R, count: int) -> R:
        """The same rows; if they are few, they are computed at once and held in the driver, so later steps cost less.

        Args:
            count: number of rows.
        """
        ...

    def spread(self, rows: R, at_most: int | None = None) -> R:
        """The same rows, dealt out to tasks that wait for a store; at most `at_most` tasks run at a time."""
        ...

    def cached(self, rows: R, at_most: int) -> AbstractContextManager[R]:
        """Rows for several uses, which are computed once; their memory is released at the exit.

        Args:
            at_most: maximum number of rows.
        """
        ...

    def in_background(self, work: Callable[[], Result]) -> AbstractContextManager[Callable[[], Result]]:
        """Does work in the background.

        Yields a function that waits for the result, and raises an error of the work. If it is not called, a failure
        goes unnoticed. The exit waits for the work as well.
        """
        ...

    def name_work(self, work: str, run: str = "") -> AbstractContextManager[None]:
        """Names the work until the exit, for an engine that shows its work to users. It changes no result.

        Args:
            work: name of a step if `run` is given; otherwise of an action of the step, such as "list 20 parts". It
                replaces the name of the action around it.
            run: repository and id of the run.
        """
        ...


UPLOAD_DURATION = timedelta(days=7)
"""Extra age before parts of uploads may go: an upload may be under way for days."""


def kept_because(cutoff: datetime, windows: Collection[str], sighted: Holds, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Adds the column `kept` to a batch: the reason to keep an object (a value of Kept), null if it may go.

    Args:
        cutoff: LastModified and the time in the name must both be earlier; for parts of uploads, LastModified must be
            earlier by UPLOAD_DURATION.
        windows: the windows that the run collects.
        sighted: true for objects uploaded in parts that an earlier run listed long enough ago.
        rows: unreferenced rows of the listing (LISTED).
    """
    limit, limit_of_leftovers = (
        pa.scalar(moment, rows.schema.field("last_modified").type) for moment in (cutoff, cutoff - UPLOAD_DURATION)
    )
    layout, issued_at = rows.column("layout"), rows.column("issued_at")
    timed = pc.is_in(layout, pa.array([Layout.SLICE.value, Layout.SHARDED.value]))
    young = (
        pc.greater_equal(rows.column("last_modified"), limit),
        pc.greater_equal(issued_at, limit),
        pc.and_(timed, pc.is_null(issued_at)),
        pc.and_(
            pc.match_substring_regex(rows.column("address"), f"{LEFTOVER}$"),
            pc.greater_equal(rows.column("last_modified"), limit_of_leftovers),
        ),
    )
    multipart = pc.match_substring_regex(rows.column("etag"), MULTIPART_ETAG)
    # If a condition is null, the next one counts.
    reasons = {
        Kept.UNRECOGNISED: pc.equal(layout, Layout.UNRECOGNISED.value),
        Kept.YOUNG: reduce(pc.or_, [pc.fill_null(each, False) for each in young]),
        Kept.OTHER_WINDOW: pc.invert(pc.is_in(rows.column("slice_window"), pa.array([*windows], pa.string()))),
        Kept.MULTIPART: pc.and_(multipart, pc.invert(pc.fill_null(sighted(rows), False))),
    }
    kept = pc.case_when(pc.make_struct(*reasons.values()), *(pa.scalar(reason.value) for reason in reasons))
    return rows.append_column("kept", kept)


def is_sighted(rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row with true in the column `sighted`."""
    return rows.column("sighted")


def is_one_of(column: str, values: Sequence[str | None], rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row whose text in a column is among some values; None stands for null."""
    return pc.is_in(rows.column(column), value_set=pa.array(values, pa.string()))


def is_among(addresses: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row whose address is among some addresses; null never is."""
    return pc.is_in(rows.column("address"), value_set=addresses)


def is_not_among(addresses: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row whose address is not among some addresses."""
    return pc.invert(is_among(addresses, rows))

"""Pure functions over batches of Arrow, by compiled code alone: why an object stays, and how many do."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import KEPT_COUNTS, OUTCOME_COUNTS, Holds
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, Kept
from lakefs_gc_assets.lakefs.layout import Layout


def kept_because(cutoff: datetime, windows: Collection[str], sighted: Holds, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Adds the column `kept` to a batch: why an object stays (a value of Kept), null where it may go.

    Args:
        cutoff: LastModified and the time in the name must both be earlier.
        windows: the windows that the run collects.
        sighted: says of objects uploaded in parts whether an earlier run listed them long enough ago.
        rows: of the listing, which nothing references.
    """
    limit = pa.scalar(cutoff, rows.schema.field("last_modified").type)
    layout, issued_at = rows.column("layout"), rows.column("issued_at")
    timed = pc.is_in(layout, pa.array([Layout.SLICE.value, Layout.SHARDED.value]))
    young = (
        pc.greater_equal(rows.column("last_modified"), limit),
        pc.greater_equal(issued_at, limit),
        pc.and_(timed, pc.is_null(issued_at)),
    )
    multipart = pc.match_substring_regex(rows.column("etag"), MULTIPART_ETAG)
    # Where a condition is not known, the next one counts.
    reasons = {
        Kept.UNRECOGNISED: pc.equal(layout, Layout.UNRECOGNISED.value),
        Kept.YOUNG: reduce(pc.or_, [pc.fill_null(each, False) for each in young]),
        Kept.OTHER_WINDOW: pc.invert(pc.is_in(rows.column("slice_window"), pa.array([*windows], pa.string()))),
        Kept.MULTIPART: pc.and_(multipart, pc.invert(pc.fill_null(sighted(rows), False))),
    }
    kept = pc.case_when(pc.make_struct(*reasons.values()), *(pa.scalar(reason.value) for reason in reasons))
    return rows.append_column("kept", kept)


def count_kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts the rows of each batch by why they stay (KEPT_COUNTS), and those of them that were uploaded in parts."""
    for batch in batches:
        ones = pa.array([1] * batch.num_rows, pa.int64())
        parts = pc.fill_null(pc.match_substring_regex(batch.column("etag"), MULTIPART_ETAG), False).cast(pa.int64())
        rows = pa.table([batch.column("kept"), ones, parts], schema=KEPT_COUNTS)
        yield from added_up(rows, KEPT_COUNTS).to_batches()


def count_outcomes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts receipts of each batch, and their bytes, by outcome (OUTCOME_COUNTS)."""
    for batch in batches:
        ones = pa.array([1] * batch.num_rows, pa.int64())
        rows = pa.table([batch.column("outcome"), ones, batch.column("size")], schema=OUTCOME_COUNTS)
        yield from added_up(rows, OUTCOME_COUNTS).to_batches()


def added_up(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Sums of all other columns for each value of the first."""
    first, *others = schema.names
    summed = rows.group_by(first).aggregate([(name, "sum") for name in others])
    columns = [summed.column(first), *(summed.column(f"{name}_sum") for name in others)]
    return pa.table(columns, names=schema.names).cast(schema)


def is_one_of(column: str, values: Sequence[str | None], rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row whose text in a column is among some values; None stands for null."""
    return pc.is_in(rows.column(column), value_set=pa.array(values, pa.string()))


def is_among(addresses: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row whose address is among some addresses; null never is."""
    return pc.is_in(rows.column("address"), value_set=addresses)


def is_not_among(addresses: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each row whose address is not among some addresses."""
    return pc.invert(is_among(addresses, rows))

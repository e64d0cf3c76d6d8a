"""The engine of the rows that one process holds, up to some hundred thousand, without an object of Python for each.

Python's sets and dictionaries, by which `arrow_engine.py` compares, take several times the memory of what Arrow holds.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import address_hashes, batches
from lakefs_gc_assets.collector.address_hashes import AddressSet
from lakefs_gc_assets.collector.arrow_engine import (
    ArrowEngine,
    ArrowRows,
    Batches,
    batches_of,
    each_batch,
    each_with,
)
from lakefs_gc_assets.collector.engine import KEPT_COUNTS, OUTCOME_COUNTS, ChangeBatches, Holds

_KEPT = pa.field("kept", pa.string())


class HeldEngine(ArrowEngine):
    """Makes and compares tables of addresses in this process, as `ArrowEngine` does, but for what is said here."""

    def where(self, rows: ArrowRows, holds: Holds) -> ArrowRows:
        """The rows of which something holds."""
        return _filtered(rows, lambda: holds)

    def where_among(self, rows: ArrowRows, column: str, values: Sequence[str | None]) -> ArrowRows:
        """The rows whose text in a column is among the values; None stands for null."""
        return self.where(rows, partial(batches.is_one_of, column, values))

    def map_distinct(
        self, frames: Sequence[ArrowRows], change: ChangeBatches, schema: pa.Schema, count: int
    ) -> ArrowRows:
        """What a function makes of one row for each address, the first. Raises ValueError where an address is null."""

        def first_of_each() -> Batches:
            found = list(batches_of(frames))
            if found:
                whole = pa.concat_batches(found)
                addresses = whole.column("address")
                first = address_hashes.first_of_each(addresses, address_hashes.hashes(addresses))
                yield whole.filter(pa.array(first))

        return self.map_batches(ArrowRows(frames[0].schema, lambda: iter([first_of_each()])), change, schema)

    def without(self, rows: ArrowRows, *live: ArrowRows, count: int, least: int = 0) -> ArrowRows:
        """The rows whose address is in none of the live frames. Raises ValueError where one has no address."""
        return _filtered(each_batch(rows, _require_addresses), lambda: _inverted(self._has_address_of(*live)))

    def without_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        """The rows whose address is not among the addresses."""
        return _filtered(rows, lambda: _inverted(self._has_address_of(addresses)))

    def among_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        """The rows whose address is among the addresses."""
        return _filtered(rows, lambda: self._has_address_of(addresses))

    def named(self, *frames: ArrowRows) -> pa.StringArray:
        """The addresses of all rows, some of them perhaps several times; null is none."""
        columns = [batch.column("address").drop_null() for batch in batches_of(frames)]
        return pa.concat_arrays([pa.array([], pa.string()), *columns])

    def _has_address_of(self, *frames: ArrowRows) -> Holds:
        known = AddressSet.made(self.named(*frames))
        return lambda batch: known.has(batch.column("address"))

    def kept_because(
        self, unreferenced: ArrowRows, cutoff: datetime, windows: Collection[str], sighted: ArrowRows
    ) -> ArrowRows:
        """Adds the column `kept`: why an unreferenced object stays, null where it may go."""
        tell = partial(batches.kept_because, cutoff, frozenset(windows))
        return each_with(
            unreferenced,
            lambda: self._has_address_of(sighted),
            lambda batch, known: tell(known, batch),
            unreferenced.schema.append(_KEPT),
        )

    def count_by_sets(self, *frames: ArrowRows, count: int) -> dict[int, int]:
        """How many distinct addresses are in the same frames, of at most eight: bit k of a key is frame k's."""
        each = [self.named(frame) for frame in frames]
        one, other = (
            np.concatenate([address_hashes.hashes(addresses, seed) for addresses in each])
            for seed in (address_hashes.SEED, address_hashes.OTHER_SEED)
        )
        bits = np.repeat(1 << np.arange(len(each)), [len(addresses) for addresses in each]).astype(np.uint8)
        counts = address_hashes.count_by_sets(one, other, bits)
        return {int(sets): int(counts[sets]) for sets in np.flatnonzero(counts)}

    def count_kept(self, rows: ArrowRows) -> pa.Table:
        """Rows with the column `kept` counted by it: `kept` (null: may go), `objects` and `multipart`."""
        return batches.added_up(_table(batches.count_kept(batches_of([rows])), KEPT_COUNTS), KEPT_COUNTS)

    def count_outcomes(self, receipts: ArrowRows) -> pa.Table:
        """Receipts counted by outcome: columns `outcome`, `objects` and `bytes`."""
        counted = _table(batches.count_outcomes(batches_of([receipts])), OUTCOME_COUNTS)
        return batches.added_up(counted, OUTCOME_COUNTS)


def _require_addresses(rows: pa.RecordBatch) -> pa.RecordBatch:
    if rows.column("address").null_count:
        raise ValueError("an address is null")
    return rows


def _inverted(holds: Holds) -> Holds:
    return lambda batch: pc.invert(holds(batch))


def _filtered(rows: ArrowRows, prepare: Callable[[], Holds]) -> ArrowRows:
    """The rows of which something holds that is prepared once for each use of the rows."""
    return each_with(rows, prepare, lambda batch, holds: batch.filter(holds(batch)))


def _table(batches: Batches, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches, schema)

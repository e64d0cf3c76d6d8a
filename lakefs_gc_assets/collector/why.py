"""Why an object is garbage, as far as its run knows at the cost that it has anyway.

What is live decides it, and so the flow does: a run that keeps whatever any commit holds finds what no commit holds.
Whether some commit held it that lakeFS has forgotten since, nobody knows. A run of the flow `unified` does not read
what only expired commits hold, so it cannot tell that from what was never committed.
"""

from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.plan import Flow


class Why(StrEnum):
    """Reasons for which candidates are garbage. Frames hold these texts: one may be added, none changed."""

    NO_COMMIT = "no commit holds it"
    EXPIRED = "only expired commits hold it"
    NO_ACTIVE_COMMIT = "no active commit holds it"
    RESTORED = "brought back, and garbage again"


_BY_FLOW = {
    Flow.CLEAN: Why.NO_COMMIT,
    Flow.OPTIMIZED: Why.NO_COMMIT,
    Flow.COMMITTED: Why.EXPIRED,
    Flow.UNIFIED: Why.NO_ACTIVE_COMMIT,
}


def by_flow(flow: Flow) -> Why:
    """Why everything is garbage that a run of this flow finds, unless an earlier run deleted it and it came back."""
    return _BY_FLOW[flow]


def add_why(batch: pa.RecordBatch, why: Why, restored: pa.Array) -> pa.RecordBatch:
    """Rows with the column `why`.

    Args:
        why: of all but those that were brought back.
        restored: addresses that were brought back.
    """
    back = pc.is_in(batch.column("address"), value_set=restored)
    return batch.append_column("why", pc.if_else(back, Why.RESTORED.value, why.value))

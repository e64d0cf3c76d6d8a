"""What earlier runs did, from what they left in the store."""

from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.frame.schemas import RECEIPTS
from lakefs_gc_assets.collector.quarantine import restore_record
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import receipts
from lakefs_gc_assets.collector.sweep.outcome import Outcome
from lakefs_gc_assets.collector.work import spread


def deleted_before(step: Step[R], since: datetime | None = None) -> R:
    """Addresses (`address`) that earlier runs deleted or moved to quarantine, and nobody restored.

    Args:
        since: leaves out what was deleted earlier; UTC.
    """
    store, opener, engine = step.repository.store, step.repository.opener, step.engine
    runs = EarlierRuns(store)
    earlier = (run_id for run_id in runs.newest_first() if run_id != step.plan.run_id)
    may_have = (run_id for run_id in earlier if (known := runs.settled(run_id)) is None or known.deleted)
    keys = [key for run_id in may_have for key in receipts.keys(store, run_id)]

    def read(key: str) -> Iterator[pa.RecordBatch]:
        yield from receipts.read_file(opener.open(), key).to_batches()

    rows = engine.read(spread(keys, engine.tasks), read, RECEIPTS)
    deleted = engine.where_among(rows, "outcome", receipts.GONE)
    if restore_record.read(store) is not None:
        restored = engine.where_among(rows, "outcome", (Outcome.RESTORED.value,))
        deleted = engine.without_matching(deleted, restored, ("address", "attempt"))
    if since is not None:
        moment = pa.scalar(since, RECEIPTS.field("decided_at").type)
        deleted = engine.where(deleted, lambda batch: pc.greater_equal(batch.column("decided_at"), moment))
    return engine.select(deleted, "address")

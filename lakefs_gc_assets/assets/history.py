"""What earlier runs did, from what they left in the store."""

from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import receipts, restoration, run_folder
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.tables import RECEIPTS
from lakefs_gc_assets.sources import tasks


def deleted_before(run: Step, since: datetime | None = None) -> DataFrame:
    """Addresses (`address`) that earlier runs deleted or moved to quarantine, and nobody brought back.

    Args:
        since: leaves out what was deleted earlier; UTC.
    """
    store, opener = run.repository.store, run.repository.opener
    earlier = (run_id for run_id in run_folder.newest_runs(store) if run_id != run.plan.run_id)
    keys = [key for run_id in earlier for key in receipts.keys(store, run_id)]

    def read(key: str) -> Iterator[pa.RecordBatch]:
        yield from receipts.read_file(opener.open(), key).to_batches()

    rows = tasks.dataframe(run.spark, tasks.spread(keys, run.partitions(0)), read, RECEIPTS)
    deleted = rows.where(F.col("outcome").isin(*receipts.GONE))
    if restoration.read(store) is not None:
        restored = rows.where(F.col("outcome") == Outcome.RESTORED.value)
        deleted = deleted.join(restored, ["address", "attempt"], "left_anti")
    if since is not None:
        deleted = deleted.where(F.col("decided_at") >= F.timestamp_micros(F.lit(int(since.timestamp() * 1_000_000))))
    return deleted.select("address")

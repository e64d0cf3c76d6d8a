"""What earlier runs deleted or moved to quarantine and somebody brought back, by the receipts of that."""

from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import restoration
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.storage.interface import ObjectStore

_RUNS = 20
"""So many of the newest runs are asked for."""
MOST = 100_000
"""So many addresses are told; where there are more, none are."""


def restored_before(store: ObjectStore, run_id: str) -> pa.Array:
    """Addresses that the newest earlier runs deleted and somebody brought back; none where there are more than MOST.

    One call tells of a repository where nothing ever was.

    Args:
        run_id: the run that asks.
    Raises:
        CollectionError: what is left of it cannot be read.
    """
    found: list[str] = []
    if restoration.read(store) is not None:
        earlier = (each for each in run_folder.newest_runs(store) if each != run_id)
        for each in islice(earlier, _RUNS):
            found += _restored_of(store, each)
            if len(found) > MOST:
                return pa.array([], pa.string())
    return pa.array(found, pa.string())


def _restored_of(store: ObjectStore, run_id: str) -> list[str]:
    addresses = list[str]()
    for rows in receipts.read_files(store, receipts.keys(store, run_id, receipts.OF_RESTORE)):
        addresses += rows.filter(pc.equal(rows.column("outcome"), Outcome.RESTORED.value))["address"].to_pylist()
    return addresses

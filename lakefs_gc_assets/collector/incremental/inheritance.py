"""What an earlier run left, for a run that builds on it."""

from lakefs_gc_assets.collector import report as reports
from lakefs_gc_assets.collector.incremental import checkpoint as checkpoints
from lakefs_gc_assets.collector.incremental.checkpoint import Carry
from lakefs_gc_assets.collector.report import Report
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore


class Inheritance:
    """An earlier run's report and carry, and the names and ids that belong to it.

    Raises CorruptFile where the report is gone, or a file is not the one that it names.
    """

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self.run_id = run_id
        found = reports.read(store, run_id)
        if found is None or found.carry is None:
            raise CorruptFile(run_id, "report", "the run that this one builds on has lost its report")
        self.report: Report = found
        self.carry: Carry = found.carry

    @property
    def settled(self) -> frozenset[str]:
        """The settled slices."""
        return checkpoints.read_settled(self._store, self.run_id, self.carry)

    @property
    def read_ids(self) -> frozenset[str]:
        """Ids of the ranges and metaranges whose addresses are known."""
        return checkpoints.read_ids(self._store, self.run_id, self.carry)

"""The record that objects of this repository were restored.

It is stored before the first object is restored, and concerns every run that was opened before: such a run deletes
nothing more, and no run builds on it, since its mark and its checkpoint lack those objects. Which runs these are is
decided by run ids and not by a clock. The record of a later restoration replaces an earlier one and concerns more runs.
"""

from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.collector.stored import records, run_folder
from lakefs_gc_assets.errors import ObjectNotFound, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore

FORMAT_VERSION = 1
KEY = f"{run_folder.ROOT}restored.json"


@dataclass(frozen=True, slots=True)
class Restoration:
    """The last restoration of objects.

    Attributes:
        run_id: the run whose deletions were undone.
        newest_run: the newest run of any kind at that time.
        began_at: UTC.
    """

    run_id: str
    newest_run: str
    began_at: datetime
    format_version: int = FORMAT_VERSION

    def concerns(self, run_id: str) -> bool:
        """Whether there was this run already; ids of newer runs sort first."""
        return run_id >= self.newest_run


def write(store: ObjectStore, run_id: str, now: datetime) -> None:
    """Stores that objects of a run are about to be restored, under the repository's lock. `now`: UTC."""
    newest_run = next(run_folder.newest_runs(store), run_id)
    store.put(KEY, records.encode(Restoration(run_id, newest_run, now)))


def read(store: ObjectStore) -> Restoration | None:
    """The last restoration; None where there was none. Raises CorruptFile."""
    try:
        return records.decode(Restoration, FORMAT_VERSION, store.get(KEY), KEY)
    except ObjectNotFound:
        return None


def require_none_since(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation where a run began before the last restoration: its candidates no longer hold."""
    found = read(store)
    if found is not None and found.concerns(run_id):
        raise OrderViolation(
            f"objects that run {found.run_id} had deleted were brought back at {found.began_at:%F %T}Z, after run "
            f"{run_id} was opened: it deletes nothing more; open a new run"
        )

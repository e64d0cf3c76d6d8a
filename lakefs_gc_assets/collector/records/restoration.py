"""The record that objects of this repository were restored.

It is stored before the first object is restored, and concerns every run that was opened before: such a run deletes
nothing more, and no run builds on it, since its mark and its checkpoint lack those objects. Which runs these are is
decided by run ids and not by a clock. The record of a later restoration replaces an earlier one and concerns more runs.

A record that cannot be read may concern any run that was opened before. The next run that begins replaces it with one
that concerns all of them. So it stops these runs for good, and no run after them.
"""

from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.collector.stored import records_json, run_folder
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

FORMAT_VERSION = 1
KEY = f"{run_folder.ROOT}restored.json"
UNKNOWN = ""
_NO_RUN = "v" * layout.XID_LENGTH
"""Sorts behind all ids: older than any run."""


@dataclass(frozen=True, slots=True)
class Restoration:
    """The last restoration of objects.

    Attributes:
        run_id: the run whose deletions were undone; UNKNOWN where the record of that could not be read.
        newest_run: the newest run of any kind at that time.
        began_at: UTC.
    """

    run_id: str
    newest_run: str
    began_at: datetime
    format_version: int = FORMAT_VERSION

    def __str__(self) -> str:
        """The event and its time, as the beginning of a sentence."""
        if self.run_id == UNKNOWN:
            return f"objects may have been brought back before {self.began_at:%F %T}Z (the record of it was damaged)"
        return f"objects that run {self.run_id} had deleted were brought back at {self.began_at:%F %T}Z"

    def concerns(self, run_id: str) -> bool:
        """True if this run existed already; ids of newer runs sort first."""
        return run_id >= self.newest_run


def write(store: ObjectStore, run_id: str, now: datetime) -> None:
    """Stores that objects of a run are about to be restored, under the repository's lock. `now`: UTC."""
    newest_run = next(run_folder.newest_runs(store), run_id)
    store.put(KEY, records_json.encode(Restoration(run_id, newest_run, now)))


def read(store: ObjectStore) -> Restoration | None:
    """The last restoration; None where there was none. Raises CorruptFile."""
    data = get_if_there(store, KEY)
    return None if data is None else records_json.decode(Restoration, FORMAT_VERSION, data, KEY)


def replace_unreadable(store: ObjectStore, now: datetime) -> str | None:
    """Replaces a record that cannot be read with one that concerns every run stored so far.

    To be called under the repository's lock, before a run stores its first plan. A file of a newer version of the
    program is replaced as well: the new record concerns at least the same runs.

    Args:
        now: UTC.
    Returns:
        A warning; None where the record can be read or there is none.
    """
    try:
        read(store)
    except CorruptFile as corrupt:
        newest_run = next(run_folder.newest_runs(store), _NO_RUN)
        store.put(KEY, records_json.encode(Restoration(UNKNOWN, newest_run, now)))
        return (
            f"the record of the last restoration could not be read ({corrupt.check}: {corrupt.detail}) and was "
            "replaced: runs that were opened before this one delete nothing more, and this run builds on none of them"
        )
    return None


def require_none_since(store: ObjectStore, run_id: str) -> None:
    """Raises OrderViolation where a run began before the last restoration: its candidates no longer hold.

    So it does where the record of that restoration cannot be read.
    """
    try:
        restoration = read(store)
    except CorruptFile as corrupt:
        raise OrderViolation(
            f"it is not known whether objects were brought back after run {run_id} was opened: {corrupt} "
            "Open a new run: it replaces this file and looks at everything"
        ) from corrupt
    if restoration is not None and restoration.concerns(run_id):
        raise OrderViolation(f"{restoration}, after run {run_id} was opened: it deletes nothing more; open a new run")

"""The ids of ranges and metaranges that were read: an id is a hash of the content, so no run needs to read it again."""

from collections.abc import Iterable

from lakefs_gc_assets.collector.stored import ids as stored_ids
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.storage.interface import ObjectStore


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}read-{attempt}.parquet"


def write(store: ObjectStore, run_id: str, attempt: str, ids: Iterable[str]) -> str:
    """Stores the ids that an attempt's commits step and the runs before it have read; returns the file's SHA-256."""
    return stored_ids.write(store, _key(run_id, attempt), ids)


def read(store: ObjectStore, run_id: str, attempt: str, sha256: str | None = None) -> frozenset[str]:
    """The ids that an attempt's commits step and the runs before it have read. Raises CorruptFile."""
    return stored_ids.read(store, _key(run_id, attempt), sha256)

"""The ids of ranges and metaranges that were read: an id is a hash of the content, so no run needs to read it again."""

from collections.abc import Iterable, Set

from lakefs_gc_assets.collector.stored import ids as stored_ids
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.collector.stored.id_set import IdSet
from lakefs_gc_assets.storage.interface import ObjectStore


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}read-{attempt}.parquet"


def write(store: ObjectStore, run_id: str, attempt: str, ids: Iterable[str]) -> str:
    """Stores the ids that an attempt's commits step and the runs before it have read; returns the file's SHA-256."""
    return stored_ids.write(store, _key(run_id, attempt), ids if isinstance(ids, IdSet) else IdSet(ids))


def read(store: ObjectStore, run_id: str, attempt: str, sha256: str | None = None) -> Set[str]:
    """The ids that an attempt's commits step and the runs before it have read. Raises CorruptFile."""
    return IdSet.of_columns(stored_ids.read_parts(store, _key(run_id, attempt), sha256))


def count(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> int:
    """How many ids `read` gives, for less. Raises CorruptFile where the file is missing, or another one."""
    return stored_ids.count(store, _key(run_id, attempt), sha256)

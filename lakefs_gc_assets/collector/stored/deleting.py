"""Deletion of what runs and servers stored within the storage namespace, which is no data."""

from collections.abc import Sequence

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore


def keys_below(store: ObjectStore, folder: str) -> list[str]:
    """The keys of everything in a folder, at any depth."""
    return [key for batch in store.list(folder) for key in batch["key"].to_pylist()]


def delete_all(store: ObjectStore, keys: Sequence[str]) -> int:
    """Deletes keys in their order; returns how many. Raises StorageError where one could not be deleted."""
    for start in range(0, len(keys), store.delete_limit):
        for outcome in store.delete(keys[start : start + store.delete_limit]):
            if outcome.result is not DeleteResult.ACCEPTED:
                raise StorageError(f"{outcome.key} could not be deleted: {outcome.error}")
    return len(keys)

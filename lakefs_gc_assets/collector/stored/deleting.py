"""Deletion of what runs themselves stored, within the storage namespace."""

from collections.abc import Sequence

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore


def delete_all(store: ObjectStore, keys: Sequence[str]) -> int:
    """Deletes keys in their order; returns how many. Raises StorageError where one could not be deleted."""
    for start in range(0, len(keys), store.delete_limit):
        for outcome in store.delete(keys[start : start + store.delete_limit]):
            if outcome.result is not DeleteResult.ACCEPTED:
                raise StorageError(f"{outcome.key} could not be deleted: {outcome.error}")
    return len(keys)

"""Copies and deletions within the storage namespace of what runs and servers stored there, which is no data."""

from collections.abc import Sequence

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import CopiesObjects, DeleteResult, ObjectStore


def copy(store: ObjectStore, source: str, target: str) -> None:
    """Copies an object, by the store itself where it can; otherwise it is read and written.

    Raises:
        ObjectNotFound: there is no object at the source.
        StorageError: it could not be copied.
    """
    if isinstance(store, CopiesObjects):
        store.copy(source, target)
    else:
        store.put(target, store.get(source))


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

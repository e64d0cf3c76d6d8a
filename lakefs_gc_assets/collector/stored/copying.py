"""Copies of what one run stored for another one, within the storage namespace."""

from lakefs_gc_assets.storage.interface import CopiesObjects, ObjectStore


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

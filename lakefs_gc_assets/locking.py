"""A repository's lock for work that is no collection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakefs_gc_assets.assets.step import acquired, renewed
from lakefs_gc_assets.collection.lock import Lock
from lakefs_gc_assets.collection.repository import OpenRepository


@contextmanager
def locked(repository: OpenRepository, work: str, owner: str, warn: Callable[[str], None]) -> Iterator[Lock]:
    """Holds the lock, renewed in the background, and releases it at the end; no run can be under way meanwhile.

    Args:
        work: what the lock is held for; it stands where a run's id does.
        owner: who holds it; the same owner takes it over at once.
    Raises:
        LockHeld.
    """
    lock = acquired(repository, work, owner)
    try:
        with renewed(lock, repository, warn):
            yield lock
    finally:
        lock.release()

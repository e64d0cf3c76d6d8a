"""Holding a repository's lock for work that is no collection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from lakefs_gc_assets.assets.step import latest_clock, renewed
from lakefs_gc_assets.collection.lock import Lock
from lakefs_gc_assets.collection.repository import OpenRepository


@contextmanager
def held(repository: OpenRepository, work: str, owner: str, warn: Callable[[str], None]) -> Iterator[Lock]:
    """The lock, renewed in the background, released at the end; no run can be under way meanwhile.

    Args:
        work: what the lock is held for; it stands where a run's id does.
        owner: who holds it; the same owner takes it over at once.
    Raises:
        LockHeld.
    """
    lock = Lock.acquire(
        repository.store,
        run_id=work,
        owner=owner,
        now=latest_clock(repository),
        expiry=timedelta(minutes=repository.settings.lock_expiry_minutes),
    )
    try:
        with renewed(lock, repository, warn):
            yield lock
    finally:
        lock.release()

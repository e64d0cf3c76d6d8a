"""Undoing what a run deleted, for the command line."""

import uuid
from collections.abc import Callable, Iterator, Sequence

from lakefs_gc_assets.collection import explanation, restoring
from lakefs_gc_assets.collection.clock import SystemClock
from lakefs_gc_assets.collection.restoring import Restored
from lakefs_gc_assets.configuration import Loaded
from lakefs_gc_assets.holding import held
from lakefs_gc_assets.running import opened


def restored(loaded: Loaded, run_id: str, addresses: Sequence[str], warn: Callable[[str], None]) -> Iterator[Restored]:
    """Brings back what a run deleted, under the lock; tells of each address as it happens.

    Args:
        addresses: relative to the storage namespace or in full; empty for all.
    Raises:
        CollectionError.
    """
    repository = opened(loaded, SystemClock()).open()
    keys = [explanation.relative(repository, address) for address in addresses]
    with held(repository, f"restore {run_id}", f"restore-{uuid.uuid4().hex}", warn) as lock:
        deleted = restoring.deleted_by(repository.store, run_id, keys)
        yield from restoring.restore(repository.store, run_id, deleted, lock.token, repository.clock)

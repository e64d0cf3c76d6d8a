"""Undoing what a run deleted, for the command line."""

import uuid
from collections.abc import Callable, Iterator, Sequence

from lakefs_gc_assets.bringing_back import brought_back
from lakefs_gc_assets.collection.clock import SystemClock
from lakefs_gc_assets.collection.restoring import Restored
from lakefs_gc_assets.configuration import Loaded
from lakefs_gc_assets.running import opened


def restored(loaded: Loaded, run_id: str, addresses: Sequence[str], warn: Callable[[str], None]) -> Iterator[Restored]:
    """Brings back what a run deleted, under the lock; tells of each address as it happens.

    Args:
        addresses: relative to the storage namespace or in full; empty for all.
    Raises:
        CollectionError.
    """
    repository = opened(loaded, SystemClock()).open()
    yield from brought_back(repository, run_id, addresses, f"restore-{uuid.uuid4().hex}", warn)

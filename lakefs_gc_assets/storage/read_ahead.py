"""Objects that are asked for in an order that is known: the next ones are fetched while the caller deals with one."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from lakefs_gc_assets.storage.interface import GivesObjects

_OBJECTS = 4
_BYTES = 16 << 20
"""Limits of objects, and of their bytes, that are fetched or wait for the caller."""


class ReadAhead:
    """Gives the objects of a store; fetches announced keys ahead, in their order."""

    def __init__(self, store: GivesObjects, coming: Iterable[tuple[str, int]], threads: ThreadPoolExecutor) -> None:
        """Nothing is fetched yet.

        Args:
            coming: keys, and about how many bytes each object has.
        """
        self._store, self._coming, self._threads = store, iter(coming), threads
        self._fetched: deque[tuple[str, int, Future[bytes]]] = deque()

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectNotFound or another StorageError, as the store does."""
        if not self._fetched:
            # The caller would wait for a thread: it fetches this one itself.
            following = next(self._coming, None)
            if following is not None and following[0] != key:
                self._fetch(*following)
        fetched = self._fetched.popleft() if self._fetched and self._fetched[0][0] == key else None
        self._fetch_more()
        return self._store.get(key) if fetched is None else fetched[2].result()

    def _fetch_more(self) -> None:
        while len(self._fetched) < _OBJECTS and sum(size for _, size, _ in self._fetched) < _BYTES:
            following = next(self._coming, None)
            if following is None:
                return
            self._fetch(*following)

    def _fetch(self, key: str, size: int) -> None:
        self._fetched.append((key, size, self._threads.submit(self._store.get, key)))


@contextmanager
def read_ahead(store: GivesObjects, coming: Iterable[tuple[str, int]]) -> Iterator[ReadAhead]:
    """A store's objects, fetched ahead until the exit; what was not asked for by then is not waited for.

    Args:
        coming: as for ReadAhead.
    """
    threads = ThreadPoolExecutor(_OBJECTS)
    try:
        yield ReadAhead(store, coming, threads)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)

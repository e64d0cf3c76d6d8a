"""Operations on objects that any store allows: copies, deletions, the MD5 of contents, and reading ahead.

A store without ETags gives no MD5, and with server-side encryption by keys of KMS an S3 ETag looks like an MD5 without
being one (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html); lakeFS notes the MD5 it computed itself.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from lakefs_gc_assets.errors import ObjectArchived, StorageError
from lakefs_gc_assets.storage.interface import CopiesObjects, DeleteResult, GivesObjects, ObjectStore, get_if_there


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


LARGEST_READ = 64 * 1024 * 1024
"""Larger objects are not read: their content stays unknown, and their size alone is compared."""


def content_digest(store: ObjectStore, address: str) -> str | None:
    """MD5 of an object, in hexadecimal; None where it is gone."""
    content = get_if_there(store, address)
    return None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest()


def readable_digest(store: ObjectStore, address: str) -> str | None:
    """MD5 of an object, in hexadecimal; None where it is gone, or in an archive tier and cannot be read."""
    try:
        return content_digest(store, address)
    except ObjectArchived:
        return None


def are_digests(store: ObjectStore, sample: Iterable[tuple[str, str]]) -> bool:
    """True if a sample (address, MD5) could be read and is right; objects that are gone or archived say nothing."""
    compared = [(expected, readable_digest(store, address)) for address, expected in sample]
    readable = [(expected, digest) for expected, digest in compared if digest is not None]
    return bool(readable) and all(expected == digest for expected, digest in readable)


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

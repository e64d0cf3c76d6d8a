"""The store of a place whose objects move into the quarantine of the configured repository.

Sweeps, restorations and purges work on one store, in which the files of a run lie beside its objects. Here, the files
of the collector and the quarantine belong to the configured repository. All other keys are keys of the bucket, so an
object of the place `lakes/gone/` has the address `lakes/gone/data/…`.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import DeleteOutcome, Level, ObjectFacts, ObjectStore


class PlaceStore:
    """A repository's store for keys in `_lakefs/`, and its bucket for all other keys."""

    def __init__(self, own: ObjectStore, bucket: ObjectStore, own_key: str) -> None:
        """Combines two open stores.

        Args:
            own: the repository's store, which signs and verifies records if a key is set.
            bucket: the store of the whole bucket.
            own_key: key of the repository's storage namespace in the bucket; empty or with a slash at its end.
        """
        self.bucket = bucket
        self.delete_limit = bucket.delete_limit
        self._own, self._own_key = own, own_key

    def _of(self, key: str) -> ObjectStore:
        return self._own if key.startswith(METADATA_PREFIX) else self.bucket

    def _in_bucket(self, key: str) -> str:
        return self._own_key + key if key.startswith(METADATA_PREFIX) else key

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list."""
        return self._of(prefix).list(prefix)

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        return self._of(prefix).list_level(prefix)

    def get(self, key: str) -> bytes:
        """See GivesObjects.get."""
        return self._of(key).get(key)

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """See GivesObjects.get_part."""
        return self._of(key).get_part(key, start, end)

    def head(self, key: str) -> ObjectFacts:
        """See GivesObjects.head."""
        return self._of(key).head(key)

    def put(self, key: str, data: bytes) -> str | None:
        """See ObjectStore.put."""
        return self._of(key).put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        return self._of(key).put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return self._of(key).put_if_match(key, data, etag)

    def copy(self, source: str, target: str) -> ObjectFacts:
        """See ObjectStore.copy; the key in the result is that of the bucket."""
        return self.bucket.copy(self._in_bucket(source), self._in_bucket(target))

    def copy_if_absent(self, source: str, target: str) -> None:
        """See ObjectStore.copy_if_absent."""
        self.bucket.copy_if_absent(self._in_bucket(source), self._in_bucket(target))

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete. Raises ValueError if only some keys lie in the place."""
        stores = {id(store): store for store in map(self._of, keys)}
        if len(stores) > 1:
            raise ValueError("one call deletes either objects of a place or the collector's own files")
        return [outcome for store in stores.values() for outcome in store.delete(keys)]

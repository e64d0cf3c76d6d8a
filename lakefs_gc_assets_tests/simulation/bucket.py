"""The object store of the simulated world: its content, and the port through which a collector reaches it."""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

import pyarrow as pa

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteOutcome,
    DeleteResult,
    Level,
    ObjectFacts,
    ObjectStore,
    checked_prefix,
)
from lakefs_gc_assets.storage.signing import SignedStore, Signer
from lakefs_gc_assets_tests.simulation.clocks import MachineClock, moment

ETags = Literal["md5", "foreign", "none"]
"""ETag that the store gives for an object of lakeFS: the MD5, a value that looks like one, or none."""
_AFTER_SLASH, _AFTER_ALL = chr(ord("/") + 1), chr(0x10FFFF)


@dataclass(frozen=True, slots=True)
class Stored:
    """One object; `last_modified` in seconds by the store's clock."""

    data: bytes
    etag: str | None
    last_modified: float


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def encrypted(key: str) -> bool:
    """True if a KMS key encrypts an object in a bucket of foreign ETags: two objects of three, beside plain ones."""
    return crc32(key.encode()) % 3 > 0


@dataclass
class Bucket:
    """Objects by key, relative to the storage namespace.

    Attributes:
        signer: signs the files of collectors, if they sign.
        sizes: sizes of all keys that ever existed.
        appeared: true time when each key first existed.
    """

    clock: MachineClock
    etags: ETags
    signer: Signer | None = None
    objects: dict[str, Stored] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    versions: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    appeared: dict[str, float] = field(default_factory=dict)

    def opened(self, view: ObjectStore) -> ObjectStore:
        """Returns a view of this bucket as collectors open it: a signing one if they sign."""
        return SignedStore(view, self.signer) if self.signer else view

    def put(self, key: str, data: bytes) -> str:
        """Writes a file of lakeFS or of the collector; its ETag is unique to this version."""
        self.versions += 1
        return self._store(key, Stored(data, f"version-{self.versions}", self.clock.seconds()))

    def put_data(self, key: str, data: bytes, *, parts: int = 1, begun: float | None = None) -> None:
        """Writes an object of a user.

        Args:
            parts: more than one for a multipart upload, which the ETag then shows.
            begun: LastModified, if it is not the present.
        """
        etag: str | None = md5(data)
        if parts > 1 and self.etags != "none":
            etag = f"{md5(b'parts' + data)}-{parts}"
        elif self.etags == "foreign" and encrypted(key):
            etag = md5(b"encrypted" + data)
        elif self.etags == "none":
            # Services without MD5 ETags set LastModified of a multipart upload to its end.
            etag, begun = None, begun if parts == 1 else None
        self._store(key, Stored(data, etag, self.clock.seconds() if begun is None else begun))

    def _store(self, key: str, stored: Stored) -> str:
        if key not in self.objects:
            insort(self.keys, key)
            self.appeared.setdefault(key, self.clock.time.now)
        self.objects[key] = stored
        self.sizes[key] = len(stored.data)
        return stored.etag or ""

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def between(self, prefix: str, after: str = "") -> tuple[int, int]:
        """Index range of the keys below a prefix, or of the keys after `after`."""
        first = bisect_left(self.keys, max(prefix, after + "\0" if after else ""))
        return first, bisect_left(self.keys, prefix + _AFTER_ALL, first) if prefix else len(self.keys)

    def keys_below(self, prefix: str) -> list[str]:
        """Keys below a prefix, sorted."""
        first, end = self.between(prefix)
        return self.keys[first:end]


@dataclass
class DeleteFaults:
    """Faults of the next deletes: every nth key is refused, or the call breaks off after some keys.

    Deletes of the collector's own small files succeed, since they are no sweep.
    """

    refuse_every: int = 0
    break_after: int | None = None
    pretend: bool = False


class BucketView:
    """`ObjectStore` for one collector: at each call the world may go on, fail the call or end the collector.

    Attributes:
        metadata_written: name and LastModified of each file in the last listing of the metadata folder.
    """

    def __init__(
        self,
        bucket: Bucket,
        point: Callable[[str], bool],
        deleted: Callable[[str, bool], None],
        written: Callable[[str, bytes], None],
        *,
        page: int,
        delete_limit: int,
    ) -> None:
        """Opens a view for a collector.

        Args:
            point: receives each call; returns True if its answer is to be lost after the call took effect.
            deleted: receives each key that was accepted for deletion, and True if it is gone.
            written: receives each key and content that was written.
            page: keys per page of a listing.
        """
        self._bucket, self._point, self._deleted, self._written = bucket, point, deleted, written
        self._page = page
        self.delete_limit = delete_limit
        self.metadata_written: dict[str, float] = {}
        self.faults = DeleteFaults()

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        checked_prefix(prefix)
        after = ""
        while True:
            self._point(f"list {prefix}")
            first, end = self._bucket.between(prefix, after)
            page = self._bucket.keys[first:end][: self._page]
            if not page:
                return
            facts = [self._facts(key) for key in page if key != prefix]
            if facts:
                yield _batch(facts)
            if len(page) < self._page:
                return
            after = page[-1]

    def list_level(self, prefix: str) -> Level:
        checked_prefix(prefix)
        self._point(f"list_level {prefix}")
        prefixes: dict[str, None] = {}
        objects = []
        keys = self._bucket.keys
        position, end = self._bucket.between(prefix)
        while position < end:
            key = keys[position]
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                prefixes[f"{prefix}{name}/"] = None
                # Skip all keys below this prefix.
                position = bisect_left(keys, f"{prefix}{name}{_AFTER_SLASH}", position, end)
                continue
            if name:
                objects.append(self._facts(key))
            position += 1
        if prefix == METADATA_PREFIX:
            self.metadata_written = {fact.key.removeprefix(prefix): fact.last_modified.timestamp() for fact in objects}
        return Level(tuple(prefixes), tuple(objects))

    def get(self, key: str) -> bytes:
        self._point(f"get {key}")
        return self._stored(key).data

    def get_part(self, key: str, start: int, end: int) -> bytes:
        self._point(f"get_part {key}")
        return self._stored(key).data[start:end]

    def head(self, key: str) -> ObjectFacts:
        self._point(f"head {key}")
        stored = self._stored(key)
        digest = md5(stored.data)
        return replace(self._facts(key), md5=digest if digest == stored.etag else None)

    def put(self, key: str, data: bytes) -> str | None:
        lost = self._point(f"put {key}")
        self._written(key, data)
        etag = self._bucket.put(key, data)
        if lost:
            raise StorageError(f"put {key}: the connection broke")
        return etag

    def put_if_absent(self, key: str, data: bytes) -> str:
        lost = self._point(f"put_if_absent {key}")
        if key in self._bucket.objects:
            raise AlreadyExists(f"{key} exists")
        self._written(key, data)
        etag = self._bucket.put(key, data)
        if lost:
            raise AlreadyExists(f"{key} exists: written by the first try of this call")
        return etag

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        lost = self._point(f"put_if_match {key}")
        current = self._bucket.objects.get(key)
        if current is None or current.etag != etag:
            raise PreconditionFailed(f"{key} is another version")
        self._written(key, data)
        etag = self._bucket.put(key, data)
        if lost:
            raise PreconditionFailed(f"{key} is another version: written by the first try of this call")
        return etag

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        if len(keys) > self.delete_limit:
            raise StorageError(f"{len(keys)} keys in one delete")
        lost = self._point("delete " + " ".join(keys))
        faults = DeleteFaults()
        if not keys[0].startswith(layout.RUNS_PREFIX):
            faults, self.faults = self.faults, faults
        outcomes = []
        for position, key in enumerate(keys):
            if position == faults.break_after:
                raise StorageError("delete: the connection broke")
            if faults.refuse_every and position % faults.refuse_every == 0:
                outcomes.append(DeleteOutcome(key, DeleteResult.FAILED, "InternalError: we encountered an error"))
                continue
            gone = not faults.pretend
            self._deleted(key, gone)
            if gone:
                self._bucket.remove(key)
            outcomes.append(DeleteOutcome(key, DeleteResult.ACCEPTED))
        if lost:
            raise StorageError("delete: the connection broke")
        return outcomes

    def copy(self, source: str, target: str) -> ObjectFacts:
        lost = self._point(f"copy {source} {target}")
        data = self._stored(source).data
        self._written(target, data)
        self._bucket.put_data(target, data)
        if lost:
            raise StorageError(f"copy {source}: the connection broke")
        return self._facts(target)

    def copy_if_absent(self, source: str, target: str) -> None:
        if target in self._bucket.objects:
            self._point(f"copy_if_absent {source} {target}")
            raise AlreadyExists(f"{target} exists")
        self.copy(source, target)

    def _stored(self, key: str) -> Stored:
        if key not in self._bucket.objects:
            raise ObjectNotFound(f"no object {key}")
        return self._bucket.objects[key]

    def _facts(self, key: str) -> ObjectFacts:
        stored = self._bucket.objects[key]
        return ObjectFacts(key, len(stored.data), moment(stored.last_modified), stored.etag)


def _batch(facts: Sequence[ObjectFacts]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([fact.key for fact in facts], pa.string()),
            pa.array([fact.size for fact in facts], pa.int64()),
            pa.array([fact.last_modified for fact in facts], LISTING_SCHEMA.field("last_modified").type),
            pa.array([fact.etag for fact in facts], pa.string()),
            pa.array([fact.storage_class for fact in facts], pa.string()),
        ],
        schema=LISTING_SCHEMA,
    )


def address_of(key: str) -> tuple[str, str] | None:
    """The run that moved a copy to quarantine, and the object's address; None if the key is no such copy."""
    run_id, _, address = key.removeprefix(layout.QUARANTINE_PREFIX).partition("/")
    lies_there = key.startswith(layout.QUARANTINE_PREFIX) and layout.is_xid(run_id)
    return (run_id, address) if lies_there and not address.startswith("purging/") else None


def in_quarantine(bucket: Bucket) -> Iterator[tuple[str, str]]:
    """The run that moved each copy, and the object's address."""
    for key in bucket.keys_below(layout.QUARANTINE_PREFIX):
        moved = address_of(key)
        if moved is not None:
            yield moved


def is_back(bucket: Bucket, key: str) -> bool:
    """True if the object of a copy in quarantine is back at its address, or if the key is no copy."""
    moved = address_of(key)
    if moved is None or key not in bucket.objects:
        return True
    there = bucket.objects.get(moved[1])
    return there is not None and there.data == bucket.objects[key].data

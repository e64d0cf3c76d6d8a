"""The interface of object stores, and operations on any store.

A store is bound to one storage namespace: keys are relative to it, exactly as the service spells them.
All times are UTC, sizes bytes.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import repeat
from typing import Protocol, runtime_checkable

import pyarrow as pa

from lakefs_gc_assets.errors import CorruptFile, ObjectArchived, ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, moved_metadata
from lakefs_gc_assets.settings import StoreSettings

LISTING_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("last_modified", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("storage_class", pa.string()),
    ]
)
"""Columns of a listing: `etag` without quotes, `storage_class` as the service spells it. Both are null if absent."""

ARCHIVE_CLASSES = frozenset({"Archive", "DEEP_ARCHIVE", "GLACIER"})
"""Storage classes of Azure and S3 whose objects must be restored before a read. They keep their class when restored.

Objects of Google's `ARCHIVE` and of S3's `GLACIER_IR` are readable immediately.
"""


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """Facts of an object, as its store states them.

    Attributes:
        md5: MD5 of the content, in hexadecimal, from `head` only. None if the service's digest may be something else:
            with server-side encryption by keys of KMS, an S3 ETag looks like an MD5 without being one
            (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html). Listings do not state the encryption.
        storage_class: class or access tier, if a listing states it.
    """

    key: str
    size: int
    last_modified: datetime
    etag: str | None
    md5: str | None = field(default=None, compare=False)
    storage_class: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a listing with a delimiter: sub-prefixes (each ends with `/`) and the objects directly below."""

    prefixes: tuple[str, ...]
    objects: tuple[ObjectFacts, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a service's listing, with full keys.

    Attributes:
        rows: LISTING_SCHEMA.
        prefixes: prefixes of deeper objects in a listing with a delimiter.
        token: start of the next page; None on the last page.
        versions: ETags of the rows as `head` gives them, in order of the rows; None if listings give the same ones.
    """

    rows: pa.RecordBatch
    prefixes: tuple[str, ...]
    token: str | None
    versions: tuple[str, ...] | None = None

    def objects(self) -> Iterator[ObjectFacts]:
        """The rows as `head` returns them, without the MD5."""
        keys, sizes, times, etags, classes = (column.to_pylist() for column in self.rows.columns)
        utc = (time.astimezone(UTC) for time in times)
        versions = etags if self.versions is None else self.versions
        return map(ObjectFacts, keys, sizes, utc, versions, repeat(None), classes)


def as_batch(objects: Sequence[ObjectFacts]) -> pa.RecordBatch:
    """Objects as rows of LISTING_SCHEMA."""
    columns = [[getattr(facts, name) for facts in objects] for name in LISTING_SCHEMA.names]
    return pa.RecordBatch.from_pydict(dict(zip(LISTING_SCHEMA.names, columns, strict=True)), schema=LISTING_SCHEMA)


def checked_prefix(prefix: str) -> str:
    """The prefix itself. Raises ValueError unless it is empty or ends with `/`."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"a prefix is empty or ends with a slash, unlike {prefix!r}")
    return prefix


def checked_key(key: str) -> str:
    """The key itself. Raises StorageError if it is empty or not valid Unicode."""
    try:
        key.encode()
    except UnicodeEncodeError:
        key = ""
    if not key:
        raise StorageError("an empty text, or one that is not Unicode, cannot be the key of an object")
    return key


NULL_VERSION = "null"
"""Version ID of the last write or delete while versioning was suspended. Every object of that time shares it."""


class DeleteResult(StrEnum):
    """Answer of a store for one key of a delete; `ACCEPTED` is not proof that the object is gone.

    `LEFT`: the deadline of `deletes_until` passed. The key was not requested, was refused, or its outcome is unknown.
    """

    ACCEPTED = "accepted"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class DeleteOutcome:
    """Outcome for one key.

    Attributes:
        error: the service's code and message, without credentials.
        version_id: on a versioned S3 bucket, the version of the delete marker. Deleting that version brings back the
            version below it. `null` if versioning is suspended: the marker replaced the version `null`, if any.
        soft_deleted: True if the service keeps the content for some time, so its bytes are still paid for; None if the
            service does not say.
    """

    key: str
    result: DeleteResult
    error: str | None = None
    version_id: str | None = None
    soft_deleted: bool | None = None


_ARE_DELETES_OVER: ContextVar[Callable[[], bool]] = ContextVar("are deletes over", default=lambda: False)


@contextmanager
def deletes_until(is_over: Callable[[], bool]) -> Iterator[None]:
    """Context in which stores neither send nor retry delete requests after a deadline.

    Args:
        is_over: returns True after the deadline; may be called in other threads.
    """
    token = _ARE_DELETES_OVER.set(is_over)
    try:
        yield
    finally:
        _ARE_DELETES_OVER.reset(token)


def are_deletes_over() -> bool:
    """True if the deadline of `deletes_until` has passed."""
    return _ARE_DELETES_OVER.get()()


_MAX_RECORD_BYTES = 128 << 20


def require_readable(key: str, size: int) -> None:
    """Raises CorruptFile for a JSON record of lakeFS or of runs that is too big to parse in memory."""
    if size > _MAX_RECORD_BYTES and key.startswith("_lakefs/") and key.endswith(".json"):
        raise CorruptFile(
            key,
            "size",
            f"{size >> 20:,} MiB, and no record has over {_MAX_RECORD_BYTES >> 20} MiB: another program wrote it. Find "
            "out which programs may write there, then remove the object or restore an earlier version",
        )


class GivesObjects(Protocol):
    """A source of objects and of facts about them, by key. Raises StorageError."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectNotFound, and CorruptFile before reading if `require_readable` does."""
        ...

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to, but not including, `end`.

        Raises ObjectNotFound. For a shorter object, it may return fewer bytes or raise StorageError.
        """
        ...

    def head(self, key: str) -> ObjectFacts:
        """Size, time, ETag and, if the service states it, MD5 of an object. Raises ObjectNotFound."""
        ...


def get_if_there(store: GivesObjects, key: str) -> bytes | None:
    """The whole object; None if there is none. Raises StorageError if the request fails."""
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


def head_if_there(store: GivesObjects, key: str) -> ObjectFacts | None:
    """Facts of an object; None if there is none. Raises StorageError if the request fails."""
    try:
        return store.head(key)
    except ObjectNotFound:
        return None


def fetch(store: GivesObjects, key: str) -> bytes:
    """The whole object, which the run depends on. Raises CorruptFile if it is missing, StorageError."""
    data = get_if_there(store, key)
    if data is None:
        is_moved = key.startswith(METADATA_PREFIX) and head_if_there(store, moved_metadata(key)) is not None
        raise CorruptFile.missing(key, "`lakefs-gc metadata restore` puts it back" if is_moved else "")
    return data


class ObjectStore(GivesObjects, Protocol):
    """An object store, bound to one storage namespace. Safe to use from several threads.

    Methods raise StorageError (or a subclass named below) with the key and a remedy.
    """

    delete_limit: int
    """Maximum number of keys for one call of `delete`."""

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """Every object below `prefix` (empty, or ends with `/`), at any depth, in batches of LISTING_SCHEMA.

        The order is unspecified. An object named exactly like the prefix (a folder's marker) is not below it.
        Raises UnlistableKey if a key cannot be represented and there is no fallback.
        """
        ...

    def list_level(self, prefix: str) -> Level:
        """Sub-prefixes and objects directly below `prefix` (empty, or ends with `/`), each sorted by UTF-8 bytes."""
        ...

    def put(self, key: str, data: bytes) -> str | None:
        """Writes a whole object, replacing an existing one; returns its ETag, or None if the service gives none."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> str:
        """Writes an object if the key has none; returns its ETag. Raises AlreadyExists.

        A retry after a lost answer can find the object that it wrote itself: read it back if that matters.
        """
        ...

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replaces the version with this ETag; returns the new ETag. Raises PreconditionFailed, also if it is gone.

        A retry after a lost answer can find its own version: read it back if that matters.
        """
        ...

    def copy(self, source: str, target: str) -> ObjectFacts:
        """Copies an object inside the store, within the storage namespace, replacing any object at the target.

        The copy is compared with the source by size and, if the store has digests of both, by digest.
        Returns the facts of the copy.

        Raises:
            ObjectNotFound: there is no object at the source.
            StorageError: the copy failed, or differs from the source.
        """
        ...

    def copy_if_absent(self, source: str, target: str) -> None:
        """Copies an object as `copy` does, but only if the target has none. Raises also AlreadyExists."""
        ...

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """Deletes at most `delete_limit` keys; one outcome for each, in order. A missing key is accepted.

        If the service throttles or fails, requests are retried for minutes, but not past `deletes_until`.

        Raises StorageError if the call failed as a whole: any of the keys may be gone then.
        """
        ...


@runtime_checkable
class ListsInOrder(ObjectStore, Protocol):
    """A store that lists keys in order of UTF-8 bytes and can begin after any key, so that a listing can be split."""

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Objects of `list` with keys after `after` (empty: from the start) up to and including `until` (None: no end).

        The bounds need not be keys of objects. Listings with adjoining bounds give each object once.

        Args:
            only_directly: skip keys with a further `/` after the prefix, as `list_level` does.
        Raises:
            StorageError: also if the service does not list in order, because a bound could then hide objects.
        """
        ...


@runtime_checkable
class ListsAtOnce(ListsInOrder, Protocol):
    """A store whose service lists in pages from any key, so that parallel listings save time.

    A local folder is not one: each listing reads its folders whole, wherever it begins.
    """

    listings_at_once: int
    """Parallel listings for one process."""


@runtime_checkable
class KeepsVersions(ObjectStore, Protocol):
    """A store whose deletes leave delete markers if its bucket keeps versions."""

    def remove_delete_marker(self, key: str, version_id: str) -> bool:
        """Removes this delete marker if it is the newest version of the key; returns True if it did.

        Raises StorageError, also for NULL_VERSION.
        """
        ...


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a key, or a delete marker.

    Attributes:
        is_latest: True for the version that a read without a version ID gets.
    """

    key: str
    version_id: str
    is_marker: bool
    is_latest: bool
    size: int = 0
    etag: str | None = None


@runtime_checkable
class ListsVersions(ObjectStore, Protocol):
    """A store that lists all versions of its keys, and deletes single ones for good."""

    def versions(self, prefix: str) -> Iterator[Version]:
        """All versions and delete markers of keys with this prefix; the objects themselves in an unversioned bucket.

        Raises StorageError.
        """
        ...

    def delete_version(self, key: str, version_id: str) -> None:
        """Deletes one version or delete marker for good; a missing one counts as deleted.

        Raises StorageError; its subclass DeletesOver after the deadline of `deletes_until`.
        """
        ...


@runtime_checkable
class TellsParts(ObjectStore, Protocol):
    """A store that states the sizes of the parts of a multipart upload."""

    def part_sizes(self, key: str) -> tuple[int, ...] | None:
        """Bytes of each part of an object whose ETag is computed from the MD5s of its parts.

        None if the service does not say, or if the ETag is something else, as with keys of KMS. Raises StorageError.
        """
        ...


def keys_below(store: ObjectStore, folder: str) -> list[str]:
    """Keys of all objects in a folder, at any depth."""
    return [key for batch in store.list(folder) for key in batch["key"].to_pylist()]


def delete_all(store: ObjectStore, keys: Sequence[str]) -> int:
    """Deletes keys in order; returns their number. Raises StorageError if a key could not be deleted.

    Later batches are not deleted then, because callers rely on the order: a manifest goes before its files.
    """
    for start in range(0, len(keys), store.delete_limit):
        for outcome in store.delete(keys[start : start + store.delete_limit]):
            if outcome.result is not DeleteResult.ACCEPTED:
                raise StorageError(f"{outcome.key} could not be deleted: {outcome.error}")
    return len(keys)


LARGEST_READ = 64 * 1024 * 1024
"""Maximum bytes of an object that is read to compute its digest. Larger objects are compared by size alone."""


def content_digest(store: ObjectStore, address: str) -> str | None:
    """MD5 of an object, in hexadecimal; None if it is gone."""
    content = get_if_there(store, address)
    return None if content is None else hashlib.md5(content, usedforsecurity=False).hexdigest()


def are_digests(store: ObjectStore, sample: Iterable[tuple[str, str]]) -> bool:
    """True if at least one object of a sample (address, MD5) was read and each one read has its MD5.

    Missing and archived objects are skipped.
    """
    are_right = []
    for address, expected in sample:
        with suppress(ObjectArchived):
            if (digest := content_digest(store, address)) is not None:
                are_right.append(digest == expected)
    return bool(are_right) and all(are_right)


_OBJECTS_AHEAD = 4
_BYTES_AHEAD = 16 << 20
"""Limits of objects, and of their bytes, that are being fetched or wait for the caller."""


class ReadAhead:
    """Gives the objects of a store; prefetches announced keys in order."""

    def __init__(self, store: GivesObjects, coming: Iterable[tuple[str, int]], threads: ThreadPoolExecutor) -> None:
        """Nothing is fetched yet.

        Args:
            coming: keys, and approximate sizes of their objects in bytes.
        """
        self._store, self._coming, self._threads = store, iter(coming), threads
        self._fetched: deque[tuple[str, int, Future[bytes]]] = deque()

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectNotFound or another StorageError, as the store does."""
        if not self._fetched:
            # The caller would wait for a thread, so it fetches this object itself.
            following = next(self._coming, None)
            if following is not None and following[0] != key:
                self._fetch(*following)
        fetched = self._fetched.popleft() if self._fetched and self._fetched[0][0] == key else None
        self._fetch_more()
        return self._store.get(key) if fetched is None else fetched[2].result()

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """A part of an object, read now, as the store does."""
        return self._store.get_part(key, start, end)

    def head(self, key: str) -> ObjectFacts:
        """Facts of an object. Raises ObjectNotFound or another StorageError, as the store does."""
        return self._store.head(key)

    def _fetch_more(self) -> None:
        while len(self._fetched) < _OBJECTS_AHEAD and sum(size for _, size, _ in self._fetched) < _BYTES_AHEAD:
            following = next(self._coming, None)
            if following is None:
                return
            self._fetch(*following)

    def _fetch(self, key: str, size: int) -> None:
        self._fetched.append((key, size, self._threads.submit(self._store.get, key)))


@contextmanager
def read_ahead(store: GivesObjects, coming: Iterable[tuple[str, int]]) -> Iterator[ReadAhead]:
    """A store's objects, prefetched until the exit, which does not wait for fetches under way.

    Args:
        coming: as for ReadAhead.
    """
    threads = ThreadPoolExecutor(_OBJECTS_AHEAD)
    try:
        yield ReadAhead(store, coming, threads)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class OpensStore(Protocol):
    """Opens one store in any process; picklable and hashable. `opening.StoreOpener` is the only implementation."""

    @property
    def settings(self) -> StoreSettings:
        """Settings of the store, with credentials by reference."""
        ...

    @property
    def namespace_uri(self) -> str:
        """URI of the storage namespace that the store is bound to."""
        ...

    def open(self) -> ObjectStore:
        """The store, opened on the first call in this process. Raises ConfigurationError."""
        ...


POLICIES = "docs/policies"
"""Folder of the permission policies in the documentation."""


class InitAnswers(Protocol):
    """Answers of the user of `lakefs-gc init`, spelled as YAML. The command asks for answers that no option gave."""

    @property
    def region(self) -> str:
        """Value of `--region`; empty if it was not given."""
        ...

    def store_endpoint(self) -> str:
        """URL of the store."""
        ...

    def local_root(self) -> str:
        """Folder that `local://` storage namespaces are relative to."""
        ...


@dataclass(frozen=True, slots=True)
class StoreKind:
    """Description of one kind of store for the rest of the program, an entry of `opening.KINDS`.

    If lakeFS writes its addresses with several schemes, `lakefs.addresses` must also know that they mean the same
    location.

    Attributes:
        name: `Location.kind` of its addresses.
        addresses: how storage namespaces begin, for messages.
        open: opens the store of a namespace. Raises ConfigurationError if a setting is missing or wrong.
        readable_path: path of a key, as other programs name the object. Raises ConfigurationError.
        init_sections: lines of the section `store` of a new configuration file, by the name that `init --store` takes.
        rights: permissions as `lakefs-gc doctor` names them, by `list`, `read`, `write`, `delete` and `versions` (to
            undo deletes by versions). Permissions that the service cannot grant are missing.
        browser_link: link to a bucket and key in the cloud's own console, for signed-in users who may read the object;
            None if the console shows no single object.
        extra: extra of this package that installs the needed libraries; empty if they are always installed.
        takes_encryption: True if `store.server_side_encryption` applies to this kind.
    """

    name: str
    addresses: str
    open: Callable[[StoreSettings, Namespace], ObjectStore]
    readable_path: Callable[[StoreSettings, Namespace, str], str]
    init_sections: Mapping[str, Callable[[InitAnswers], Sequence[str]]]
    rights: Mapping[str, str] = field(default_factory=dict)
    browser_link: Callable[[str, str], str] | None = None
    extra: str = ""
    takes_encryption: bool = False


def bucket_path(settings: StoreSettings, namespace: Namespace, key: str) -> str:
    """`StoreKind.readable_path` for kinds whose objects other programs name `<kind>://<bucket>/<key>`."""
    # lakeFS may use another scheme, such as s3a, and escape the rest.
    return f"{namespace.location.kind}://{namespace.location.bucket}/{namespace.location.key}{key}"

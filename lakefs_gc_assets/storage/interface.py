"""The small interface behind which every object store looks the same, and operations that any store allows.

A store is bound to one storage namespace: keys are relative to it, exactly as the service spells them.
All times are UTC, sizes bytes.

A store without ETags gives no MD5, and with server-side encryption by keys of KMS an S3 ETag looks like an MD5 without
being one (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html); lakeFS notes the MD5 it computed itself.
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
"""Columns of a listing: `etag` without quotes, `storage_class` as the service spells it; null where it has none."""

ARCHIVE_CLASSES = frozenset({"Archive", "DEEP_ARCHIVE", "GLACIER"})
"""Storage classes of Azure and S3 whose objects cannot be read before they are brought back, and keep their class then.

Objects of Google's `ARCHIVE` and of S3's `GLACIER_IR` are read at once.
"""


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """Facts of one object, as its store states them.

    Attributes:
        md5: of the content, in hexadecimal, where `head` knows that the service tells the MD5 of this very object; None
            where it may be something else, and in listings that do not say how an object is encrypted.
        storage_class: class or access tier, where a listing tells it.
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
        prefixes: what lies deeper, where a listing goes no further than a delimiter.
        token: where the next page begins; None on the last one.
        versions: ETags of the rows, in their order, where listings give other ones than `head`.
    """

    rows: pa.RecordBatch
    prefixes: tuple[str, ...]
    token: str | None
    versions: tuple[str, ...] | None = None

    def objects(self) -> Iterator[ObjectFacts]:
        """The rows as `head` has them, but for the MD5."""
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
    """The key itself. Raises StorageError where it is empty or no Unicode text."""
    try:
        key.encode()
    except UnicodeEncodeError:
        key = ""
    if not key:
        raise StorageError("an empty text, or one that is not Unicode, cannot be the key of an object")
    return key


NULL_VERSION = "null"
"""Version of whatever was written or deleted last while versioning was suspended: no object's own."""


class DeleteResult(StrEnum):
    """Answer of a store for one key of a delete; `ACCEPTED` is not proof that the object is gone.

    `LEFT`: the time of `deletes_until` was over. The key was refused before, or not asked for, or nobody knows.
    """

    ACCEPTED = "accepted"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class DeleteOutcome:
    """Outcome for one key.

    Attributes:
        error: the service's code and message, without credentials.
        version_id: on a versioned S3 bucket, the version of the delete marker: deleting that version brings back what
            is below it. `null` where versioning is suspended: the marker took the place of a version `null`, if any.
        soft_deleted: whether the service keeps the content for some time, and its bytes are still paid for; None where
            it does not say.
    """

    key: str
    result: DeleteResult
    error: str | None = None
    version_id: str | None = None
    soft_deleted: bool | None = None


_ARE_DELETES_OVER: ContextVar[Callable[[], bool]] = ContextVar("are deletes over", default=lambda: False)


@contextmanager
def deletes_until(is_over: Callable[[], bool]) -> Iterator[None]:
    """Within it a store begins no request of a delete, and repeats none, once the time is over.

    Args:
        is_over: may be called in other threads.
    """
    token = _ARE_DELETES_OVER.set(is_over)
    try:
        yield
    finally:
        _ARE_DELETES_OVER.reset(token)


def are_deletes_over() -> bool:
    """True if a delete may begin no request any more."""
    return _ARE_DELETES_OVER.get()()


_MAX_RECORD_BYTES = 128 << 20


def require_readable(key: str, size: int) -> None:
    """Raises CorruptFile for a JSON record of lakeFS or of runs that is too big to be parsed in memory."""
    if size > _MAX_RECORD_BYTES and key.startswith("_lakefs/") and key.endswith(".json"):
        raise CorruptFile(
            key,
            "size",
            f"{size >> 20:,} MiB, and no record has over {_MAX_RECORD_BYTES >> 20} MiB: something else wrote it. Find "
            "out what may write there, then remove the object or restore an earlier version",
        )


class GivesObjects(Protocol):
    """A source of objects and of facts about them, by key. Raises StorageError."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectNotFound, and CorruptFile by `require_readable` before it is read."""
        ...

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """The bytes from `start` on, up to `end` and without it, of an object that has so many.

        Raises ObjectNotFound. Of a shorter object fewer bytes may come, or a StorageError.
        """
        ...

    def head(self, key: str) -> ObjectFacts:
        """Size, time, ETag and, where the service tells it, the MD5 of one object. Raises ObjectNotFound."""
        ...


def get_if_there(store: GivesObjects, key: str) -> bytes | None:
    """The whole object; None if there is none. Raises StorageError where the store cannot be asked."""
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


def head_if_there(store: GivesObjects, key: str) -> ObjectFacts | None:
    """Facts of one object; None if there is none. Raises StorageError where the store cannot be asked."""
    try:
        return store.head(key)
    except ObjectNotFound:
        return None


def fetch(store: GivesObjects, key: str) -> bytes:
    """The whole object, on which the run depends. Raises CorruptFile if it is missing, StorageError."""
    data = get_if_there(store, key)
    if data is None:
        is_moved = key.startswith(METADATA_PREFIX) and head_if_there(store, moved_metadata(key)) is not None
        raise CorruptFile.missing(key, "`lakefs-gc metadata restore` puts it back" if is_moved else "")
    return data


class ObjectStore(GivesObjects, Protocol):
    """An object store, bound to one storage namespace. Safe to use from several threads.

    Every method raises StorageError (or a subclass named below) with the key and what to do.
    """

    delete_limit: int
    """Maximum number of keys for one call of `delete`."""

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """Every object below `prefix` (empty, or ends with `/`), at any depth, in batches of LISTING_SCHEMA.

        In no promised order. An object named exactly like the prefix (a folder's marker) is not below it.
        Raises UnlistableKey where a key cannot be represented and there is no fallback.
        """
        ...

    def list_level(self, prefix: str) -> Level:
        """Sub-prefixes and objects directly below `prefix` (empty, or ends with `/`), each sorted by UTF-8 bytes."""
        ...

    def put(self, key: str, data: bytes) -> str | None:
        """Writes an object whole, replacing any; returns its ETag."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> str:
        """Writes an object where there is none; returns its ETag. Raises AlreadyExists.

        A repeat after a lost answer can find the object that it wrote itself: read it back where that matters.
        """
        ...

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replaces the version with this ETag; returns the new one. Raises PreconditionFailed, also where it is gone.

        A repeat after a lost answer can find its own version: read it back where that matters.
        """
        ...

    def copy(self, source: str, target: str) -> ObjectFacts:
        """Copies an object within the storage namespace by the store itself, in place of any other at the target.

        The copy is compared with the source by size and, where the store has digests of both contents, by these.
        Returns the facts of the copy.

        Raises:
            ObjectNotFound: there is no object at the source.
            StorageError: the copy failed, or differs from the source.
        """
        ...

    def copy_if_absent(self, source: str, target: str) -> None:
        """Copies an object as `copy` does, but only where none is at the target. Raises also AlreadyExists."""
        ...

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """Deletes at most `delete_limit` keys, one outcome for each, in order; a missing key is accepted.

        Where it throttles or fails, a store repeats its requests for minutes, but not past `deletes_until`.

        Raises StorageError where the call failed as a whole: then any of the keys may be gone.
        """
        ...


@runtime_checkable
class ListsInOrder(ObjectStore, Protocol):
    """A store that lists in order of keys, by UTF-8 bytes, and can begin behind any: a listing can be shared out."""

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Objects of `list` with keys behind `after` (empty: of all) up to `until` itself (None: to the end).

        The bounds need not be keys of objects. Listings whose bounds follow each other give each object once.

        Args:
            only_directly: leave out what has a further `/` behind the prefix, as `list_level` does.
        Raises:
            StorageError: also where the service does not list in order: then a bound could hide objects.
        """
        ...


@runtime_checkable
class ListsAtOnce(ListsInOrder, Protocol):
    """A store of a service that gives out a listing in pages, from any key on: several listings at once take less time.

    A local folder is read whole, wherever a listing of it begins.
    """

    listings_at_once: int
    """Number of listings for one process to make at once."""


@runtime_checkable
class KeepsVersions(ObjectStore, Protocol):
    """A store whose deletes leave delete markers behind, where its bucket keeps versions."""

    def remove_delete_marker(self, key: str, version_id: str) -> bool:
        """Removes this delete marker if it is the newest version of the key; returns whether it did.

        Raises StorageError, also for NULL_VERSION.
        """
        ...


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a key, or a delete marker.

    Attributes:
        is_latest: true for the one that a read without a version gets.
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
        """All versions and delete markers of keys with this prefix; in a bucket without versions its objects.

        Raises StorageError.
        """
        ...

    def delete_version(self, key: str, version_id: str) -> None:
        """Deletes one version or delete marker for good; one that is gone counts as deleted.

        Raises StorageError, DeletesOver among them, see `deletes_until`.
        """
        ...


@runtime_checkable
class TellsParts(ObjectStore, Protocol):
    """A store that tells the sizes of the parts in which an object was uploaded."""

    def part_sizes(self, key: str) -> tuple[int, ...] | None:
        """Bytes of each part of an object whose ETag is the sum of its parts.

        None if the service does not tell, or if the ETag is something else, as with keys of KMS. Raises StorageError.
        """
        ...


def keys_below(store: ObjectStore, folder: str) -> list[str]:
    """The keys of everything in a folder, at any depth."""
    return [key for batch in store.list(folder) for key in batch["key"].to_pylist()]


def delete_all(store: ObjectStore, keys: Sequence[str]) -> int:
    """Deletes keys in their order; returns how many. Raises StorageError where one could not be deleted.

    Later batches stay then, since callers rely on the order: a manifest goes before its files.
    """
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


def are_digests(store: ObjectStore, sample: Iterable[tuple[str, str]]) -> bool:
    """True if a sample (address, MD5) could be read and is right; objects that are gone or archived say nothing."""
    are_right = []
    for address, expected in sample:
        with suppress(ObjectArchived):
            if (digest := content_digest(store, address)) is not None:
                are_right.append(digest == expected)
    return bool(are_right) and all(are_right)


_OBJECTS_AHEAD = 4
_BYTES_AHEAD = 16 << 20
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

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """A part of an object, read now, as the store does."""
        return self._store.get_part(key, start, end)

    def head(self, key: str) -> ObjectFacts:
        """Facts of one object. Raises ObjectNotFound or another StorageError, as the store does."""
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
    """A store's objects, fetched ahead until the exit; what was not asked for by then is not waited for.

    Args:
        coming: as for ReadAhead.
    """
    threads = ThreadPoolExecutor(_OBJECTS_AHEAD)
    try:
        yield ReadAhead(store, coming, threads)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


class OpensStore(Protocol):
    """Opens one store in any process; can be pickled, and used as a key. `opening.StoreOpener` is the only one."""

    @property
    def settings(self) -> StoreSettings:
        """Settings of the store, credentials by reference."""
        ...

    @property
    def namespace_uri(self) -> str:
        """URI of the storage namespace that the store is bound to."""
        ...

    def open(self) -> ObjectStore:
        """The store, opened on the first call in this process. Raises ConfigurationError."""
        ...


POLICIES = "docs/policies"
"""Folder of the documents that grant rights."""


class InitAnswers(Protocol):
    """Answers of whoever runs `lakefs-gc init`, spelled as YAML. Those that no option gave are asked for."""

    @property
    def region(self) -> str:
        """Value of `--region`; empty where it was not given."""
        ...

    def store_endpoint(self) -> str:
        """URL of the store."""
        ...

    def local_root(self) -> str:
        """Folder that `local://` storage namespaces are relative to."""
        ...


@dataclass(frozen=True, slots=True)
class StoreKind:
    """Everything that the rest of the program knows of one kind of store. It lies in the `__init__` of its package.

    A new kind takes such a package and one line in `opening.KINDS`. Only where lakeFS spells its addresses by several
    schemes, `lakefs.addresses` has to know that these mean the same place.

    Attributes:
        name: `Location.kind` of its addresses.
        addresses: how storage namespaces begin, for messages.
        open: the store of a namespace. Raises ConfigurationError where a setting is missing or wrong.
        readable_path: of a key, as other programs name the object. Raises ConfigurationError.
        init_sections: lines of the section `store` of a new configuration file, by the name that `init --store` takes.
        rights: what permits to list, read, write, delete, and to undo deletes by versions, as `lakefs-gc doctor` names
            it, by `list`, `read`, `write`, `delete` and `versions`; without those that nobody can be granted.
        browser_link: of a bucket and key in the cloud itself, for whoever may read the object and signs in; None where
            a browser shows no single object.
        extra: of this package, that brings the libraries it needs; empty where they are always installed.
        takes_encryption: True if `store.server_side_encryption` is for it.
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
    """`StoreKind.readable_path` of a kind whose objects other programs name by `<kind>://<bucket>/<key>`."""
    # lakeFS may spell the scheme otherwise, such as s3a, and the rest escaped.
    return f"{namespace.location.kind}://{namespace.location.bucket}/{namespace.location.key}{key}"

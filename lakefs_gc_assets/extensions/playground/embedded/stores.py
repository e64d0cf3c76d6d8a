"""Stores of objects and metadata, and the clock that dates them.

Objects are in a local folder or in any store of `storage/`, with one `ObjectStore` for each storage namespace. Metadata
are in SQLite: repositories, branches, tags, commits, staged entries, and the records of every range. Range records are
in the database and in files: the database finds a path without reading a file, and a collector reads the files.
"""

import hashlib
import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from lakefs_gc_assets.errors import ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs.addresses import parse_location
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore


class StoreClock:
    """A clock that runs at the speed of real time, and that tests and demonstrations move. Thread-safe."""

    def __init__(self, now: datetime | None = None) -> None:
        self._offset = timedelta()
        self._lock = threading.Lock()
        if now is not None:
            self.set(now)

    def now(self) -> datetime:
        """The clock's time, in UTC."""
        with self._lock:
            return datetime.now(UTC) + self._offset

    def seconds(self) -> int:
        """The clock's time, in whole seconds since 1970 UTC."""
        return int(self.now().timestamp())

    def set(self, now: datetime) -> None:
        """Sets the clock; `now` needs a time zone."""
        with self._lock:
            self._offset = now - datetime.now(UTC)

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Sets the clock within the context, and restores its offset afterwards."""
        with self._lock:
            before, self._offset = self._offset, moment - datetime.now(UTC)
        try:
            yield
        finally:
            with self._lock:
                self._offset = before

    def advance(self, by: timedelta) -> None:
        """Moves the clock, back if negative. Raises OverflowError beyond the calendar's range."""
        with self._lock:
            now = datetime.now(UTC)
            self._offset = now + self._offset + by - now

    @property
    def moved(self) -> bool:
        """True if the clock differs from real time by more than a second."""
        with self._lock:
            return abs(self._offset) > timedelta(seconds=1)


_INCOMING = ".incoming"
"""Folder beside the storage namespaces for files that are being written, before a rename into place."""


class Blockstore(Protocol):
    """The stores of one kind.

    Attributes:
        type: `blockstore_type` in the server's configuration.
        scheme: prefix of storage namespaces, such as `s3://` or `s3://bucket/prefix/`.
    """

    type: str
    scheme: str

    def open(self, location: str) -> ObjectStore:
        """The store with this full address as its root. Raises ObjectNotFound if no object can exist below it."""
        ...

    def create(self, location: str) -> ObjectStore:
        """The store of a new storage namespace. Raises StorageError if it cannot be used."""
        ...

    def put(self, location: str, key: str, content: bytes) -> str:
        """Writes an object, dated by the server's clock if the store allows that.

        Returns the MD5 of the content, as the ETag of object stores.
        """
        ...


class LocalBlockstore:
    """A folder: `local://<name>/…` is `<folder>/<name>/…`.

    Real servers with a local blockstore return absolute file paths as addresses. Here addresses begin with the storage
    namespace, as on every other blockstore, so that a collector may delete the objects.
    """

    type = "local"
    scheme = "local://"

    def __init__(self, folder: Path, clock: StoreClock) -> None:
        self._folder = folder.resolve()
        self._clock = clock
        self._incoming = self._folder / _INCOMING
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._names = itertools.count()
        self._stores: dict[str, ObjectStore] = {}

    def _path(self, location: str) -> Path:
        parsed = parse_location(location)
        if parsed is None or parsed.kind != "local" or not parsed.bucket:
            raise StorageError(f"{location!r} is no address such as local://name: the local blockstore holds no other")
        path = (self._folder / parsed.bucket / parsed.key.lstrip("/")).resolve()
        if not path.is_relative_to(self._folder):
            raise StorageError(f"{location!r} leads out of the blockstore's folder")
        return path

    def open(self, location: str) -> ObjectStore:
        """The store of an existing folder."""
        if location not in self._stores:
            path = self._path(location)
            if not path.is_dir():
                raise ObjectNotFound(f"there is no folder for {location}")
            self._stores[location] = LocalStore(path)
        return self._stores[location]

    def create(self, location: str) -> ObjectStore:
        """The store of a folder, which is created if missing."""
        self._path(location).mkdir(parents=True, exist_ok=True)
        return self.open(location)

    def put(self, location: str, key: str, content: bytes) -> str:
        """Writes a file atomically, dated by the clock. Does not sync to disk: data need not survive a crash."""
        target = self._folder / location.removeprefix(self.scheme) / key
        incoming = self._incoming / str(next(self._names))
        incoming.write_bytes(content)
        if self._clock.moved:
            moment = self._clock.now().timestamp()
            os.utime(incoming, (moment, moment))
        try:
            incoming.replace(target)
        except FileNotFoundError:
            self._path(location + "/" + key).parent.mkdir(parents=True, exist_ok=True)
            incoming.replace(target)
        return _md5(content)


class RemoteBlockstore:
    """Stores that a given function opens, such as buckets behind the S3 API; the service sets the times of objects."""

    def __init__(self, blockstore_type: str, open_store: Callable[[str], ObjectStore], scheme: str = "") -> None:
        """Takes a function that opens the store at a full address, and the prefix of all addresses."""
        self.type = blockstore_type
        self.scheme = scheme or f"{blockstore_type}://"
        self._open = open_store
        self._stores: dict[str, ObjectStore] = {}

    def open(self, location: str) -> ObjectStore:
        """The store, opened on first use."""
        if location not in self._stores:
            self._stores[location] = self._open(location)
        return self._stores[location]

    def create(self, location: str) -> ObjectStore:
        """Opens the store, whose bucket must exist. Raises StorageError for an address outside the scheme."""
        if not location.startswith(self.scheme):
            raise StorageError(f"{location!r} does not begin with {self.scheme}")
        return self.open(location)

    def put(self, location: str, key: str, content: bytes) -> str:
        """Writes an object."""
        self.open(location).put(key, content)
        return _md5(content)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


_SCHEMA = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")


class Database:
    """The connection and its lock. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.executescript(_SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """An atomic and exclusive transaction. May be nested."""
        with self._lock:
            if self._depth == 0:
                self._connection.execute("BEGIN")
            self._depth += 1
            try:
                yield self._connection
            except BaseException:
                self._depth -= 1
                if self._depth == 0:
                    self._connection.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._connection.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

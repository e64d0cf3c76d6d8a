"""A storage namespace that is a folder: what lakeFS's `local` blockstore writes, and what tests and demos use.

A key is the path of a file below the folder. Our own helper files lie in `HIDDEN`, which is no part of the namespace:
new content is written there first and then renamed or linked into place, so a reader sees a whole object or none. A
killed process may leave a file `new-…` there; it may be removed at any time.
Paths are bytes, so that names do not depend on the locale; that is why `os` is used and not `pathlib`.
Empty folders stay behind after a delete, because removing one could fail an upload that lakeFS just started in it.
"""

# ruff: noqa: PTH103, PTH105, PTH108, PTH112, PTH116, PTH118, PTH120, PTH123

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.storage.interface import (
    DeleteOutcome,
    DeleteResult,
    Level,
    ObjectFacts,
    checked_prefix,
)
from lakefs_gc_assets.storage.local import listing
from lakefs_gc_assets.storage.local.listing import failed, version

HIDDEN = "_lakefs/retention/gc/.local-store/"
_Result = TypeVar("_Result")


class LocalStore:
    """Objects as files below a folder.

    The ETag is an opaque version made of modification time, inode and size; listings leave it out. Writers take one
    advisory lock (`flock` on a file in HIDDEN) around compare-and-replace, so conditional puts are atomic between
    processes that use this class; `put_if_absent` is a hard link and atomic against everybody. Each replacement is
    given a later modification time than what it replaces, so no version occurs twice in a chain of replacements.

    Symbolic links are not followed by listings (a warning counts them); reading through one works while it stays
    inside the folder; writing or deleting through one is refused.
    """

    delete_limit = 1000

    def __init__(self, root: Path) -> None:
        """Binds to a folder that exists. Raises StorageError where it does not."""
        self._root = os.fsencode(os.path.realpath(root))
        if not os.path.isdir(self._root):
            raise StorageError(f"{root} is not a folder: the storage namespace must exist before it can be collected")

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list. Files that vanish while the folder is read are left out."""
        return listing.batches(self._root, self._folder_key(prefix), HIDDEN.encode())

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """See ListsInOrder.list_between. Folders on the way are read whole, and their files between the bounds only."""
        folder, end = self._folder_key(prefix), None if until is None else until.encode()
        bounds = listing.Bounds(after.encode(), end, only_directly)
        return listing.in_order(self._root, folder, HIDDEN.encode(), bounds)

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level. A folder without any file below it is no prefix."""
        return listing.level(self._root, self._folder_key(prefix), HIDDEN.encode())

    def _folder_key(self, prefix: str) -> bytes:
        if checked_prefix(prefix) and not self._is_literal(self._path(prefix[:-1])):
            raise StorageError(f"folder {prefix!r} is reached through a symbolic link: not followed")
        return prefix.encode()

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return self._read(key, lambda file: file.read())

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """See ReadsParts.get_part."""

        def part(file: BinaryIO) -> bytes:
            file.seek(start)
            return file.read(end - start)

        return self._read(key, part)

    def _read(self, key: str, read: Callable[[BinaryIO], bytes]) -> bytes:
        self.head(key)
        try:
            with open(self._path(key), "rb") as file:
                return read(file)
        except FileNotFoundError:
            raise _missing(key) from None
        except OSError as error:
            raise failed("read", error) from None

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head; the ETag is the opaque version."""
        path = self._path(key)
        real = os.path.realpath(path)
        if not real.startswith(self._root + b"/"):
            raise StorageError(f"{key!r} is a symbolic link out of the storage namespace: not followed")
        try:
            facts = os.stat(real)
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(key) from None
        except OSError as error:
            raise failed("look at", error) from None
        if not listing.is_file(facts):
            raise _missing(key)
        return listing.object_facts(key, facts)

    def put(self, key: str, data: bytes) -> str:
        """See ObjectStore.put."""
        with self._new_file(key, data) as (new, path), self._exclusive():
            return self._replace(key, new, path, self._current(path))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        with self._new_file(key, data) as (new, path), self._exclusive():
            current = self._current(path)
            if current is None or version(current) != etag:
                raise PreconditionFailed(f"{key!r} is no longer the version that was to be replaced: read it again")
            return self._replace(key, new, path, current)

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        with self._new_file(key, data) as (new, path):
            try:
                _in_folder(path, lambda: os.link(new, path))
            except FileExistsError:
                raise AlreadyExists(f"{key!r} exists already and was left as it is") from None
            except OSError as error:
                raise StorageError(f"cannot create {key!r}: {error.strerror}; it takes a hard link") from None
            return version(os.stat(new))

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete."""
        if len(keys) > self.delete_limit:
            raise ValueError(f"{len(keys)} keys in one delete, at most {self.delete_limit} are taken")
        with self._exclusive():
            return [self._delete(key) for key in keys]

    def copy(self, source: str, target: str) -> None:
        """See CopiesObjects.copy. The copy is a hard link: content and time are the same ones."""
        path = self._writable(target)
        new = os.path.join(self._root, f"{HIDDEN}new-{uuid.uuid4().hex}".encode())
        self._link(source, new)
        try:
            _in_folder(path, lambda: os.replace(new, path))
        except OSError as error:
            raise failed("write", error) from None
        finally:
            # A rename between two names of one file leaves both.
            _remove(new)

    def copy_if_absent(self, source: str, target: str) -> None:
        """See CopiesObjects.copy_if_absent."""
        try:
            self._link(source, self._writable(target))
        except FileExistsError:
            raise AlreadyExists(f"{target!r} exists already and was left as it is") from None

    def _link(self, source: str, path: bytes) -> None:
        """Gives an object another name. Raises FileExistsError."""
        self.head(source)
        old = self._writable(source)
        try:
            _in_folder(path, lambda: os.link(old, path, follow_symlinks=False))
        except FileExistsError:
            raise
        except OSError as error:
            raise StorageError(f"cannot copy {source!r}: {error.strerror}; it takes a hard link") from None

    def _delete(self, key: str) -> DeleteOutcome:
        try:
            os.unlink(self._writable(key))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass
        except OSError as error:
            return DeleteOutcome(key, DeleteResult.FAILED, error.strerror)
        except StorageError as error:
            return DeleteOutcome(key, DeleteResult.FAILED, str(error))
        return DeleteOutcome(key, DeleteResult.ACCEPTED)

    def _path(self, key: str) -> bytes:
        if any(segment in ("", ".", "..") for segment in key.split("/")) or "\0" in key:
            raise StorageError(f"{key!r} cannot be the name of a file below the storage namespace")
        if key.startswith(HIDDEN):
            raise StorageError(f"{key!r} lies in the folder of the store's own helper files")
        try:
            return os.path.join(self._root, key.encode())
        except UnicodeEncodeError:
            raise StorageError(f"{key!r} is not Unicode text and cannot be a key") from None

    def _writable(self, key: str) -> bytes:
        path = self._path(key)
        if not self._is_literal(os.path.dirname(path)):
            raise StorageError(f"{key!r} is reached through a symbolic link: nothing is written or deleted there")
        return path

    @staticmethod
    def _is_literal(folder: bytes) -> bool:
        return os.path.realpath(folder) == folder

    @contextmanager
    def _new_file(self, key: str, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The content, safely on disk under a hidden name, and the path where it is to go."""
        path = self._writable(key)
        new = os.path.join(self._root, f"{HIDDEN}new-{uuid.uuid4().hex}".encode())
        try:
            file = _in_folder(new, lambda: os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            try:
                with open(file, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(file)
                yield new, path
            finally:
                _remove(new)
        except OSError as error:
            raise failed("write", error) from None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Holds the advisory lock of this folder; a process that dies lets it go."""
        path = os.path.join(self._root, f"{HIDDEN}lock".encode())
        with ExitStack() as opened:
            try:
                lock = opened.enter_context(
                    open(_in_folder(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o666)))
                )
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                raise failed("lock", error) from None
            yield

    @staticmethod
    def _current(path: bytes) -> os.stat_result | None:
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @staticmethod
    def _replace(key: str, new: bytes, path: bytes, current: os.stat_result | None) -> str:
        if current is not None and os.stat(new).st_mtime_ns <= current.st_mtime_ns:
            # A file system's clock stands still for milliseconds: without this a version could occur again.
            os.utime(new, ns=(current.st_mtime_ns + 1000, current.st_mtime_ns + 1000))
        replaced = version(os.stat(new))
        if current is not None and replaced == version(current):
            raise StorageError(f"cannot tell two versions of {key!r} apart: the file system's times are too coarse")
        _in_folder(path, lambda: os.replace(new, path))
        return replaced


def _in_folder(path: bytes, operation: Callable[[], _Result]) -> _Result:
    """Runs an operation whose folder may be missing, or may be removed in the same moment."""
    for _ in range(10):
        try:
            return operation()
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
    return operation()


def _remove(path: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _missing(key: str) -> ObjectNotFound:
    return ObjectNotFound(f"there is no object {key!r}")

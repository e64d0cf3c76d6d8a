"""A storage namespace in a folder, as lakeFS's `local` blockstore writes it; also used by tests and demos.

A key is the path of a file below the folder. This store's helper files lie in `HIDDEN`, outside the namespace. New
content is written there first and then renamed or linked into place, so readers never see a partial object. A killed
process may leave a file `new-…` there, which is safe to remove.
Deletes keep empty folders, because removing one could fail an upload that lakeFS just started in it.

Listings skip files and folders that vanish meanwhile; any other read error raises StorageError.
Paths and keys are bytes, so that names do not depend on the locale. Hence `os` instead of `pathlib`.
"""

import fcntl
import logging
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.errors import (
    AlreadyExists,
    ConfigurationError,
    ObjectNotFound,
    PermissionMissing,
    PreconditionFailed,
    StorageError,
    UnlistableKey,
)
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteOutcome,
    DeleteResult,
    Level,
    ObjectFacts,
    are_deletes_over,
    checked_prefix,
    require_readable,
)

# ruff: noqa: PTH103, PTH105, PTH108, PTH112, PTH116, PTH118, PTH120, PTH123

HIDDEN = "_lakefs/retention/gc/.local-store/"
_Result = TypeVar("_Result")


def folder_of(settings: StoreSettings, namespace: Namespace) -> Path:
    """The folder of a namespace: lakeFS appends the namespace to the path of its blockstore.

    Raises ConfigurationError if a setting is missing, or there is no such folder.
    """
    if not settings.local_root:
        raise ConfigurationError(
            f"storage namespace {namespace.uri} is a folder: set store.local_root to lakeFS's blockstore.local.path"
        )
    relative = Path(namespace.location.bucket, namespace.location.key.strip("/"))
    if ".." in relative.parts:
        raise ConfigurationError(f"storage namespace {namespace.uri} leads out of store.local_root")
    folder = Path(settings.local_root).expanduser() / relative
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder} for {namespace.uri}: check store.local_root")
    return folder


class LocalStore:
    """Objects as files below a folder.

    The ETag is an opaque version made of modification time, inode and size; listings omit it. Writers hold an
    advisory lock (`flock` on a file in HIDDEN) around compare-and-replace, so conditional puts are atomic between
    processes that use this class. `put_if_absent` creates a hard link, which is atomic for all processes. Each
    replacement gets a later modification time than the replaced file, so no version repeats.

    Listings do not follow symbolic links; a warning counts them. Reads through a link work if its target is inside the
    folder. Writes and deletes through a link are refused.
    """

    delete_limit = 1000

    def __init__(self, root: Path) -> None:
        """Binds to an existing folder. Raises StorageError if it does not exist."""
        self._root = os.fsencode(os.path.realpath(root))
        if not os.path.isdir(self._root):
            raise StorageError(f"{root} is not a folder: the storage namespace must exist before it can be collected")

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list. Files that vanish during the listing are skipped."""
        return in_order(self._root, self._folder_key(prefix), Bounds())

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """See ListsInOrder.list_between. Each folder is scanned whole, but only files within the bounds are read."""
        folder, end = self._folder_key(prefix), None if until is None else until.encode()
        return in_order(self._root, folder, Bounds(after.encode(), end, only_directly))

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level. A folder without files below it is not a prefix."""
        return level(self._root, self._folder_key(prefix))

    def _folder_key(self, prefix: str) -> bytes:
        if checked_prefix(prefix) and not self._is_literal(self._path(prefix[:-1])):
            raise StorageError(f"folder {prefix!r} is reached through a symbolic link: not followed")
        return prefix.encode()

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return self._read(key, 0, -1)

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """See GivesObjects.get_part."""
        return self._read(key, start, end - start)

    def _read(self, key: str, start: int, size: int) -> bytes:
        require_readable(key, self.head(key).size)
        try:
            with open(self._path(key), "rb") as file:
                file.seek(start)
                return file.read(size)
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
        if not stat.S_ISREG(facts.st_mode):
            raise _missing(key)
        return object_facts(key, facts)

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

    def copy(self, source: str, target: str) -> ObjectFacts:
        """See ObjectStore.copy. The copy is a hard link, so it shares content and modification time."""
        path = self._writable(target)
        new = os.path.join(self._root, f"{HIDDEN}new-{uuid.uuid4().hex}".encode())
        self._link(source, new)
        try:
            _in_folder(path, lambda: os.replace(new, path))
        except OSError as error:
            raise failed("write", error) from None
        finally:
            # A rename between two hard links to one file leaves both.
            _remove(new)
        return self.head(target)

    def copy_if_absent(self, source: str, target: str) -> None:
        """See ObjectStore.copy_if_absent."""
        try:
            self._link(source, self._writable(target))
        except FileExistsError:
            raise AlreadyExists(f"{target!r} exists already and was left as it is") from None

    def _link(self, source: str, path: bytes) -> None:
        """Creates a hard link to an object. Raises FileExistsError."""
        self.head(source)
        old = self._writable(source)
        try:
            _in_folder(path, lambda: os.link(old, path, follow_symlinks=False))
        except FileExistsError:
            raise
        except OSError as error:
            raise StorageError(f"cannot copy {source!r}: {error.strerror}; it takes a hard link") from None

    def _delete(self, key: str) -> DeleteOutcome:
        if are_deletes_over():
            return DeleteOutcome(key, DeleteResult.LEFT)
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
        """Writes the content to a hidden file with fsync; yields that file's path and the final path."""
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
        """Holds the advisory lock of this folder; the system releases it if the process dies."""
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
            # A file system's clock advances in steps of milliseconds: without this, a version could repeat.
            os.utime(new, ns=(current.st_mtime_ns + 1000, current.st_mtime_ns + 1000))
        replaced = version(os.stat(new))
        if current is not None and replaced == version(current):
            raise StorageError(f"cannot tell two versions of {key!r} apart: the file system's times are too coarse")
        _in_folder(path, lambda: os.replace(new, path))
        return replaced


def _in_folder(path: bytes, operation: Callable[[], _Result]) -> _Result:
    """Runs an operation, creating its folder if it is missing; retries in case the folder is removed concurrently."""
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


BATCH_ROWS = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of wanted keys: after `after`, up to and including `until`, and with `only_directly` not in subfolders."""

    after: bytes = b""
    until: bytes | None = None
    only_directly: bool = False

    def hold(self, key: bytes) -> bool:
        """True if a file is wanted, or if a folder (its key ends with a slash) may hold a wanted file."""
        if not key.endswith(b"/"):
            return self.after < key and (self.until is None or key <= self.until)
        behind_all = key[:-1] + b"0"  # The next character after the slash.
        return not self.only_directly and self.after < behind_all and (self.until is None or key < self.until)


def in_order(root: bytes, prefix: bytes, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """Files within bounds below root + prefix, except those in HIDDEN, in order of keys.

    Rows have LISTING_SCHEMA, without ETags and storage classes.
    """
    links: list[bytes] = []
    try:
        files = _files_in_order(root, prefix, bounds, links)
        while rows := list(islice(files, BATCH_ROWS)):
            yield _batch(*map(list, zip(*rows, strict=True)))
    except OSError as error:
        raise failed("list", error) from None
    if links:
        _log.warning("%d symbolic links were neither followed nor listed, such as %s", len(links), shown(links[0]))


def _files_in_order(root: bytes, prefix: bytes, bounds: Bounds, links: list[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Keys, sizes and modification times (ns) of files. A folder sorts by its name with a slash, as in keys."""
    base, everything = os.path.join(root, b""), Bounds()
    levels = [iter((prefix,))]
    while levels:
        key = next(levels[-1], None)
        if key is None:
            levels.pop()
        elif key == prefix or key.endswith(b"/"):
            with _scan(root, key) as entries:
                below = (key + entry.name + (b"/" if entry.is_dir(follow_symlinks=False) else b"") for entry in entries)
                # Calling `hold` for each name takes a tenth of the time.
                levels.append(iter(sorted(below if bounds == everything else filter(bounds.hold, below))))
        else:
            try:
                facts = os.lstat(base + key)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(facts.st_mode):
                yield key, facts.st_size, facts.st_mtime_ns
            elif stat.S_ISLNK(facts.st_mode):
                links.append(key)


def _batch(keys: list[bytes], sizes: list[int], nanoseconds: list[int]) -> pa.RecordBatch:
    try:
        names = pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        for key in keys:
            _text(key)
        raise
    columns: list[pa.Array[Any]] = [
        names,
        pa.array(np.array(sizes, np.int64)),
        pa.array(np.array(nanoseconds, np.int64) // 1000).cast(LISTING_SCHEMA.field("last_modified").type),
        pa.nulls(len(keys), pa.string()),
        pa.nulls(len(keys), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)


def level(root: bytes, prefix: bytes) -> Level:
    """Files directly below root + prefix, and subfolders that contain a file at any depth."""
    prefixes: list[bytes] = []
    objects: list[ObjectFacts] = []
    try:
        with _scan(root, prefix) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                key = prefix + entry.name
                if entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        objects.append(object_facts(_text(key), entry.stat(follow_symlinks=False)))
                elif entry.is_dir(follow_symlinks=False) and _holds_a_file(root, key + b"/"):
                    prefixes.append(key + b"/")
    except OSError as error:
        raise failed("list", error) from None
    return Level(tuple(_text(key) for key in sorted(prefixes)), tuple(objects))


def _holds_a_file(root: bytes, prefix: bytes) -> bool:
    folders = [prefix]
    while folders:
        folder = folders.pop()
        with _scan(root, folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    return True
                if entry.is_dir(follow_symlinks=False):
                    folders.append(folder + entry.name + b"/")
    return False


def _scan(root: bytes, folder: bytes) -> AbstractContextManager[Iterable[os.DirEntry[bytes]]]:
    """Entries of a folder; none of HIDDEN, or if it does not exist, but a missing root raises."""
    if folder == HIDDEN.encode():
        return nullcontext(())
    try:
        return os.scandir(os.path.join(root, folder))
    except (FileNotFoundError, NotADirectoryError):
        if not folder:
            raise
        return nullcontext(())


def object_facts(key: str, facts: os.stat_result) -> ObjectFacts:
    """Facts of a file; the ETag is its version."""
    modified = _EPOCH + timedelta(microseconds=facts.st_mtime_ns // 1000)
    return ObjectFacts(key, facts.st_size, modified, version(facts))


def version(facts: os.stat_result) -> str:
    """An opaque version of a file's content: modification time, inode and size."""
    return f"{facts.st_mtime_ns:x}-{facts.st_ino:x}-{facts.st_size:x}"


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise UnlistableKey(
            f"the file {shown(key)} has a name that is not UTF-8: lakeFS writes none; move it out of the namespace"
        ) from None


def shown(path: bytes) -> str:
    """A path for messages, which may contain any bytes."""
    return repr(path.decode(errors="backslashreplace"))


def failed(action: str, error: OSError) -> StorageError:
    """A StorageError that names the file of a system error."""
    where = shown(os.fsencode(error.filename)) if error.filename else "the storage namespace"
    kind = PermissionMissing if isinstance(error, PermissionError) else StorageError
    return kind(f"cannot {action} {where}: {error.strerror}; check the folder's rights and its disk")

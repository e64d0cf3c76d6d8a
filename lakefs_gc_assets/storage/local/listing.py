"""What lies in a folder, as a listing: columns of Arrow, filled without one Python object per file.

Keys are bytes here, relative to the root folder. Symbolic links are neither followed nor listed. A file or folder that
vanishes meanwhile is left out; anything else that cannot be read ends the listing with a StorageError.
"""

# ruff: noqa: PTH118

import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.errors import StorageError, UnlistableKey
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, Level, ObjectFacts

BATCH_ROWS = 50_000
_ORDERED_ROWS = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


def batches(root: bytes, prefix: bytes, hidden: bytes) -> Iterator[pa.RecordBatch]:
    """Every file below root + prefix but not below root + hidden, in batches of LISTING_SCHEMA without ETags."""
    try:
        yield from _batches(root, prefix, hidden)
    except OSError as error:
        raise failed("list", error) from None


def _batches(root: bytes, prefix: bytes, hidden: bytes) -> Iterator[pa.RecordBatch]:
    keys: list[bytes] = []
    sizes: list[int] = []
    times: list[int] = []
    links: list[bytes] = []
    folders = [prefix]
    while folders:
        folder = folders.pop()
        with _scan(root, folder, hidden) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    try:
                        facts = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    keys.append(folder + entry.name)
                    sizes.append(facts.st_size)
                    times.append(facts.st_mtime_ns)
                    if len(keys) == BATCH_ROWS:
                        yield _batch(keys, sizes, times)
                        keys, sizes, times = [], [], []
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(folder + entry.name + b"/")
                elif entry.is_symlink():
                    links.append(folder + entry.name)
    if keys:
        yield _batch(keys, sizes, times)
    _warn_of(links)


def _warn_of(links: list[bytes]) -> None:
    if links:
        _log.warning("%d symbolic links were neither followed nor listed, such as %s", len(links), shown(links[0]))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which keys of a folder are wanted: behind `after` and up to `until`; with `only_directly` none in its folders."""

    after: bytes
    until: bytes | None
    only_directly: bool

    def hold(self, key: bytes) -> bool:
        """Whether a file is wanted, or whether a folder, whose key ends with a slash, may hold a wanted file."""
        if not key.endswith(b"/"):
            return self.after < key and (self.until is None or key <= self.until)
        behind_all = key[:-1] + b"0"  # The character that follows the slash.
        return not self.only_directly and self.after < behind_all and (self.until is None or key < self.until)


def in_order(root: bytes, prefix: bytes, hidden: bytes, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """The files that `batches` gives, those between bounds, in order of keys."""
    links: list[bytes] = []
    try:
        files = _files_in_order(root, prefix, hidden, bounds, links)
        while rows := list(islice(files, _ORDERED_ROWS)):
            yield _batch(*map(list, zip(*rows, strict=True)))
    except OSError as error:
        raise failed("list", error) from None
    _warn_of(links)


def _files_in_order(
    root: bytes, prefix: bytes, hidden: bytes, bounds: Bounds, links: list[bytes]
) -> Iterator[tuple[bytes, int, int]]:
    """Key, size and modification time of each file; a folder counts as its name with a slash, as in its files' keys."""
    base, everything = os.path.join(root, b""), Bounds(b"", None, only_directly=False)
    levels = [iter((prefix,))]
    while levels:
        key = next(levels[-1], None)
        if key is None:
            levels.pop()
        elif key == prefix or key.endswith(b"/"):
            with _scan(root, key, hidden) as entries:
                below = (key + entry.name + (b"/" if entry.is_dir(follow_symlinks=False) else b"") for entry in entries)
                # Asking for each name takes a tenth of the time.
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
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)


def level(root: bytes, prefix: bytes, hidden: bytes) -> Level:
    """Files directly below root + prefix, and the folders there that hold a file at any depth."""
    prefixes: list[bytes] = []
    objects: list[ObjectFacts] = []
    try:
        with _scan(root, prefix, hidden) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                key = prefix + entry.name
                if entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        objects.append(object_facts(_text(key), entry.stat(follow_symlinks=False)))
                elif entry.is_dir(follow_symlinks=False) and _holds_a_file(root, key + b"/", hidden):
                    prefixes.append(key + b"/")
    except OSError as error:
        raise failed("list", error) from None
    return Level(tuple(_text(key) for key in sorted(prefixes)), tuple(objects))


def _holds_a_file(root: bytes, prefix: bytes, hidden: bytes) -> bool:
    folders = [prefix]
    while folders:
        folder = folders.pop()
        with _scan(root, folder, hidden) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    return True
                if entry.is_dir(follow_symlinks=False):
                    folders.append(folder + entry.name + b"/")
    return False


def _scan(root: bytes, folder: bytes, hidden: bytes) -> AbstractContextManager[Iterable[os.DirEntry[bytes]]]:
    """What lies directly in a folder; nothing where it does not exist (but the root must)."""
    if folder == hidden:
        return nullcontext(())
    try:
        return os.scandir(os.path.join(root, folder))
    except (FileNotFoundError, NotADirectoryError):
        if not folder:
            raise
        return nullcontext(())


def object_facts(key: str, facts: os.stat_result) -> ObjectFacts:
    """Facts of one file; the ETag is its version."""
    modified = _EPOCH + timedelta(microseconds=facts.st_mtime_ns // 1000)
    return ObjectFacts(key, facts.st_size, modified, version(facts))


def version(facts: os.stat_result) -> str:
    """An opaque text that differs between two contents of one file: modification time, inode and size."""
    return f"{facts.st_mtime_ns:x}-{facts.st_ino:x}-{facts.st_size:x}"


def is_file(facts: os.stat_result) -> bool:
    """Whether this is a plain file, the only thing that is an object."""
    return stat.S_ISREG(facts.st_mode)


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise UnlistableKey(
            f"the file {shown(key)} has a name that is not UTF-8: lakeFS writes none; move it out of the namespace"
        ) from None


def shown(path: bytes) -> str:
    """A path as a message shows it, whatever its bytes."""
    return repr(path.decode(errors="backslashreplace"))


def failed(action: str, error: OSError) -> StorageError:
    """A StorageError that names the file the system complained about."""
    where = shown(os.fsencode(error.filename)) if error.filename else "the storage namespace"
    return StorageError(f"cannot {action} {where}: {error.strerror}; see to the folder's rights and its disk")

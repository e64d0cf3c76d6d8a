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
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.errors import StorageError, UnlistableKey
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, Level, ObjectFacts

BATCH_ROWS = 50_000
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
    if links:
        _log.warning("%d symbolic links were neither followed nor listed, such as %s", len(links), shown(links[0]))


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

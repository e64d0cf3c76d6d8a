"""Counts calls of API and store, and bytes read, over all processes of a run.

Each process adds up in a file of its own, so none waits for another; a process that is killed leaves its counts.
"""

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "LAKEFS_GC_BENCHMARK_COUNTS"
_FIELDS = struct.Struct("<3q")
_ONCE = ("get", "head", "put", "put_if_absent", "put_if_match", "delete", "list_level")


@dataclass(frozen=True)
class Counts:
    """Calls of the lakeFS API, calls of the store (a batch of a listing counts as one), bytes of objects read."""

    api_calls: int = 0
    store_calls: int = 0
    bytes_read: int = 0

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(
            self.api_calls - earlier.api_calls,
            self.store_calls - earlier.store_calls,
            self.bytes_read - earlier.bytes_read,
        )


_own: dict[int, mmap.mmap] = {}


def _add(api_calls: int = 0, store_calls: int = 0, bytes_read: int = 0) -> None:
    pid = os.getpid()
    if pid not in _own:
        file = Path(os.environ[FOLDER_VARIABLE], str(pid))
        file.write_bytes(bytes(_FIELDS.size))
        with file.open("r+b") as opened:
            _own[pid] = mmap.mmap(opened.fileno(), _FIELDS.size)
    area = _own[pid]
    before = _FIELDS.unpack_from(area)
    _FIELDS.pack_into(area, 0, before[0] + api_calls, before[1] + store_calls, before[2] + bytes_read)


def total(folder: Path) -> Counts:
    """The counts of all processes so far."""
    found = [_FIELDS.unpack(data) for file in folder.iterdir() if len(data := file.read_bytes()) == _FIELDS.size]
    return Counts(*(sum(column) for column in zip(*found, strict=True))) if found else Counts()


def install() -> None:
    """Makes stores and API client of this process and its forks count, where counting is asked for."""
    from lakefs_gc_assets.lakefs.api.transport import SdkClient
    from lakefs_gc_assets.storage.local.store import LocalStore
    from lakefs_gc_assets.storage.s3.store import S3Store

    if FOLDER_VARIABLE not in os.environ:
        return
    _wrap(SdkClient, "request", lambda result: _add(api_calls=1))
    for store in (LocalStore, S3Store):
        for name in _ONCE:
            _wrap(store, name, lambda result: _add(store_calls=1))
        _wrap(store, "get", lambda result: _add(bytes_read=len(result)))
        for name in ("list", "list_between"):
            _wrap_listing(store, name)


def _wrap(kind: type, name: str, count: Callable[[Any], None]) -> None:
    method = getattr(kind, name)

    @wraps(method)
    def counted(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        count(result)
        return result

    setattr(kind, name, counted)


def _wrap_listing(kind: type, name: str) -> None:
    method = getattr(kind, name)

    @wraps(method)
    def counted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in method(*arguments, **options):
            _add(store_calls=1)
            yield batch

    setattr(kind, name, counted)

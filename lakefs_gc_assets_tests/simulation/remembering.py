"""Decoding each content once in a history: the product's pure readers with a memory, for speed alone.

Every call to the store is still made; only what is made of the same bytes is taken from memory.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.collection import live_files, uncommitted
from lakefs_gc_assets.collection.commits import fetch
from lakefs_gc_assets.collection.live_files import LiveFiles
from lakefs_gc_assets.lakefs import names, ranges
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectStore

_read_parquet = pq.ParquetFile.read


class _Given:
    """A store of one object, which was read already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, key: str) -> bytes:
        return self._data


@contextmanager
def remembering() -> Iterator[None]:
    """Readers remember what they made of a content; parquet is read without threads."""
    memory: dict[Any, Any] = {}
    with ExitStack() as patches:

        def patch(owner: object, name: str, replacement: object) -> None:
            patches.enter_context(mock.patch.object(owner, name, replacement))

        for name in ("range", "metarange", "metadata_file", "head_entries"):
            patch(LiveFiles, name, _of_file(memory, name, getattr(LiveFiles, name)))
        patch(ranges, "read_metarange", _of_bytes(memory, ranges.read_metarange))
        patch(ranges, "read_range", _of_bytes(memory, ranges.read_range))
        read_addresses = _addresses(memory, uncommitted.read_addresses)
        patch(uncommitted, "read_addresses", read_addresses)
        patch(live_files, "read_addresses", read_addresses)
        patch(names, "read", _of_names(memory, names.read))
        patch(pq.ParquetFile, "read", functools.partialmethod(_read_parquet, use_threads=False))
        # Times are immutable: `asdict` need not copy them.
        patches.enter_context(mock.patch.dict(copy._deepcopy_dispatch, {datetime: lambda moment, memo: moment}))
        patch(pq, "read_table", lambda source: pq.ParquetFile(source).read())
        yield


def _of_file(memory: dict[Any, Any], name: str, read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    def remembered(self: LiveFiles, what: Any, *more: Any) -> pa.Table:
        data = fetch(self.store, METADATA_PREFIX + (what if isinstance(what, str) else what.id))
        key = (name, data, what, self.window_size, *(tuple(each.to_pylist()) for each in more))
        if key not in memory:
            given: Any = _Given(data)
            memory[key] = read(LiveFiles(given, self.namespace, self.window_size), what, *more)
        return memory[key]

    return remembered


def _of_bytes(memory: dict[Any, Any], read: Callable[..., Any]) -> Callable[..., Any]:
    def remembered(data: bytes, file: str, **options: Any) -> Any:
        key = (read.__name__, data, repr(options))
        if key not in memory:
            memory[key] = read(data, file, **options)
        return memory[key]

    return remembered


def _addresses(memory: dict[Any, Any], read: Callable[..., Any]) -> Callable[..., Any]:
    def remembered(store: ObjectStore, file: str) -> Any:
        data = fetch(store, file)
        if data not in memory:
            memory[data] = read(_Given(data), file)
        return memory[data]

    return remembered


def _of_names(memory: dict[Any, Any], read: Callable[..., Any]) -> Callable[..., Any]:
    def remembered(addresses: pa.StringArray, window_size: str) -> Any:
        key = ("names", tuple(addresses.to_pylist()), window_size)
        if key not in memory:
            memory[key] = read(addresses, window_size)
        return memory[key]

    return remembered

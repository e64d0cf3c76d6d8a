"""Caches the product's pure readers, so that a history decodes each content once. It serves speed alone.

Every call to the store is still made; only the decoding of equal bytes is cached.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pyarrow as pa

from lakefs_gc_assets.collector.frame import files as files_module
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest
from lakefs_gc_assets.collector.frame.frames import TIME
from lakefs_gc_assets.collector.live import live_files, uncommitted
from lakefs_gc_assets.collector.live.facts import FactWriter
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.records import records_json, tables
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.formats import ranges, refs, sstables
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, NameColumns
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore, fetch
from lakefs_gc_assets_tests.simulation.bug import replace

_dumps = json.dumps


class _Given:
    """A store with a single object that was already read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, key: str) -> bytes:
        return self._data


class _Absent:
    """A store without the object."""

    def get(self, key: str) -> bytes:
        raise ObjectNotFound(key)

    def head(self, key: str) -> ObjectFacts:
        raise ObjectNotFound(key)


@contextmanager
def remembering() -> Iterator[None]:
    """Caches decoded contents while the context is open."""
    memory: dict[Any, Any] = {}
    with ExitStack() as patches:

        def patch(owner: object, name: str, replacement: object) -> None:
            replace(patches, owner, name, replacement)

        for name in ("range", "metarange", "entries", "metadata_file", "head_entries", "uncommitted"):
            patch(LiveFiles, name, _of_file(memory, name, getattr(LiveFiles, name)))
        patch(ranges, "read_table", _cached(memory, sstables.read_table, _by_bytes))
        for name in ("read_metarange", "read_range"):
            patch(ranges, name, _cached(memory, getattr(ranges, name), _by_bytes))
        for name in ("read_commits", "read_branches", "read_tags"):
            patch(refs, name, _cached(memory, getattr(refs, name), _by_bytes))
        read_addresses = _addresses(memory, uncommitted.read_addresses)
        patch(uncommitted, "read_addresses", read_addresses)
        patch(live_files, "read_addresses", read_addresses)
        patch(layout, "read_names", _of_names(layout.read_names))
        patch(tables, "decode", _cached(memory, tables.decode, _by_rows_and_groups))
        patch(records_json, "decode", _cached(memory, records_json.decode, lambda kind, data, file: (kind, data)))
        patch(files_module, "read_file", _of_frame(memory, files_module.read_file))
        patch(Manifest, "from_json", _cached(memory, Manifest.from_json, lambda data, key, frame: (data, key)))
        # Python formats indented JSON slowly; plain JSON is written in C.
        patch(json, "dumps", lambda value, *, indent=None, **options: _dumps(value, **options))
        # No store of a simulation lists between two keys; checking the protocol is slow.
        patch(listing, "ListsInOrder", _Absent)
        # Arrow reads an environment variable whenever it makes an array.
        patch(os, "environ", dict(os.environ))
        yield


class _Recorded:
    """Keeps the size facts that a reading records."""

    def __init__(self) -> None:
        self.rows: pa.Table | None = None

    def add(self, rows: pa.Table) -> None:
        self.rows = rows


def _of_file(memory: dict[Any, Any], name: str, read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    def remembered(self: LiveFiles, what: Any, *more: Any, **options: bool) -> pa.Table:
        key = what if isinstance(what, str) else what.id
        data = fetch(self.store, key if name == "uncommitted" else METADATA_PREFIX + key)
        known = (name, data, what, self.window_size, *(tuple(each.to_pylist()) for each in more), *options.items())
        if known not in memory:
            given: Any = _Given(data)
            recorded = _Recorded()
            files = LiveFiles(given, self.namespace, self.window_size, cast(FactWriter, recorded))
            memory[known] = read(files, what, *more, **options), recorded.rows
        found, sizes = memory[known]
        if self.size_facts is not None and sizes is not None:
            self.size_facts.add(sizes)
        return found

    return remembered


def _cached(
    memory: dict[Any, Any], read: Callable[..., Any], key_of: Callable[..., tuple[Any, ...]]
) -> Callable[..., Any]:
    def remembered(*arguments: Any, **options: Any) -> Any:
        key = (read, *key_of(*arguments, **options))
        if key not in memory:
            memory[key] = read(*arguments, **options)
        return memory[key]

    return remembered


def _by_bytes(data: bytes, file: str, **options: Any) -> tuple[Any, ...]:
    return data, repr(options)


def _by_rows_and_groups(
    schema: pa.Schema, data: bytes, file: str, *more: Any, groups: Sequence[int] | None = None
) -> tuple[Any, ...]:
    return *schema.names, data, None if groups is None else tuple(groups)


def _of_frame(memory: dict[Any, Any], read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    def remembered(
        store: ObjectStore,
        file: FrameFile,
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
        added: Sequence[str] = (),
    ) -> pa.Table:
        try:
            data = store.get(file.key)
        except ObjectNotFound:
            return read(_Absent(), file, schema)
        # A schema is slow to hash; equal content with equal column names reads the same.
        key = (read, data, file, *schema.names)
        if key not in memory:
            memory[key] = read(_Given(data), file, schema, added=added)
        return memory[key] if columns is None else memory[key].select(columns)

    return remembered


def _addresses(memory: dict[Any, Any], read: Callable[..., Any]) -> Callable[..., Any]:
    def remembered(store: ObjectStore, file: str) -> Any:
        data = fetch(store, file)
        if data not in memory:
            memory[data] = read(_Given(data), file)
        return memory[data]

    return remembered


def _of_names(read: Callable[..., NameColumns]) -> Callable[..., NameColumns]:
    """Parses each address once and builds the columns from cached parts."""
    known: dict[tuple[str, str], tuple[Any, ...]] = {}
    whole: dict[tuple[str, ...], NameColumns] = {}

    def remembered(addresses: pa.StringArray, window_size: str) -> NameColumns:
        wanted = addresses.to_pylist()
        if (column := (window_size, *wanted)) not in whole:
            whole[column] = put_together(wanted, window_size)
        return whole[column]

    def put_together(wanted: list[str], window_size: str) -> NameColumns:
        new = [address for address in wanted if (address, window_size) not in known]
        if new:
            found = read(pa.array(new, pa.string()), window_size)
            columns = (found.layouts, found.slices, found.windows, found.issued_at.cast(pa.int64()))
            for address, *facts in zip(new, *(column.to_pylist() for column in columns), strict=True):
                known[address, window_size] = tuple(facts)
        rows = [known[address, window_size] for address in wanted]
        layouts, slices, windows = (pa.array([row[at] for row in rows], pa.string()) for at in range(3))
        return NameColumns(layouts, slices, windows, pa.array([row[3] for row in rows], pa.int64()).view(TIME))

    return remembered

"""Ids of ranges, metaranges or slices, sorted, as one small file in the store; its SHA-256 names this very content."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lakefs_gc_assets.collector.stored import tables
from lakefs_gc_assets.collector.stored.id_set import IdSet
from lakefs_gc_assets.storage.interface import ObjectStore

_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


def write(store: ObjectStore, key: str, ids: Iterable[str]) -> str:
    """Stores ids; returns the SHA-256 of the file."""
    column = ids.column() if isinstance(ids, IdSet) else pa.chunked_array([sorted(set(ids))], pa.string())
    return tables.put(store, key, pa.table([column], schema=_SCHEMA))


def read(store: ObjectStore, key: str, sha256: str | None = None) -> frozenset[str]:
    """The ids of a file. Raises CorruptFile where it is missing, unreadable or, given its SHA-256, another one."""
    return frozenset(name for part in read_parts(store, key, sha256) for name in part.to_pylist())


def read_parts(store: ObjectStore, key: str, sha256: str | None = None) -> Iterator[pa.StringArray]:
    """The ids of a file, a few at a time as they are asked for. Raises CorruptFile as `read` does."""
    data = tables.get(store, key, sha256)
    for batch in tables.decode_parts(_SCHEMA, data, key, "ids"):
        yield batch.column("id")


def count(store: ObjectStore, key: str, sha256: str | None = None) -> int:
    """How many ids a file has, by its footer. Raises CorruptFile as `read` does, but for damage within the file."""
    return tables.count(tables.get(store, key, sha256), key, "ids")

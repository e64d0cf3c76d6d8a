"""Ids of ranges, metaranges or slices, sorted, as one small file in the store; its SHA-256 names this very content."""

import hashlib
from collections.abc import Iterable

import pyarrow as pa

from lakefs_gc_assets.collector.stored import tables
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.storage.interface import ObjectStore

_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


def write(store: ObjectStore, key: str, ids: Iterable[str]) -> str:
    """Stores ids; returns the SHA-256 of the file."""
    data = tables.encode(pa.table([sorted(set(ids))], schema=_SCHEMA))
    store.put(key, data)
    return hashlib.sha256(data).hexdigest()


def read(store: ObjectStore, key: str, sha256: str | None = None) -> frozenset[str]:
    """The ids of a file. Raises CorruptFile where it is missing, unreadable or, given its SHA-256, another one."""
    try:
        data = store.get(key)
    except ObjectNotFound:
        raise CorruptFile(key, "existence", "the file is missing from the object store") from None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptFile(key, "checksum", "the file was changed after it was written")
    return frozenset(tables.decode(_SCHEMA, data, key, "ids").column("id").to_pylist())

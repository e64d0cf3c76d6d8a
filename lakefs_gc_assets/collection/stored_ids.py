"""Ids of ranges, metaranges or slices, sorted, as one small file in the store; its SHA-256 names this very content."""

import hashlib
import io
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.storage.interface import ObjectStore

_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


def write(store: ObjectStore, key: str, ids: Iterable[str]) -> str:
    """Stores ids; returns the SHA-256 of the file."""
    buffer = io.BytesIO()
    pq.write_table(pa.table([sorted(set(ids))], schema=_SCHEMA), buffer, compression="zstd")
    store.put(key, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def read(store: ObjectStore, key: str, sha256: str | None = None) -> frozenset[str]:
    """The ids of a file. Raises CorruptFile where it is missing, unreadable or, given its SHA-256, another one."""
    try:
        data = store.get(key)
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptFile(key, "checksum", "the file is not the one that the report names")
        table = pq.read_table(io.BytesIO(data)).cast(_SCHEMA)
    except ObjectNotFound:
        raise CorruptFile(key, "existence", "the file is missing from the object store") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFile(key, "ids", f"cannot be read: {error}") from None
    return frozenset(table.column("id").to_pylist())

"""Which ranges and metaranges a run has read: an id is a hash of the content, so none needs to be read twice."""

import io
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.collection import run_folder
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.storage.interface import ObjectStore

_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


def _key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}read-{attempt}.parquet"


def write(store: ObjectStore, run_id: str, attempt: str, ids: Iterable[str]) -> None:
    """Stores the ids that an attempt's commits step has read."""
    buffer = io.BytesIO()
    pq.write_table(pa.table([sorted(set(ids))], schema=_SCHEMA), buffer, compression="zstd")
    store.put(_key(run_id, attempt), buffer.getvalue())


def read(store: ObjectStore, run_id: str, attempt: str) -> frozenset[str]:
    """The ids that an attempt's commits step has read. Raises CorruptFile."""
    key = _key(run_id, attempt)
    try:
        table = pq.read_table(io.BytesIO(store.get(key))).cast(_SCHEMA)
    except ObjectNotFound:
        raise CorruptFile(key, "existence", "the ids of the ranges that this run read are missing") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFile(key, "ranges read", f"cannot be read: {error}") from None
    return frozenset(table.column("id").to_pylist())

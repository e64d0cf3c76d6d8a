"""The files directly below `_lakefs/` that have the name of a range or metarange, whoever wrote them."""

from collections.abc import Iterator, Set
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.stored.ids import lacking
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ListsInOrder, ObjectStore, as_batch

NOT_LISTED = np.iinfo(np.int64).min
"""In place of the time of a file that the listing does not have."""
_ID = r"^[0-9a-f]{64}$"
_BEHIND_ALL_IDS = f"{METADATA_PREFIX}g"
"""Where the listing ends: every id sorts before this, and the folder `retention/` after it."""
_AT_ONCE = 100_000
"""Files that are looked up at one time."""


def list_ids(store: ObjectStore, known: Set[str] = frozenset(), since: datetime | None = None) -> tuple[str, ...]:
    """Names of 64 hexadecimal digits, sorted: ranges and metaranges of commits, and the tables of refs dumps.

    Lists the folder once, with a request for about each thousand names, and reads no file. Raises StorageError.

    Args:
        known: ids that are left out as they are listed, so that only the others take memory.
        since: files that were last modified before this moment, UTC, are left out; None for none.
    """
    found: list[str] = []
    for listed in _batches(store):
        if since is not None:
            modified = listed.column("last_modified")
            listed = listed.filter(pc.greater_equal(modified, pa.scalar(since, modified.type)))
        names = _names(listed)
        found += lacking(known, names.filter(pc.match_substring_regex(names, _ID)).to_pylist())
    return tuple(sorted(found))


def times_written(store: ObjectStore, ids: pa.StringArray) -> npt.NDArray[np.int64]:
    """When each of these files was written last: LastModified in microseconds since 1970 by the store's clock.

    Lists the folder once, as `list_ids` does. Raises StorageError.

    Args:
        ids: of metadata files, each once.
    Returns:
        One time for each id, NOT_LISTED for a file that is not there.
    """
    found = np.full(len(ids), NOT_LISTED, np.int64)
    for listed in _gathered(_batches(store)):
        at = pc.index_in(_names(listed), value_set=ids)
        there = at.is_valid()
        times = listed.column("last_modified").cast(pa.int64()).filter(there)
        found[at.filter(there).to_numpy()] = times.to_numpy()
    return found


def _names(listed: pa.RecordBatch | pa.Table) -> pa.StringArray:
    return pc.utf8_slice_codeunits(listed.column("key"), len(METADATA_PREFIX))


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in few large tables: each look-up makes a table of all ids anew."""
    rows, some = 0, list[pa.RecordBatch]()
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        if rows >= _AT_ONCE:
            yield pa.Table.from_batches(some).combine_chunks()
            rows, some = 0, []
    if some:
        yield pa.Table.from_batches(some).combine_chunks()


def _batches(store: ObjectStore) -> Iterator[pa.RecordBatch]:
    """The files (LISTING_SCHEMA)."""
    if isinstance(store, ListsInOrder):
        yield from store.list_between(METADATA_PREFIX, "", _BEHIND_ALL_IDS, only_directly=True)
    else:
        yield as_batch(store.list_level(METADATA_PREFIX).objects)

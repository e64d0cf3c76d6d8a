"""The files directly below `_lakefs/` that have the name of a range or metarange, whoever wrote them."""

from collections.abc import Iterator, Set
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.stored.id_set import lacking
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ListsInOrder, ObjectStore

_ID = r"^[0-9a-f]{64}$"
_BEHIND_ALL_IDS = f"{METADATA_PREFIX}g"
"""Where the listing ends: every id sorts before this, and the folder `retention/` after it."""


def list_ids(store: ObjectStore, known: Set[str] = frozenset(), since: datetime | None = None) -> tuple[str, ...]:
    """Names of 64 hexadecimal digits, sorted: ranges and metaranges of commits, and the tables of refs dumps.

    Lists the folder once, with a request for about each thousand names, and reads no file. Raises StorageError.

    Args:
        known: ids that are left out as they are listed, so that only the others take memory.
        since: files that were last modified before this moment, UTC, are left out; None for none.
    """
    found: list[str] = []
    for keys in _keys(store, since):
        names = pc.utf8_slice_codeunits(keys, len(METADATA_PREFIX))
        found += lacking(known, names.filter(pc.match_substring_regex(names, _ID)).to_pylist())
    return tuple(sorted(found))


def _keys(store: ObjectStore, since: datetime | None) -> Iterator[pa.StringArray]:
    if isinstance(store, ListsInOrder):
        for batch in store.list_between(METADATA_PREFIX, "", _BEHIND_ALL_IDS, only_directly=True):
            keys = batch.column("key")
            if since is None:
                yield keys
            else:
                modified = batch.column("last_modified")
                yield keys.filter(pc.greater_equal(modified, pa.scalar(since, modified.type)))
    else:
        objects = store.list_level(METADATA_PREFIX).objects
        young = (facts.key for facts in objects if since is None or facts.last_modified >= since)
        yield pa.array(young, pa.string())

"""What is stored: which parts of a namespace a run lists, and the table that each part gives."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame.schemas import LISTED
from lakefs_gc_assets.collector.frame.slices import Folders, folders
from lakefs_gc_assets.lakefs import names, xids
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, Layout, WindowSize
from lakefs_gc_assets.storage.interface import ListsInOrder, ObjectStore, as_batch
from lakefs_gc_assets.storage.s3.inventory import Inventory, InventoryFile

_FOLDER = f"^(?P<folder>{DATA_PREFIX}[^/]*/)"
LARGE_PART = 60_000
"""Objects of a large part. A server gives out 50,000 ids for one slice, so no slice of its own is large."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the listing: everything below `prefix`, or only the objects directly below it.

    `slice` is set where the prefix is a slice of the usual layout.

    Attributes:
        after: only keys behind this one, by UTF-8 bytes; empty for all.
        until: only keys up to this one; None for all.
    """

    prefix: str
    only_directly: bool = False
    slice: str | None = None
    after: str = ""
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of a large part, and what its listing has shown so far.

    Attributes:
        part: what is left; it begins behind the last key that was listed.
        first: the first key that was listed.
        alphabet: characters of the names listed last, in order.
    """

    part: Part
    first: str
    alphabet: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What to list, and which slices are left alone because nothing in them is old enough."""

    parts: tuple[Part, ...]
    skipped_slices: tuple[str, ...]
    folders: Folders

    @property
    def slices(self) -> tuple[str, ...]:
        """The slices that are listed, newest first."""
        return tuple(part.slice for part in self.parts if part.slice is not None)


def nothing(store: ObjectStore) -> Listing:
    """A listing of no part at all."""
    return Listing((), (), folders(store))


def listing(store: ObjectStore, cutoff: datetime, sealed: frozenset[str] | None = None) -> Listing:
    """Finds the parts of a namespace that a run lists.

    A slice created at or after the cutoff is skipped: all its names were issued later. Everything else directly below
    `data/` (shards, old layouts, foreign folders) is listed whole, the root and `data/` themselves without descending.

    Args:
        sealed: slices that an earlier run sealed: only other slices are listed, and nothing outside of slices.
    """
    found = folders(store)
    parts = []
    if sealed is None:
        parts = [Part("", only_directly=True), Part(DATA_PREFIX, only_directly=True)]
        parts += [Part(f"{DATA_PREFIX}{name}/") for name in found.others]
    unsealed = [name for name in found.slices if name not in (sealed or ())]
    skipped = {name for name in unsealed if xids.as_datetime(xids.created_at(name)) >= cutoff}
    parts += [Part(f"{DATA_PREFIX}{name}/", slice=name) for name in unsealed if name not in skipped]
    return Listing(tuple(parts), tuple(sorted(skipped)), found)


def list_part(
    store: ObjectStore, part: Part, window_size: WindowSize, limit: int | None = None
) -> Generator[pa.RecordBatch, None, Rest | None]:
    """The objects of one part (LISTED); lakeFS's own files and the root's `dummy` are left out.

    Args:
        limit: stop after so many objects, at the end of a batch, where the store lists in order.
    Returns:
        The rest of the part, which may have no objects; None where the part was listed to its end.
    """
    listed, first = 0, ""
    for batch in _batches(store, part):
        if not batch.num_rows:
            continue
        yield as_listed(batch, window_size)
        keys = batch.column("key")
        listed, first = listed + batch.num_rows, first or keys[0].as_py()
        if limit is not None and listed >= limit and isinstance(store, ListsInOrder):
            names = pc.utf8_slice_codeunits(keys, len(part.prefix)).to_pylist()
            return Rest(replace(part, after=keys[-1].as_py()), first, "".join(sorted(set().union(*names))))
    return None


def _batches(store: ObjectStore, part: Part) -> Iterator[pa.RecordBatch]:
    if isinstance(store, ListsInOrder):
        return store.list_between(part.prefix, part.after, part.until, only_directly=part.only_directly)
    if part.only_directly:
        return iter([as_batch(store.list_level(part.prefix).objects)])
    return store.list(part.prefix)


def list_inventory_file(
    inventory: Inventory, file: InventoryFile, listing: Listing, window_size: WindowSize
) -> Iterator[pa.RecordBatch]:
    """The objects of a listing's parts that one file of an inventory names (LISTED)."""
    folders = pa.array([part.prefix for part in listing.parts if not part.only_directly], pa.string())
    for batch in inventory.batches(file):
        keys = batch.column("key")
        folder = pc.struct_field(pc.extract_regex(keys, _FOLDER), "folder")
        directly = pc.or_(pc.invert(pc.match_substring(keys, "/")), pc.starts_with(keys, DATA_PREFIX))
        wanted = pc.if_else(pc.is_valid(folder), pc.is_in(folder, folders), directly)
        if pc.any(wanted).as_py():
            yield as_listed(batch.filter(wanted), window_size)


def as_listed(batch: pa.RecordBatch, window_size: WindowSize) -> pa.RecordBatch:
    """Objects of a store's listing as a run stores them (LISTED), without lakeFS's own files."""
    addresses = batch.column("key")
    read = names.read(addresses, window_size)
    listed = pa.RecordBatch.from_arrays(
        [
            addresses,
            read.slices,
            read.windows,
            read.layouts,
            read.issued_at,
            batch.column("last_modified"),
            batch.column("size"),
            batch.column("etag"),
        ],
        schema=LISTED,
    )
    return listed.filter(pc.not_equal(read.layouts, Layout.SPECIAL.value))

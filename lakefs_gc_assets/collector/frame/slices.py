"""The slices of a store: which there are, the windows that they fall into, and which rows lie in sealed ones."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, LEGACY_WINDOW, WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore

_NO_SLICE = ""
_SLICE_FOLDER = r"^data/(?P<folder>[0-9a-v]{19}[0g])/"
_SHARD = re.compile(r"![0-9A-Za-z_-]{2}")


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders directly below `data/`: slices of the usual layout, newest first, and the names of all others."""

    slices: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def sharded(self) -> bool:
        """True if some folder belongs to the sharded layout, whose slices lie deeper and are not seen here."""
        return any(_SHARD.fullmatch(name) for name in self.others)


def folders(store: ObjectStore) -> Folders:
    """Finds what lies directly below `data/`, with one listing by delimiter."""
    names = sorted(prefix.removeprefix(DATA_PREFIX).rstrip("/") for prefix in store.list_level(DATA_PREFIX).prefixes)
    slices = tuple(name for name in names if layout.is_xid(name))
    return Folders(slices, tuple(name for name in names if not layout.is_xid(name)))


def windows_of(slices: tuple[str, ...], size: WindowSize) -> tuple[str, ...]:
    """`legacy` first, then the windows of the slices, oldest first."""
    oldest_first = sorted(slices, key=layout.created_at)
    return tuple(dict.fromkeys([LEGACY_WINDOW, *(layout.window(name, size) for name in oldest_first)]))


def select_sealed(engine: Engine[R], rows: R, sealed: Iterable[str]) -> R:
    """Rows whose address lies in a sealed slice or in no slice at all.

    The folder decides and not the column `slice`, which is null for odd names inside of a slice.
    """
    return engine.where(rows, partial(_in_folders, pa.array([_NO_SLICE, *sorted(sealed)], pa.string())))


def select_unsealed(engine: Engine[R], rows: R, sealed: Iterable[str]) -> R:
    """Rows whose address lies in a slice that is not sealed."""
    return engine.where(rows, partial(_outside_of_folders, pa.array([_NO_SLICE, *sorted(sealed)], pa.string())))


def _in_folders(folders: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    matches = pc.extract_regex(rows.column("address"), _SLICE_FOLDER)
    return pc.is_in(pc.coalesce(pc.struct_field(matches, "folder"), _NO_SLICE), value_set=folders)


def _outside_of_folders(folders: pa.StringArray, rows: pa.RecordBatch) -> pa.BooleanArray:
    return pc.invert(_in_folders(folders, rows))


def slices_of(rows: pa.Table) -> pa.StringArray:
    """The slices in which some addresses lie, each once; an address may lie in none.

    Args:
        rows: with the columns `address` and `slice`, which is null for odd names inside of a slice.
    """
    odd = pc.extract_regex(rows.filter(pc.is_null(rows.column("slice"))).column("address"), _SLICE_FOLDER)
    folders = [pc.struct_field(chunk, "folder").unique() for chunk in odd.chunks]
    names = [chunk.unique() for chunk in rows.column("slice").chunks]
    return pc.drop_null(pa.concat_arrays([pa.array([], pa.string()), *names, *folders]).unique())


def are_sealed(slices: pa.ListArray, sealed: pa.StringArray) -> pa.BooleanArray:
    """True for each list of slices whose slices are all sealed."""
    unsealed = pc.invert(pc.is_in(pc.list_flatten(slices), value_set=sealed))
    whole = np.ones(len(slices), np.bool_)
    whole[pc.list_parent_indices(slices).filter(unsealed).to_numpy()] = False
    return pa.array(whole)

"""The slices of a store, their windows, and the rows in sealed slices.

A slice of the sharded layout has a folder in each shard with one of its objects. Its name is the same in all shards,
and it is sealed in all shards at once.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, LEGACY_WINDOW, WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore

_NO_SLICE = ""
_IN_SHARD = r"![0-9A-Za-z_-]{2}/[0-9A-Za-z_-]/"
_SLICE_FOLDER = rf"^data/(?:{_IN_SHARD})?(?P<folder>[0-9a-v]{{19}}[0g])/"
_SLICE_FOLDER_IN_SHARD = rf"^data/{_IN_SHARD}(?P<folder>[0-9a-v]{{19}}[0g])/"
_SHARD = re.compile(r"![0-9A-Za-z_-]{2}")
BEHIND_ALL_NAMES = "~"
"""Sorts behind every name that lakeFS makes."""
SLICES = pa.schema([pa.field("slice", pa.string())])


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders directly below `data/`: slices of the usual layout, newest first, and the names of all others."""

    slices: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def shards(self) -> tuple[str, ...]:
        """The other folders that are shards of the sharded layout. Their slices lie deeper and are not listed here."""
        return tuple(name for name in self.others if _SHARD.fullmatch(name))


def folders(store: ObjectStore) -> Folders:
    """Lists the folders directly below `data/`, with one listing by delimiter."""
    names = sorted(prefix.removeprefix(DATA_PREFIX).rstrip("/") for prefix in store.list_level(DATA_PREFIX).prefixes)
    slices = tuple(name for name in names if layout.is_xid(name))
    return Folders(slices, tuple(name for name in names if not layout.is_xid(name)))


def windows_of(slices: tuple[str, ...], size: WindowSize) -> tuple[str, ...]:
    """`legacy` first, then the windows of the slices, oldest first."""
    oldest_first = sorted(slices, key=layout.created_at)
    return tuple(dict.fromkeys([LEGACY_WINDOW, *(layout.window(name, size) for name in oldest_first)]))


def select_windows(windows: Sequence[str], choice: str, size: WindowSize) -> tuple[str, ...]:
    """The windows of a user's choice: `FIRST..LAST`, both included, or a single one.

    A month, day or hour also selects the smaller windows in it. `legacy` comes before all others.

    Args:
        windows: all windows, in order.
        size: size of the windows.
    Raises:
        ConfigurationError: the choice is no window, is only a part of a window, or has no slice.
    """
    first, _, last = choice.partition("..") if ".." in choice else (choice, "", choice)
    for bound in (first, last):
        if not layout.is_window(bound):
            raise ConfigurationError(
                f"{bound!r} is not a slice window: give one, or FIRST..LAST, such as legacy, 2026-10, 2026-10..2026-11"
            )
        if bound != LEGACY_WINDOW and len(bound) > len(windows[-1]) and windows[-1] != LEGACY_WINDOW:
            raise ConfigurationError(
                f"{bound} is only part of a slice window: windows are {size}s here (collection.slice_window)"
            )
    begin, end = _place_in_time(first, first), _place_in_time(last, last)
    chosen = tuple(
        name for name in windows if begin <= _place_in_time(name, first) and _place_in_time(name, last) <= end
    )
    if not chosen:
        raise ConfigurationError(
            f"{choice} has no slice: there are slices in the windows {windows[0]} to {windows[-1]}"
        )
    return chosen


def _place_in_time(window: str, like: str) -> str:
    """Text by which windows sort in time, with the precision of `like`."""
    if window == LEGACY_WINDOW:
        return ""
    if not layout.is_xid(window):
        return window[: len(like)]
    created = layout.created_at(window)
    return f"{created:012}" if layout.is_xid(like) else f"{layout.as_datetime(created):%Y-%m-%dT%H}"[: len(like)]


def select_sealed(engine: Engine[R], rows: R, sealed: Iterable[str]) -> R:
    """Rows whose address lies in a sealed slice or in no slice at all.

    The folder decides, not the column `slice`, which is null for odd names in a slice.
    """
    folders = sealed_folders(sealed)
    return engine.where(rows, lambda batch: pc.invert(outside_of_folders(folders, batch.column("address"))))


def select_unsealed(engine: Engine[R], rows: R, sealed: Iterable[str]) -> R:
    """Rows whose address lies in a slice that is not sealed."""
    folders = sealed_folders(sealed)
    return engine.where(rows, lambda batch: outside_of_folders(folders, batch.column("address")))


def sealed_folders(sealed: Iterable[str]) -> pa.StringArray:
    """The folders of sealed slices, and the one that stands for no slice at all, for `outside_of_folders`."""
    return pa.array([_NO_SLICE, *sorted(sealed)], pa.string())


def outside_of_folders(folders: pa.StringArray, addresses: pa.StringArray) -> pa.BooleanArray:
    """True for addresses that lie in a slice that is not among the folders."""
    return pc.invert(pc.is_in(_slices_by_folder(addresses), value_set=folders))


def _slices_by_folder(addresses: pa.StringArray) -> pa.StringArray:
    """The slice whose folder contains each address; `_NO_SLICE` outside of slices."""
    return pc.coalesce(pc.struct_field(pc.extract_regex(addresses, _SLICE_FOLDER), "folder"), _NO_SLICE)


@dataclass(frozen=True, slots=True)
class UnsealedSlices:
    """The slices to list in shards if a run has a base run: unsealed, and not older than `oldest`.

    Inside of a shard, slices sort newest first. The run that sealed the newest sealed slice listed every older one that
    existed, and sealed it, too. So a run need not look behind the newest sealed slice. A slice that appears there later
    has late objects alone, which wait for a run that lists everything.

    Attributes:
        folders: result of `sealed_folders`.
        oldest: name of the last slice to list.
    """

    folders: pa.StringArray
    oldest: str

    @classmethod
    def from_sealed(cls, sealed: Collection[str], unsealed: Iterable[str]) -> Self:
        """The slices that a run lists in shards.

        Args:
            sealed: slices that the base run sealed; if there are none, every slice is listed.
            unsealed: slices that the run lists outside of shards. It may seal them in all shards at once, so it must
                list them in shards as well, even if they appeared late.
        """
        return cls(sealed_folders(sealed), max([min(sealed, default=BEHIND_ALL_NAMES), *unsealed]))

    def contains(self, addresses: pa.StringArray) -> pa.BooleanArray:
        """True for each address in one of these slices, in a shard or outside of shards."""
        slices = _slices_by_folder(addresses)
        is_sealed = pc.is_in(slices, value_set=self.folders)
        return pc.and_not(pc.less_equal(slices, self.oldest), is_sealed)

    def end_of_others(self, first: str, last: str) -> str | None:
        """Key behind the objects to skip after a full page of a shard; None if the next page may have objects to list.

        Args:
            first: key of the first object of the page.
            last: key of its last object.
        """
        found = re.match(_SLICE_FOLDER, last)
        if found is None:
            return None
        folder, name = found[0], found["folder"]
        is_sealed = pc.is_in(pa.scalar(name), value_set=self.folders).as_py()
        if name > self.oldest or (name == self.oldest and is_sealed):
            # The rest of the shard is older.
            return folder.removesuffix(f"{name}/") + BEHIND_ALL_NAMES
        return folder + BEHIND_ALL_NAMES if is_sealed and first.startswith(folder) else None


def slices_in_shards(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The slices (SLICES) of addresses of the sharded layout, each once per batch."""
    for batch in batches:
        matches = pc.extract_regex(batch.column("address"), _SLICE_FOLDER_IN_SHARD)
        yield pa.record_batch([pc.drop_null(pc.struct_field(matches, "folder").unique())], schema=SLICES)


def read_names_in_shards(addresses: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    """The slices and ids in addresses of the sharded layout; null for other addresses."""
    matches = pc.extract_regex(addresses, f"^{layout.SHARDED_NAME}$")
    return pc.struct_field(matches, "slice"), pc.struct_field(matches, "id")


def slices_of(rows: pa.Table) -> pa.StringArray:
    """The slices of some addresses, each once. Addresses outside of slices add none.

    Args:
        rows: with the columns `address` and `slice`, which is null for odd names in a slice.
    """
    odd = pc.extract_regex(rows.filter(pc.is_null(rows.column("slice"))).column("address"), _SLICE_FOLDER)
    folders = [pc.struct_field(chunk, "folder").unique() for chunk in odd.chunks]
    names = [chunk.unique() for chunk in rows.column("slice").chunks]
    return pc.drop_null(pa.concat_arrays([pa.array([], pa.string()), *names, *folders]).unique())


def are_sealed(slices: pa.ListArray, sealed: pa.StringArray) -> pa.BooleanArray:
    """True for each list of slices that are all sealed."""
    unsealed = pc.invert(pc.is_in(pc.list_flatten(slices), value_set=sealed))
    whole = np.ones(len(slices), np.bool_)
    whole[pc.list_parent_indices(slices).filter(unsealed).to_numpy()] = False
    return pa.array(whole)

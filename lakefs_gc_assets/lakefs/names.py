"""Reads the names of whole columns of addresses at once: what `layout.parse` does for one, without Python objects.

Times are microseconds since 1970-01-01 UTC, as Arrow keeps them.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import LEGACY_WINDOW, Layout, WindowSize

_IN_SLICE = f"^{layout.SLICE_NAME}$"
_SLICE_AT = len(layout.DATA_PREFIX)
_OBJECT_AT = _SLICE_AT + layout.XID_LENGTH + 1
_VALUES = np.zeros(256, np.uint64)
_VALUES[np.frombuffer(layout.XID_ALPHABET.encode(), np.uint8)] = np.arange(32, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Names:
    """Columns, as long as the addresses: layout, slice (or null), window, time of issue (or null)."""

    layouts: pa.StringArray
    slices: pa.StringArray
    windows: pa.StringArray
    issued_at: pa.TimestampArray


def read(addresses: pa.StringArray, window_size: WindowSize) -> Names:
    """Reads namespace-relative addresses; those of the usual layout in compiled code, the others one by one.

    Raises ValueError where an address is null.
    """
    if addresses.null_count:
        raise ValueError(f"{addresses.null_count} of {len(addresses)} addresses are null")
    usual = pc.match_substring_regex(addresses, _IN_SLICE)
    if not pc.all(usual).as_py():
        return _mixed(addresses, usual, window_size)
    count = len(addresses)
    slices = pc.utf8_slice_codeunits(addresses, _SLICE_AT, _SLICE_AT + layout.XID_LENGTH).dictionary_encode()
    created = np.array([layout.created_at(name) for name in slices.dictionary.to_pylist()], np.int64)
    windows = pa.array([layout.window(name, window_size) for name in slices.dictionary.to_pylist()], pa.string())
    indices = slices.indices.to_numpy()
    issued = np.maximum(_issued_at(addresses), created[indices] if count else np.empty(0, np.int64))
    return Names(
        pa.repeat(pa.scalar(Layout.SLICE.value), count),
        slices.dictionary.take(slices.indices),
        windows.take(slices.indices),
        pa.array(issued * 1_000_000, pa.int64()).cast(pa.timestamp("us", "UTC")),
    )


def _issued_at(addresses: pa.StringArray) -> np.ndarray:
    """Seconds in the ids of addresses that all have the usual layout: the first 32 bits of the id."""
    ids = pc.utf8_slice_codeunits(addresses, _OBJECT_AT, _OBJECT_AT + 7)
    if not len(ids):
        return np.empty(0, np.int64)
    values_buffer = ids.buffers()[2]
    start = ids.offset * 7
    letters = np.frombuffer(values_buffer, np.uint8)[start : start + 7 * len(ids)].reshape(-1, 7)
    number = np.zeros(len(ids), np.uint64)
    for position in range(7):
        number = number << np.uint64(5) | _VALUES[letters[:, position]]
    return (number >> np.uint64(3)).astype(np.int64)


def _mixed(addresses: pa.StringArray, usual: pa.BooleanArray, window_size: WindowSize) -> Names:
    at = pc.indices_nonzero(usual)
    others_at = pc.indices_nonzero(pc.invert(usual))
    inside = read(addresses.take(at), window_size) if len(at) else None
    names = [layout.parse(address) for address in addresses.take(others_at).to_pylist()]
    others = Names(
        pa.array([name.layout.value for name in names], pa.string()),
        pa.array([None] * len(names), pa.string()),
        pa.repeat(pa.scalar(LEGACY_WINDOW), len(names)),
        pa.array([None if name.issued_at is None else name.issued_at * 1_000_000 for name in names], pa.int64()).cast(
            pa.timestamp("us", "UTC")
        ),
    )
    if inside is None:
        return others
    order = np.empty(len(addresses), np.int64)
    order[np.concatenate([at.to_numpy(), others_at.to_numpy()])] = np.arange(len(addresses))

    def put_back(first: pa.Array, second: pa.Array) -> pa.Array:
        return pa.concat_arrays([first, second]).take(pa.array(order))

    return Names(
        put_back(inside.layouts, others.layouts),
        put_back(inside.slices, others.slices),
        put_back(inside.windows, others.windows),
        put_back(inside.issued_at, others.issued_at),
    )

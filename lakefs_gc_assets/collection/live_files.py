"""Reading the files that hold references, one at a time: what a worker does with its share of them.

Each function returns a plain table; what cannot be read raises CorruptFile, and nothing is ever skipped.
"""

from dataclasses import dataclass
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collection.commits import fetch
from lakefs_gc_assets.collection.tables import HEAD_ENTRIES, LIVE, RANGES
from lakefs_gc_assets.collection.uncommitted import read_addresses
from lakefs_gc_assets.lakefs import names, ranges
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, WindowSize
from lakefs_gc_assets.lakefs.ranges import RangeRecord
from lakefs_gc_assets.lakefs.refs import Entity
from lakefs_gc_assets.storage.interface import ObjectStore

_PLAIN_KEY = r"^data/[^/%?]+/[^/%?]+$"
_NO_OBJECTS = frozenset(get_args(Entity))


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """Reads references of one repository.

    Attributes:
        namespace: what addresses are relative to.
        window_size: how slices are grouped.
    """

    store: ObjectStore
    namespace: Namespace
    window_size: WindowSize

    def metarange(self, metarange_id: str) -> pa.Table:
        """The ranges of a metarange (RANGES)."""
        key = METADATA_PREFIX + metarange_id
        found = ranges.read_metarange_columns(fetch(self.store, key), key)
        return pa.table([found.ids, found.min_keys, found.max_keys, found.counts, found.estimated_sizes], schema=RANGES)

    def range(self, record: RangeRecord) -> pa.Table:
        """The addresses that a range references inside the namespace (LIVE), each once."""
        key = METADATA_PREFIX + record.id
        found = ranges.read_range(fetch(self.store, key), key, expected=record)
        return self._live(found.addresses, found.address_types)

    def metadata_file(self, name: str) -> pa.Table:
        """The same for a file that no metarange named; empty (LIVE) for metaranges and tables of a refs dump.

        Raises CorruptFile where the file is of no known kind.
        """
        key = METADATA_PREFIX + name
        data = fetch(self.store, key)
        kind = ranges.table_kind(data, key)
        if kind.type == "metaranges" or kind.entity in _NO_OBJECTS:
            return LIVE.empty_table()
        found = ranges.read_range(data, key)
        return self._live(found.addresses, found.address_types)

    def uncommitted(self, file: str) -> pa.Table:
        """The addresses that a file of uncommitted data references inside the namespace (LIVE), each once."""
        column = read_addresses(self.store, file)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return self._live(column, pa.repeat(pa.scalar(AddressType.BY_PREFIX_DEPRECATED.value, pa.uint8()), len(column)))

    def head_entries(self, range_id: str, sizes: pa.Int64Array) -> pa.Table:
        """Entries of a branch head's range (HEAD_ENTRIES) that have one of these sizes."""
        key = METADATA_PREFIX + range_id
        found = ranges.read_range(fetch(self.store, key), key, columns=("keys", "etags"))
        table = pa.table(
            [pa.repeat(pa.scalar(range_id), len(found)), found.keys, found.sizes, found.etags], schema=HEAD_ENTRIES
        )
        return table.filter(pc.is_in(table.column("size"), value_set=sizes))

    def _live(self, addresses: pa.StringArray, types: pa.UInt8Array) -> pa.Table:
        """Canonical keys of references; the usual spelling goes through untouched."""
        usual = pc.and_(
            pc.match_substring_regex(addresses, _PLAIN_KEY),
            pc.not_equal(types, pa.scalar(AddressType.FULL.value, pa.uint8())),
        )
        odd = pc.invert(usual)
        others = [
            key
            for address, address_type in zip(
                addresses.filter(odd).to_pylist(), types.filter(odd).to_pylist(), strict=True
            )
            for key in self.namespace.live_keys(address, address_type)
        ]
        keys = pa.concat_arrays([addresses.filter(usual), pa.array(others, pa.string())]).unique()
        return live_table(keys, self.window_size)


def live_table(keys: pa.StringArray, window_size: WindowSize) -> pa.Table:
    """Slice and window of each key, as LIVE."""
    read = names.read(keys, window_size)
    return pa.table([keys, read.slices, read.windows], schema=LIVE)

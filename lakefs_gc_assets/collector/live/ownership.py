"""Whether the server spells addresses as the collector compares them: checked right before a sweep or a purge deletes.

On the `local` blockstore of a real server physical addresses are full paths, which its own preparation of uncommitted
data skips: such a repository can only be marked. So can one whose storage namespace is written with escapes (`%20`),
which the server decodes in addresses: a linked object is then staged by an address that does not begin with the
namespace.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

_HEADS_TRIED = 10
_PATHS_TRIED = 10


def require_own_addresses(api: LakeFSApi, store: ObjectStore, namespace: Namespace, heads: Mapping[str, str]) -> None:
    """Compares how the server spells the address of one committed object with the storage namespace.

    Args:
        heads: metarange of each branch's head.
    Raises:
        GuardTripped: the physical address is not the storage namespace followed by the entry's address; or the
            namespace is written with escapes; or it is on a `local` blockstore and no branch has an object to compare.
        LakeFSError, CorruptFile: a branch or its entries cannot be read.
    """
    if namespace.is_escaped:
        guards.refuse_escaped_namespace(namespace)
    other: str | None = None
    for branch, metarange_id in islice(heads.items(), _HEADS_TRIED):
        for path, address in islice(_own_entries(store, metarange_id), _PATHS_TRIED):
            stats = api.stat(branch, path)
            if stats is None:
                continue
            if stats.physical_address == namespace.uri + address:
                return
            if stats.physical_address.endswith("/" + address):
                guards.refuse_foreign_address(stats.physical_address, namespace)
            # Something else is staged there, whose address its writer may have chosen.
            if not stats.physical_address.startswith(namespace.uri):
                other = stats.physical_address
    if other is not None:
        guards.refuse_foreign_address(other, namespace)
    if namespace.location.kind == "local":
        guards.refuse_unseen_spelling(namespace)


def _own_entries(store: ObjectStore, metarange_id: str) -> Iterator[tuple[str, str]]:
    """Paths and addresses of a commit's entries that lie in the repository's own namespace."""
    key = METADATA_PREFIX + metarange_id
    for record in ranges.read_metarange(fetch(store, key), key):
        part_key = METADATA_PREFIX + record.id
        found = ranges.read_range(fetch(store, part_key), part_key, expected=record, columns=["keys"])
        assert found.keys is not None
        rows = zip(found.keys.to_pylist(), found.addresses.to_pylist(), found.address_types.to_pylist(), strict=True)
        for path, address, address_type in rows:
            if address_type != AddressType.FULL and address.startswith(DATA_PREFIX):
                with suppress(UnicodeDecodeError):
                    yield path.decode(), address

"""Whether the server spells addresses the way the collector compares them: asked once, right before deleting.

On the `local` blockstore of a real server physical addresses are full paths, which its own preparation of uncommitted
data skips: there a repository may only be marked.
"""

from collections.abc import Mapping

from lakefs_gc_assets.collection.commits import fetch
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.lakefs import ranges
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.facts import LakeFSApi
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectStore

_HEADS_TRIED = 10


def require_own_addresses(api: LakeFSApi, store: ObjectStore, namespace: Namespace, heads: Mapping[str, str]) -> None:
    """Compares how the server spells the address of one committed object with the storage namespace.

    Args:
        heads: metarange of each branch's head.
    Raises:
        GuardTripped: the physical address does not begin with the storage namespace and `data/`. Where no branch has an
            object of the repository's own, only the usual kinds of store are trusted.
    """
    for branch, metarange_id in list(heads.items())[:_HEADS_TRIED]:
        path = _own_path(store, metarange_id)
        stats = api.stat(branch, path) if path is not None else None
        if stats is None:
            continue
        if not stats.physical_address.startswith(namespace.uri + DATA_PREFIX):
            raise GuardTripped(
                "address form",
                f"the server gives {stats.physical_address} for an object of the namespace {namespace.uri}",
                "This repository can be marked, not swept: its staged objects cannot be told from garbage",
            )
        return
    if namespace.location.kind == "local":
        raise GuardTripped(
            "address form",
            f"no branch of {namespace.uri} has an object by which to see how the server spells addresses",
            "Commit one object, or collect later",
        )


def _own_path(store: ObjectStore, metarange_id: str) -> str | None:
    key = METADATA_PREFIX + metarange_id
    for record in ranges.read_metarange(fetch(store, key), key):
        part_key = METADATA_PREFIX + record.id
        found = ranges.read_range(fetch(store, part_key), part_key, expected=record, columns=["keys"])
        assert found.keys is not None
        rows = zip(found.keys.to_pylist(), found.addresses.to_pylist(), found.address_types.to_pylist(), strict=True)
        for path, address, address_type in rows:
            if address_type != AddressType.FULL and address.startswith(DATA_PREFIX):
                return str(path, "utf-8", "replace")
    return None

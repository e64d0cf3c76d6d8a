"""Other repositories of the same lakeFS server that can hold objects of this one, and how the server spells addresses.

An entry of another repository may point into this namespace, after an import or after a copy between repositories that
copies no data. Such references, staged ones included, count only if the other repository is named in `also_live`.

The spelling of addresses is checked right before a sweep or a purge deletes. A real server on the `local` blockstore
spells physical addresses as full paths, and its own preparation of uncommitted data skips these: such a repository can
only be marked. So can a repository whose storage namespace is written with escapes (`%20`). The server decodes them in
addresses, so a linked object is staged by an address that does not begin with the namespace.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.live.live_files import live_table
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import AccessDenied, ConfigurationError, LakeFSError, NotFound, NotSupported
from lakefs_gc_assets.lakefs.addresses import AddressType, Location, Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi, RepositoryFacts
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX, WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

_HEADS_TRIED = 10
_PATHS_TRIED = 10


def require_own_addresses(api: LakeFSApi, store: ObjectStore, namespace: Namespace, heads: Mapping[str, str]) -> None:
    """Compares the server's spelling of a committed object's address with the storage namespace.

    Args:
        heads: branches, each with the metarange of its head.

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
            # Another object is staged at the path, and its writer may have chosen the address.
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
        entries = ranges.read_range(fetch(store, part_key), part_key, expected=record, columns=["keys"])
        assert entries.keys is not None
        columns = entries.keys, entries.addresses, entries.address_types
        for path, address, address_type in zip(*(each.to_pylist() for each in columns), strict=True):
            if address_type != AddressType.FULL and address.startswith(DATA_PREFIX):
                with suppress(UnicodeDecodeError):
                    yield path.decode(), address


@dataclass(frozen=True, slots=True)
class OtherRepositories:
    """Other repositories whose references may concern this one.

    Attributes:
        nested: repositories whose namespace lies inside of this one, or around it.
        unchecked: other repositories, on the same bucket or perhaps on it, whose references are not checked.
        refusal: the server's answer if it refuses to list repositories; None if it lists them.
    """

    nested: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    refusal: str | None = None


def compare_namespaces(
    api: LakeFSApi,
    own: RepositoryFacts,
    store: ObjectStore | None,
    also_live: Collection[str],
) -> OtherRepositories:
    """Compares the place of every repository that the collector's user may see with the place of this one.

    A place is a storage and a namespace: buckets of the same name on two storages are two buckets. But two storages may
    still lead to one bucket. So a namespace inside of this one counts as nested, on any storage, if the store has an
    object there. lakeFS itself makes no repository on exactly the namespace of another one: it looks for its own file
    `dummy` there.

    Args:
        own: this repository.
        store: this repository's store; None if it is not open, which skips the search for objects.
        also_live: ids of repositories whose references are checked.

    Raises:
        LakeFSError: the server fails. A refusal to list repositories is stated in the result instead.
        StorageError: the store fails.
        ConfigurationError: this repository's namespace is no address.
    """
    try:
        others = [other for other in api.repositories() if other.id != own.id]
    except (AccessDenied, NotFound, NotSupported) as refusal:
        return OtherRepositories(refusal=str(refusal))
    namespace = Namespace.parse(own.storage_namespace)
    nested, unchecked = [], []
    for other in others:
        try:
            its = Namespace.parse(other.storage_namespace)
        except ConfigurationError:
            continue
        if not its.location.may_share_bucket(namespace.location):
            continue
        # A repository without a storage id was made before the server had several, and may lie on any one.
        is_elsewhere = bool(own.storage_id and other.storage_id) and own.storage_id != other.storage_id
        if _overlap(its.location, namespace.location):
            if not is_elsewhere or _has_files(store, its.location, namespace.location):
                nested.append(other.id)
        elif not is_elsewhere and other.id not in also_live:
            unchecked.append(other.id)
    return OtherRepositories(tuple(sorted(nested)), tuple(sorted(unchecked)))


def find(repository: OpenRepository) -> OtherRepositories:
    """Compares an open repository with the others of its server. Raises as `compare_namespaces`."""
    return compare_namespaces(repository.api, repository.facts, repository.store, repository.settings.also_live)


def _has_files(store: ObjectStore | None, inner: Location, own: Location) -> bool:
    """True if a namespace lies inside of this one, and the store has an object there."""
    if store is None or inner.key == own.key or not inner.key.startswith(own.key):
        return False
    return any(batch.num_rows for batch in store.list(inner.key.removeprefix(own.key)))


def _overlap(one: Location, other: Location) -> bool:
    """True if one lies inside of the other; a whole bucket counts only if both name the same bucket."""
    if one.bucket != other.bucket and not (one.key and other.key):
        return False
    return one.key.startswith(other.key) or other.key.startswith(one.key)


_CONCURRENT_QUESTIONS = 8


def staged_elsewhere(others: Iterable[LakeFSApi], namespace: Namespace, window_size: WindowSize) -> pa.Table:
    """Addresses of this namespace (LIVE) that branches of other repositories have staged.

    A server's uncommitted data omits objects outside of the repository's own namespace. So each branch is asked for its
    changes, with one request for each change.

    A path that is not UTF-8 comes with replacement characters: by it the server finds no object, and the next page of
    changes may skip some.

    Raises LakeFSError, also for such a path.
    """
    with ThreadPoolExecutor(_CONCURRENT_QUESTIONS) as pool:
        keys = {key for api in others for branch in api.branches() for key in _staged(api, branch.id, namespace, pool)}
    return live_table(pa.array(sorted(keys), pa.string()), window_size)


def _staged(api: LakeFSApi, branch: str, namespace: Namespace, pool: ThreadPoolExecutor) -> Iterator[str]:
    try:
        paths = [change.path for change in api.changes(branch) if change.type != "removed"]
        for path, stats in zip(paths, pool.map(lambda path: api.stat(branch, path), paths), strict=True):
            if stats is not None:
                yield from namespace.live_keys(stats.physical_address, AddressType.FULL)
            elif "\ufffd" in path:
                raise LakeFSError(f"{path!r} on branch {branch!r} is staged and not UTF-8: commit or reset such paths")
    except NotFound:
        # A deleted branch holds nothing any more; any other absence ends the run.
        if any(existing.id == branch for existing in api.branches()):
            raise

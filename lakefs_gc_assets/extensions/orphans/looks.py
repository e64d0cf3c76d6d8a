"""Looks at the data of a deleted repository before it is deleted: who owns its place, what is there, who needs it.

Everything here only reads, and fails closed: an answer that is missing or cannot be read keeps all objects.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.commits import list_ids
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame.frames import TIME
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import ConfigurationError, CorruptFile, LogLine, StorageError, counted
from lakefs_gc_assets.extensions.orphans.orphans import bucket_of, list_repositories, namespace_keys, signs_of
from lakefs_gc_assets.extensions.orphans.place_store import PlaceStore
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX, QUARANTINE_PREFIX, Layout, WindowSize
from lakefs_gc_assets.storage.interface import ListsInOrder, ObjectStore, fetch
from lakefs_gc_assets.storage.opening import StoreOpener

ACT = "orphan-"
"""Beginning of the id of an act. It is no id of a run, so runs and purges of runs pass its folders over."""
QUIET = timedelta(days=30)
"""Age that the newest object must have: a place that was written lately is probably in use, or a restored backup."""
_READ_AT_ONCE = 16
_MARKERS = ("dummy", f"{METADATA_PREFIX}dummy")
"""Files by which lakeFS knows a namespace in use: it makes no repository on one that has it."""
_WINDOW: WindowSize = "month"
_FACTS = ("size", "last_modified", "etag")
OBJECTS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("last_modified", TIME, nullable=False),
        pa.field("etag", pa.string()),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string(), nullable=False),
    ]
)
"""Objects of a place in order of addresses, which are keys of the bucket. `etag` is null if listings state none."""


@dataclass(frozen=True, slots=True)
class OrphanPlace:
    """A folder of the configured repository's bucket.

    Attributes:
        uri: its address, with a slash at its end.
        key: its key in the bucket, with a slash at its end.
        store: the bucket, with the repository's own collector folder.
    """

    repository: OpenRepository
    namespace: Namespace
    key: str
    store: PlaceStore

    @property
    def uri(self) -> str:
        """Its address, with a slash at its end."""
        return self.namespace.uri

    @classmethod
    def open(cls, repository: OpenRepository, uri: str) -> "OrphanPlace":
        """Opens the place at an address.

        Raises ConfigurationError if the address is not a folder in the repository's bucket, or has more than one
        spelling.
        """
        named, root = Namespace.parse(uri), bucket_of(repository.namespace)
        key = named.location.key
        if (named.location.kind, named.location.bucket) != (root.location.kind, root.location.bucket):
            raise ConfigurationError(f"{uri} is not in {root.uri}, the bucket of repository {repository.facts.id}")
        # A purge keeps its lists in a folder `purging/` beside the copies.
        is_clear = "//" not in f"{uri.partition('://')[2].removesuffix('/')}/"
        if named.is_escaped or not is_clear or not key or key.startswith((METADATA_PREFIX, "purging/")):
            raise ConfigurationError(
                f"{uri} cannot be deleted: its address may mean several folders, or the whole bucket"
            )
        bucket = StoreOpener(repository.opener.settings, root.uri).open()
        store = PlaceStore(repository.store, bucket, repository.namespace.location.key)
        return cls(repository, Namespace.parse(root.uri + key), key, store)


@dataclass(frozen=True, slots=True)
class PlaceContents:
    """The result of a look at a whole place.

    Attributes:
        objects: OBJECTS.
        repositories: the server's repositories, each with its storage namespace.
        read: ids of files of repositories that do not refer to the place.
    """

    objects: pa.Table
    repositories: tuple[str, ...]
    read: Set[str]

    @property
    def amount(self) -> Amount:
        """Number and bytes of the objects."""
        return Amount(self.objects.num_rows, pc.sum(self.objects.column("size")).as_py() or 0)

    @property
    def last_write(self) -> datetime | None:
        """When the newest object was written, UTC; None if there is none."""
        newest: datetime | None = pc.max(self.objects.column("last_modified")).as_py()
        return newest


def look(place: OrphanPlace, read: Set[str], note: LogLine) -> PlaceContents:
    """Looks at repositories, objects and imports.

    Args:
        read: ids of files that an earlier look read; their content never changes.
    Raises:
        GuardTripped: the place belongs to a repository, or may; or another repository's entries point into it.
        ConfigurationError: the server does not list all repositories.
        LakeFSError, StorageError: the server or the store fails.
    """
    repositories = require_no_repository(place)
    require_no_namespace_around(place)
    objects = list_objects(place)
    require_only_lakefs_files(place, objects)
    note(f"{place.uri}: {counted(objects.num_rows, 'objects')}")
    read = require_no_imports(place, repositories, read, note)
    described = sorted(f"{facts.id} at {facts.storage_namespace}" for facts in repositories)
    return PlaceContents(objects, tuple(described), read)


def require_no_repository(place: OrphanPlace) -> Sequence[RepositoryFacts]:
    """All repositories of the server. Raises GuardTripped if one lies on the place, in it or around it."""
    repositories = list_repositories(place.repository)
    for facts in repositories:
        for key in namespace_keys([facts], place.namespace):
            if key.startswith(place.key) or place.key.startswith(key):
                guards.refuse_orphan(
                    place.uri,
                    f"the storage namespace of repository {facts.id}, {facts.storage_namespace}, is there, in it or "
                    "around it",
                )
    return repositories


def require_no_namespace_around(place: OrphanPlace) -> None:
    """Raises GuardTripped if a folder around the place looks like a storage namespace, of whichever server."""
    above = place.key.split("/")[:-2]
    for depth in range(len(above) + 1):
        folder = "".join(f"{name}/" for name in above[:depth])
        if signs_of(place.store.bucket, folder, place.store.bucket.list_level(folder)):
            guards.refuse_orphan(place.uri, f"/{folder} around it looks like a storage namespace, too")


def require_signs(place: OrphanPlace) -> None:
    """Raises GuardTripped if the place does not look like a storage namespace."""
    if not signs_of(place.store.bucket, place.key, place.store.bucket.list_level(place.key)):
        guards.refuse_orphan(place.uri, "it does not look like a storage namespace of lakeFS")


def list_objects(place: OrphanPlace) -> pa.Table:
    """All objects of a place (OBJECTS)."""
    batches = [batch for batch in place.store.bucket.list(place.key) if batch.num_rows]
    if not batches:
        return OBJECTS.empty_table()
    listed = pa.Table.from_batches(batches).sort_by("key").combine_chunks()
    names = layout.read_names(_below(listed.column("key"), place.key), _WINDOW)
    columns = [listed.column("key"), *(listed.column(name) for name in _FACTS), names.slices, names.windows]
    return pa.table(columns, schema=OBJECTS)


def require_only_lakefs_files(place: OrphanPlace, objects: pa.Table) -> None:
    """Raises GuardTripped if objects in the place are not of the deleted repository alone.

    A name that lakeFS never makes shows another owner, or another namespace in this one. The quarantine of the deleted
    repository may hold the data of other places.
    """
    names = _below(objects.column("address"), place.key)
    others = names.filter(
        pc.or_(
            pc.equal(layout.read_names(names, _WINDOW).layouts, Layout.UNRECOGNISED.value),
            pc.starts_with(names, QUARANTINE_PREFIX + ACT),
        )
    )
    if len(others):
        guards.refuse_orphan(
            place.uri,
            f"{counted(len(others), 'objects')} there may not be of the deleted repository, such as {others[0]}",
        )


def require_quiet(place: OrphanPlace, contents: PlaceContents, now: datetime) -> None:
    """Raises GuardTripped if the place is empty or was written lately. `now`: UTC."""
    last_write = contents.last_write
    if last_write is None:
        guards.refuse_orphan(place.uri, "it is empty")
    if now - last_write < QUIET:
        guards.refuse_orphan(
            place.uri,
            f"its newest object was written at {last_write:%F %T}Z, less than {QUIET.days} days ago: another server "
            "may use it, or a backup was restored there",
        )


def require_no_imports(
    place: OrphanPlace, repositories: Sequence[RepositoryFacts], read: Set[str], note: LogLine
) -> IdSet:
    """Reads the ranges of all repositories that were not read before; returns the ids of all that were read.

    Raises GuardTripped if an entry points into the place, or a range cannot be read.
    """
    known = IdSet.from_ids(read)
    for facts in repositories:
        try:
            namespace = Namespace.parse(facts.storage_namespace)
            store = StoreOpener(place.repository.opener.settings, namespace.uri).open()
            names = [*list_ids(store, known)]
            refer = partial(_first_reference, store, place)
            address = next(filter(None, work_ahead(refer, names, _READ_AT_ONCE)), None)
        except (ConfigurationError, CorruptFile, StorageError) as error:
            guards.refuse_orphan(
                place.uri, f"commits of repository {facts.id} cannot be read, and may need objects there: {error}"
            )
        if address is not None:
            guards.refuse_orphan(place.uri, f"repository {facts.id} imported objects from there, such as {address}")
        if names:
            note(f"{facts.id}: {counted(len(names), 'files')} of commits read, none refers to {place.uri}")
        known |= IdSet(names)
    return known


def _first_reference(store: ObjectStore, place: OrphanPlace, name: str) -> str | None:
    """An address in a range that points into the place; None if there is none. Raises CorruptFile, StorageError."""
    key = METADATA_PREFIX + name
    data = fetch(store, key)
    kind = ranges.table_kind(data, key)
    if kind.type == "metaranges" or kind.entity is not None:
        return None
    # A relative address lies in the namespace of its own repository.
    addresses = ranges.read_range(data, key).addresses
    full = addresses.filter(pc.match_substring(addresses, "://"))
    # Every spelling has the name of each folder, unless it is escaped.
    folder = max(place.key.split("/"), key=len)
    likely = full.filter(pc.or_(pc.match_substring(full, folder), pc.match_substring(full, "%")))
    return next((each for each in likely.unique().to_pylist() if place.namespace.relative(each) is not None), None)


def describe_changes(before: pa.Table, after: pa.Table, moved: pa.Array) -> str:
    """Differences between two listings (OBJECTS) in words; empty if there are none.

    Args:
        moved: addresses of objects that the act itself may have moved: these may be missing.
    """
    if before.equals(after):
        return ""
    at = pc.index_in(after.column("address"), value_set=before.column("address").combine_chunks())
    is_new = pc.is_null(at)
    both = after.filter(pc.invert(is_new))
    earlier = before.take(pc.drop_null(at))
    is_other = pa.array([False] * both.num_rows, pa.bool_())
    for name in _FACTS:
        one, other = both.column(name), earlier.column(name)
        # Nulls are equal to each other: no listing of this store states the fact.
        differs = pc.or_kleene(pc.not_equal(one, other), pc.xor(pc.is_null(one), pc.is_null(other)))
        is_other = pc.or_(is_other, pc.fill_null(differs, False))
    there = pc.is_in(before.column("address"), value_set=after.column("address").combine_chunks())
    missing = before.filter(pc.invert(pc.or_(there, pc.is_in(before.column("address"), value_set=moved))))
    parts = (("new", after.filter(is_new)), ("changed", both.filter(is_other)), ("gone", missing))
    return ", ".join(
        f"{counted(rows.num_rows, 'objects')} {word}, such as {rows.column('address')[0].as_py()}"
        for word, rows in parts
        if rows.num_rows
    )


def names_of_folders(place: OrphanPlace, objects: pa.Table) -> dict[str, frozenset[str]]:
    """Names directly in the place, its `data/` and its `_lakefs/`, by folder; names of folders end with a slash."""
    names = {}
    for folder in (place.key, place.key + DATA_PREFIX, place.key + METADATA_PREFIX):
        addresses = objects.column("address")
        below = _below(addresses.filter(pc.starts_with(addresses, folder)), folder)
        first = pc.replace_substring_regex(below, r"(?s)^([^/]*/?).*$", r"\1")
        names[folder] = frozenset(pc.unique(first).to_pylist())
    return names


def require_unchanged(place: OrphanPlace, names: Mapping[str, Set[str]], batch: pa.Table) -> None:
    """Raises GuardTripped if anything changed that a few requests show, right before a batch is deleted.

    These are the server's repositories, new names in the place, and the objects of the batch.

    Args:
        names: see `names_of_folders`.
        batch: some objects (OBJECTS) in order of addresses.
    """
    require_no_repository(place)
    for folder, known in names.items():
        level = place.store.bucket.list_level(folder)
        present = {*level.prefixes, *(facts.key for facts in level.objects)}
        if new := {name.removeprefix(folder) for name in present} - known:
            guards.refuse_orphan(place.uri, f"{counted(len(new), 'names')} are new in /{folder}, such as {min(new)}")
    now = {row["key"]: row for row in _list_around(place, batch)}
    for row in batch.select(["address", *_FACTS]).to_pylist():
        there = now.get(row["address"])
        # Listings of a local folder state no ETag.
        if there is None or any(row[name] not in (None, there[name]) for name in _FACTS):
            guards.refuse_orphan(place.uri, f"{row['address']} is no longer as it was listed")


def _list_around(place: OrphanPlace, batch: pa.Table) -> Iterator[dict[str, object]]:
    """Facts of the batch's objects that exist, and of some others. A store without order lists their folders."""
    addresses = batch.column("address").to_pylist()
    bucket = place.store.bucket
    if isinstance(bucket, ListsInOrder):
        for listed in bucket.list_between(place.key, addresses[0][:-1], addresses[-1]):
            yield from listed.to_pylist()
        return
    for folder in sorted({address[: address.rfind("/") + 1] for address in addresses}):
        yield from map(asdict, bucket.list_level(folder).objects)


def in_order_of_deletion(place: OrphanPlace, objects: pa.Table) -> tuple[pa.Table, ...]:
    """The objects in three groups: data, then lakeFS's metadata, and last the files that mark a namespace in use.

    An interrupted deletion leaves a place that is still found, and on which lakeFS makes no repository.
    """
    names = _below(objects.column("address"), place.key)
    is_marker = pc.is_in(names, value_set=pa.array(_MARKERS))
    is_metadata = pc.and_(pc.starts_with(names, METADATA_PREFIX), pc.invert(is_marker))
    return (
        objects.filter(pc.invert(pc.or_(is_marker, is_metadata))),
        objects.filter(is_metadata),
        objects.filter(is_marker),
    )


def _below(addresses: pa.ChunkedArray, folder: str) -> pa.StringArray:
    """Addresses relative to a folder, as one array."""
    names = pc.utf8_slice_codeunits(addresses, len(folder))
    return names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names

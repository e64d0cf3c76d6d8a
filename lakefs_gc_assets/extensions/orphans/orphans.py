"""Data of deleted repositories: places in a bucket that look like a storage namespace and belong to no repository.

lakeFS leaves a repository's data in the bucket when the repository is deleted (lakeFS issues 5566, 6067 and 7434). The
search lists the folders of a bucket level by level and compares them with the namespaces of all repositories that the
server lists. It only reads. Another server may own a place that it finds; no server can tell.

Fails closed: if the server refuses to list repositories, or does not list the configured one, there is no result.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from heapq import heappush, heappushpop
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import AccessDenied, ConfigurationError, CorruptFile, LogLine, NotSupported
from lakefs_gc_assets.lakefs.addresses import Namespace, parse_location
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.lakefs.formats import ranges, refs
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX, is_xid
from lakefs_gc_assets.storage.interface import Level, ObjectStore, checked_prefix, get_if_there
from lakefs_gc_assets.storage.opening import StoreOpener

DEPTH = 3
"""Levels of folders below the start that are looked into by default."""
FOLDERS = 20_000
"""Maximum number of folders to list: a bucket may have millions that are no namespace."""
_CONCURRENT = 16
_TABLES_TRIED = 64
"""Newest files of metadata that are read for names of branches and paths."""
_NAMES = 20
_TABLE = re.compile(r"_lakefs/[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Orphan:
    """A place that looks like a storage namespace, and that no repository of the server names.

    Attributes:
        uri: address, with a slash at its end.
        signs: reasons why it looks like a namespace.
        amount: everything stored below it, metadata included; None if it was not measured.
        first_write, last_write: LastModified of its oldest and newest object, UTC; None if it was not measured or is
            empty.
        branches: names of branches in the newest dump of refs that is stored there, at most 20.
        entries: number of paths in its newest metarange; None if none can be read.
        folders: first components of the first and last path of each range of that metarange, at most 20.
    """

    uri: str
    signs: tuple[str, ...]
    amount: Amount | None = None
    first_write: datetime | None = None
    last_write: datetime | None = None
    branches: tuple[str, ...] = ()
    entries: int | None = None
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Attributes:
        start: address where it began.
        repositories: number of repositories that the server lists.
        orphans: the places found, by address.
        surrounding: places that look like a namespace with a repository's namespace below them, which are not orphans.
        listed: number of folders that were listed.
        unopened: number of folders that were not: they are too deep, or too many.
    """

    start: str
    repositories: int
    orphans: tuple[Orphan, ...]
    surrounding: tuple[str, ...]
    listed: int
    unopened: int


def find_orphans(
    repository: OpenRepository,
    note: LogLine,
    below: str = "",
    depth: int = DEPTH,
    folders: int = FOLDERS,
    measured: bool = True,
) -> Search:
    """Searches the bucket of a repository, with the settings of its store.

    Args:
        note: prints a line on each place.
        below: folder of the bucket to begin with, such as `lakes/`.
        depth: levels of folders below it to look into.
        folders: maximum number of folders to list.
        measured: True to list everything below each place, at one request for each thousand objects.

    Raises:
        ConfigurationError: `below` is no folder, or the server's list cannot decide what belongs to a repository.
        LakeFSError: the server fails.
        StorageError: the store fails, or refuses to list the bucket.
    """
    repositories = list_repositories(repository)
    root = bucket_of(repository.namespace)
    own = namespace_keys(repositories, root)
    store = StoreOpener(repository.opener.settings, root.uri).open()
    walk = _Walk(store, own)
    walk.look(checked_prefix(below), depth, folders)
    orphans = []
    for prefix, signs in sorted(walk.found.items()):
        note(f"{root.uri}{prefix}: {', '.join(signs)}")
        orphan = Orphan(root.uri + prefix, signs)
        orphans.append(_measured(store, prefix, orphan) if measured else orphan)
    return Search(
        start=root.uri + below,
        repositories=len(repositories),
        orphans=tuple(orphans),
        surrounding=tuple(root.uri + prefix for prefix in sorted(walk.surrounding)),
        listed=walk.listed,
        unopened=walk.unopened,
    )


def list_repositories(repository: OpenRepository) -> Sequence[RepositoryFacts]:
    """Every repository of the server. Raises ConfigurationError if the list may lack some."""
    grant = "grant its user fs:ListRepositories on *, since a repository that is not listed would look deleted"
    try:
        listed = repository.api.repositories()
    except (AccessDenied, NotSupported) as refusal:
        raise ConfigurationError(f"the server does not list its repositories ({refusal}): {grant}") from refusal
    names = {facts.id for facts in listed}
    if missing := [each.facts.id for each in (repository, *repository.others) if each.facts.id not in names]:
        raise ConfigurationError(f"the server's list of repositories lacks {', '.join(missing)}: {grant}")
    return listed


def bucket_of(namespace: Namespace) -> Namespace:
    """The whole bucket of a namespace."""
    written = parse_location(namespace.uri)
    assert written is not None
    return Namespace.parse(namespace.uri.removesuffix(written.key))


def namespace_keys(repositories: Sequence[RepositoryFacts], root: Namespace) -> tuple[str, ...]:
    """The folders of the bucket that are a repository's namespace.

    A storage of its own does not make another bucket here: two storages may lead to one.

    Raises ConfigurationError if a namespace cannot be read.
    """
    keys = []
    for facts in repositories:
        location = Namespace.parse(facts.storage_namespace).location
        if location.may_share_bucket(root.location):
            # lakeFS decodes escapes in a namespace's path. Both spellings are kept: a place is no orphan by either one.
            written = parse_location(facts.storage_namespace.rstrip("/") + "/")
            assert written is not None
            keys += [location.key, written.key]
    return tuple(dict.fromkeys(keys))


@dataclass(slots=True)
class _Walk:
    """Lists folders level by level.

    Attributes:
        own: folders that are a repository's namespace, each with a slash at its end; empty for the whole bucket.
        found: orphans and the signs of each.
    """

    store: ObjectStore
    own: tuple[str, ...]
    found: dict[str, tuple[str, ...]] = field(default_factory=dict)
    surrounding: list[str] = field(default_factory=list)
    listed: int = 0
    unopened: int = 0

    def look(self, start: str, depth: int, folders: int) -> None:
        """Lists `start` and the folders below it, at most `folders`, as deep as `depth`."""
        level = self._outside([start])
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            for remaining in range(depth, -1, -1):
                opened = level[: folders - self.listed]
                self.unopened += len(level) - len(opened)
                self.listed += len(opened)
                deeper: list[str] = []
                for prefix, content in zip(opened, pool.map(self.store.list_level, opened), strict=True):
                    if not self._is_orphan(prefix, content):
                        deeper += self._outside(content.prefixes)
                level = deeper
                if not remaining:
                    self.unopened += len(level)

    def _outside(self, prefixes: Sequence[str]) -> list[str]:
        """Prefixes that lie in no repository."""
        return [prefix for prefix in prefixes if not prefix.startswith(self.own)]

    def _is_orphan(self, prefix: str, content: Level) -> bool:
        signs = signs_of(self.store, prefix, content)
        if signs and any(key.startswith(prefix) for key in self.own):
            self.surrounding.append(prefix)
        elif signs:
            self.found[prefix] = signs
            return True
        return False


def signs_of(store: ObjectStore, prefix: str, content: Level) -> tuple[str, ...]:
    """Reasons why a folder looks like a storage namespace; empty if there are none."""
    signs = []
    if prefix + METADATA_PREFIX in content.prefixes:
        signs.append("metadata of lakeFS in _lakefs/")
    if prefix + DATA_PREFIX in content.prefixes:
        marker = any(facts.key == prefix + "dummy" for facts in content.objects)
        if signs or marker:
            signs += ["lakeFS's file dummy"] * marker + ["data/"]
        else:
            names = store.list_level(prefix + DATA_PREFIX).prefixes
            if any(is_xid(name.removeprefix(prefix + DATA_PREFIX).rstrip("/")) for name in names):
                signs.append("slices of lakeFS in data/")
    return tuple(signs)


def _measured(store: ObjectStore, prefix: str, orphan: Orphan) -> Orphan:
    """The place with its amount, times and names."""
    amount, times = Amount(), list[datetime]()
    newest = list[tuple[datetime, str]]()
    for batch in store.list(prefix):
        if not batch.num_rows:
            continue
        amount = amount.plus(batch.num_rows, pc.sum(batch.column("size")).as_py())
        bounds = pc.min_max(batch.column("last_modified")).as_py()
        times += (time.astimezone(UTC) for time in bounds.values())
        is_metadata = pc.starts_with(batch.column("key"), prefix + METADATA_PREFIX)
        tables = pa.Table.from_batches([batch]).filter(is_metadata).select(["key", "last_modified"])
        for key, written_at in zip(*(column.to_pylist() for column in tables.columns), strict=True):
            if _TABLE.fullmatch(key.removeprefix(prefix)):
                add = heappush if len(newest) < _TABLES_TRIED else heappushpop
                add(newest, (written_at, key))
    return replace(
        orphan,
        amount=amount,
        first_write=min(times, default=None),
        last_write=max(times, default=None),
        **_read_tables(store, prefix, [key for _, key in sorted(newest, reverse=True)]),
    )


def _read_tables(store: ObjectStore, prefix: str, tables: Sequence[str]) -> dict[str, Any]:
    """Branches, entries and folders by the newest of some tables; a table that cannot be read is skipped."""
    stated: dict[str, Any] = {}
    for key in tables:
        name = key.removeprefix(prefix)
        data = get_if_there(store, key) or b""
        try:
            kind = ranges.table_kind(data, name)
            if (kind.type, kind.entity) == ("metaranges", None) and "folders" not in stated:
                records = ranges.read_metarange(data, name)
                paths = sorted({path for record in records for path in (record.min_key, record.max_key)})
                folders = dict.fromkeys("".join(path.decode(errors="replace").partition("/")[:2]) for path in paths)
                stated |= {"entries": sum(record.count for record in records), "folders": tuple(folders)[:_NAMES]}
            elif (kind.type, kind.entity) == ("ranges", "branch") and "branches" not in stated:
                stated["branches"] = tuple(record.id for record in refs.read_branches(data, name))[:_NAMES]
        except CorruptFile:
            continue
        if {"branches", "folders"} <= stated.keys():
            break
    return stated

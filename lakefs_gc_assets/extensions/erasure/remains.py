"""The remains of an address in the store: the object, copies in quarantine, and versions; also erases versions.

Versions below a delete marker are erased permanently under the repository's lock. As in a purge, a recheck of
everything live is valid for a limited time, and each batch is erased within it. If the newest version of a key is an
object, the key keeps all of its versions.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa

from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame.frames import COPIES
from lakefs_gc_assets.collector.quarantine.purge import Check, Moved
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.lock import Lock, verify
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CollectionError, DeletesOver, NotOffered, StorageError, one_line
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import (
    NULL_VERSION,
    ListsVersions,
    ObjectStore,
    Version,
    deletes_until,
    head_if_there,
)

_AT_ONCE = 16
_BATCH = 100
"""Addresses whose versions are erased between two checks of the lock and the time."""


@dataclass(frozen=True, slots=True)
class Remains:
    """The object, copies and versions of an address in the store.

    Attributes:
        seen_at: time of the last request to the store, UTC.
        size: size of the object in bytes; None if neither a request for it nor a listing finds it.
        copies: keys of copies in quarantine.
        versions: older versions and delete markers of these keys, as `KEY VERSION`; None if the store lists none.
    """

    address: str
    seen_at: datetime
    size: int | None
    copies: tuple[str, ...]
    versions: tuple[str, ...] | None

    @property
    def is_gone(self) -> bool:
        """True if the store shows no remains."""
        return self.size is None and not self.copies and not self.versions

    def __str__(self) -> str:
        parts = [
            *(["the object"] if self.size is not None else []),
            *(f"the copy {key}" for key in self.copies),
            *(f"version {version}" for version in self.versions or ()),
        ]
        return ", ".join(parts) or "nothing"


def look(repository: OpenRepository, addresses: Iterable[str]) -> tuple[Remains, ...]:
    """Requests and lists each address, and searches quarantine and versions for it. Raises StorageError."""
    store, ordered = repository.store, sorted(addresses)
    wanted = frozenset(ordered)
    copies = _find_copies(store, wanted)
    versions = _find_versions(store, ordered)
    return tuple(
        Remains(
            address,
            repository.clock.now(),
            size,
            tuple(copies.get(address, ())),
            None if versions is None else tuple(sorted(map(_name, filter(_is_hidden, versions[address])))),
        )
        for address, size in zip(ordered, _find_sizes(store, ordered, wanted), strict=True)
    )


def _find_sizes(store: ObjectStore, ordered: Sequence[str], wanted: Collection[str]) -> Iterator[int | None]:
    """The size of each object, by a request for it or by a listing of its folder."""
    folders = {address[: address.rfind("/") + 1] for address in ordered}
    levels = work_ahead(store.list_level, sorted(folders), _AT_ONCE)
    listed = {each.key: each.size for level in levels for each in level.objects if each.key in wanted}
    for address, facts in zip(ordered, work_ahead(partial(head_if_there, store), ordered, _AT_ONCE), strict=True):
        yield listed.get(address) if facts is None else facts.size


def _is_hidden(version: Version) -> bool:
    """True unless the version is the current object, or a marker without a version id, which holds no content."""
    return version.version_id != NULL_VERSION if version.is_marker else not version.is_latest


def address_of(key: str) -> str:
    """The address of an object, or of the original of a copy in quarantine."""
    return layout.parse_copy(key)[1] if key.startswith(layout.QUARANTINE_PREFIX) else key


def _name(version: Version) -> str:
    return f"{version.key} {version.version_id}"


def _find_copies(store: ObjectStore, addresses: Collection[str]) -> dict[str, list[str]]:
    """Keys of copies in quarantine, by address."""
    copies: dict[str, list[str]] = {}
    for folder in store.list_level(layout.QUARANTINE_PREFIX).prefixes if addresses else ():
        for batch in store.list(folder):
            for key in batch["key"].to_pylist():
                if (address := key.removeprefix(folder)) in addresses:
                    copies.setdefault(address, []).append(key)
    return copies


def _find_versions(store: ObjectStore, addresses: Sequence[str]) -> dict[str, list[Version]] | None:
    """All versions of objects and of their copies in quarantine, by address; None if the store lists no versions."""
    if not isinstance(store, ListsVersions):
        return None
    versions: dict[str, list[Version]] = {}
    try:
        each_of = work_ahead(lambda address: [*store.versions(address)], addresses, _AT_ONCE)
        for address, found in zip(addresses, each_of, strict=True):
            versions[address] = [version for version in found if version.key == address]
        for version in store.versions(layout.QUARANTINE_PREFIX) if addresses else ():
            if (address := address_of(version.key)) in versions:
                versions[address].append(version)
    except NotOffered:
        return None
    return versions


@dataclass(frozen=True, slots=True)
class VersionOutcome:
    """A version, as `KEY VERSION`, that was erased or that the store refused to erase, with the error."""

    name: str
    error: str | None = None

    @property
    def address(self) -> str:
        """The address of the version's object, or of the original of a copy in quarantine."""
        return address_of(self.name.rpartition(" ")[0])


def erase_versions(
    repository: OpenRepository, plan: Plan, lock: Lock, addresses: Collection[str], check: Check
) -> Iterator[VersionOutcome]:
    """Erases versions below delete markers, and then the markers; yields their outcomes.

    Addresses that are live by then, or may be, keep all of their versions. So does a key whose newest version is an
    object. If the store refuses a version, the others are still erased, except the markers of its key.

    Args:
        plan: plan of the run that deleted the objects.
        lock: the repository's lock, held by the caller.
        check: determines the live addresses.
    Raises:
        LockLost: the lock is no longer held.
        CollectionError: live addresses cannot be determined, or not fast enough.
    """
    store, clock = repository.store, repository.clock
    versions = _find_versions(store, sorted(addresses))
    if versions is None or not isinstance(store, ListsVersions):
        return
    erasable = {address: going for address, found in versions.items() if (going := _erasable(found))}
    valid = timedelta(minutes=repository.settings.recheck_valid_minutes)
    while erasable:
        verdict = check([Moved(plan, clock.now(), _as_copies(erasable, plan))])
        is_over = partial(verdict.is_over, clock, valid)
        pending, decided = sorted(erasable.keys() - verdict.live - verdict.unsure), 0
        for start in range(0, len(pending), _BATCH):
            verify(store, lock.token)
            for address in pending[start : start + _BATCH]:
                for outcome in _erase(store, erasable[address], is_over):
                    decided += 1
                    yield outcome
            if is_over():
                break
        erasable = {address: erasable[address] for address in pending if erasable[address]}
        if erasable and not decided:
            raise CollectionError(
                "no version could be erased while the check of live objects was valid: raise "
                "collection.recheck_valid_minutes"
            )


def _erase(store: ListsVersions, versions: list[Version], is_over: Callable[[], bool]) -> list[VersionOutcome]:
    """Erases versions in order until the time is over; removes them from the list, and returns outcomes."""
    outcomes = []
    with deletes_until(is_over):
        while versions and not is_over():
            version = versions[0]
            try:
                store.delete_version(version.key, version.version_id)
            except DeletesOver:
                break
            except StorageError as error:
                outcomes.append(VersionOutcome(_name(version), one_line(str(error))))
                # Without its markers, the version that stays would be visible as an object again.
                versions[1:] = [each for each in versions[1:] if each.key != version.key or not each.is_marker]
            else:
                outcomes.append(VersionOutcome(_name(version)))
            versions.pop(0)
    return outcomes


def _erasable(versions: Sequence[Version]) -> list[Version]:
    """The versions of keys whose newest version is a delete marker.

    Objects come before markers: an object without its marker would be visible again.
    """
    newest = {version.key: version for version in versions if version.is_latest}
    going = [
        version
        for version in versions
        if (top := newest.get(version.key)) is not None
        and top.is_marker
        # While versioning is suspended, the next write gets this version id.
        and not (version.version_id == top.version_id == NULL_VERSION)
    ]
    return sorted(going, key=lambda version: (version.key, version.is_marker, version.is_latest))


def _as_copies(erasable: Mapping[str, Sequence[Version]], plan: Plan) -> pa.Table:
    """The addresses in the form of a purge's copies (COPIES), with size and ETag of an object below the marker."""
    addresses = pa.array(sorted(erasable), pa.string())
    contents = [
        next((version for version in erasable[address] if not version.is_marker), erasable[address][0])
        for address in addresses.to_pylist()
    ]
    read = layout.read_names(addresses, plan.slice_window)
    sizes = pa.array([version.size for version in contents], pa.int64())
    etags = pa.array([version.etag for version in contents], pa.string())
    return pa.table([addresses, sizes, read.slices, read.windows, etags, addresses], schema=COPIES)

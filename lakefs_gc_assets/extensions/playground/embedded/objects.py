"""Objects as users see them: a path of a branch or commit, and its content."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.extensions.playground.embedded import branches, commits, repositories
from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, bad_request, not_found
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry, decode_entry
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository, store_of
from lakefs_gc_assets.lakefs.addresses import AddressType


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A path of a branch or, for reading, of a commit."""

    repository: ServedRepository
    reference: str
    path: str


DEFAULT_CONTENT_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Found:
    """An entry at a path; `staged` is True if it comes from the staging area."""

    path: str
    entry: Entry
    staged: bool


def stats(repository: ServedRepository, path: str, entry: Entry) -> dict[str, Any]:
    """An object as the API describes it."""
    return {
        "path": path,
        "path_type": "object",
        "physical_address": repository.physical_address(entry.address, entry.address_type),
        "checksum": entry.etag,
        "size_bytes": entry.size,
        "mtime": entry.last_modified,
        "content_type": entry.content_type,
        "metadata": dict(entry.metadata),
    }


def find(core: Core, repository: ServedRepository, reference: str, path: str) -> Found:
    """The object at a path; if the reference is a branch, staged changes come first. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        branch = branches.find(core, repository, reference)
        if branch is not None:
            is_staged, data = branches.find_staged(database, branch.staging_token, path)
            if is_staged:
                if data is None:
                    raise not_found()
                return Found(path, decode_entry(data), True)
        metarange_id = commits.resolve(core, repository, reference).metarange_id
        record = commits.find_record(core, metarange_id, branches.encode_path(path))
    if record is None:
        raise not_found()
    return Found(path, decode_entry(record[2]), False)


def read(core: Core, repository: ServedRepository, entry: Entry) -> bytes:
    """The content of an entry's object. Raises ApiFailure 410 if the object is gone."""
    try:
        return read_address(core, repository, entry.address)
    except ObjectNotFound:
        raise ApiFailure(410, "No data") from None


def read_address(core: Core, repository: ServedRepository, address: str) -> bytes:
    """The content at an address, relative to the storage namespace or in full. Raises ObjectNotFound."""
    if "://" not in address:
        return store_of(core, repository).get(address)
    folder, _, name = address.rpartition("/")
    return core.blockstore.open(folder).get(name)


def store_bytes(core: Core, repository: ServedRepository, content: bytes) -> Entry:
    """Writes an object under a new address, unreferenced so far."""
    address = core.writer.new_address()
    etag = core.blockstore.put(repository.storage_namespace, address, content)
    if core.interrupted_writes:
        core.interrupted_writes -= 1
        raise ApiFailure(500, f"interrupted, as switched on, after this object was written: {address}")
    return Entry(address, AddressType.RELATIVE, len(content), etag, core.clock.seconds())


def stage(core: Core, repository: ServedRepository, branch_id: str, path: str, entry: Entry) -> None:
    """Stages an entry at a path of a branch. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        branch = branches.get(core, repository, branch_id)
        branches.stage_entry(database, branch.staging_token, path, entry)


def upload(core: Core, place: ObjectPlace, content: bytes, content_type: str, metadata: Mapping[str, str]) -> Entry:
    """Writes an object and stages it. If the branch was deleted meanwhile, the object stays, as on real servers."""
    repository, branch_id, path = place.repository, place.reference, place.path
    if branches.find(core, repository, branch_id) is None:
        raise not_found(f"branch '{branch_id}'")
    stored = store_bytes(core, repository, content)
    entry = replace(stored, content_type=content_type or DEFAULT_CONTENT_TYPE, metadata=dict(metadata))
    stage(core, repository, branch_id, path, entry)
    return entry


def delete(core: Core, repository: ServedRepository, branch_id: str, path: str) -> None:
    """Deletes a path from a branch; a missing path is no error."""
    with core.database.transaction() as database:
        branch = branches.get(core, repository, branch_id)
        head = commits.get(core, repository, branch.commit_id)
        branches.stage_deletion(core, database, branch.staging_token, head.metarange_id, path)


def copy(core: Core, source: ObjectPlace, destination: ObjectPlace) -> Entry:
    """Copies an object within a repository. Rule set `seed` copies by reference within one staging area."""
    repository, branch_id = destination.repository, destination.reference
    with core.database.transaction():
        branches.get(core, repository, branch_id)
        found = find(core, repository, source.reference, source.path)
        original = found.entry
        if core.settings.rules == "seed" and found.staged and source.reference == branch_id:
            entry = replace(original, last_modified=core.clock.seconds())
            if entry.address_type != AddressType.FULL:
                repositories.remember_copy(core, repository, entry.address)
            stage(core, repository, branch_id, destination.path, entry)
            return entry
    stored = store_bytes(core, repository, read(core, repository, original))
    entry = replace(stored, etag=original.etag, content_type=original.content_type, metadata=original.metadata)
    stage(core, repository, branch_id, destination.path, entry)
    return entry


def address_of(repository: ServedRepository, physical_address: str) -> tuple[str, AddressType]:
    """The address in the form of entries, relative if inside the storage namespace, and its type."""
    if physical_address.startswith(repository.namespace):
        return physical_address[len(repository.namespace) :], AddressType.RELATIVE
    return physical_address, AddressType.FULL


def link(core: Core, repository: ServedRepository, branch_id: str, path: str, body: Mapping[str, Any]) -> Entry:
    """Stages an object that was uploaded to an issued address. Raises ApiFailure 400 for any other address."""
    staging = body.get("staging")
    physical_address = staging.get("physical_address") if isinstance(staging, Mapping) else None
    if not isinstance(physical_address, str):
        raise bad_request("request body has an error: staging.physical_address is missing")
    address, kind = address_of(repository, physical_address)
    with core.database.transaction():
        repositories.redeem_address(core, repository, branch_id, path, address)
        entry = described_entry(core, address, kind, body)
        stage(core, repository, branch_id, path, entry)
    return entry


def described_entry(core: Core, address: str, kind: AddressType, body: Mapping[str, Any]) -> Entry:
    """The entry of an object that the client wrote itself, from the client's description."""
    metadata = body.get("user_metadata") or body.get("metadata") or {}
    return Entry(
        address,
        kind,
        int(body["size_bytes"]),
        str(body["checksum"]).strip('"'),
        int(body.get("mtime") or core.clock.seconds()),
        str(body.get("content_type") or DEFAULT_CONTENT_TYPE),
        {str(key): str(value) for key, value in metadata.items()},
    )


def set_metadata(
    core: Core, repository: ServedRepository, branch_id: str, path: str, metadata: Mapping[str, str]
) -> None:
    """Stages the same object again with other user metadata."""
    with core.database.transaction():
        try:
            current = find(core, repository, branch_id, path)
        except ApiFailure as failure:
            raise not_found(f"update user metadata on {repository.id}/{branch_id}/{path}:") from failure
        stage(core, repository, branch_id, path, current.entry.with_metadata(metadata))


def scan(core: Core, repository: ServedRepository, reference: str, prefix: str, after: str) -> Iterator[Found]:
    """Objects of a reference below a prefix and behind `after`, by path. Consume it within the same transaction."""
    key = branches.encode_path(prefix)
    start = max(key, branches.encode_path(after))
    with core.database.transaction() as database:
        branch = branches.find(core, repository, reference)
        metarange_id = commits.resolve(core, repository, reference).metarange_id
        base = commits.scan_records(database, metarange_id, start)
        if branch is None:
            merged: Iterator[tuple[bytes, bytes | None, bool]] = ((path, data, False) for path, _, data in base)
        else:
            merged = _merged(base, branches.scan_staged(database, branch.staging_token, start))
    for path, data, is_staged in merged:
        if not path.startswith(key):
            return
        if data is not None and path > branches.encode_path(after):
            yield Found(branches.decode_path(path), decode_entry(data), is_staged)


def _merged(
    base: Iterator[tuple[bytes, bytes, bytes]], staged: Iterator[tuple[bytes, bytes | None, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None, bool]]:
    left, right = next(base, None), next(staged, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield left[0], left[2], False
            left = next(base, None)
            continue
        if left is not None and left[0] == right[0]:
            left = next(base, None)
        yield right[0], right[2], True
        right = next(staged, None)

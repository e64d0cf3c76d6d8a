"""Repositories, issued addresses, presigned links, and remembered copies."""

import base64
import hashlib
import hmac
import json
import sqlite3
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, bad_request, not_found
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.storage.interface import ObjectStore


@dataclass(frozen=True, slots=True)
class ServedRepository:
    """One repository; `storage_namespace` as given, with or without a trailing slash."""

    id: str
    storage_namespace: str
    default_branch: str
    creation_date: int
    read_only: bool
    metadata: dict[str, str]

    @property
    def namespace(self) -> str:
        """The storage namespace with one trailing slash."""
        return self.storage_namespace.rstrip("/") + "/"

    def physical_address(self, address: str, address_type: int) -> str:
        """The full address of an entry."""
        return address if address_type == AddressType.FULL else self.namespace + address

    def as_json(self) -> dict[str, Any]:
        """The form that the API returns."""
        return {
            "id": self.id,
            "creation_date": self.creation_date,
            "default_branch": self.default_branch,
            "storage_id": "",
            "storage_namespace": self.storage_namespace,
            "read_only": self.read_only,
        }


def store_of(core: Core, repository: ServedRepository) -> ObjectStore:
    """The store that holds a repository's objects."""
    return core.blockstore.open(repository.storage_namespace)


def get(core: Core, name: str) -> ServedRepository:
    """The repository of this name. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        row = database.execute("SELECT * FROM repositories WHERE id = ?", (name,)).fetchone()
    if row is None:
        raise not_found("repository")
    return _from_row(row)


def get_writable(core: Core, name: str) -> ServedRepository:
    """The repository of this name, for a change. Raises ApiFailure 404, or 403 if it is read-only."""
    repository = get(core, name)
    if repository.read_only:
        raise ApiFailure(403, "read-only repository")
    return repository


def every(core: Core) -> list[ServedRepository]:
    """All repositories, by name."""
    with core.database.transaction() as database:
        return [_from_row(row) for row in database.execute("SELECT * FROM repositories ORDER BY id").fetchall()]


def set_metadata(core: Core, repository: ServedRepository, key: str, value: str) -> None:
    """Sets one key of the repository's metadata."""
    with core.database.transaction() as database:
        metadata = get(core, repository.id).metadata | {key: value}
        database.execute("UPDATE repositories SET metadata = ? WHERE id = ?", (json.dumps(metadata), repository.id))


def protection_patterns(core: Core, repository: ServedRepository) -> list[str]:
    """The patterns of the branch protection rules. This server returns the rules, but does not enforce them."""
    with core.database.transaction() as database:
        rows = database.execute("SELECT pattern FROM protected_branches WHERE repository = ?", (repository.id,))
        return sorted(pattern for (pattern,) in rows)


def _from_row(row: tuple[str, str, str, int, int, str] | sqlite3.Row) -> ServedRepository:
    name, namespace, default_branch, creation_date, read_only, metadata = row
    return ServedRepository(name, namespace, default_branch, creation_date, bool(read_only), json.loads(metadata))


def issue_address(core: Core, repository: ServedRepository, branch_id: str, path: str) -> str:
    """Issues a relative address that may be linked to this path of this branch.

    The client uploads the object itself and links it afterwards. The address carries an HMAC over repository, branch,
    path and itself, and its age is in its name. So the server can check it without storing it. Rule set `seed` stores
    each address until it is used or expires, so that it works only once.
    """
    bare = core.writer.new_address()
    address = f"{bare},{_address_signature(core, repository, branch_id, path, bare)}"
    if core.settings.rules == "seed":
        now = core.clock.seconds()
        with core.database.transaction() as database:
            # These have expired, and can no longer be linked.
            database.execute("DELETE FROM issued_addresses WHERE issued_at < ?", (now - core.settings.link_seconds,))
            database.execute("INSERT INTO issued_addresses VALUES (?, ?, ?)", (repository.id, address, now))
    return address


def redeem_address(core: Core, repository: ServedRepository, branch_id: str, path: str, address: str) -> None:
    """Checks an address before it is linked. Raises ApiFailure 400 if it has expired or was issued for another path."""
    bare, _, signature = address.partition(",")
    expected = _address_signature(core, repository, branch_id, path, bare)
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise bad_request("invalid address signature: invalid address")
    name = bare.rpartition("/")[2]
    if not layout.is_xid(name) or core.clock.seconds() - layout.issued_at(name) > core.settings.link_seconds:
        raise bad_request("invalid address signature: address expired")
    if core.settings.rules == "seed":
        with core.database.transaction() as database:
            used = database.execute(
                "DELETE FROM issued_addresses WHERE repository = ? AND address = ?", (repository.id, address)
            ).rowcount
            if not used:
                raise bad_request("invalid address token: used before, or never issued")


def _address_signature(core: Core, repository: ServedRepository, branch_id: str, path: str, address: str) -> str:
    message = "\0".join((repository.id, branch_id, path, address)).encode("utf-8", "surrogateescape")
    digest = hmac.new(core.signing_key, message, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


PRESIGNED_PATH = "/_embedded/objects"
LINK_LIFETIME_SECONDS = 900


def presigned_url(core: Core, repository: ServedRepository, key: str, method: str) -> str:
    """A link that lets a client without credentials read or write one key below the namespace for 15 minutes.

    Real servers return links of the object store. Here the link leads to this server, which answers like a store.
    """
    expiry = core.clock.seconds() + LINK_LIFETIME_SECONDS
    query = {"expires": str(expiry)}
    query["signature"] = _link_signature(core, repository.id, key, method, query)
    return f"{core.public_url}{PRESIGNED_PATH}/{quote(repository.id)}/{quote(key)}?{urlencode(query)}"


def link_expiry(core: Core) -> int:
    """Expiry of a link made now, in seconds since 1970 UTC."""
    return core.clock.seconds() + LINK_LIFETIME_SECONDS


def check_link(core: Core, repository_id: str, key: str, method: str, query: dict[str, str]) -> None:
    """Raises ApiFailure 403 if the link has expired or was not issued by this server."""
    signature = query.get("signature", "")
    rest = {name: value for name, value in query.items() if name != "signature"}
    expected = _link_signature(core, repository_id, key, method, rest)
    if not hmac.compare_digest(signature.encode("utf-8", "surrogateescape"), expected.encode()):
        raise ApiFailure(403, "SignatureDoesNotMatch")
    if core.clock.seconds() > int(query.get("expires", "0")):
        raise ApiFailure(403, "Request has expired")


def _link_signature(core: Core, repository_id: str, key: str, method: str, query: dict[str, str]) -> str:
    message = "\0".join((repository_id, key, method, urlencode(sorted(query.items()))))
    return hmac.new(core.signing_key, message.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def remember_copy(core: Core, repository: ServedRepository, address: str) -> None:
    """Records a shallow copy of this relative address, and deletes expired records.

    Only rule set `seed` makes shallow copies: within a branch's staging area, a copy points to the same object. If the
    old path is deleted before a collector reads the new one, the collector sees neither. So recorded copies are
    appended to the uncommitted data at its end.
    """
    now = core.clock.seconds()
    with core.database.transaction() as database:
        database.execute("DELETE FROM copies WHERE copied_at < ?", (now - core.settings.copy_seconds,))
        database.execute("INSERT INTO copies VALUES (?, ?, ?)", (repository.id, address, now))


def remembered_copies(core: Core, repository: ServedRepository) -> list[tuple[str, int]]:
    """Address and time (seconds since 1970 UTC) of each copy no older than `copy_seconds`."""
    with core.database.transaction() as database:
        return database.execute(
            "SELECT address, copied_at FROM copies WHERE repository = ? AND copied_at >= ? ORDER BY copied_at, address",
            (repository.id, core.clock.seconds() - core.settings.copy_seconds),
        ).fetchall()

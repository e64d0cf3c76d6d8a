"""Repositories, and the addresses that are handed out in them.

An issued address is for an object that the client uploads by itself and links afterwards. It carries an HMAC over
repository, branch, path and itself, so a server needs no memory to check it; its age is in its name. Rule set `seed`
also remembers each address, and forgets it when it is used or too old: it works once.

A presigned link lets a client without credentials read or write one object for a quarter of an hour. Real servers hand
out the object store's own links. Here they lead back to this server, which does as the store would.

Shallow copies are remembered for a while (rule set `seed`): a copy within a branch's staging area points to the same
object. Between the deletion of the old path and the reading of the new one a collector could see neither; so copies
are written behind the uncommitted data, after all of it was read.
"""

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
class Repository:
    """One repository; `storage_namespace` as it was given, with or without a slash at its end."""

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
        """An entry's address in full."""
        return address if address_type == AddressType.FULL else self.namespace + address

    def as_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.id,
            "creation_date": self.creation_date,
            "default_branch": self.default_branch,
            "storage_id": "",
            "storage_namespace": self.storage_namespace,
            "read_only": self.read_only,
        }


def store_of(core: Core, repository: Repository) -> ObjectStore:
    """The store that holds a repository's objects."""
    return core.blockstore.open(repository.storage_namespace)


def get(core: Core, name: str) -> Repository:
    """The repository of this name. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        row = database.execute("SELECT * FROM repositories WHERE id = ?", (name,)).fetchone()
    if row is None:
        raise not_found("repository")
    return _from_row(row)


def get_writable(core: Core, name: str) -> Repository:
    """The repository of this name, to change it. Raises ApiFailure 404, or 403 where it is read-only."""
    repository = get(core, name)
    if repository.read_only:
        raise ApiFailure(403, "read-only repository")
    return repository


def every(core: Core) -> list[Repository]:
    """All of them, by name."""
    with core.database.transaction() as database:
        return [_from_row(row) for row in database.execute("SELECT * FROM repositories ORDER BY id").fetchall()]


def set_metadata(core: Core, repository: Repository, key: str, value: str) -> None:
    """Sets one pair of the repository's own metadata."""
    with core.database.transaction() as database:
        metadata = get(core, repository.id).metadata | {key: value}
        database.execute("UPDATE repositories SET metadata = ? WHERE id = ?", (json.dumps(metadata), repository.id))


def protection_patterns(core: Core, repository: Repository) -> list[str]:
    """The patterns of the branch protection rules, which this server states and does not enforce."""
    with core.database.transaction() as database:
        rows = database.execute("SELECT pattern FROM protected_branches WHERE repository = ?", (repository.id,))
        return sorted(pattern for (pattern,) in rows)


def _from_row(row: tuple[str, str, str, int, int, str] | sqlite3.Row) -> Repository:
    name, namespace, default_branch, creation_date, read_only, metadata = row
    return Repository(name, namespace, default_branch, creation_date, bool(read_only), json.loads(metadata))


def issue_address(core: Core, repository: Repository, branch_id: str, path: str) -> str:
    """A new relative address that may be linked to this path of this branch."""
    bare = core.writer.new_address()
    address = f"{bare},{_address_signature(core, repository, branch_id, path, bare)}"
    if core.settings.rules == "seed":
        now = core.clock.seconds()
        with core.database.transaction() as database:
            # Nobody may link these any more.
            database.execute("DELETE FROM issued_addresses WHERE issued_at < ?", (now - core.settings.link_seconds,))
            database.execute("INSERT INTO issued_addresses VALUES (?, ?, ?)", (repository.id, address, now))
    return address


def redeem_address(core: Core, repository: Repository, branch_id: str, path: str, address: str) -> None:
    """Checks an address before it is linked. Raises ApiFailure 400 for one issued for something else, or too old."""
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


def _address_signature(core: Core, repository: Repository, branch_id: str, path: str, address: str) -> str:
    message = "\0".join((repository.id, branch_id, path, address)).encode("utf-8", "surrogateescape")
    digest = hmac.new(core.signing_key, message, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


PRESIGNED_PATH = "/_embedded/objects"
LINK_LIFETIME_SECONDS = 900


def presigned_url(core: Core, repository: Repository, key: str, method: str) -> str:
    """A link for one key below the repository's namespace."""
    expiry = core.clock.seconds() + LINK_LIFETIME_SECONDS
    query = {"expires": str(expiry)}
    query["signature"] = _link_signature(core, repository.id, key, method, query)
    return f"{core.public_url}{PRESIGNED_PATH}/{quote(repository.id)}/{quote(key)}?{urlencode(query)}"


def link_expiry(core: Core) -> int:
    """Expiry of a link made now, in seconds since 1970 UTC."""
    return core.clock.seconds() + LINK_LIFETIME_SECONDS


def check_link(core: Core, repository_id: str, key: str, method: str, query: dict[str, str]) -> None:
    """Raises ApiFailure 403 for a link that is not ours or too old."""
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


def remember_copy(core: Core, repository: Repository, address: str) -> None:
    """Notes that this relative address was copied now, and forgets old copies."""
    now = core.clock.seconds()
    with core.database.transaction() as database:
        database.execute("DELETE FROM copies WHERE copied_at < ?", (now - core.settings.copy_seconds,))
        database.execute("INSERT INTO copies VALUES (?, ?, ?)", (repository.id, address, now))


def remembered_copies(core: Core, repository: Repository) -> list[tuple[str, int]]:
    """Address and time (seconds since 1970 UTC) of each copy that is not older than the setting."""
    with core.database.transaction() as database:
        return database.execute(
            "SELECT address, copied_at FROM copies WHERE repository = ? AND copied_at >= ? ORDER BY copied_at, address",
            (repository.id, core.clock.seconds() - core.settings.copy_seconds),
        ).fetchall()

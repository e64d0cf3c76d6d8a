"""Repositories: read, listed, changed, removed; `repository_creation` makes them."""

import json
import sqlite3
from dataclasses import dataclass

from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import ApiFailure, not_found
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


def delete(core: Core, name: str) -> None:
    """Forgets a repository; its objects and files stay where they are."""
    repository = get(core, name)
    with core.database.transaction() as database:
        database.execute(
            "DELETE FROM staged WHERE token IN (SELECT staging_token FROM branches WHERE repository = ?)", (name,)
        )
        database.execute("DELETE FROM parts WHERE upload_id IN (SELECT id FROM uploads WHERE repository = ?)", (name,))
        for table in ("branches", "tags", "commits", "retention_rules", "issued_addresses", "copies", "uploads"):
            database.execute(f"DELETE FROM {table} WHERE repository = ?", (name,))  # noqa: S608
        database.execute("DELETE FROM repositories WHERE id = ?", (repository.id,))


def set_metadata(core: Core, repository: Repository, key: str, value: str) -> None:
    """Sets one pair of the repository's own metadata."""
    with core.database.transaction() as database:
        metadata = get(core, repository.id).metadata | {key: value}
        database.execute("UPDATE repositories SET metadata = ? WHERE id = ?", (json.dumps(metadata), repository.id))


def _from_row(row: tuple[str, str, str, int, int, str] | sqlite3.Row) -> Repository:
    name, namespace, default_branch, creation_date, read_only, metadata = row
    return Repository(name, namespace, default_branch, creation_date, bool(read_only), json.loads(metadata))

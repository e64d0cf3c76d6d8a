"""Making a repository: its record, its storage namespace, its first commit and its default branch."""

import re

from lakefs_gc_assets.embedded import branches, commits
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import ApiFailure, bad_request
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.errors import ObjectNotFound, StorageError

_MARKER = "_lakefs/dummy"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")


def create(
    core: Core, name: str, storage_namespace: str, default_branch: str, *, read_only: bool, bare: bool
) -> Repository:
    """Makes a repository and proves that its storage namespace can be written; a bare one has no commit.

    Raises ApiFailure 409 where the name is taken, 400 where the namespace is in use or the name is none.
    """
    if not _NAME.fullmatch(name) or not storage_namespace:
        raise bad_request("error creating repository: invalid name or no storage_namespace")
    branches.check_name(default_branch)
    now = core.clock.seconds()
    repository = Repository(name, storage_namespace, default_branch, now, read_only, {})
    with core.database.transaction() as database:
        if database.execute("SELECT 1 FROM repositories WHERE id = ?", (name,)).fetchone():
            raise ApiFailure(409, "error creating repository: not unique")
        _claim(core, repository, check_unused=not bare)
        if not bare:
            # Of a repository that was here before nothing is left: its files must be written again.
            database.execute("DELETE FROM files WHERE storage_namespace = ?", (storage_namespace,))
        database.execute(
            "INSERT INTO repositories VALUES (?, ?, ?, ?, ?, '{}')",
            (name, storage_namespace, default_branch, now, int(read_only)),
        )
        if not bare:
            first = commits.add(
                core,
                repository,
                commits.Draft(committer="", message="Repository created", metarange_id="", parents=(), generation=1),
            )
            branches.insert(database, repository, default_branch, first.id, hidden=False)
    return repository


def _claim(core: Core, repository: Repository, *, check_unused: bool) -> None:
    try:
        store = core.blockstore.create(repository.storage_namespace)
        if check_unused:
            try:
                store.head(_MARKER)
            except ObjectNotFound:
                pass
            else:
                raise bad_request("error creating repository: found lakeFS objects in the storage namespace")
        store.put(_MARKER, b"written by the embedded lakeFS to see that it can write here\n")
    except StorageError as error:
        raise bad_request(f"error creating repository: failed to access storage: {error}") from None

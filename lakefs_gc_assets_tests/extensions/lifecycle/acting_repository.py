"""A repository whose entries below `old/` expire, for tests of deleting and bringing back on an embedded server."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from lakefs_gc_assets.cli.common import loaded_configuration, open_repository
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.extensions.lifecycle import acting, reverting
from lakefs_gc_assets.extensions.lifecycle.acts import BRANCH_PREFIX, LifecycleOutcome
from lakefs_gc_assets.extensions.lifecycle.listing import ENTRIES, Group, LifecycleListing
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.api.models import Branch
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository

RULE = "logs"
OLD = "old/"


@dataclass
class ActingRepository:
    """The repository, and a decision that needs no policy: everything committed below `old/` expires by one rule."""

    made: RetainedRepository
    listed: dict[str, dict[str, pa.Table]] = field(default_factory=dict)
    decisions: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def server(self) -> EmbeddedServer:
        return self.made.server

    def open(self) -> OpenRepository:
        return open_repository(loaded_configuration(self.made.folder / "lakefs-gc.yaml", None))

    def upload(self, path: str, content: bytes = b"x", branch: str = "main") -> None:
        clients.upload(self.server, path, content, branch=branch)

    def commit(self, message: str = "commit", branch: str = "main") -> str:
        return str(clients.commit(self.server, message, branch=branch)["id"])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.made.call(method, path, body)

    def entries(self, reference: str) -> dict[str, str]:
        """Committed entries by path."""
        page = self.open().api.list_objects(reference, "")
        assert not page.more
        return {each.path: each.physical_address for each in page.objects}

    def log(self, branch: str = "main") -> list[dict[str, Any]]:
        """The commits on the line of first parents, newest first."""
        commits, reference = list[dict[str, Any]](), branch
        while reference:
            commits.append(self.call("GET", f"/commits/{reference}"))
            reference = next(iter(commits[-1]["parents"]), "")
        return commits

    def hard_reset(self, branch: str, reference: str) -> None:
        path = f"/repositories/repo/branches/{branch}/hard_reset"
        status, answer = clients.call(self.server, "PUT", path, ref=reference)
        assert status == 204, answer

    def own_branches(self) -> list[str]:
        return [each.id for each in self.open().api.branches() if each.id.startswith(BRANCH_PREFIX)]

    def _expired(self, repository: OpenRepository, reference: str) -> pa.Table:
        rows = [
            {"path": each.path, "address": each.physical_address, "size": each.size, "last_modified": datetime.now(UTC)}
            for each in repository.api.list_objects(reference, "", OLD).objects
        ]
        return pa.Table.from_pylist(rows, ENTRIES)

    def list(self, *branches: str) -> LifecycleListing:
        """Lists what expires on these branches."""
        repository, groups = self.open(), list[Group]()
        for branch in branches or ("main",):
            table = self._expired(repository, f"{branch}@")
            stated = json.dumps([table["path"].to_pylist(), table["address"].to_pylist()])
            digest = hashlib.sha256(stated.encode()).hexdigest()[:16]
            head = repository.branches_api.branch(branch)
            assert head is not None
            amount = Amount(table.num_rows, sum(table["size"].to_pylist()))
            groups.append(Group(branch, head.commit_id, RULE, amount, digest))
            self.listed.setdefault(branch, {})[RULE] = table
        listing = LifecycleListing("repo", datetime.now(UTC), tuple(groups))
        self.listing = listing
        return listing

    def read_listing(self, repository: OpenRepository, digest: str) -> LifecycleListing:
        assert digest == self.listing.digest
        return self.listing

    def expired_now(
        self, repository: OpenRepository, listing: LifecycleListing, branch: Branch, note: Callable[[str], None]
    ) -> Mapping[str, pa.Table]:
        self.decisions += 1
        known = {tuple(row.values()) for row in self.listed[branch.id][RULE].select(["path", "address"]).to_pylist()}
        now = self._expired(repository, branch.commit_id).to_pylist()
        rows = [row for row in now if (row["path"], row["address"]) in known]
        return {RULE: pa.Table.from_pylist(rows, ENTRIES)} if rows else {}

    def approve(
        self, digest: str = "", repository: OpenRepository | None = None, approver: Callable[[], str] = str
    ) -> dict[str, LifecycleOutcome]:
        """Approves the newest listing; returns outcomes by branch."""
        opened, digest = repository or self.open(), digest or self.listing.digest
        outcomes = acting.approve(opened, digest, "test", lambda line: None, self.warnings.append, approver)
        return {each.branch: each for each in outcomes}

    def revert(self, run_id: str, repository: OpenRepository | None = None) -> dict[str, LifecycleOutcome]:
        opened = repository or self.open()
        outcomes = reverting.revert(opened, run_id, "test", lambda line: None, self.warnings.append)
        return {each.branch: each for each in outcomes}


@contextmanager
def acting_repository(folder: Path) -> Iterator[ActingRepository]:
    """A repository with three entries below `old/`, and five others, on main and on `dev`."""
    with EmbeddedServer(folder / "server", routes=ROUTES) as server:
        clients.repository(server)
        made = ActingRepository(RetainedRepository(server, folder))
        made.made.configuration()
        for number in range(3):
            made.upload(f"{OLD}{number}", f"old {number}".encode())
        for number in range(5):
            made.upload(f"new/{number}", f"new {number}".encode())
        made.commit("first")
        made.call("POST", "/branches", {"name": "dev", "source": "main"})
        with (
            mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}),
            mock.patch.object(acting, "read_listing", made.read_listing),
            mock.patch.object(acting, "expired_now", made.expired_now),
        ):
            yield made

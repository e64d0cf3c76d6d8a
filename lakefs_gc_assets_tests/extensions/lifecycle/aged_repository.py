"""A repository on an embedded server whose objects are days old, with rules of lifecycle."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from lakefs_gc_assets.cli.common import loaded_configuration, open_repository
from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.extensions.lifecycle import expired
from lakefs_gc_assets.extensions.lifecycle.listing import LifecycleListing
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository


class AgedRepository(RetainedRepository):
    """The repository `repo`."""

    def add(self, days: float, *paths: str, branch: str = "main") -> None:
        """Uploads objects some days ago, each with its path as content, and commits them."""
        with self.server.clock.at(datetime.now(UTC) - timedelta(days=days)):
            for path in paths:
                clients.upload(self.server, path, f"{path} {days}".encode(), branch=branch)
        self.commit(f"{days} {paths}", days, branch)

    def policy(self, *rules: dict[str, Any], **collection: Any) -> None:
        """Writes rules of lifecycle; each is for main unless it names branches."""
        file = self.folder / "policy.yaml"
        content = [{"name": f"rule-{number}", "branches": "main", **rule} for number, rule in enumerate(rules, 1)]
        file.write_text(yaml.safe_dump({"lifecycle": content}))
        self.configuration(retention_policy=str(file), **collection)

    def opened(self) -> OpenRepository:
        return open_repository(loaded_configuration(self.folder / "lakefs-gc.yaml", None))

    def listed(self) -> LifecycleListing:
        return expired.list_expired(self.opened(), lambda line: None)

    def expired(self) -> dict[tuple[str, str], list[str]]:
        """Expired paths by branch and rule, as the stored listing has them."""
        listing, opened = self.listed(), self.opened()
        return {
            (group.branch, group.rule): expired.read_entries(opened, listing, group).column("path").to_pylist()
            for group in listing.groups
        }


@contextmanager
def aged_repository(folder: Path) -> Iterator[AgedRepository]:
    """An empty repository that was made 400 days ago."""
    with EmbeddedServer(folder / "server", routes=ROUTES) as server:
        repository = AgedRepository(server, folder)
        with server.clock.at(datetime.now(UTC) - timedelta(days=400)):
            clients.repository(server)
        with (
            mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}),
            mock.patch.object(commits, "_FIRST_POLL_SECONDS", 0.01),
        ):
            yield repository

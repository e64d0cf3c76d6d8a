"""A repository of the embedded server with old objects, and the commands erase and verify without Dagster and Spark."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.common import loaded_configuration
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import AskedRun, decided_here
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.erasure import certificate
from lakefs_gc_assets.extensions.erasure import erase_command as command
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.storage.interface import keys_below
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository


def write_key(folder: Path, name: str) -> Path:
    """Writes a new key and, beside it, its public key with the suffix `.pub`."""
    file = folder / f"{name}.pem"
    for each, data in zip((file, file.with_suffix(".pub")), certificate.new_key(), strict=True):
        each.write_bytes(data)
    return file


@dataclass
class Erasing(RetainedRepository):
    """The repository `repo`. Objects put into it are 50 days old, so that no run keeps them for their age."""

    before_run: list[Any] = field(default_factory=list)

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.server.objects_folder / "repo")

    @property
    def data(self) -> set[str]:
        """The truth: addresses of all existing objects, except one that always stays."""
        return {*keys_below(self.store, "data/")} - {self.addresses["anchor"]}

    def put(self, version: str, path: str = "file", branch: str = "main") -> None:
        with self.server.clock.at(datetime.now(UTC) - timedelta(days=50)):
            super().put(version, path, branch)

    def remove(self, path: str, branch: str = "main") -> None:
        clients.sdk(self.server).objects_api.delete_object("repo", branch, path)

    def link(self, version: str, path: str, name: str = "repo") -> None:
        """Stages an existing address at another path."""
        address = f"{self.server.core.blockstore.scheme}repo/{self.addresses[version]}"
        body = clients.models.ObjectStageCreation(
            physical_address=address, checksum="0", size_bytes=len(version), mtime=1
        )
        clients.sdk(self.server).internal_api.stage_object(name, "main", path, body)

    def collect(self, **settings: Any) -> str:
        """Makes a deleting run of the flow unified with all permissions; returns its id."""
        loaded = loaded_configuration(self.folder / "lakefs-gc.yaml", None)
        return self._run(decided_here(loaded, sweep=True, **settings))

    def _run(self, loaded: Loaded) -> str:
        return ArrowRuns(loaded).collect(Flow.UNIFIED).run_id

    def _execute(
        self, loaded: Loaded, asked: AskedRun, note: Any, clock: Clock, home: Any
    ) -> tuple[str, CollectionError | None]:
        assert asked == AskedRun(True, Flow.UNIFIED)
        for change in self.before_run:
            change()
        try:
            return self._run(decided_here(loaded, sweep=True)), None
        except CollectionError as error:
            return "", error

    def call_command(self, *arguments: str, file: str = "lakefs-gc.yaml") -> Result:
        """Calls a command in this process; the run of an erasure works on plain tables."""
        with ExitStack() as stack:
            for target, name, new in (
                (command, "execute", self._execute),
                (command, "instance", lambda: nullcontext(None)),
                (Collector, "engine", lambda collector, settings: LocalEngine()),
            ):
                stack.enter_context(mock.patch.object(target, name, new))
            stack.enter_context(mock.patch("lakefs_gc_assets.cli.common.start_as_configured"))
            name, *others = arguments
            return CliRunner().invoke(main, [name, "--config", str(self.folder / file), *others])

    def shown(self, *paths: str, status: Status = Status.WELL) -> dict[str, Any]:
        """The command's listing, as JSON."""
        result = self.call_command("erase", "--quiet", "--json", *paths)
        assert result.exit_code == status, result.output
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    def erase(self, *paths: str, digest: str = "") -> Result:
        """Approves the listed objects, or a digest, and erases them."""
        approved = digest or self.shown(*paths)["digest"]
        options = ("--approve", approved, "--key", str(self.folder / "own.pem"))
        return self.call_command("erase", "--quiet", *options, "--certificate", str(self.certificate), *paths)

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.json"

    @property
    def content(self) -> dict[str, Any]:
        """The certificate's content."""
        content: dict[str, Any] = json.loads(self.certificate.read_bytes())["content"]
        return content

    def verify(self, key: str = "own.pub") -> Result:
        return self.call_command("verify", "--key", str(self.folder / key), str(self.certificate))

    def holders_in(self, shown: dict[str, Any]) -> dict[str, set[str]]:
        """Holders of each listed address, by the name of its version."""
        names = {address: version for version, address in self.addresses.items()}
        return {
            names[each["address"]]: {
                f"{holder['by']} {holder['name']} {holder['path']}".replace("  ", " ")
                for holder in each["holders"]
                if holder["by"] != "commit"
            }
            | ({"commits"} if any(holder["by"] == "commit" for holder in each["holders"]) else set())
            for each in shown["addresses"]
        }


@contextmanager
def erasing(folder: Path, **collection: Any) -> Iterator[Erasing]:
    """A repository whose commits expire after a week on every branch, with one object that its head holds; two keys."""
    with EmbeddedServer(folder / "server", routes=ROUTES) as server:
        made = Erasing(server, folder)
        with server.clock.at(datetime.now(UTC) - timedelta(days=61)):
            clients.repository(server)
        made.put("anchor", "anchor")
        made.commit("zeroth", 45)
        made.rules(7)
        settings = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0, **collection}
        made.configuration(**settings)
        for name in ("own", "other"):
            write_key(folder, name)
        with mock.patch.dict(os.environ, {SECRET_VARIABLE: server.secret_access_key}):
            yield made


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Erasing]:
    with erasing(tmp_path) as repository:
        yield repository

"""Many repositories of an embedded server, with made-up reports in their folders."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.configuration_file import AllRepositories, everything_from
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

SECRET_VARIABLE = "TEST_OVERVIEW_SECRET"
GIB = 2**30
IDS = layout.XidGenerator()


def made_up_report(repository: str, ended_at: datetime, **changes: Any) -> Report:
    """A report of a clean dry run that listed 10 objects of 10 GiB: 7 are live, and 3 are garbage."""
    facts: dict[str, Any] = {
        "run_id": IDS.descending(ended_at),
        "attempt": "attempt",
        "repository": repository,
        "storage_namespace": f"local://{repository}",
        "flow": "clean",
        "previous_run": None,
        "dry_run": True,
        "success": True,
        "ended_well": True,
        "ending": Ending.MARKED,
        "started_at": ended_at - timedelta(minutes=5),
        "ended_at": ended_at,
        "cutoff": ended_at - timedelta(days=1),
        "windows": ("legacy",),
        "counts": {"listed": 10, "stored": 10, "candidates": 3},
        "object_bytes": {"listed": 10 * GIB, "candidates": 3 * GIB},
        "storage_classes": {"listed": {"STANDARD": {"objects": 10, "bytes": 10 * GIB}}},
    }
    return Report(**{**facts, **changes})


@dataclass
class Lake:
    """The server, and the configuration that covers its repositories."""

    server: EmbeddedServer
    content: dict[str, Any]

    @property
    def everything(self) -> AllRepositories:
        """The configuration as it is now."""
        return everything_from(self.content, "gc.yaml")

    def create(self, name: str) -> Path:
        """Creates a repository over HTTP and returns the folder of its objects."""
        body = {"name": name, "storage_namespace": f"local://{name}"}
        status, answer = clients.call(self.server, "POST", "/repositories", body)
        assert status == 201, answer
        return self.server.objects_folder / name

    def put(self, name: str, stored: Report) -> None:
        """Stores a report in the folder of a repository."""
        file = self.server.objects_folder / name / run_folder.report(stored.run_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(stored.to_json())

    def end_run(self, name: str, ago: timedelta = timedelta(), **changes: Any) -> Report:
        """Stores a made-up report of a run that ended some time ago."""
        stored = made_up_report(name, NOW - ago, **changes)
        self.put(name, stored)
        return stored

    def write_configuration(self, folder: Path) -> Path:
        """Writes the configuration as a file."""
        file = folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(self.content))
        return file


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A server without repositories, a configuration that covers all of them, and a folder for overviews."""
    with EmbeddedServer(tmp_path / "server") as server:
        monkeypatch.setenv(SECRET_VARIABLE, server.secret_access_key)
        (server.objects_folder / "overviews").mkdir(parents=True)
        content = {
            "lakefs": {
                "endpoint": server.url,
                "access_key_id": server.access_key_id,
                "secret_access_key": {"env": SECRET_VARIABLE},
            },
            "store": {"local_root": str(server.objects_folder.resolve())},
            "overview": {"history": "local://overviews"},
            "discover": {},
        }
        yield Lake(server, content)

"""A repository on an embedded server whose commits are days old, and a configuration file that reaches it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

SECRET_VARIABLE = "TEST_EMBEDDED_SECRET"


@dataclass
class RetainedRepository:
    """The repository `repo`, with addresses by version name and commit ids by commit name."""

    server: EmbeddedServer
    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)

    def put(self, version: str, path: str = "file", branch: str = "main") -> None:
        self.addresses[version] = clients.upload(self.server, path, version.encode(), branch=branch)

    def commit(self, name: str, days: float, branch: str = "main", *, claimed_days: float | None = None) -> None:
        """Commits some days ago by the server's clock, which also dates files; the commit may claim another date."""
        now = datetime.now(UTC)
        date = int((now - timedelta(days=days if claimed_days is None else claimed_days)).timestamp())
        body = {"message": name, "date": date, "allow_empty": True}
        with self.server.clock.at(now - timedelta(days=days)):
            self.commits[name] = self.call("POST", f"/branches/{branch}/commits", body)["id"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = clients.call(self.server, method, f"/repositories/repo{path}", body)
        assert status < 300, answer
        return answer

    def rules(self, default: int, **branches: int) -> None:
        rules = [{"branch_id": name, "retention_days": days} for name, days in branches.items()]
        self.call("PUT", "/settings/gc_rules", {"default_retention_days": default, "branches": rules})

    def configuration(self, **collection: Any) -> Path:
        """Writes the file; the secret must be in SECRET_VARIABLE."""
        file = self.folder / "lakefs-gc.yaml"
        content = {
            "repository": "repo",
            "lakefs": {
                "endpoint": self.server.url,
                "access_key_id": self.server.access_key_id,
                "secret_access_key": {"env": SECRET_VARIABLE},
                "retries": 0,
            },
            "store": {"local_root": str(self.server.objects_folder)},
            "collection": collection,
        }
        file.write_text(yaml.safe_dump(content))
        return file

    @contextmanager
    def two_approvers(self) -> Iterator[None]:
        """The configuration, by which two people must approve meanwhile."""
        file = self.folder / "lakefs-gc.yaml"
        before = file.read_text()
        file.write_text(f"{before}launch: {{approvers: 2}}\n")
        yield
        file.write_text(before)


def with_history(server: EmbeddedServer, folder: Path) -> RetainedRepository:
    """A file that was replaced 40, 20 and 2 days ago; a branch of an old version; a tag; a deleted branch."""
    made = RetainedRepository(server, folder)
    with server.clock.at(datetime.now(UTC) - timedelta(days=61)):
        clients.repository(server)
    made.put("v1")
    made.commit("first", 60)
    made.put("v2")
    made.commit("second", 40)
    made.call("POST", "/branches", {"name": "dev", "source": "main"})
    made.put("other", "elsewhere", "dev")
    made.commit("of dev", 30, "dev")
    made.put("v3")
    made.commit("third", 20)
    made.call("POST", "/tags", {"id": "v1.0", "ref": made.commits["first"]})
    made.put("v4")
    made.commit("fourth", 2)
    made.call("POST", "/branches", {"name": "gone", "source": made.commits["first"]})
    made.put("lost", "lost", "gone")
    made.commit("of gone", 50, "gone")
    made.call("DELETE", "/branches/gone")
    made.put("staged", "staged file")
    return made

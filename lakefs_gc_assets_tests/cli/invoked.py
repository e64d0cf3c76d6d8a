"""The command line as tests invoke it: in an empty folder, against a replayed server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import common, main, run
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying
from lakefs_gc_assets_tests.servers import store_secret

Invoke = Callable[..., Result]
SECRET, STORE_SECRET = store_secret.SECRET, store_secret.VARIABLE
LAKEFS_SECRET = "TEST_LAKEFS_SECRET"


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command line in an empty folder, with secrets in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv(LAKEFS_SECRET, SECRET)
    monkeypatch.setenv(STORE_SECRET, SECRET)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def assert_one_line(result: Result, *parts: str, status: Status = Status.FAILED) -> None:
    """Requires one line on standard error that names the problem, and no other output."""
    assert result.exit_code == status
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("lakefs-gc: ")
    for part in parts:
        assert part in lines[0]
    assert SECRET not in result.output
    assert ReplayServer.secret_access_key not in result.output


def write(content: object, name: str = "lakefs-gc.yaml") -> Path:
    file = Path(name)
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def content_of(server: ReplayServer, collection: dict[str, object] | None = None, **lakefs: object) -> dict[str, Any]:
    """Content of a configuration file that reaches a replay; its secrets are in the environment."""
    waits = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
    return {
        "repository": server.repository,
        "lakefs": {
            "endpoint": server.url,
            "access_key_id": server.access_key_id,
            "secret_access_key": {"env": LAKEFS_SECRET},
            "retries": 0,
            **lakefs,
        },
        "store": {
            "endpoint_url": server.s3_url,
            "region": "us-east-1",
            "path_style": True,
            "access_key_id": server.access_key_id,
            "secret_access_key": {"env": STORE_SECRET},
        },
        "collection": {**waits, **(collection or {})},
    }


@pytest.fixture
def runs(replaying: Replaying, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> PlainRuns:
    """A replayed repository, named by the configuration file in the working folder, with its own clock.

    Commands make runs through the real graph. A run that a command only reads can be made on plain tables.
    """
    runs = replaying("chain/1", deletes="overlay", max_candidate_share=1)
    for module in (common, run):
        monkeypatch.setattr(module, "SystemClock", lambda: runs.clock)
    monkeypatch.setenv(LAKEFS_SECRET, runs.server.secret_access_key)
    write(content_of(runs.server, {"max_candidate_share": 1}))
    return runs


def made(runs: PlainRuns, *, sweep: bool = False) -> str:
    """The id of a run that finished before the command begins."""
    opened = runs.open()
    result = runs.make(opened, sweep=sweep)
    assert result.success, result.failures
    return opened.run_id

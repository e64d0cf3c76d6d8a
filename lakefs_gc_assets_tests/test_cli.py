import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lakefs_gc_assets import checks, running
from lakefs_gc_assets.checks import Violation
from lakefs_gc_assets.cli import main
from lakefs_gc_assets.collection.lock import Lock
from lakefs_gc_assets.configuration import CONFIGURATION_VARIABLE
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, refused, replaying, truth_classes
from lakefs_gc_assets_tests.lakefs.scripted_server import said, scripted
from lakefs_gc_assets_tests.recordings import FIXTURES, needs_recordings
from lakefs_gc_assets_tests.replay.server import ReplayServer

__all__ = ["replaying"]

Invoke = Callable[..., Result]
SECRET = "s3cr3t-that-nobody-may-see"
LAKEFS_SECRET, STORE_SECRET = "TEST_LAKEFS_SECRET", "TEST_STORE_SECRET"


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    """The session of the tests: a command that runs in this process would begin one of its own."""


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command line in an empty folder, secrets in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv(LAKEFS_SECRET, SECRET)
    monkeypatch.setenv(STORE_SECRET, SECRET)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def assert_one_line(result: Result, *parts: str) -> None:
    """One line on standard error that says what is wrong, and nothing else anywhere."""
    assert result.exit_code == 1
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
    """A configuration file's content that reaches a replay; its secrets are in the environment."""
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
def runs(replaying: Replaying, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> GraphRuns:
    """A replayed repository that the configuration file in the working folder names, on its own clock."""
    runs = replaying("chain/1", deletes="overlay")
    monkeypatch.setattr(running, "SystemClock", lambda: runs.clock)
    monkeypatch.setenv(LAKEFS_SECRET, runs.server.secret_access_key)
    write(content_of(runs.server, {"max_candidate_share": 1}))
    return runs


@pytest.mark.parametrize("command", ["", "run", "status"])
def test_each_command_says_what_it_does(invoke: Invoke, command: str) -> None:
    result = invoke(*command.split(), "--help")

    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    if command:
        assert "--config" in result.stdout
        assert "--repository" in result.stdout
    else:
        assert {"run", "status"} <= set(re.findall(r"^  (\w+) ", result.stdout, re.MULTILINE))


@pytest.mark.parametrize("command", ["run", "status"])
def test_without_a_configuration(invoke: Invoke, command: str) -> None:
    assert_one_line(invoke(command), "no configuration: give --config, set LAKEFS_GC_CONFIG")


@pytest.mark.parametrize("command", ["run", "status"])
@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("repository: [", ["x.yaml", "not YAML"]),
        ("- a", ["x.yaml", "must hold sections"]),
        ("lakefs: {}", ["no repository is named", "x.yaml"]),
        ("repositry: a", ["x.yaml", "repositry"]),
        ("{repository: a, lakefs: {endpint: b}}", ["x.yaml", "lakefs.endpint"]),
        ("{repository: a, collection: {min_age_hours: -1}}", ["x.yaml", "collection.min_age_hours"]),
        (f"{{repository: a, lakefs: {{secret_access_key: {SECRET}}}}}", ["lakefs.secret_access_key is a secret"]),
        (f"{{repository: a, store: {{session_token: {SECRET}}}}}", ["store.session_token is a secret"]),
        ("{repository: a, lakefs: {secret_access_key: {env: NOT_SET_X}}}", ["lakefs.secret_access_key", "NOT_SET_X"]),
        ("{repository: a, lakefs: {endpoint: {env: NOT_SET_X}}}", ["lakefs.endpoint", "NOT_SET_X"]),
    ],
)
def test_a_configuration_that_is_wrong(invoke: Invoke, command: str, content: str, parts: list[str]) -> None:
    write(content, "x.yaml")

    assert_one_line(invoke(command, "--config", "x.yaml"), *parts)


def test_a_configuration_file_that_is_missing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_line(invoke("run", "--config", "nowhere.yaml"), "nowhere.yaml", "No such file")

    monkeypatch.setenv(CONFIGURATION_VARIABLE, "elsewhere.yaml")
    assert_one_line(invoke("status"), "elsewhere.yaml", "No such file")


def test_a_server_that_is_down(invoke: Invoke) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        write({"repository": "a", "lakefs": {"endpoint": endpoint, "retries": 0}})

        assert_one_line(invoke("run"), endpoint)


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "ftp://127.0.0.1"])
def test_an_endpoint_that_is_none(invoke: Invoke, endpoint: str) -> None:
    write({"repository": "a", "lakefs": {"endpoint": endpoint, "retries": 0}})

    assert_one_line(invoke("status"))


def facts(**changed: object) -> dict[str, object]:
    usual = {"id": "a", "creation_date": 1, "default_branch": "main", "storage_namespace": "s3://bucket/a"}
    return {**usual, **changed}


@pytest.mark.parametrize("command", ["run", "status"])
@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (facts(read_only=True), ["repository a is read-only"]),
        (facts(storage_namespace="ftp://bucket/a"), ["ftp://bucket/a", "supported are"]),
        (facts(storage_namespace="local://a"), ["local://a", "store.local_root"]),
        (facts(storage_namespace="nonsense"), ["nonsense"]),
        ([], []),
        ("proxy error", []),
    ],
)
def test_a_repository_that_cannot_be_collected(invoke: Invoke, command: str, answer: object, parts: list[str]) -> None:
    with scripted(said(answer)) as server:
        write({"repository": "a", "lakefs": {"endpoint": server.url, "retries": 0}})

        assert_one_line(invoke(command), *parts)


@needs_recordings
def test_credentials_that_are_wrong(runs: GraphRuns, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAKEFS_SECRET, SECRET)

    assert_one_line(invoke("run"), "401", "error authenticating request")
    assert_one_line(invoke("status"), "401", "error authenticating request")


@needs_recordings
def test_a_repository_that_is_unknown(runs: GraphRuns, invoke: Invoke) -> None:
    assert_one_line(invoke("run", "--repository", "unheard-of"), "unheard-of", "not found")


@needs_recordings
def test_a_home_of_dagster_that_is_missing(runs: GraphRuns, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere/at/all")

    assert_one_line(invoke("run"), "DAGSTER_HOME", "/nowhere/at/all")


@needs_recordings
def test_a_dry_run_a_sweep_and_the_status(runs: GraphRuns, invoke: Invoke) -> None:
    garbage = truth_classes("chain/1")["unreferenced"]

    empty = invoke("status")
    assert (empty.exit_code, empty.stderr) == (0, "")
    assert empty.stdout.splitlines()[1:] == ["lock: free", "no runs yet"]

    dry = invoke("run")
    assert dry.exit_code == 0, dry.stderr
    assert runs.server.deleted == set()
    shown = re.sub(r" +", " ", dry.stdout)
    assert "marked, nothing deleted" in shown.splitlines()[0]
    assert f"\n candidates {len(garbage)} objects" in shown
    assert "this was a dry run: nothing was deleted; --sweep deletes" in shown
    assert re.match(r"run \w{20}: clean, windows legacy to 2026-11$", dry.stderr.splitlines()[0])
    assert not re.search("warning|traceback|exception|rows? in 0\\.0 s \\(inf", dry.stderr, re.IGNORECASE)

    swept = invoke("run", "--sweep")
    assert swept.exit_code == 0, swept.stderr
    assert runs.server.deleted == garbage
    assert f"\n deleted {len(garbage)} objects" in re.sub(r" +", " ", swept.stdout)

    # The clock stands still here, so either run may be the newer one.
    listed = invoke("status", "--runs", "2")
    assert listed.exit_code == 0
    kinds = {line.partition("Z  ")[2] for line in listed.stdout.splitlines()[2:]}
    assert f"clean, sweep: deleted; {len(garbage)} candidates, {len(garbage)} deleted" in kinds
    assert f"clean, dry run: marked, nothing deleted; {len(garbage)} candidates, 0 deleted" in kinds


@needs_recordings
def test_a_sweep_that_could_not_delete_everything(runs: GraphRuns, invoke: Invoke) -> None:
    runs.server.undeletable = {min(truth_classes("chain/1")["unreferenced"])}

    result = invoke("run", "--sweep")

    assert result.exit_code == 1
    assert "some deletions failed" in result.stdout
    assert "1 failed" in result.stdout


@needs_recordings
def test_a_step_that_fails(runs: GraphRuns, invoke: Invoke) -> None:
    runs.server.fault = lambda method, target: refused(403, "not allowed") if "prepare_uncommited" in target else None

    result = invoke("run")

    assert (result.exit_code, result.stdout) == (1, "")
    last = result.stderr.splitlines()[-1]
    assert re.match(r"lakefs-gc: run \w{20} failed: uncommitted_df: AccessDenied: .*not allowed", last)
    assert result.stderr.count("not allowed") == 1
    assert "Traceback" not in result.output
    assert runs.lock_holder() is None
    assert "clean, dry run: failed: AccessDenied" in invoke("status").stdout


@needs_recordings
def test_a_check_that_fails(runs: GraphRuns, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "too_young", lambda *_: [Violation("older than the cutoff", "one is not", 1)])

    result = invoke("run", "--sweep")

    assert (result.exit_code, result.stdout) == (1, "")
    last = result.stderr.splitlines()[-1]
    assert re.match(r"lakefs-gc: run \w{20} failed: check of candidates: older than the cutoff: one is not$", last)
    assert "Traceback" not in result.output
    assert runs.server.deleted == set()


@needs_recordings
def test_a_store_that_is_down(runs: GraphRuns, invoke: Invoke) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        content = content_of(runs.server)
        content["store"] = {**content["store"], "endpoint_url": f"http://127.0.0.1:{free.getsockname()[1]}"}
        write(content)

        assert_one_line(invoke("run"))


@needs_recordings
def test_a_lock_that_somebody_holds(runs: GraphRuns, invoke: Invoke) -> None:
    Lock.acquire(
        runs.repository.store, run_id="other", owner="somebody", now=runs.clock.now(), expiry=timedelta(hours=1)
    )

    result = invoke("run")

    assert result.exit_code == 1
    assert "LockHeld: somebody collects this repository" in result.stderr.splitlines()[-1]
    assert "lock: held by somebody for run other" in invoke("status").stdout


@needs_recordings
def test_a_process_of_its_own_says_no_more_than_that(tmp_path: Path) -> None:
    """What Dagster, Spark and the JVM would say of themselves is kept away from the reader."""
    with ReplayServer(FIXTURES / "empty") as server:
        (tmp_path / "gc.yaml").write_text(yaml.safe_dump(content_of(server)))
        ended = subprocess.run(
            [sys.executable, "-c", "from lakefs_gc_assets.cli import main; main()", "run", "--config", "gc.yaml"],
            cwd=tmp_path,
            env={**clean_environment(), LAKEFS_SECRET: server.secret_access_key, STORE_SECRET: SECRET},
            capture_output=True,
            text=True,
            timeout=280,
        )

    assert ended.returncode == 0, ended.stderr
    assert "nothing to delete" in ended.stdout.splitlines()[0]
    told = [line for line in ended.stderr.splitlines() if "incubator modules" not in line]
    assert told[0].startswith("run ")
    assert [line for line in told[1:] if not re.match(r"  (store_df|\w+_df|candidates|deleted_report): ", line)] == []
    assert SECRET not in ended.stdout + ended.stderr
    assert server.secret_access_key not in ended.stdout + ended.stderr


def clean_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "LAKEFS_", "PYTEST_"))
    }

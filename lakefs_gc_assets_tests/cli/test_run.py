"""`lakefs-gc run` and `lakefs-gc status` on recorded repositories, and the ends of failing runs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets_tests.cli.invoked import (
    LAKEFS_SECRET,
    SECRET,
    STORE_SECRET,
    Invoke,
    assert_one_line,
    content_of,
    invoke,
    runs,
    write,
)
from lakefs_gc_assets_tests.lakefs.api.scripted_server import said, scripted
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, replaying
from lakefs_gc_assets_tests.runs.recordings import folder_of
from lakefs_gc_assets_tests.runs.replayed_runs import refused, truth_classes

__all__ = ["invoke", "replaying", "runs"]


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    """The session of the tests: a command that runs in this process would otherwise start its own."""


def test_a_server_that_is_down(invoke: Invoke) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        write({"repository": "a", "lakefs": {"endpoint": endpoint, "retries": 0}})

        assert_one_line(invoke("run"), endpoint)


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "ftp://127.0.0.1"])
def test_an_endpoint_that_is_none(invoke: Invoke, endpoint: str) -> None:
    write({"repository": "a", "lakefs": {"endpoint": endpoint, "retries": 0}})

    assert_one_line(invoke("status"), status=Status.CONFIGURATION)


def facts(**changed: object) -> dict[str, object]:
    usual = {"id": "a", "creation_date": 1, "default_branch": "main", "storage_namespace": "s3://bucket/a"}
    return {**usual, **changed}


@pytest.mark.parametrize("command", ["run", "status"])
@pytest.mark.parametrize(
    ("answer", "parts", "ends"),
    [
        (facts(storage_namespace="ftp://bucket/a"), ["ftp://bucket/a", "supported are"], Status.CONFIGURATION),
        (facts(storage_namespace="local://a"), ["local://a", "store.local_root"], Status.CONFIGURATION),
        (facts(storage_namespace="nonsense"), ["nonsense"], Status.CONFIGURATION),
        ([], [], Status.FAILED),
        ("proxy error", [], Status.FAILED),
    ],
)
def test_a_repository_that_cannot_be_collected(
    invoke: Invoke, command: str, answer: object, parts: list[str], ends: Status
) -> None:
    with scripted(said(answer)) as server:
        write({"repository": "a", "lakefs": {"endpoint": server.url, "retries": 0}})

        assert_one_line(invoke(command), *parts, status=ends)


def test_a_repository_that_is_read_only_is_not_collected(invoke: Invoke) -> None:
    with scripted(said(facts(read_only=True))) as server:
        write({"repository": "a", "lakefs": {"endpoint": server.url, "retries": 0}})

        assert_one_line(invoke("run"), "repository a is read-only")


def test_credentials_that_are_wrong(runs: PlainRuns, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAKEFS_SECRET, SECRET)

    assert_one_line(invoke("run"), "401", "error authenticating request")
    assert_one_line(invoke("status"), "401", "error authenticating request")


def test_a_repository_that_is_unknown(runs: PlainRuns, invoke: Invoke) -> None:
    assert_one_line(invoke("run", "--repository", "unheard-of"), "unheard-of", "not found")


def test_a_home_of_dagster_that_is_missing(runs: PlainRuns, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere/at/all")

    assert_one_line(invoke("run"), "DAGSTER_HOME", "/nowhere/at/all", status=Status.CONFIGURATION)


@pytest.mark.slow
def test_a_dry_run_a_sweep_and_the_status(runs: PlainRuns, invoke: Invoke) -> None:
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
    opened = re.match(r"run (\w{20}): clean$", dry.stderr.splitlines()[0])
    assert opened and f"to delete its candidates: lakefs-gc approve {opened[1]}\n" in shown
    assert not re.search("warning|traceback|exception|rows? in 0\\.0 s \\(inf", dry.stderr, re.IGNORECASE)
    assert len(dry.output.splitlines()) <= 10, "a newcomer reads all of it"

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


def test_windows_that_cannot_be_meant(runs: PlainRuns, invoke: Invoke) -> None:
    assert_one_line(invoke("run", "--windows", "October"), "not a slice window", status=Status.CONFIGURATION)
    optimized = invoke("run", "--windows", "2026-11", "--flow", "optimized")
    assert_one_line(optimized, "Choose the flow clean or unified", status=Status.CONFIGURATION)


def test_a_step_that_fails(runs: PlainRuns, invoke: Invoke) -> None:
    runs.server.fault = lambda method, target: refused(403, "not allowed") if "prepare_uncommited" in target else None

    result = invoke("run")

    assert (result.exit_code, result.stdout) == (Status.FAILED, "")
    *before, last = result.stderr.splitlines()
    assert re.match(r"lakefs-gc: run \w{20} failed in uncommitted_df: .*not allowed", last)
    assert len(before) == 1
    assert result.stderr.count("not allowed") == 1
    assert "Traceback" not in result.output
    assert runs.lock_holder() is None
    assert re.search("clean, dry run: failed: .*not allowed", invoke("status").stdout)


@pytest.mark.slow
def test_quiet_and_verbose_over_one_window(runs: PlainRuns, invoke: Invoke) -> None:
    quiet = invoke("run", "--quiet", "--json")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    answer = json.loads(quiet.stdout)
    assert answer == json.loads(runs.report(answer["run_id"]).to_json())

    verbose = invoke("run", "--verbose", "--windows", "2026-11")
    assert verbose.exit_code == 0, verbose.stderr
    assert 'Started execution of step "store_df"' in verbose.stderr
    assert re.search(r"^run \w{20}: clean.* the window 2026-11$", verbose.stderr, re.MULTILINE)
    assert "limited to the window 2026-11: 0 slices of other windows were not listed" in verbose.stdout

    both = invoke("run", "--quiet", "--verbose")
    assert (both.exit_code, both.stdout) == (Status.USAGE, "")
    assert "exclude each other" in both.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_releases_its_lock(runs: PlainRuns, invoke: Invoke, number: signal.Signals) -> None:
    def interrupt(method: str, target: str) -> None:
        if "prepare_uncommited" in target:
            os.kill(os.getpid(), number)

    runs.server.fault = interrupt

    result = invoke("run")

    assert (result.exit_code, result.stdout) == (Status.INTERRUPTED, "")
    *before, last = result.stderr.splitlines()
    assert re.match(r"lakefs-gc: run \w{20} was interrupted in uncommitted_df: start a new run$", last)
    assert len(before) == 1
    assert runs.lock_holder() is None
    assert "clean, dry run: failed: interrupted" in invoke("status").stdout


def test_a_store_that_is_down(runs: PlainRuns, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "ATTEMPTS", 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        content = content_of(runs.server)
        content["store"] = {**content["store"], "endpoint_url": f"http://127.0.0.1:{free.getsockname()[1]}"}
        write(content)

        assert_one_line(invoke("run"))


def test_a_lock_that_somebody_holds(runs: PlainRuns, invoke: Invoke) -> None:
    Lock.acquire(
        runs.repository.store, run_id="other", owner="somebody", now=runs.clock.now(), expiry=timedelta(hours=1)
    )

    result = invoke("run")

    assert result.exit_code == Status.LOCKED
    assert "somebody has been collecting this repository" in result.stderr.splitlines()[-1]
    assert re.search(r"lock: held by somebody \(.+\) for run other", invoke("status").stdout)


@pytest.mark.slow
def test_a_process_of_its_own_says_no_more_than_that(tmp_path: Path) -> None:
    """Messages of Dagster, Spark and the JVM about themselves are kept from the reader."""
    with ReplayServer(folder_of("empty")) as server:
        (tmp_path / "gc.yaml").write_text(yaml.safe_dump(content_of(server)))
        ended = subprocess.run(
            [sys.executable, "-c", "from lakefs_gc_assets.cli import main; main()", "run", "--config", "gc.yaml"],
            cwd=tmp_path,
            env={**clean_environment(), LAKEFS_SECRET: server.secret_access_key, STORE_SECRET: SECRET},
            capture_output=True,
            text=True,
            timeout=900,
        )

    assert ended.returncode == 0, ended.stderr
    assert "nothing to delete" in ended.stdout.splitlines()[0]
    reported = ended.stderr.splitlines()
    assert reported[0].startswith("run ")
    assert [line for line in reported[1:] if not re.match(r"  (\w+_df|candidates|deleted_report): (?!\1)", line)] == []
    assert SECRET not in ended.stdout + ended.stderr
    assert server.secret_access_key not in ended.stdout + ended.stderr


def clean_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "LAKEFS_", "PYTEST_"))
    }

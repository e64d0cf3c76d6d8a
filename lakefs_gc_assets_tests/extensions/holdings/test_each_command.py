"""`lakefs-gc each` calls real processes on repositories of an embedded server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.extensions.holdings import each_command
from lakefs_gc_assets.extensions.holdings.each_command import _PROGRAM
from lakefs_gc_assets_tests.extensions.holdings.lake import Lake, lake

__all__ = ["lake"]


def test_command_is_called_for_each_repository_and_failures_are_named(lake: Lake, tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        lake.create(name)
    lake.content["repositories"] = [{"repository": "gone"}]
    file = str(lake.write_configuration(tmp_path))
    shown = CliRunner().invoke(main, ["each", "--config", file, "--at-once", "3", "status", "--runs", "1"])
    assert shown.exit_code == Status.INCOMPLETE
    assert sorted(line for line in shown.stdout.splitlines() if "lock" in line) == [
        "alpha: lock: free",
        "beta: lock: free",
    ]
    assert shown.stderr.splitlines()[-1] == "status failed for 1 of 3 repositories: gone (exit status 1)"

    lake.content["discover"] = {"include": ["beta"]}
    del lake.content["repositories"]
    file = str(lake.write_configuration(tmp_path))
    answered = CliRunner().invoke(main, ["each", "--json", "--config", file, "status", "--json"])
    assert answered.exit_code == 0, answered.output
    (line,) = answered.stdout.splitlines()
    found = json.loads(line)
    assert (found["repository"], found["status"]) == ("beta", 0)
    assert json.loads(found["output"])["repository"] == "beta"


@pytest.mark.parametrize("command", ["overview", "none-such", "each", "ui"])
def test_command_without_a_repository_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "gc.yaml").write_text("discover: {}")
    refused = CliRunner().invoke(main, ["each", "--config", str(tmp_path / "gc.yaml"), command])
    assert refused.exit_code == Status.USAGE and "--repository" in refused.output


def test_interruption_ends_running_calls_and_starts_no_more(lake: Lake, tmp_path: Path) -> None:
    for name in ("alpha", "beta", "gamma"):
        lake.create(name)
    file = str(lake.write_configuration(tmp_path))
    words = ["each", "--config", file, "--at-once", "1", "status"]
    started = subprocess.Popen([*_PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline().startswith("alpha: ")
    started.send_signal(signal.SIGTERM)
    output, errors = started.communicate(timeout=900)
    assert started.returncode == Status.INTERRUPTED, errors
    assert "gamma: lock" not in output


def test_interruption_asks_running_calls_to_end(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("alpha")
    file = str(lake.write_configuration(tmp_path))
    code = "import time; print('begun', flush=True); time.sleep(30); print('ended by itself')"
    monkeypatch.setattr(each_command, "_PROGRAM", (sys.executable, "-c", code))
    shown: list[str] = []

    def interrupt(line: str) -> None:
        shown.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(each_command, "print_result", interrupt)
    ended = CliRunner().invoke(main, ["each", "--config", file, "status"])
    assert ended.exit_code == Status.INTERRUPTED
    assert shown == ["alpha: begun"]

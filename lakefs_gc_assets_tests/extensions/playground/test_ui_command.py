"""`lakefs-gc ui` as `make ui` starts it: its output, its pages, and its end."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner

from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.playground.ui_command import LINEAGE, DagsterUI, prepare_home, ui
from lakefs_gc_assets_tests.cli.invoked import Invoke, assert_one_line, invoke, write
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT
from lakefs_gc_assets_tests.harness.process_tree import descendants
from lakefs_gc_assets_tests.servers.free_ports import free_port

__all__ = ["invoke"]

# A script's background process starts with INT ignored, but INT must still end it.
_IN_BACKGROUND = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from lakefs_gc_assets.cli import main
main()
"""
_CELLS = "query { assetNodes { assetKey { path } partitionStats { numPartitions numMaterialized numFailed } } }"


def start(folder: Path, port: int, *options: str) -> "subprocess.Popen[str]":
    """Starts the command; without options on a small sample repository."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    shutil.copy(PROJECT / "dagster.yaml", home)
    options = options or ("--folder", str(folder / "playground"), "--objects", "40")
    return subprocess.Popen(
        [sys.executable, "-c", _IN_BACKGROUND, "ui", "--port", str(port), *options],
        cwd=home,  # any folder works
        env={**os.environ, "DAGSTER_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_until_url(process: "subprocess.Popen[str]") -> list[str]:
    """Its output until it serves."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("http"):
            return lines
    raise AssertionError(lines, process.communicate()[1])


def end(process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[str, str]:
    """Ends the command; returns its output since then. No process that it started remains."""
    started = descendants(process.pid)
    assert started
    process.send_signal(number)
    printed = process.communicate(timeout=900)
    assert process.returncode == 0
    until = time.monotonic() + 900
    while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.2)
    return printed


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("repository: a\nlakefs: {endpoint: 'http://127.0.0.1:1', access_key_id: {env: UNSET_KEY}}\n", "UNSET_KEY"),
        ("", "no"),
    ],
)
def test_a_file_that_is_wrong_is_said_at_once(invoke: Invoke, text: str, reported: str) -> None:
    file = write(text)

    assert_one_line(invoke("ui", "--config", str(file)), reported, status=Status.CONFIGURATION)
    assert not Path(".dagster").exists()


def test_a_file_that_is_not_there_is_said_at_once(invoke: Invoke) -> None:
    assert_one_line(invoke("ui", "--config", "gone.yaml"), "gone.yaml", status=Status.CONFIGURATION)


def test_it_serves_the_file_that_the_environment_names(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIGURATION_VARIABLE, "elsewhere.yaml")
    assert_one_line(invoke("ui"), "elsewhere.yaml", status=Status.CONFIGURATION)


def test_an_installation_without_the_ui_says_what_to_install(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dagster_webserver", None)

    assert_one_line(invoke("ui"), "install this package's wheel with its extra [ui]", status=Status.CONFIGURATION)
    assert not list(Path().iterdir())


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_it_opens_on_a_dry_run_and_prints_the_url_of_the_lineage_last_and_alone(tmp_path: Path) -> None:
    port = free_port()
    process = start(tmp_path, port)
    try:
        first = lines_until_url(process)
        root = f"http://127.0.0.1:{port}"
        assert first[-1] == f"{root}{LINEAGE}"
        assert first[-2].startswith(f"the UI is at {root}; making a dry run there")
        body = json.dumps({"query": _CELLS}).encode()
        request = urllib.request.Request(f"{root}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=900) as answer:
            nodes = json.load(answer)["data"]["assetNodes"]
        cells = [node["partitionStats"] for node in nodes if node["partitionStats"]]
        assert len(cells) == 7
        # Lists have no partition before their first launch.
        cells = [each for each in cells if each["numPartitions"]]
        assert len(cells) == 5
        assert all(each["numMaterialized"] > 0 and each["numFailed"] == 0 for each in cells)
        shown = DagsterUI(root, tmp_path / "home", process, tmp_path / "log")  # type: ignore[arg-type]
        shown.make_first_run(shown.wait_until_loaded(), pytest.fail)  # there is a run to look at
        assert end(process, signal.SIGINT) == ("", "")
    finally:
        process.kill()


# Serving.


def test_a_new_folder_has_the_settings_of_the_projects_own(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "a" / "home")
    assert home.stat().st_mode & 0o777 == 0o700, "runs and logs are nobody else's to read"

    written = yaml.safe_load((home / "dagster.yaml").read_text())
    own = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    assert home.is_absolute()
    assert written["telemetry"] == {"enabled": False}
    # With `run_queue`, dagster.yaml could name no run_coordinator.
    assert written.pop("run_queue") == {"dequeue_interval_seconds": 1}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert isinstance(instance.run_coordinator, dg.QueuedRunCoordinator)
        assert instance.run_coordinator.dequeue_interval_seconds == 1
    for section, values in written.items():
        assert {name: own[section][name] for name in values} == values, section


def test_settings_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: true}\n")

    assert prepare_home(tmp_path) == tmp_path.resolve()
    assert (tmp_path / "dagster.yaml").read_text() == "telemetry: {enabled: true}\n"


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        outcome = CliRunner().invoke(ui, ["--folder", str(tmp_path / "sample"), "--port", str(port)])

    assert isinstance(outcome.exception, CollectionError)
    assert f"port {port} cannot be used" in str(outcome.exception)
    assert not (tmp_path / "sample").exists()


@pytest.mark.slow
def test_another_dagster_at_the_url_is_never_taken_for_ours(tmp_path: Path) -> None:
    """Another server may take the port between check and start: nothing is launched there."""
    own, others, port = prepare_home(tmp_path / "own"), prepare_home(tmp_path / "others"), free_port()
    command = [sys.executable, "-m", "dagster_webserver", "--empty-workspace", "-h", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, env={**os.environ, "DAGSTER_HOME": str(others)}) as process:
        try:
            # Our own process cannot get its port, and has not ended yet.
            shown = DagsterUI(f"http://127.0.0.1:{port}", own, process, tmp_path / "log")
            with pytest.raises(CollectionError, match="another Dagster answers"):
                shown.wait_until_loaded()
        finally:
            process.terminate()

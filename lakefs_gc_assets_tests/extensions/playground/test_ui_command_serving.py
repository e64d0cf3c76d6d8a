"""`lakefs-gc ui`: the folder of Dagster's runs, and a port already in use."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.playground.ui_command import DagsterUI, prepare_home, ui
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT
from lakefs_gc_assets_tests.servers.free_ports import free_port


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

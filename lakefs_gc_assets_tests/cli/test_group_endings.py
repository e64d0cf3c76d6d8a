"""Exit statuses: each kind of error has its own, listed by the command line."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import MEANINGS, Status, one_line_errors, status_of
from lakefs_gc_assets.errors import (
    AccessDenied,
    CollectionError,
    ConfigurationError,
    CorruptFile,
    GuardTripped,
    Interrupted,
    LockHeld,
    LockLost,
    RunFailed,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CollectionError("a"), Status.FAILED),
        (AccessDenied("a"), Status.FAILED),
        (CorruptFile("a", "b", "c"), Status.FAILED),
        (ConfigurationError("a"), Status.CONFIGURATION),
        (GuardTripped("a", "b", "c"), Status.REFUSED),
        (LockHeld("a"), Status.LOCKED),
        (LockLost("a"), Status.LOCKED),
        (Interrupted("a"), Status.INTERRUPTED),
        (RunFailed("a"), Status.FAILED),
        (RunFailed("a", LockHeld), Status.LOCKED),
        (RunFailed("a", GuardTripped), Status.REFUSED),
    ],
)
def test_each_kind_of_error_has_its_status(
    error: CollectionError, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(error) is status
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise error
    assert ended.value.code == status
    assert capsys.readouterr().err == f"lakefs-gc: {error}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_one_line_and_lets_go_of_what_is_held(
    capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before, released = signal.getsignal(signal.SIGTERM), False
    # A shell starts background processes with interrupts ignored.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        try:
            os.kill(os.getpid(), number)
        finally:
            released = True
    signal.signal(signal.SIGINT, outside)
    assert (ended.value.code, released) == (Status.INTERRUPTED, True)
    assert capsys.readouterr().err == "lakefs-gc: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


STUCK = """
import sys
import time
from datetime import UTC, datetime, timedelta
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.storage.local.store import LocalStore
from obstore.store import S3Store
from lakefs_gc_assets.cli import group

@group.click.command()
def wait():
    store, hour = LocalStore(sys.argv[3]), timedelta(hours=1)
    lock = Lock.acquire(store, run_id="run", owner="owner", now=datetime.now(UTC), expiry=hour)
    if sys.argv[4] == "silent":
        group.SECONDS_TO_RELEASE = 0.1
        LocalStore.put_if_match = lambda *_: time.sleep(30)
    print("waiting", flush=True)
    options = {"timeout": "30s", "allow_http": True}
    S3Store("bucket", endpoint=sys.argv[2], skip_signature=True, client_options=options).get("key")

group.SECONDS_TO_LEAVE = 1.0
commands = {"wait": group.LazyCommand("__main__:wait", "")}
group.LazyGroup("stuck", lazy_commands=commands).main(["wait"])
"""


@pytest.mark.parametrize(
    ("store", "outcome"),
    [("answers", " is released"), ("silent", r" stays until \d{4}-.* UTC, unless `lakefs-gc unlock`.*")],
)
def test_sigterm_ends_a_command_in_time_that_waits_in_native_code(tmp_path: Path, store: str, outcome: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", STUCK, "wait", endpoint, str(tmp_path), store]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            try:
                silent.settimeout(60)
                with silent.accept()[0]:
                    process.terminate()
                    # The call itself would time out after 30 seconds.
                    _, said = process.communicate(timeout=25)
            finally:
                process.kill()
    assert process.returncode == Status.INTERRUPTED
    cause = "interrupted; gave up after 1 s, since the server or the store did not answer"
    assert re.fullmatch(f"lakefs-gc: {cause}: the repository's lock{outcome}\n", said), said


def test_the_help_and_the_page_about_scripts_list_every_status() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert list(MEANINGS) == list(Status)
    for status, meaning in MEANINGS.items():
        assert re.search(rf"^ +{status} +{re.escape(meaning)}$", shown, re.MULTILINE), status
        assert f"| {status} | {meaning} |" in page


def test_the_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"lakefs-gc \d+\.\d+\.\d+\n", result.stdout)


def test_nothing_follows_the_last_line(tmp_path: Path) -> None:
    """Threads of Spark may still print while the process ends."""
    late = "import atexit, os; atexit.register(os.write, 2, b'late');"
    code = f"{late} from lakefs_gc_assets.cli import main; main(['status'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("lakefs-gc: no configuration: give --config")
    assert "late" not in done.stderr

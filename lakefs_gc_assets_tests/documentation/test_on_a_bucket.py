"""A new user's first hour with the README, on a lakeFS whose objects are in a bucket.

Configures with `init`, tests with `doctor`, opens a dry run in the UI, views and approves it by the id shown there, and
restores the objects from quarantine.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.demo import still_stored
from lakefs_gc_assets.extensions.playground.embedded.sample import (
    Sample,
    link_pending,
    make_sample_repository,
    unreadable,
)
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.ui_command import LINEAGE
from lakefs_gc_assets_tests.defs import test_browser
from lakefs_gc_assets_tests.defs.test_browser import LOCATION, page
from lakefs_gc_assets_tests.extensions.playground.test_ui_command import end, lines_until_url, start
from lakefs_gc_assets_tests.servers.free_ports import free_port
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from lakefs_gc_assets_tests.servers.stores import s3_server

__all__ = ["s3_server"]
pytestmark = test_browser.pytestmark

FILE = Path("lakefs-gc.yaml")
_RUN_MILLISECONDS = 300_000


def command(*words: str, given: str = "") -> str:
    """Output of a command that must succeed."""
    ended = CliRunner().invoke(main, words, input=given)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@contextmanager
def server(folder: Path, s3: S3Server) -> Iterator[EmbeddedServer]:
    """An embedded server with its objects in a new bucket."""
    with demo.open_server(folder, "oss", f"s3://{s3.new_bucket()}/lakes", s3.settings()) as found:
        yield found


def launch(url: str, job: str, config: str, says: str) -> None:
    """Types a configuration into a launchpad, launches the job, and waits for a message and for success."""
    with page(url, f"{LOCATION}/jobs/{job}/playground", "Launch Run", picture=job) as launchpad:
        launchpad.locator(".CodeMirror").first.click()
        launchpad.keyboard.press("Control+A")
        launchpad.keyboard.insert_text(config)
        launchpad.get_by_text("No errors").wait_for()
        launchpad.get_by_role("button", name="Launch Run").click()
        launchpad.get_by_text("RUN_SUCCESS").wait_for(timeout=_RUN_MILLISECONDS)
        launchpad.get_by_text(says).first.wait_for()


def run_id_at_the_end(url: str, ending: str) -> str:
    """Waits until the page of runs shows how a run ended; returns the newest run id on the page."""
    with page(url, "/runs", "lakefs/run_id: ", picture=f"runs-{ending.partition(' ')[0]}") as runs:
        runs.get_by_text(f"lakefs/ending: {ending}").first.wait_for(timeout=_RUN_MILLISECONDS)
        shown: Any = runs.get_by_text("lakefs/run_id: ").first.inner_text()
        return str(shown).partition(": ")[2]


def write_settings(sample: Sample) -> None:
    """Writes a user's choices into the file of `init`, because objects in a bucket cannot be backdated."""
    content = yaml.safe_load(FILE.read_text())
    assert content["repository"] == sample.repository
    skew = demo.BUCKET_SKEW.total_seconds() / 60
    content["collection"] |= {"min_age_hours": 0, "clock_skew_minutes": skew, "sweep_mode": "quarantine"}
    content["collection"] |= {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
    FILE.write_text(yaml.safe_dump(content))


def test_a_new_user_on_a_bucket(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CONFIGURATION_VARIABLE, "DAGSTER_HOME", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    with server(tmp_path / "lakefs", s3_server) as lakefs:
        sample = make_sample_repository(lakefs, objects=40)
        link_pending(lakefs, sample)
        old_at = time.monotonic() + demo.BUCKET_AGING.total_seconds()
        variables = {
            "LAKEFS_ACCESS_KEY_ID": lakefs.access_key_id,
            "LAKEFS_SECRET_ACCESS_KEY": lakefs.secret_access_key,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)

        command("init", given=f"{lakefs.url}\n{sample.repository}\ns3-compatible\n{s3_server.url}\n")
        write_settings(sample)
        assert command("doctor").splitlines()[-3:] == ["dry run: ready", "sweep: ready", "quarantine: ready"]

        process = start(tmp_path, free_port(), "--config", str(tmp_path / FILE))
        try:
            url = lines_until_url(process)[-1].removesuffix(LINEAGE)
            time.sleep(max(old_at - time.monotonic(), 0))
            launch(url, "open_run", "{}", "opened run ")
            run_id = run_id_at_the_end(url, "marked, nothing deleted")
            found = command("candidates", run_id).splitlines()[1:]
            assert f"lakefs-gc approve {run_id}" in command("report", run_id)

            config = f"ops: {{approve_dry_run: {{config: {{run_id: {run_id}, approved_by: Ada}}}}}}"
            launch(url, "approve", config, "they will be moved to quarantine after")
            assert run_id_at_the_end(url, "moved to quarantine") == run_id
            assert end(process, signal.SIGTERM) == ("", "")
        finally:
            process.kill()

        assert len(found) == len(command("deleted", run_id).splitlines()[1:]) == len(sample.garbage)
        assert unreadable(lakefs, sample) == []
        assert still_stored(lakefs, sample) == []
        assert command("restore", run_id, "--yes").splitlines()[-1] == f"{len(sample.garbage)} restored"
        assert len(still_stored(lakefs, sample)) == len(sample.garbage)
        assert unreadable(lakefs, sample) == []

"""What launches do that come over GraphQL, as the UI sends them and as a foreign page in the same browser can."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.embedded.demo import still_stored
from lakefs_gc_assets.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.dagster_dev import PROJECT, DagsterDev, dagster_dev
from lakefs_gc_assets_tests.defs.test_live import SECRET_VARIABLE, run_id_of, written
from lakefs_gc_assets_tests.free_ports import free_port

_FOREIGN = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain; x=application/json"}
_LOOSE = {"resources": {"collection": {"config": {"max_candidate_share": 1.0, "min_age_hours": 0, "sweep": True}}}}
_OWN_SPARK = {"resources": {"spark": {"config": {"remote": "sc://elsewhere.example"}}}}
_OWN_SERVER = {"resources": {"lakefs": {"config": {"endpoint": "http://elsewhere.example"}}}}
_AT_ONCE = {"ops": {"open_new_run": {"config": {"sweep": True}}}}


def refusal(dev: DagsterDev, run_id: str) -> str:
    """Why a run that was launched failed."""

    def failed() -> bool | None:
        (run,) = [run for job in ("open_run", "collect", "approve") for run in dev.runs(job) if run.run_id == run_id]
        assert run.status != "SUCCESS"
        return True if run.status == "FAILURE" else None

    dev.wait_for("refusal", failed, 200)
    return dev.failures(run_id)


@contextmanager
def viewers(dev: DagsterDev, home: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """A second webserver on the same database, for people who only look; yields its URL."""
    port = free_port()
    command = [sys.executable, "-m", "dagster_webserver", "--read-only", "-w", "workspace.yaml"]
    with (home / "viewers.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-h", "127.0.0.1", "-p", str(port)],
            cwd=PROJECT,
            env={**os.environ, "DAGSTER_HOME": str(home), **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool | None:
            with suppress(OSError):
                return bool(dev.post("/graphql", '{"query": "{ version }"}', {"Content-Type": "application/json"}, url))
            return None

        try:
            dev.wait_for("webserver for viewers", answers, 400)
            yield url
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_launches_decide_what_the_file_lets_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with EmbeddedServer(tmp_path / "lakefs") as server:
        sample = make_sample_repository(server, objects=60)
        # The file lets what starts by itself delete; it says nothing of launches.
        file = written(server, sample.repository, tmp_path, launch={})
        environment = {CONFIGURATION_VARIABLE: str(file), SECRET_VARIABLE: server.secret_access_key}
        with dagster_dev(home, ["-w", "workspace.yaml"], PROJECT, environment) as dev:
            for config in (_LOOSE, _OWN_SPARK, _OWN_SERVER):
                answer = dev.post("/graphql", json.dumps(dev.launching("open_run", config)), _FOREIGN)
                assert answer["data"]["launchRun"]["__typename"] == "RunConfigValidationInvalid"
            # The webserver takes what no browser asks permission for, from whichever page; what it launches is refused.
            answer = dev.post("/graphql", json.dumps(dev.launching("open_run", _AT_ONCE)), _FOREIGN)
            foreign = answer["data"]["launchRun"]["run"]["runId"]
            query = dev.launching("open_run")
            bodyless = urlencode({"query": query["query"], "variables": json.dumps(query["variables"])})
            answer = dev.post(f"/graphql?{bodyless}", "", {"Origin": "https://elsewhere.example"})
            assert answer["data"]["launchRun"]["__typename"] == "LaunchRunSuccess"

            assert "a launch may not delete at once: launch a dry run and then the job approve" in refusal(dev, foreign)

            def collected(number: int) -> bool | None:
                runs = dev.runs("collect")
                assert not [run for run in runs if run.status == "FAILURE"], dev.log.read_text()[-5000:]
                return True if len(runs) > number and runs[number].status == "SUCCESS" else None

            dev.wait_for("dry run", lambda: collected(0), 900)
            (dry,) = dev.runs("collect")
            assert len(still_stored(server, sample)) == len(sample.garbage)

            with viewers(dev, home, environment) as url:
                query = dev.launching("open_run")
                answer = dev.post("/graphql", json.dumps(query), {"Content-Type": "application/json"}, url)
                assert answer["data"]["launchRun"]["__typename"] == "UnauthorizedError"

            dev.launch("approve", {"ops": {"approve_dry_run": {"config": {"run_id": run_id_of(dry)}}}})
            dev.wait_for("sweep", lambda: collected(1), 900)
            assert sorted(run.status for run in dev.runs("open_run")) == ["FAILURE", "SUCCESS"]
        assert still_stored(server, sample) == []
        assert unreadable(server, sample) == []

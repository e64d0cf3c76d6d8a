"""Launches over GraphQL, sent as the UI does and as a foreign page in the same browser can."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import yaml

from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.extensions.playground.demo import configuration, still_stored
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.defs.test_live import SECRET_VARIABLE, run_id_of, written
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT, DagsterDev, Run, dagster_dev
from lakefs_gc_assets_tests.servers.free_ports import free_port
from lakefs_gc_assets_tests.servers.webhook import receiving

_FOREIGN = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain; x=application/json"}
_LOOSE = {"resources": {"collection": {"config": {"max_candidate_share": 1.0, "min_age_hours": 0, "sweep": True}}}}
_OWN_SPARK = {"resources": {"spark": {"config": {"remote": "sc://elsewhere.example"}}}}
_OWN_SERVER = {"resources": {"lakefs": {"config": {"endpoint": "http://elsewhere.example"}}}}
_WEBHOOK_VARIABLE = "TEST_LAUNCHED_WEBHOOK"
_UI = "https://ui.example"
_NEXT = """query { assetOrError(assetKey: { path: ["deleted_report"] }) { ... on Asset {
  assetMaterializations(limit: 1) { metadataEntries { label ... on MarkdownMetadataEntry { mdStr } } } } } }"""
_AT_ONCE = {"ops": {"open_new_run": {"config": {"sweep": True}}}}


def refusal(dev: DagsterDev, run_id: str) -> str:
    """The reason why a launched run failed."""

    def failed() -> bool | None:
        (run,) = [run for job in ("open_run", "collect", "approve") for run in dev.runs(job) if run.run_id == run_id]
        assert run.status != "SUCCESS"
        return True if run.status == "FAILURE" else None

    dev.wait_for("refusal", failed, 200)
    return dev.failures(run_id)


def next_link(dev: DagsterDev, text: str) -> str:
    """The link with this text on the page of `deleted_report`."""
    (newest,) = dev.ask(_NEXT)["assetOrError"]["assetMaterializations"]
    (shown,) = [entry["mdStr"] for entry in newest["metadataEntries"] if entry["label"] == "next"]
    found = re.search(rf"\[{text}[^]]*\]\(([^)]+)\)", shown)
    assert found, shown
    return found[1]


def follow(dev: DagsterDev, address: str, job: str, **changes: Any) -> Run:
    """Launches the run that a link fills in, perhaps after changes of its configuration; returns the successful run."""
    parts = urlsplit(address)
    assert f"{parts.scheme}://{parts.netloc}" == _UI
    assert parts.path == f"/locations/{dev.location}/jobs/{job}/playground/setup"
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    config = yaml.safe_load(query["config"])
    (op,) = config["ops"].values()
    op["config"] |= changes
    launched = dev.launch(job, config, {query["tags[0][key]"]: query["tags[0][value]"]})

    def succeeded() -> Run | None:
        (run,) = [run for run in dev.runs(job) if run.run_id == launched]
        assert run.status != "FAILURE", dev.failures(launched)
        return run if run.status == "SUCCESS" else None

    return dev.wait_for(f"end of {job}", succeeded, 200)


@contextmanager
def viewers(dev: DagsterDev, home: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """A second, read-only webserver on the same database; yields its URL."""
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
    """Two launches approve: the first by the link in the webhook's message, the second by the link on the asset's page.

    Then a link on that page restores the objects that they moved to quarantine.
    """
    home = tmp_path / "home"
    home.mkdir()
    with EmbeddedServer(tmp_path / "lakefs") as server, receiving() as receiver:
        sample = make_sample_repository(server, objects=60)
        # The file lets automatic runs delete, and lets a launch delete only after two approvals.
        notifications = {"ended_webhook": {"env": _WEBHOOK_VARIABLE}, "ui_url": _UI}
        collection = configuration(server, sample.repository).model_dump(exclude_defaults=True)["collection"]
        sections = {
            "collection": {**collection, "sweep": True, "sweep_mode": "quarantine"},
            "launch": {"approvers": 2},
            "notifications": notifications,
        }
        file = written(server, sample.repository, tmp_path, **sections)
        secrets = {SECRET_VARIABLE: server.secret_access_key, _WEBHOOK_VARIABLE: receiver.url}
        environment = {CONFIGURATION_VARIABLE: str(file), **secrets}
        with dagster_dev(home, ["-w", "workspace.yaml"], PROJECT, environment) as dev:
            for config in (_LOOSE, _OWN_SPARK, _OWN_SERVER):
                answer = dev.post("/graphql", json.dumps(dev.launching("open_run", config)), _FOREIGN)
                assert answer["data"]["launchRun"]["__typename"] == "RunConfigValidationInvalid"
            # The webserver accepts requests that need no CORS preflight, from any page; the run that they launch is
            # refused.
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

            (message,) = dev.wait_for("message about the dry run", lambda: receiver.posted or None, 200)
            # Slack shows escaped text unescaped.
            address = unescape(message["text"]).partition(". To approve it: ")[2]
            first = follow(dev, address, "approve", approved_by="Ada")
            assert first.tags["lakefs/approved_by"] == "Ada, as the launch says"
            again = {"run_id": run_id_of(dry), "approved_by": "ada"}
            same = dev.launch("approve", {"ops": {"approve_dry_run": {"config": again}}})
            assert "needs a second approval under another name" in refusal(dev, same)
            assert len(dev.runs("collect")) == 1
            assert len(still_stored(server, sample)) == len(sample.garbage)
            follow(dev, next_link(dev, "Approve: "), "approve", approved_by="Bob")
            dev.wait_for("sweep", lambda: collected(1), 900)
            swept = dev.runs("collect")[1]
            assert swept.tags["lakefs/approved_by"] == "Ada, as the launch says; Bob, as the launch says"
            assert still_stored(server, sample) == []
            undone = follow(dev, next_link(dev, "Show objects to restore"), "restore", confirm=True)
            assert undone.tags["lakefs/run_id"] == run_id_of(dry)
            assert sorted(run.status for run in dev.runs("open_run")) == ["FAILURE", "SUCCESS"]
        assert len(still_stored(server, sample)) == len(sample.garbage)
        assert unreadable(server, sample) == []

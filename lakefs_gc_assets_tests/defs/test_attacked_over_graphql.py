"""Users, a page of another site, and an attacker with every mutation of Dagster launch runs at one `dagster dev`.

Nothing is wrongly deleted, and runs go on: two people approve a dry run, and its objects are restored. Afterwards, the
test searches GraphQL answers and all remaining files for planted secrets.
"""

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import yaml

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.defs.launching import PERMIT_TAG, TICKET_TAG
from lakefs_gc_assets.defs.partitions import key_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground.demo import configuration, still_stored
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.defs.test_killed_runs import SECRET_VARIABLE, run_id_of, written
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT, DagsterDev, Run, dagster_dev
from lakefs_gc_assets_tests.runs import planted
from lakefs_gc_assets_tests.servers.webhook import receiving

ADD_PARTITION = """mutation($repository: RepositorySelector!, $set: String!, $key: String!) { addDynamicPartition(
  repositorySelector: $repository, partitionsDefName: $set, partitionKey: $key) { __typename } }"""
_DELETE = """mutation($repository: RepositorySelector!, $set: String!, $keys: [String!]!) { deleteDynamicPartitions(
  repositorySelector: $repository, partitionsDefName: $set, partitionKeys: $keys) { __typename } }"""
_CURSOR = """mutation($sensor: SensorSelector!, $cursor: String) { setSensorCursor(
  sensorSelector: $sensor, cursor: $cursor) { __typename } }"""
_WIPE = """mutation($assets: [PartitionsByAssetSelector!]!) { wipeAssets(assetPartitionRanges: $assets) {
  __typename } }"""
_REPORT = """mutation($event: ReportRunlessAssetEventsParams!) { reportRunlessAssetEvents(eventParams: $event) {
  __typename } }"""
_TICK = """mutation($schedule: ScheduleSelector!, $at: Float!) { scheduleDryRun(
  selectorData: $schedule, timestamp: $at) { ... on DryRunInstigationTick { evaluationResult { runRequests {
  tags { key value } } } } } }"""
_FORGET = "mutation($id: String!) { deleteRun(runId: $id) { __typename } }"
_RELOAD = "mutation { reloadWorkspace { __typename } }"
_NODES = """query { assetNodes { assetKey { path } isMaterializable isExecutable partitionKeys
  partitionStats { numPartitions numMaterialized numFailed } } }"""
_BACKFILL = """mutation($backfill: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $backfill) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_BACKFILLED = """query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
  status error { message } runs { runId status tags { key value } } } } }"""
_LOOKING_OFTEN = """
import sys

if "dagster._daemon" in sys.orig_argv:
    from dagster._daemon import controller

    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 5
"""
"""Loaded when Python starts: the daemon checks for backfills every five seconds instead of every thirty."""
_DONE = ("COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED")
_FOREIGN = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain; x=application/json"}
_LOOSE = {"resources": {"collection": {"config": {"max_candidate_share": 1.0, "min_age_hours": 0, "sweep": True}}}}
_OWN_SPARK = {"resources": {"spark": {"config": {"remote": "sc://elsewhere.example"}}}}
_OWN_SERVER = {"resources": {"lakefs": {"config": {"endpoint": "http://elsewhere.example"}}}}
_WEBHOOK_VARIABLE = "TEST_LAUNCHED_WEBHOOK"
_UI = "https://ui.example"
_NEXT = """query { assetOrError(assetKey: { path: ["deleted_report"] }) { ... on Asset {
  assetMaterializations(limit: 1) { metadataEntries { label ... on MarkdownMetadataEntry { mdStr } } } } } }"""
_AT_ONCE = {"ops": {"open_new_run": {"config": {"sweep": True}}}}
SECRETS = {
    "TEST_STORE_SECRET": "planted/store+secret==",
    "TEST_STORE_TOKEN": "planted//session+token==",
    "TEST_SPARK_PROPERTY": "planted spark=property: #!",
}


class Attacker:
    """A client whose requests reach the webserver."""

    def __init__(self, dev: DagsterDev, repository: str) -> None:
        self.dev = dev
        self._selector = {"repositoryName": "__repository__", "repositoryLocationName": dev.location}
        self.windows, self.runs = f"gc_slice_windows_{repository}", f"gc_runs_{repository}"

    def does(self, mutation: str, expected: str, **variables: Any) -> None:
        """Sends a mutation that Dagster accepts."""
        (found,) = self.dev.ask(mutation, **variables).values()
        assert found["__typename"] == expected, found

    def adds(self, partitions: str, *keys: str) -> None:
        for key in keys:
            variables = {"repository": self._selector, "set": partitions, "key": key}
            self.does(ADD_PARTITION, "AddDynamicPartitionSuccess", **variables)

    def deletes(self, partitions: str, *keys: str) -> None:
        variables = {"repository": self._selector, "set": partitions, "keys": keys}
        self.does(_DELETE, "DeleteDynamicPartitionsSuccess", **variables)

    def sets_cursor(self, sensor: str, cursor: str) -> None:
        self.does(_CURSOR, "Sensor", sensor={**self._selector, "sensorName": sensor}, cursor=cursor)

    def reads_ticket(self, schedule: str) -> dict[str, str]:
        """The tags that a test tick shows."""
        selector = {**self._selector, "scheduleName": schedule}
        (request,) = self.dev.ask(_TICK, schedule=selector, at=time.time())["scheduleDryRun"]["evaluationResult"][
            "runRequests"
        ]
        return {tag["key"]: tag["value"] for tag in request["tags"]}

    def collects(self, run_id: str, windows: tuple[str, str], **tags: str) -> str:
        """Materializes the assets under a chosen id."""
        start, end = (f"{run_id}|{window}" for window in windows)
        covered = {"dagster/asset_partition_range_start": start, "dagster/asset_partition_range_end": end}
        return self.dev.launch("collect", tags={**covered, **tags})

    def wipes(self) -> None:
        assets = [{"assetKey": {"path": [name]}} for name in STEPS]
        self.does(_WIPE, "AssetWipeSuccess", assets=assets)

    def approves(self, run_id: str | dict[str, str]) -> str:
        return self.dev.launch("approve", {"ops": {"approve_dry_run": {"config": {"run_id": run_id}}}})


def ended(dev: DagsterDev, launched: str) -> Run:
    """A run that has ended."""

    def look() -> Run | None:
        jobs = ("open_run", "collect", "approve", "forecast", "restore")
        (run,) = [run for job in jobs for run in dev.runs(job) if run.run_id == launched]
        return run if run.status in ("SUCCESS", "FAILURE") else None

    return dev.wait_for(f"end of {launched}", look)


def refusal(dev: DagsterDev, launched: str) -> str:
    """The reason why a launched run failed."""
    assert ended(dev, launched).status == "FAILURE"
    return dev.failures(launched)


def collected_next(dev: DagsterDev, before: set[str]) -> Run:
    """The next run of the job collect that succeeds."""

    def look() -> Run | None:
        new = [run for run in dev.runs("collect") if run.run_id not in before]
        assert not [run for run in new if run.status == "FAILURE"], dev.log.read_text()[-5000:]
        return new[0] if new and new[0].status == "SUCCESS" else None

    return dev.wait_for("run that was opened", look)


class Lineage:
    """The graph of all assets, and its button."""

    def __init__(self, dev: DagsterDev) -> None:
        self.dev = dev

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["assetKey"]["path"][-1]: node for node in self.dev.ask(_NODES)["assetNodes"]}

    def five(self) -> list[dict[str, Any]]:
        nodes = self.nodes()
        return [nodes[name] for name in STEPS]

    def materialize(self, key: str, windows: Sequence[str], *more: str, assets: Sequence[str] = STEPS) -> list[Run]:
        """Chooses cells of some run ids and materializes them; returns the Dagster runs when all have ended."""
        cells = [f"{each}|{window}" for each in (key, *more) for window in windows]
        parameters = {"assetSelection": [{"path": [name]} for name in assets], "partitionNames": cells}
        launched = self.dev.ask(_BACKFILL, backfill=parameters)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = self.dev.ask(_BACKFILLED, id=launched["backfillId"])["partitionBackfillOrError"]
            return found if found["status"] in _DONE else None

        done = self.dev.wait_for(f"end of the backfill of {key}", look)
        assert done["error"] is None, "Dagster's own errors would hide why a launch was refused"
        return [
            Run(run["runId"], "", run["status"], {tag["key"]: tag["value"] for tag in run["tags"]})
            for run in done["runs"]
        ]

    def wait_until_green(self, *keys: str) -> None:
        """Waits until no cell is shown as failed, and exactly these run ids are shown."""

        def look() -> bool | None:
            with suppress(AssertionError):
                self.require_green(*keys)
                return True
            return None

        self.dev.wait_for(f"keys {keys} alone", look)

    def require_green(self, *keys: str) -> None:
        """Raises AssertionError if a cell is shown as failed, or other run ids are shown."""
        nodes = self.nodes()
        for name in STEPS:
            assert nodes[name]["partitionStats"]["numFailed"] == 0, (name, nodes[name]["partitionStats"])
            assert {cell.partition("|")[0] for cell in nodes[name]["partitionKeys"]} == {*keys}


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
    run = ended(dev, launched)
    assert run.status == "SUCCESS", dev.failures(launched)
    return run


def launch_from_a_foreign_page(dev: DagsterDev) -> str:
    """Sends what a page of another site can send, and waits for the refusal; returns the only run that was opened.

    The webserver accepts requests that need no CORS preflight, from any page.
    """
    for config in (_LOOSE, _OWN_SPARK, _OWN_SERVER):
        answer = dev.post("/graphql", json.dumps(dev.launching("open_run", config)), _FOREIGN)
        assert answer["data"]["launchRun"]["__typename"] == "RunConfigValidationInvalid"
    answer = dev.post("/graphql", json.dumps(dev.launching("open_run", _AT_ONCE)), _FOREIGN)
    foreign = answer["data"]["launchRun"]["run"]["runId"]
    assert "a launch may not delete at once: launch a dry run and then the job approve" in refusal(dev, foreign)
    query = dev.launching("open_run")
    bodyless = urlencode({"query": query["query"], "variables": json.dumps(query["variables"])})
    answer = dev.post(f"/graphql?{bodyless}", "", {"Origin": "https://elsewhere.example"})
    assert answer["data"]["launchRun"]["__typename"] == "LaunchRunSuccess"
    return run_id_of(collected_next(dev, set()))


def materialize_new_keys(dev: DagsterDev, ui: Attacker, opened: str) -> str:
    """Uses the button Materialize with keys of runs that nobody opened; returns the id of the run `First try`.

    Any new key opens a run, and none turns red.
    """
    lineage = Lineage(dev)
    assert {name for name, node in lineage.nodes().items() if node["isMaterializable"]} == {*STEPS}
    cells = lineage.nodes()["store_df"]["partitionKeys"]
    windows = [cell.partition("|")[2] for cell in cells if cell.startswith(f"{key_of(opened)}|")]
    assert len(windows) >= 2

    ui.adds(ui.runs, "no ... name")
    (refused,) = lineage.materialize("no ... name", windows)
    assert "is not valid as the name of a run" in dev.failures(refused.run_id)
    lineage.wait_until_green(key_of(opened))

    ui.adds(ui.runs, "First try")
    (first,) = lineage.materialize("First try", windows)
    assert first.status == "SUCCESS", dev.failures(first.run_id)
    run_id = first.tags["lakefs/run_id"]
    assert first.tags["lakefs/mode"] == "dry run"
    lineage.require_green(key_of(opened), "First try")

    # One asset under a new name without a run.
    ui.adds(ui.runs, "Monday")
    before = {run.run_id for run in dev.runs("collect")}
    (asked,) = lineage.materialize("Monday", windows, assets=["candidates"])
    assert (asked.status, asked.tags["lakefs/mode"]) == ("SUCCESS", "launches all five assets")
    meant = collected_next(dev, before)
    assert meant.tags["dagster/asset_partition_range_start"] == f"Monday|{windows[0]}"
    lineage.require_green(key_of(opened), "First try", "Monday")
    assert all(node["partitionStats"]["numMaterialized"] == 3 * len(windows) for node in lineage.five())
    # Candidates of a named run are approved by the issued id, not by the name.
    assert "is not a run id" in refusal(dev, ui.approves("First try"))
    return run_id


def launch_what_nobody_opened(dev: DagsterDev, attacker: Attacker) -> None:
    """Attacks with chosen ids and tags, then by changes of Dagster's records and of sensors' cursors."""
    # Without seeing answers, as a page of another site can: a run that precedes all others.
    to_come = "0" * 20
    attacker.adds(attacker.windows, "x|y")
    attacker.adds(attacker.runs, to_come, "a|b")
    later = attacker.collects(to_come, ("legacy", "legacy"))
    assert "is in the future" in refusal(dev, later)
    named = attacker.approves({"env": "TEST_STORE_SECRET"})
    assert "a launch cannot read the environment" in refusal(dev, named)
    # With the tags that a schedule's tick shows: its ticket, without the permit, is that of any launch.
    ticket = attacker.reads_ticket("clean_runs")
    assert TICKET_TAG in ticket and PERMIT_TAG not in ticket
    sweep = dev.launch("open_run", _AT_ONCE, ticket)
    assert "a launch may not delete at once" in refusal(dev, sweep)

    for sensor in ("launch_opened_runs", "note_failures"):
        attacker.sets_cursor(sensor, str(2**60))
    attacker.sets_cursor("follow_deleted_report", to_come)
    for asset in ("sweeps", "candidates"):
        event = {"eventType": "ASSET_MATERIALIZATION", "assetKey": {"path": [asset]}}
        attacker.does(_REPORT, "ReportRunlessAssetEventsSuccess", event=event)
    attacker.wipes()
    attacker.does(_FORGET, "DeletePipelineRunSuccess", id=later)
    attacker.deletes(attacker.windows, "legacy")
    attacker.deletes(attacker.runs, "a|b")
    attacker.does(_RELOAD, "Workspace")
    dev.wait_until_loaded()
    time.sleep(10)  # until the sensor's next tick, which reads its cursor


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_launches_delete_what_two_people_approve_and_nothing_else(tmp_path: Path) -> None:
    home, changed = tmp_path / "home", tmp_path / "changed"
    for folder in (home, changed):
        folder.mkdir()
    (changed / "sitecustomize.py").write_text(_LOOKING_OFTEN)
    with EmbeddedServer(tmp_path / "lakefs") as server, receiving() as receiver:
        sample = make_sample_repository(server, objects=60)
        content = configuration(server, sample.repository)
        # The file lets automatic runs delete, and lets a launch delete only after two approvals.
        sections: dict[str, dict[str, Any]] = {
            "collection": {
                **content.model_dump(exclude_defaults=True)["collection"],
                "sweep": True,
                "sweep_mode": "quarantine",
            },
            "launch": {"approvers": 2},
            "notifications": {"ended_webhook": {"env": _WEBHOOK_VARIABLE}, "ui_url": _UI},
            "store": {
                "local_root": str(server.objects_folder),
                "secret_access_key": {"env": "TEST_STORE_SECRET"},
                "session_token": {"env": "TEST_STORE_TOKEN"},
            },
            "spark": {
                "master": "local[2]",
                "driver_memory": "1g",
                "config": {"spark.ui.enabled": "false", "spark.hadoop.planted": {"env": "TEST_SPARK_PROPERTY"}},
            },
        }
        file = written(server, sample.repository, tmp_path, **sections)
        secrets = {SECRET_VARIABLE: server.secret_access_key, **SECRETS}
        environment = {CONFIGURATION_VARIABLE: str(file), "PYTHONPATH": str(changed), **secrets}
        environment[_WEBHOOK_VARIABLE] = receiver.url
        garbage = len(sample.garbage)
        with dagster_dev(home, ["-w", "workspace.yaml"], PROJECT, environment, "run_coordinator") as dev:
            attacker = Attacker(dev, sample.repository)
            opened = launch_from_a_foreign_page(dev)
            first_try = materialize_new_keys(dev, attacker, opened)
            launch_what_nobody_opened(dev, attacker)
            assert len(still_stored(server, sample)) == garbage

            # The usual workflow is unaffected.
            before = {run.run_id for run in dev.runs("collect")}
            assert ended(dev, dev.launch("open_run")).status == "SUCCESS"
            dry = collected_next(dev, before)
            run_id = run_id_of(dry)
            attacker.wipes()

            def message() -> str | None:
                texts = [each["text"] for each in receiver.posted if run_id in each["text"]]
                return next((text for text in texts if ". To approve it: " in text), None)

            # Slack shows escaped text unescaped.
            address = unescape(dev.wait_for("message about the dry run", message)).partition(". To approve it: ")
            dev.headers = {"X-Forwarded-User": "ada@example.com"}
            first = follow(dev, address[2], "approve")
            assert first.tags["lakefs/approved_by"] == "ada@example.com, as the proxy says"
            assert len(still_stored(server, sample)) == garbage
            dev.headers = {"X-Forwarded-User": "bob@example.com"}
            assert ended(dev, attacker.approves(run_id)).status == "SUCCESS"
            dev.headers = {}
            swept = collected_next(dev, before | {dry.run_id})
            approvers = "ada@example.com, as the proxy says; bob@example.com, as the proxy says"
            assert swept.tags["lakefs/approved_by"] == approvers
            assert still_stored(server, sample) == []
            undone = follow(dev, next_link(dev, "Show objects to restore"), "restore", confirm=True)
            assert undone.tags["lakefs/run_id"] == run_id
            assert ended(dev, dev.launch("forecast")).status == "SUCCESS"
            reported = dev.everything()
        assert len(still_stored(server, sample)) == garbage
        assert unreadable(server, sample) == []
        plan = plans.read(Collector.from_loaded(Loaded(content, {}), SystemClock()).open().store, first_try)
        assert (plan.name, plan.sweep, plan.opened) == ("First try", False, True)
        spelt = planted.spellings(*secrets.values(), planted.basic(server.access_key_id, server.secret_access_key))
        planted.require_absent(spelt, reported, "GraphQL")
        left = dict(planted.contents(home))
        stored = dict(planted.contents(server.objects_folder / sample.repository / "_lakefs"))
        for name in ("report.html", "runs.json", "forecast"):
            assert any(name in each for each in stored), (name, sorted(stored))
        for name, content_of_file in (left | stored).items():
            planted.require_absent(spelt, content_of_file, name)

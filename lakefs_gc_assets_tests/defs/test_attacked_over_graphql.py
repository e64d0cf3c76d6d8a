"""An attacker sends every mutation of Dagster to the webserver: nothing is wrongly deleted, and runs go on.

Afterwards, the test searches GraphQL answers and all remaining files for planted secrets.
"""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.defs.launching import PERMIT_TAG, TICKET_TAG
from lakefs_gc_assets.extensions.playground.demo import still_stored
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.defs.test_live import SECRET_VARIABLE, run_id_of, written
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT, DagsterDev, Run, dagster_dev
from lakefs_gc_assets_tests.runs import planted

_ADD = """mutation($repository: RepositorySelector!, $set: String!, $key: String!) { addDynamicPartition(
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
_STEPS = ("store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report")
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
            self.does(_ADD, "AddDynamicPartitionSuccess", **variables)

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

    def approves(self, run_id: str | dict[str, str]) -> str:
        return self.dev.launch("approve", {"ops": {"approve_dry_run": {"config": {"run_id": run_id}}}})


def ended(dev: DagsterDev, launched: str) -> Run:
    """A run that has ended."""

    def look() -> Run | None:
        jobs = ("open_run", "collect", "approve", "forecast", "expire_runs", "purge")
        (run,) = [run for job in jobs for run in dev.runs(job) if run.run_id == launched]
        return run if run.status in ("SUCCESS", "FAILURE") else None

    return dev.wait_for(f"end of {launched}", look, 400)


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

    return dev.wait_for("run that was opened", look, 400)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_mutations_delete_nothing_live_and_block_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with EmbeddedServer(tmp_path / "lakefs") as server:
        sample = make_sample_repository(server, objects=60)
        # The file lets automatic runs delete; it has no settings for launches.
        store = {
            "local_root": str(server.objects_folder),
            "secret_access_key": {"env": "TEST_STORE_SECRET"},
            "session_token": {"env": "TEST_STORE_TOKEN"},
        }
        properties = {"spark.ui.enabled": "false", "spark.hadoop.planted": {"env": "TEST_SPARK_PROPERTY"}}
        spark = {"master": "local[2]", "driver_memory": "1g", "config": properties}
        file = written(server, sample.repository, tmp_path, launch={}, store=store, spark=spark)
        secrets = {SECRET_VARIABLE: server.secret_access_key, **SECRETS}
        environment = {CONFIGURATION_VARIABLE: str(file), **secrets}
        garbage = len(sample.garbage)
        with dagster_dev(home, ["-w", "workspace.yaml"], PROJECT, environment, "run_coordinator") as dev:
            attacker = Attacker(dev, sample.repository)
            # Without seeing answers, as a page of another site can: a run with a chosen id, and one that precedes all
            # others.
            chosen, to_come = layout.issue_run_id(datetime.now(UTC)), "0" * 20
            attacker.adds(attacker.windows, "legacy", "x|y", f"{datetime.now(UTC):%Y-%m}")
            attacker.adds(attacker.runs, chosen, to_come, "a|b")
            windows = ("legacy", "legacy")
            later = attacker.collects(to_come, windows)
            assert "is in the future" in refusal(dev, later)
            made_up = attacker.collects(chosen, windows, **{"lakefs/flow": "clean"})
            assert ended(dev, made_up).status == "SUCCESS"
            assert f"run {chosen} was not opened by the job open_run" in refusal(dev, attacker.approves(chosen))
            named = attacker.approves({"env": "TEST_STORE_SECRET"})
            assert "a launch cannot read the environment" in refusal(dev, named)
            # With the tags that a schedule's tick shows: its ticket, without the permit, is that of any launch.
            ticket = attacker.reads_ticket("clean_runs")
            assert TICKET_TAG in ticket and PERMIT_TAG not in ticket
            sweep = dev.launch("open_run", {"ops": {"open_new_run": {"config": {"sweep": True}}}}, ticket)
            assert "a launch may not delete at once" in refusal(dev, sweep)
            assert len(still_stored(server, sample)) == garbage

            # Changes and removes Dagster's records, and sets cursors of sensors beyond all events.
            for sensor in ("launch_opened_runs", "note_failures"):
                attacker.sets_cursor(sensor, str(2**60))
            attacker.sets_cursor("follow_deleted_report", to_come)
            for asset in ("sweeps", "candidates"):
                event = {"eventType": "ASSET_MATERIALIZATION", "assetKey": {"path": [asset]}}
                attacker.does(_REPORT, "ReportRunlessAssetEventsSuccess", event=event)
            assets = [{"assetKey": {"path": [name]}} for name in _STEPS]
            attacker.does(_WIPE, "AssetWipeSuccess", assets=assets)
            attacker.does(_FORGET, "DeletePipelineRunSuccess", id=made_up)
            attacker.deletes(attacker.windows, "legacy")
            attacker.deletes(attacker.runs, chosen)
            attacker.does(_RELOAD, "Workspace")
            dev.wait_until_loaded()
            time.sleep(10)  # until the sensor's next tick, which reads its cursor

            # The usual workflow is unaffected.
            before = {run.run_id for run in dev.runs("collect")}
            assert ended(dev, dev.launch("open_run")).status == "SUCCESS"
            dry = collected_next(dev, before)
            assert len(still_stored(server, sample)) == garbage
            attacker.does(_WIPE, "AssetWipeSuccess", assets=assets)
            found = {"run_id": run_id_of(dry), "approved_by": "Ada, as the proxy says"}
            tags = {"lakefs/approved_by": "Ada, as the proxy says", "X-Forwarded-User": "Ada"}
            lying = dev.launch("approve", {"ops": {"approve_dry_run": {"config": found}}}, tags)
            assert "is no name of an approver" in refusal(dev, lying)
            dev.headers = {"X-Forwarded-User": "ada@example.com"}
            assert ended(dev, attacker.approves(run_id_of(dry))).status == "SUCCESS"
            dev.headers = {}
            swept = collected_next(dev, before | {dry.run_id})
            assert swept.tags["lakefs/approved_by"] == "ada@example.com, as the proxy says"
            assert ended(dev, dev.launch("forecast")).status == "SUCCESS"
            reported = dev.everything()
        assert still_stored(server, sample) == []
        assert unreadable(server, sample) == []
        spelt = planted.spellings(*secrets.values(), planted.basic(server.access_key_id, server.secret_access_key))
        planted.require_absent(spelt, reported, "GraphQL")
        left = dict(planted.contents(home))
        stored = dict(planted.contents(server.objects_folder / sample.repository / "_lakefs"))
        for name in ("report.html", "runs.json", "forecast"):
            assert any(name in each for each in stored), (name, sorted(stored))
        for name, content in (left | stored).items():
            planted.require_absent(spelt, content, name)

"""The UI's contents and actions, requested over GraphQL: an instance and a code location in this process.

Each test sends the queries of a page.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._utils.hosted_user_process import recon_job_from_origin
from dagster_graphql.schema import create_schema
from pyspark.sql import SparkSession
from starlette.datastructures import Headers

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, COMMITTED_DF
from lakefs_gc_assets.collector.records import plan, report
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded, load
from lakefs_gc_assets.defs import assets, jobs, launching, partitions
from lakefs_gc_assets.defs.jobs import OpenedRun
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import RANGE_END_TAG, RANGE_START_TAG, key_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import FEW_WRITES
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import LaunchSettings
from lakefs_gc_assets_tests.harness.dagster_dev import commented

REPOSITORY = "sample"
SECRET_VARIABLE = "TEST_SCREENS_SECRET"
_LAUNCHED_HERE = {
    "run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"},
    "run_coordinator": yaml.safe_load(commented("run_coordinator"))["run_coordinator"],
}
_LAUNCH = """mutation($parameters: ExecutionParams!) { launchPipelineExecution(executionParams: $parameters) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } ... on PipelineNotFoundError { message } } }"""
_RUN = """query($run: ID!) { runOrError(runId: $run) { ... on Run { status tags { key value } } } }"""


@dataclass
class Screens:
    """A repository of an embedded server as the UI shows it.

    Attributes:
        instance: its runs are made in this process, while they are launched.
    """

    server: EmbeddedServer
    instance: dg.DagsterInstance
    loaded: Loaded
    context: WorkspaceProcessContext

    def ask(self, query: str, headers: Mapping[str, str] | None = None, /, **variables: Any) -> dict[str, Any]:
        """The data of a GraphQL answer. Raises AssertionError if the query is refused."""
        request = self.context.create_request_context(SimpleNamespace(headers=Headers(headers)))
        answer = asyncio.run(create_schema().execute_async(query, context_value=request, variable_values=variables))
        assert not answer.errors, answer.errors
        assert answer.data is not None
        data: dict[str, Any] = answer.data
        return data

    def open(self, flow: Flow = Flow.CLEAN, sweep: bool = False) -> OpenedRun:
        """Opens a run over every window it needs, as the job open_run does."""
        permit = Permit("open_run", sweep=sweep)
        return jobs.open_run(self.instance, Collector.from_loaded(self.loaded, SystemClock()), flow, permit)

    def launch(
        self,
        job: str,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        assets: Sequence[str] | None = None,
        checks: Sequence[tuple[str, str]] | None = None,
        user: str = "",
    ) -> str:
        """Launches a job, or some of its assets and checks, as the UI does; returns the id of the Dagster run.

        Args:
            checks: asset and name per check.
            user: user who launches it, as a proxy states in a header; none without a proxy.
        """
        selector: dict[str, Any] = {**self.location, "pipelineName": job}
        if assets is not None:
            selector["assetSelection"] = [{"path": [name]} for name in assets]
        if checks is not None:
            selector["assetCheckSelection"] = [{"assetKey": {"path": [asset]}, "name": name} for asset, name in checks]
        metadata = {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]}
        parameters = {
            "selector": selector,
            "mode": "default",
            "runConfigData": config or {},
            "executionMetadata": metadata,
        }
        headers = {"X-Forwarded-User": user} if user else {}
        launched = self.ask(_LAUNCH, headers, parameters=parameters)["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        self.instance.launch_run(run_id, self.context.create_request_context())  # As the daemon does from the queue.
        run = self.instance.get_run_by_id(run_id)
        assert run is not None and run.job_code_origin is not None
        # Without the launcher: GraphQL is answered in an event loop, and a run has its own.
        execute_run(recon_job_from_origin(run.job_code_origin), run, self.instance)
        return run_id

    def collect(self, opened: OpenedRun) -> str:
        """Makes an opened run; returns the id of the Dagster run."""
        return self.launch("collect", tags=opened.tags)

    def status(self, run: str) -> str:
        """Final status of a Dagster run."""
        status: str = self.ask(_RUN, run=run)["runOrError"]["status"]
        return status

    def tags(self, run: str) -> dict[str, str]:
        """The tags of a Dagster run."""
        return {tag["key"]: tag["value"] for tag in self.ask(_RUN, run=run)["runOrError"]["tags"]}

    @property
    def location(self) -> dict[str, str]:
        """The code location in the form of GraphQL selectors."""
        (location,) = self.context.create_request_context().code_locations
        (repository,) = location.get_repositories()
        return {"repositoryName": repository, "repositoryLocationName": location.name}


@contextmanager
def open_screens(folder: Path, **sections: dict[str, Any]) -> Iterator[Screens]:
    """Serves a sample repository from a folder and loads its definitions.

    Args:
        sections: additional sections of the configuration.
    """
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        server = stack.enter_context(EmbeddedServer(folder / "lakefs"))
        make_sample_repository(server, objects=40, repository=REPOSITORY)
        content = configuration(server, REPOSITORY).model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
        content["launch"] = {"sweep": "any"}
        for section, values in sections.items():
            content[section] = {**content.get(section, {}), **values}
        file = folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        environment.setenv(CONFIGURATION_VARIABLE, str(file))
        environment.setenv(SECRET_VARIABLE, server.secret_access_key)
        instance = stack.enter_context(dg.instance_for_test(overrides=_LAUNCHED_HERE, temp_dir=str(folder)))
        # Dagster caches the last job that this process ran, which may be of the server of an earlier test.
        ReconstructableJob.get_repository_definition.cache_clear()
        ReconstructableJob.get_definition.cache_clear()
        origin = LoadableTargetOrigin(executable_path=None, module_name="lakefs_gc_assets.definitions")
        target = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(origin))
        context = stack.enter_context(WorkspaceProcessContext(instance, target))
        yield Screens(server, instance, load(file), context)


CHECKS = {
    "store_df": {"shape"},
    "uncommitted_df": {"shape"},
    "committed_df": {"shape"},
    "candidates": {"shape", "disjoint", "older_than_cutoff", "live_set", "nothing_deleted_is_live"},
    "deleted_report": {"shape"},
}
HISTORY_CHECKS = {
    "collection_history": {"newest_run_succeeded"},
    "sweeps": {"swept_in_time"},
    "lifecycle_report": {"lifecycle_is_complete"},
    "repository_check": {"repository_is_whole"},
    "stale_branches": {"branch_deletions_are_complete"},
}
_CHECKS = """query { assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks {
  name canExecuteIndividually partitionDefinition { name }
  executionForLatestMaterialization { status runId evaluation { success partition } } } } } } }"""


@pytest.fixture
def screens(spark: SparkSession, tmp_path: Path) -> Iterator[Screens]:
    with open_screens(tmp_path) as screens:
        yield screens


def checks(screens: Screens) -> dict[str, dict[str, Any]]:
    """Each check as the lineage and the Checks tab show it, by asset and name."""
    found: dict[str, dict[str, Any]] = {}
    for node in screens.ask(_CHECKS)["assetNodes"]:
        for check in node["assetChecksOrError"].get("checks", []):
            found.setdefault(node["assetKey"]["path"][-1], {})[check["name"]] = check
    return found


def assert_all_passed(screens: Screens, run: str) -> None:
    assert screens.status(run) == "SUCCESS"
    found = checks(screens)
    assert {asset: set(shown) for asset, shown in found.items()} == CHECKS | HISTORY_CHECKS
    newest = found["collection_history"]["newest_run_succeeded"]["executionForLatestMaterialization"]
    assert newest["status"] == "SUCCEEDED"
    for asset in CHECKS:
        for check in found[asset].values():
            execution = check["executionForLatestMaterialization"]
            assert (execution["status"], execution["runId"]) == ("SUCCEEDED", run)
            assert execution["evaluation"] == {"success": True, "partition": None}


@pytest.mark.slow
def test_checks_are_shown_as_they_ended(screens: Screens) -> None:
    """Over all windows, if a check is executed alone, and over a single window of a later run.

    A check executed alone during a run does not release its lock, and the report stays.
    """
    first = screens.open()
    assert len(first.windows) > 1
    assert_all_passed(screens, screens.collect(first))

    alone = screens.launch("collect", assets=[], checks=[("candidates", "disjoint")])
    assert screens.status(alone) == "SUCCESS"
    shown = checks(screens)["candidates"]["disjoint"]
    assert shown["canExecuteIndividually"] == "CAN_EXECUTE"
    assert shown["executionForLatestMaterialization"]["status"] == "SUCCEEDED"
    assert shown["executionForLatestMaterialization"]["runId"] == alone

    repository = Collector.from_loaded(screens.loaded, SystemClock()).open()
    store, owner = repository.store, plan.read(repository.store, first.run_id).owner
    committed = StoredFrame.from_run(store, repository.opener, first.run_id, COMMITTED_DF)
    files.write_manifest(store, replace(committed.manifest, files=()))
    before = report.read(store, first.run_id)
    now = repository.clock.now()
    held = Lock.acquire(store, run_id=first.run_id, owner=owner, now=now, expiry=timedelta(hours=1))

    alone = screens.launch("collect", assets=[], checks=[("candidates", "live_set")])

    execution = checks(screens)["candidates"]["live_set"]["executionForLatestMaterialization"]
    assert (execution["status"], execution["runId"]) == ("FAILED", alone)
    held.check()
    held.release()
    assert report.read(store, first.run_id) == before

    second = screens.open()
    cell = second.tags[RANGE_END_TAG]
    one = screens.launch("collect", tags={"dagster/partition": cell, "lakefs/repository": "sample"})
    assert_all_passed(screens, one)


_LAUNCHPAD = """query($selector: PipelineSelector!) { runConfigSchemaOrError(selector: $selector, mode: "default") {
  ... on RunConfigSchema { rootDefaultYaml } } }"""


_SENSORS = """query { assetNodes { assetKey { path } targetingInstigators { ... on Sensor { name sensorType } } } }"""


def test_a_launchpad_can_be_launched_as_it_opens_and_the_asset_names_its_sensor(screens: Screens) -> None:
    """It sends all settings that it shows. So it omits settings that a launch may not set."""
    nodes = screens.ask(_SENSORS)["assetNodes"]
    (asset,) = [node for node in nodes if node["assetKey"]["path"] == ["deleted_report"]]
    assert {"name": "follow_deleted_report", "sensorType": "STANDARD"} in asset["targetingInstigators"]
    for job in ("open_run", "approve", "collect", "expire_runs", "restore", "purge"):
        selector = {**screens.location, "pipelineName": job}
        text = screens.ask(_LAUNCHPAD, selector=selector)["runConfigSchemaOrError"]["rootDefaultYaml"]
        config = yaml.safe_load(text) or {}
        assert "resources" not in config, job
        if job == "open_run":
            assert screens.status(screens.launch(job, config)) == "SUCCESS"
            config["ops"]["open_new_run"]["config"]["windows"] = "legacy"
            limited = screens.launch(job, config)
            assert screens.status(limited) == "SUCCESS"
            run = screens.instance.get_run_by_id(limited)
            assert run is not None
            for bound in (RANGE_START_TAG, RANGE_END_TAG):
                assert run.tags[jobs.OPENED_TAG_PREFIX + bound].endswith("|legacy"), (
                    "it is limited to the chosen windows"
                )


@pytest.mark.slow
def test_the_proxy_says_who_launches_and_no_launch_can_say_it(screens: Screens) -> None:
    instance, policy = screens.instance, LaunchSettings()
    through = screens.launch("open_run", user=" Ada\tLovelace")
    forged = {"lakefs/approved_by": "Eve, as the proxy says", "X-Forwarded-User": "Eve", "user": "Eve"}
    around = screens.launch("open_run", tags=forged)

    assert launching.user_of(instance, around) is None
    assert launching.approver(instance, through, "Bob", policy) == "Ada Lovelace, as the proxy says"
    assert launching.approver(instance, around, "Bob", policy) == "Bob, as the launch says"
    with pytest.raises(
        ConfigurationError, match="enter your name in approved_by for the report, since no proxy names you"
    ):
        launching.approver(instance, around, " ", policy)
    for name in ("Eve, as the proxy says", "Ada, As The Proxy says; Bob", "Ada; Bob"):
        with pytest.raises(ConfigurationError, match="is no name of an approver"):
            launching.approver(instance, around, name, policy)
    two = LaunchSettings(approvers=2)
    assert launching.approver(instance, through, "", two) == "Ada Lovelace, as the proxy says"
    with pytest.raises(ConfigurationError, match="the proxy did not name the user of this launch"):
        launching.approver(instance, around, "Bob", two)


_CELLS = """query { assetNodes { assetKey { path } partitionStats {
  numPartitions numMaterialized numFailed } } }"""
_HISTORY = """query { assetOrError(assetKey: {path: ["collection_history"]}) { ... on Asset {
  definition { isPartitioned isMaterializable } assetMaterializations(limit: 20) { metadataEntries { label
    ... on IntMetadataEntry { intRepr } ... on FloatMetadataEntry { floatValue } ... on TextMetadataEntry { text }
    ... on BoolMetadataEntry { boolValue } ... on PipelineRunMetadataEntry { runId } } } } } }"""


def cells(screens: Screens) -> dict[str, dict[str, int]]:
    """Number of cells by asset of a run, and how many are made or failed. Lists have none before their first launch."""
    return {
        node["assetKey"]["path"][-1]: stats
        for node in screens.ask(_CELLS)["assetNodes"]
        if (stats := node["partitionStats"]) and stats["numPartitions"]
    }


def history(screens: Screens) -> list[dict[str, Any]]:
    """Data of the history plots, oldest first."""
    asset = screens.ask(_HISTORY)["assetOrError"]
    assert asset["definition"] == {"isPartitioned": False, "isMaterializable": False}
    return [
        {
            entry["label"]: next(
                (value for name, value in entry.items() if name != "label" and value is not None), None
            )
            for entry in event["metadataEntries"]
        }
        for event in reversed(asset["assetMaterializations"])
    ]


@pytest.mark.slow
def test_a_failed_run_that_was_overtaken_leaves_the_screens_green_and_stays_in_the_history(screens: Screens) -> None:
    """A run that fails, a dry run, a refused sweep, a sweep, and an optimized one."""
    now = SystemClock().now()
    store = Collector.from_loaded(screens.loaded, SystemClock()).open().store
    held = Lock.acquire(store, run_id="another", owner="somebody", now=now, expiry=timedelta(hours=1))
    failed = screens.open()
    refused = screens.collect(failed)
    assert screens.status(refused) == "FAILURE"
    newest = checks(screens)["collection_history"]["newest_run_succeeded"]["executionForLatestMaterialization"]
    assert newest["status"] == "FAILED"
    held.release()
    dry = screens.open()
    first = screens.collect(dry)
    assert cells(screens)["store_df"]["numFailed"] == 0, "it never had a plan, and a newer run succeeded"

    swept = screens.open(sweep=True)
    second = screens.collect(swept)
    assert screens.status(second) == "SUCCESS"

    found = cells(screens)
    assert set(found) == set(CHECKS)
    assert {name: shown["numFailed"] for name, shown in found.items()} == dict.fromkeys(CHECKS, 0)
    assert all(shown["numMaterialized"] == shown["numPartitions"] for shown in found.values())
    run_ids = screens.instance.get_dynamic_partitions("gc_runs_sample")
    assert run_ids == [key_of(dry.run_id), key_of(swept.run_id)]

    one, two, three = history(screens)
    assert [each["dagster_run"] for each in (one, two, three)] == [refused, first, second]
    assert (one["ending"], one["run_id"], "has been collecting this repository" in one["error"]) == (
        "failed",
        failed.run_id,
        True,
    )
    garbage = int(two["found_objects"])
    assert (two["ending"], two["mode"], two["flow"]) == ("marked, nothing deleted", "dry run", "clean")
    assert garbage > 10 and int(two["freed_bytes"]) == 0
    assert int(two["stored_objects"]) == int(two["listed_objects"]) > garbage
    assert (three["ending"], three["mode"], int(three["deleted_objects"])) == ("deleted", "sweep", garbage)
    assert int(three["freed_bytes_in_all"]) == int(three["freed_bytes"]) == int(two["found_bytes"]) > 0
    assert {f"seconds_{step}" for step in CHECKS} <= three.keys()

    assert [screens.tags(run).get("lakefs/mode") for run in (refused, first, second)] == [None, "dry run", "sweep"]
    shown = [screens.tags(run).get("lakefs/run_id") for run in (refused, first, second)]
    assert shown == [failed.run_id, dry.run_id, swept.run_id]
    assert [screens.tags(run)["lakefs/ending"] for run in (refused, first, second)] == [
        "failed",
        "marked, nothing deleted",
        "deleted",
    ]
    assert [screens.tags(run).get("lakefs/freed") for run in (first, second)] == [
        None,
        size(int(three["freed_bytes"])),
    ]


_SLICES = 60
_AT_ONCE = 20
"""Keys and events that are written to Dagster at once."""


@pytest.mark.slow
def test_a_run_over_many_slices_fills_the_cells_of_each(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice has an object. In every twentieth slice, it is old enough to be garbage."""
    for name, value in {**FEW_WRITES, "DAGSTER_EVENT_BATCH_SIZE": str(_AT_ONCE)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(partitions, "_CHUNK", _AT_ONCE)
    monkeypatch.setattr(assets, "_CELLS_DESCRIBED", _AT_ONCE)
    by_slice = {"slice_window": "slice", "max_candidate_share": 1.0}
    with open_screens(tmp_path, collection=by_slice) as screens:
        issue, now, old = layout.XidGenerator(), datetime.now(UTC), []
        for number in range(_SLICES):
            moment = now - timedelta(days=90, minutes=-number)
            path = f"data/{issue.descending(moment)}/{issue.ascending(moment)}"
            file = screens.server.objects_folder / "sample" / path
            file.parent.mkdir()
            file.write_bytes(b"x")
            if number % 20 == 0:
                os.utime(file, (moment.timestamp(),) * 2)
                old.append(path)

        opened = screens.open()
        run = screens.collect(opened)

        assert screens.status(run) == "SUCCESS"
        assert len(opened.windows) > _SLICES
        filled = {"numPartitions": len(opened.windows), "numMaterialized": len(opened.windows), "numFailed": 0}
        assert cells(screens) == dict.fromkeys(CHECKS, filled)
        found = checks(screens)
        executions = [
            found[asset][name]["executionForLatestMaterialization"] for asset in CHECKS for name in found[asset]
        ]
        assert {execution["status"] for execution in executions} == {"SUCCEEDED"}
        repository = Collector.from_loaded(screens.loaded, SystemClock()).open()
        ended = report.read(repository.store, opened.run_id)
        assert ended is not None and ended.success
        assert ended.counts["slices_listed"] > _SLICES and ended.counts["listed"] > _SLICES
        candidates = StoredFrame.from_run(repository.store, repository.opener, opened.run_id, CANDIDATES_DF)
        assert {*old} <= {*candidates.table().column("address").to_pylist()}
        planned = screens.instance.all_logs(run, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
        assert len(planned) == len(CHECKS), "one for each asset"

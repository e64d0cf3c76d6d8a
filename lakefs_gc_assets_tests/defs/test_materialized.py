"""The button Materialize, as the UI sends it: a new run_id opens a run, and a finished run has nothing to do."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.defs.partitions import RunPartitions, key_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.extensions.playground.demo import configuration, still_stored
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.defs.test_attacked_over_graphql import Attacker, collected_next, refusal
from lakefs_gc_assets_tests.defs.test_live import SECRET_VARIABLE, run_id_of, written
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT, DagsterDev, Run, dagster_dev
from lakefs_gc_assets_tests.runs.graph_runs import Replaying, replaying

__all__ = ["replaying"]

STEPS = ("store_df", "uncommitted_df", "committed_df", "candidates", "deleted_report")
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

        done = self.dev.wait_for(f"end of the backfill of {key}", look, 900)
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

        self.dev.wait_for(f"keys {keys} alone", look, 120)

    def require_green(self, *keys: str) -> None:
        """Raises AssertionError if a cell is shown as failed, or other run ids are shown."""
        nodes = self.nodes()
        for name in STEPS:
            assert nodes[name]["partitionStats"]["numFailed"] == 0, (name, nodes[name]["partitionStats"])
            assert {cell.partition("|")[0] for cell in nodes[name]["partitionKeys"]} == {*keys}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_any_new_key_opens_a_run_and_none_turns_red(tmp_path: Path) -> None:
    home, changed = tmp_path / "home", tmp_path / "changed"
    for folder in (home, changed):
        folder.mkdir()
    (changed / "sitecustomize.py").write_text(_LOOKING_OFTEN)
    with EmbeddedServer(tmp_path / "lakefs") as server:
        sample = make_sample_repository(server, objects=60)
        # The file lets automatic runs delete; it has no settings for launches.
        file = written(server, sample.repository, tmp_path, launch={})
        environment = {
            CONFIGURATION_VARIABLE: str(file),
            SECRET_VARIABLE: server.secret_access_key,
            "PYTHONPATH": str(changed),
        }
        with dagster_dev(home, ["-w", "workspace.yaml"], PROJECT, environment) as dev:
            lineage, ui = Lineage(dev), Attacker(dev, sample.repository)
            assert {name for name, node in lineage.nodes().items() if node["isMaterializable"]} == {*STEPS}
            dev.launch("open_run")
            opened = run_id_of(collected_next(dev, set()))
            cells = lineage.nodes()["store_df"]["partitionKeys"]
            windows = [cell.partition("|")[2] for cell in cells if cell.startswith(f"{key_of(opened)}|")]
            assert len(windows) >= 2

            # Invalid keys and choices.
            ui.adds(ui.runs, "no ... name")
            (refused,) = lineage.materialize("no ... name", windows)
            assert "is not valid as the name of a run" in dev.failures(refused.run_id)
            lineage.wait_until_green(key_of(opened))

            # A new name, twice.
            ui.adds(ui.runs, "First try")
            (first,) = lineage.materialize("First try", windows)
            (again,) = lineage.materialize("First try", windows)
            assert (first.status, again.status) == ("SUCCESS", "SUCCESS"), dev.failures(first.run_id)
            run_id = first.tags["lakefs/run_id"]
            assert first.tags["lakefs/mode"] == "dry run"
            assert (again.tags["lakefs/run_id"], again.tags["lakefs/mode"]) == (run_id, "nothing to do")
            (old,) = lineage.materialize(key_of(opened), windows)
            assert (old.status, old.tags["lakefs/mode"]) == ("SUCCESS", "nothing to do")
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

            # Choosing a known and a new name makes two Dagster runs.
            ui.adds(ui.runs, "one")
            parts = lineage.materialize("First try", windows[:2], "one")
            assert [run.status for run in parts] == ["SUCCESS", "SUCCESS"]
            assert len({run.tags["lakefs/run_id"] for run in parts}) == 2
            lineage.require_green(key_of(opened), "First try", "Monday", "one")

            # Candidates of a named run are approved by the issued id, not by the name.
            assert "is not a run id" in refusal(dev, ui.approves("First try"))
        assert len(still_stored(server, sample)) == len(sample.garbage)
        store = Collector.from_loaded(Loaded(configuration(server, sample.repository), {}), SystemClock()).open().store
        plan, stored = plans.read(store, run_id), report.read(store, run_id)
        assert (plan.name, plan.sweep, plan.opened) == ("First try", False, True)
        assert stored is not None and stored.success and stored.dry_run


@pytest.mark.slow
def test_a_first_run_goes_month_by_month_under_one_name(replaying: Replaying) -> None:
    """No run has been opened: the first user adds the name and the first months by hand."""
    runs = replaying("chain/1", sweep=True)
    partitions, instance = RunPartitions(runs.server.repository), runs.instance
    months, generator = ("2026-01", "2026-02"), layout.XidGenerator()
    placed: dict[str, list[str]] = {}
    for month in months:
        then = datetime.fromisoformat(f"{month}-10T00:00:00Z")
        folder = generator.descending(then)
        placed[month] = [f"data/{folder}/{generator.ascending(then)}" for _ in range(2)]
        for address in placed[month]:
            runs.server.place(address, written_at=then)
    name = "First pass"
    instance.add_dynamic_partitions(partitions.run_ids.name or "", [name])
    instance.add_dynamic_partitions(partitions.windows.name or "", months)
    collect = build(runs.loaded, runs.clock).resolve_job_def("collect")

    reports = {}
    for month in months:
        result = collect.execute_in_process(instance=instance, tags={"dagster/partition": f"{name}|{month}"})
        run = instance.get_run_by_id(result.run_id)
        assert result.success and run is not None
        assert run.tags["lakefs/mode"] == "dry run"
        reports[month] = runs.report(run.tags["lakefs/run_id"])

    for month, found in reports.items():
        assert (found.windows, found.limited_to, found.success) == ((month,), f"the window {month}", True)
        assert found.counts["listed"] == 2 and found.counts["slices_listed"] == 1
        assert runs.addresses(found.run_id, "candidates") == sorted(placed[month])
        assert found.checkpoint is None, "a run builds on none that left windows out"
    assert instance.get_materialized_partitions(dg.AssetKey("deleted_report")) == {f"{name}|{each}" for each in months}
    # The remaining step is a run over all windows, which adds the unknown ones.
    assert runs.open().windows[:3] == (*months, "legacy")

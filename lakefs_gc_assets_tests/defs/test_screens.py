"""What the UI shows of runs: each test asks GraphQL what a page of the UI asks."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector import plan, report
from lakefs_gc_assets.collector.clock import SystemClock
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import COMMITTED_DF
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.lock import Lock
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.partitions import RANGE_END_TAG
from lakefs_gc_assets_tests.defs.screens import Screens, open_screens

CHECKS = {
    "store_df": {"shape"},
    "uncommitted_df": {"shape"},
    "committed_df": {"shape"},
    "candidates": {"shape", "disjoint", "older_than_cutoff", "live_set", "nothing_deleted_is_live"},
    "deleted_report": {"shape"},
}
_CHECKS = """query { assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks {
  name canExecuteIndividually partitionDefinition { name }
  executionForLatestMaterialization { status runId evaluation { success partition } } } } } } }"""


@pytest.fixture
def screens(spark: SparkSession, tmp_path: Path) -> Iterator[Screens]:
    with open_screens(tmp_path) as screens:
        yield screens


def checks(screens: Screens) -> dict[str, dict[str, Any]]:
    """What the lineage and the Checks tab say of each check, by asset and name."""
    found: dict[str, dict[str, Any]] = {}
    for node in screens.ask(_CHECKS)["assetNodes"]:
        for check in node["assetChecksOrError"].get("checks", []):
            found.setdefault(node["assetKey"]["path"][-1], {})[check["name"]] = check
    return found


def assert_all_passed(screens: Screens, run: str) -> None:
    assert screens.status(run) == "SUCCESS"
    found = checks(screens)
    assert {asset: set(shown) for asset, shown in found.items()} == CHECKS
    for shown in found.values():
        for check in shown.values():
            execution = check["executionForLatestMaterialization"]
            assert (execution["status"], execution["runId"]) == ("SUCCEEDED", run)
            assert execution["evaluation"] == {"success": True, "partition": None}


def test_checks_that_passed_are_shown_as_passed(screens: Screens) -> None:
    """Over all windows, over a single one of a later run, and where a check is executed alone."""
    first = screens.open()
    assert len(first.windows) > 1
    assert_all_passed(screens, screens.collect(first))

    second = screens.open()
    cell = second.tags[RANGE_END_TAG]
    one = screens.launch("collect", tags={"dagster/partition": cell, "lakefs/repository": "sample"})
    assert_all_passed(screens, one)

    alone = screens.launch("collect", assets=[], checks=[("candidates", "disjoint")])
    assert screens.status(alone) == "SUCCESS"
    shown = checks(screens)["candidates"]["disjoint"]
    assert shown["canExecuteIndividually"] == "CAN_EXECUTE"
    assert shown["executionForLatestMaterialization"]["status"] == "SUCCEEDED"
    assert shown["executionForLatestMaterialization"]["runId"] == alone


def test_a_check_that_fails_alone_ends_no_run(screens: Screens) -> None:
    """Whoever executes it while the run is under way takes no lock away, and the report stays."""
    opened = screens.open()
    assert screens.status(screens.collect(opened)) == "SUCCESS"
    repository = running.opened(screens.loaded, SystemClock()).open()
    store, owner = repository.store, plan.read(repository.store, opened.run_id).owner
    committed = StoredFrame.of(store, repository.opener, opened.run_id, COMMITTED_DF)
    manifests.write(store, replace(committed.manifest, files=()))
    before = report.read(store, opened.run_id)
    now = repository.clock.now()
    held = Lock.acquire(store, run_id=opened.run_id, owner=owner, now=now, expiry=timedelta(hours=1))

    alone = screens.launch("collect", assets=[], checks=[("candidates", "live_set")])

    execution = checks(screens)["candidates"]["live_set"]["executionForLatestMaterialization"]
    assert (execution["status"], execution["runId"]) == ("FAILED", alone)
    held.check()
    assert report.read(store, opened.run_id) == before

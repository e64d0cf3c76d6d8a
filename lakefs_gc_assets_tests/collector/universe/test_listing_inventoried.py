"""Runs that read an inventory instead of listing: their plans, and their results through the real graph."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener, open_store
from lakefs_gc_assets.storage.s3.inventory import Inventory
from lakefs_gc_assets_tests.collector.made_steps import opened_by
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes
from lakefs_gc_assets_tests.storage.s3 import inventories
from lakefs_gc_assets_tests.storage.s3.inventories import Version

__all__ = ["replaying"]
HOUR = timedelta(hours=1)


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("small", deletes="overlay", max_candidate_share=1, sweep=True)


def reported(runs: PlainRuns, created: datetime) -> str:
    """Writes an inventory of the current objects in two files; returns the folder of the reports."""
    repository = runs.repository
    location = repository.namespace.location
    listed = pa.Table.from_batches(repository.store.list("")).to_pylist()
    versions = [
        Version(location.key + row["key"], row["size"], row["last_modified"], row["etag"], True, False)
        for row in listed
    ]
    bucket = open_store(repository.opener.settings, Namespace.parse(f"s3://{location.bucket}"))
    folder = f"{location.key}inventories/daily/"
    half = len(versions) // 2
    files = [versions[:half], versions[half:]]
    inventories.write(bucket, folder, "Parquet", files, created=created, sourceBucket=location.bucket)
    return f"s3://{location.bucket}/{folder}"


def collected(runs: PlainRuns, flow: Flow = Flow.CLEAN) -> Report:
    opened = runs.open(flow)
    result = runs.make(opened)
    assert result.success, result.failures
    return runs.report(opened.run_id)


class TestTheCutoff:
    """A report is trusted for objects older than it by the margin and the skew."""

    @staticmethod
    def planned(folder: Path, monkeypatch: pytest.MonkeyPatch, plan: plans.Plan, created: datetime) -> plans.Plan:
        """The plan with a report made at this moment, which is trusted for objects 30 hours older."""
        (folder / "repository").mkdir(exist_ok=True)
        opener = StoreOpener(StoreSettings(local_root=str(folder)), "local://repository/")
        found = Inventory(opener, "s3://reports/manifest.json", created, "", True, (), ())
        monkeypatch.setattr(planning, "open_inventory", lambda *arguments: found)
        opened = opened_by(opener, inventory="s3://reports/", inventory_margin_hours=30)
        return planning.with_inventory(opened, plan)

    @pytest.mark.parametrize("flow", [Flow.CLEAN, Flow.UNIFIED])
    def test_is_the_margin_and_the_skew_before_the_report(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow
    ) -> None:
        plan = replace(PLAN, flow=flow, clock_skew_seconds=1800)
        found = self.planned(tmp_path, monkeypatch, plan, plan.cutoff + timedelta(seconds=2.5))
        assert found.cutoff == (plan.cutoff + timedelta(seconds=2.5) - 30.5 * HOUR).replace(microsecond=0)
        assert found.inventory == "s3://reports/manifest.json"

    def test_is_the_plans_where_that_is_earlier(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = replace(PLAN, flow=Flow.CLEAN, clock_skew_seconds=1800)
        assert self.planned(tmp_path, monkeypatch, plan, plan.cutoff + 31 * HOUR).cutoff == plan.cutoff

    @pytest.mark.parametrize("flow", [Flow.OPTIMIZED, Flow.COMMITTED])
    def test_of_a_run_that_does_not_look_at_every_object_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow
    ) -> None:
        plan = replace(PLAN, flow=flow)
        assert self.planned(tmp_path, monkeypatch, plan, plan.cutoff - HOUR) == plan


def test_an_inventory_finds_what_a_listing_does_and_deletes_it_once(runs: PlainRuns) -> None:
    runs.settings["inventory"] = reported(runs, runs.clock.moment - HOUR)
    first = collected(runs)
    plan = plans.read(runs.repository.store, first.run_id)
    assert plan.inventory is not None and plan.inventory.startswith(runs.settings["inventory"])
    garbage = truth_classes("small")["unreferenced"] - {"data/stray-1/s0"}
    assert set(runs.addresses(first.run_id, "candidates")) == garbage
    assert first.counts["deleted"] == len(garbage)
    of_class = {kind: amounts["STANDARD"]["objects"] for kind, amounts in first.storage_classes.items()}
    assert of_class == {kind: first.counts[kind] for kind in ("listed", "candidates")}

    runs.clock.moment += HOUR
    again = collected(runs)
    assert (again.counts["candidates"], again.counts["deleted"]) == (0, 0)

    runs.clock.moment += HOUR
    optimized = collected(runs, Flow.OPTIMIZED)
    assert (optimized.flow, optimized.base_run, optimized.why_clean) == ("optimized", again.run_id, None)
    assert plans.read(runs.repository.store, optimized.run_id).inventory is None


def test_what_an_inventory_may_lack_or_misstate_is_kept(runs: PlainRuns) -> None:
    created = runs.server.recorded_at + HOUR
    runs.settings |= {"inventory": reported(runs, created), "inventory_margin_hours": 30}
    report = collected(runs)
    assert report.cutoff == (created - 31 * HOUR).replace(microsecond=0)
    assert (report.counts["candidates"], report.counts["deleted"]) == (0, 0)
    assert report.counts["listed"] > 0

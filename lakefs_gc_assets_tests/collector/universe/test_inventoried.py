"""Runs that read an inventory in place of a listing, through the real graph."""

from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.report import Report
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, failures, replaying, truth_classes
from lakefs_gc_assets_tests.storage.s3 import inventories
from lakefs_gc_assets_tests.storage.s3.inventories import Version

__all__ = ["replaying"]
HOUR = timedelta(hours=1)


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("small", deletes="overlay", max_candidate_share=1, sweep=True)


def reported(runs: GraphRuns, created: datetime) -> str:
    """Writes an inventory of what is there now, in two files; returns the folder of the reports."""
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


def collected(runs: GraphRuns, flow: Flow = Flow.CLEAN) -> Report:
    opened = runs.open(flow)
    result = runs.make(opened)
    assert result.success, failures(result)
    return runs.report(opened.run_id)


@pytest.mark.slow
def test_an_inventory_finds_what_a_listing_does_and_deletes_it_once(runs: GraphRuns) -> None:
    runs.settings["inventory"] = reported(runs, runs.clock.moment - HOUR)
    first = collected(runs)
    plan = plans.read(runs.repository.store, first.run_id)
    assert plan.inventory is not None and plan.inventory.startswith(runs.settings["inventory"])
    garbage = truth_classes("small")["unreferenced"] - {"data/stray-1/s0"}
    assert set(runs.addresses(first.run_id, "candidates")) == garbage
    assert first.counts["deleted"] == len(garbage)

    runs.clock.moment += HOUR
    again = collected(runs)
    assert (again.counts["candidates"], again.counts["deleted"]) == (0, 0)

    runs.clock.moment += HOUR
    optimized = collected(runs, Flow.OPTIMIZED)
    assert (optimized.flow, optimized.base_run, optimized.why_clean) == ("optimized", again.run_id, None)
    assert plans.read(runs.repository.store, optimized.run_id).inventory is None


@pytest.mark.slow
def test_what_an_inventory_may_lack_or_misstate_is_kept(runs: GraphRuns) -> None:
    created = runs.server.recorded_at + HOUR
    runs.settings |= {"inventory": reported(runs, created), "inventory_margin_hours": 30}
    report = collected(runs)
    assert report.cutoff == (created - 31 * HOUR).replace(microsecond=0)
    assert (report.counts["candidates"], report.counts["deleted"]) == (0, 0)
    assert report.counts["listed"] > 0

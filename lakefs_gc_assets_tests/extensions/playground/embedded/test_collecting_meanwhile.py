"""Collections that delete while several clients upload, copy, rename, link, commit and reset."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet, ServerSettings
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.s3_gateway import GatewayServer
from lakefs_gc_assets_tests.extensions.playground.embedded.working_clients import Worker

SECONDS = 30
RUNS = 3
STEPS = 100
"""Minimum steps of all clients; the test continues until then, and until something is deleted."""
WORKERS = 4
# The day of grace is 15 seconds here: objects older than that and the skew may go while the clients are at work.
LINK_SECONDS = 15


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rules", ["oss", "seed"])
def test_nothing_live_is_lost(spark: SparkSession, tmp_path: Path, rules: RuleSet) -> None:
    settings = ServerSettings(rules=rules, link_seconds=LINK_SECONDS, copy_seconds=LINK_SECONDS * 4)
    with GatewayServer(tmp_path, settings=settings) as server:
        repository = clients.repository(server, "busy")
        clients.upload(server, "first", b"first", name=repository)
        clients.commit(server, "first", name=repository)
        workers = [Worker(server, repository, f"worker-{number}", rules) for number in range(WORKERS)]
        given = demo.configuration(server, repository)
        collection = CollectionSettings(
            **{
                **given.collection.model_dump(),
                "min_age_hours": 0,
                "clock_skew_minutes": 0.1,
                "max_candidate_share": 1,
                # A hard reset by a worker discards most uncommitted changes.
                "max_uncommitted_loss_share": 1,
                "sweep": True,
            }
        )
        loaded = Loaded(given.model_copy(update={"collection": collection}), {})
        ended = threading.Event()
        deleted, runs = 0, 0

        def steps() -> int:
            return sum(worker.steps for worker in workers)

        with ThreadPoolExecutor(WORKERS) as pool, running.instance() as home:
            working = [pool.submit(worker.work, ended) for worker in workers]
            try:
                until = time.monotonic() + SECONDS
                while time.monotonic() < until or runs < RUNS or not deleted or steps() < STEPS:
                    for worked in working:
                        if worked.done():
                            worked.result()
                    run_id, error = running.execute(loaded, running.AskedRun(), print, SystemClock(), home)
                    assert error is None
                    found = report.read(Collector.from_loaded(loaded, SystemClock()).open().store, run_id)
                    assert found is not None and found.success
                    deleted, runs = deleted + found.counts["deleted"], runs + 1
            finally:
                ended.set()
            for worked in working:
                worked.result()
        assert [lost for worker in workers for lost in worker.lost()] == []

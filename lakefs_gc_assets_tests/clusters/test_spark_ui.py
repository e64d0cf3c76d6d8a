"""A run in Spark's history server, as an operator sees it.

The pictures need the package playwright and an installed Chromium. LAKEFS_GC_SCREENSHOTS names a folder that gets them,
for the documentation.
"""

import json
import os
import re
import time
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import link_pending, make_sample_repository
from lakefs_gc_assets.storage import traffic
from lakefs_gc_assets_tests.clusters import spark_clusters
from lakefs_gc_assets_tests.clusters.spark_clusters import HOST, EventLog, SampleRuns
from lakefs_gc_assets_tests.servers.free_ports import free_port
from lakefs_gc_assets_tests.servers.s3_server import Faults, Request, S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]
_FAILED = b"<Error><Code>InternalError</Code></Error>"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_history_server_shows_requests_and_retries_of_each_stage(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    log, store, listings = EventLog(tmp_path / "events"), s3_server.settings(), count()

    def fail_every_third_listing(request: Request) -> tuple[str, bytes] | None:
        is_failing = "list-type=2" in request.query and next(listings) % 3 == 2
        return ("500 Internal Server Error", _FAILED) if is_failing else None

    with demo.open_server(tmp_path / "lakefs", "oss", f"s3://{bucket}/ui", store) as server:
        runs = SampleRuns(tmp_path, server, make_sample_repository(server, objects=300), store)
        link_pending(server, runs.sample)
        time.sleep(demo.BUCKET_AGING.total_seconds())
        spark = {"master": "local[2]", "config": {**log.properties, "spark.ui.enabled": "false"}}
        with s3_server.failing(Faults(answer=fail_every_third_listing)):
            runs.run("clean", spark)
        runs.require_collected()

    port = free_port()
    options = {"spark.history.fs.logDirectory": log.folder.as_uri(), "spark.history.ui.port": port}
    java = " ".join(f"-D{name}={value}" for name, value in options.items())
    name = "org.apache.spark.deploy.history.HistoryServer"
    with spark_clusters.started(tmp_path / "history.log", name, environment={"SPARK_HISTORY_OPTS": java}) as history:
        spark_clusters.reported(history, r"Bound HistoryServer to (\S+)")
        url = f"http://{HOST}:{port}"
        [application] = _applications(url)
        everything = _json(f"{url}/api/v1/applications/{application}/stages")
        # A job that starts the session belongs to no run, and has no description.
        stages = [stage for stage in everything if "description" in stage]
        by_step: dict[str, dict[str, int]] = {}
        for stage in stages:
            of_step = by_step.setdefault(stage["description"].partition(":")[0], {})
            for fact in stage["accumulatorUpdates"]:
                of_step[fact["name"]] = of_step.get(fact["name"], 0) + int(fact["value"])
        assert by_step.keys() <= {*STEPS}
        assert by_step["store_df"][traffic.REQUESTS] > by_step["store_df"][traffic.RETRIES] > 0
        assert by_step["committed_df"][traffic.BYTES_READ] > by_step["committed_df"][traffic.REQUESTS] > 0
        if folder := os.environ.get("LAKEFS_GC_SCREENSHOTS"):
            listing = next(stage for stage in stages if stage["description"].startswith("store_df: list "))
            _take_pictures(f"{url}/history/{application}", listing["stageId"], Path(folder))


def _applications(url: str) -> list[str]:
    """Ids of the applications, once the server has read the log."""
    until = time.monotonic() + 900
    while time.monotonic() < until:
        if found := _json(f"{url}/api/v1/applications"):
            return [application["id"] for application in found]
        time.sleep(0.5)
    raise AssertionError("the history server found no application")


def _json(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def _take_pictures(url: str, stage: int, folder: Path) -> None:
    from lakefs_gc_assets_tests.defs.test_browser import chromium

    with chromium() as context:
        page = context.new_page()
        for name, path, text, height in (
            ("spark-queries", "/SQL/", "store_df: list", 730),
            ("spark-stage", f"/stages/stage/?id={stage}&attempt=0", traffic.REQUESTS, 740),
        ):
            page.set_viewport_size({"width": 1100, "height": height})
            page.goto(url + path)
            page.get_by_text(re.compile(text)).first.wait_for(timeout=900_000)
            page.screenshot(path=folder / f"{name}.png")

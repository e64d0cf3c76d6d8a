"""Serves a vast repository in its own process, each answer late: `python -m benchmarks.vast_server FOLDER BRANCHES`.

Prints the settings of a collection as one line of JSON and serves until standard input ends; then it writes what was
deleted.
"""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

from benchmarks import vast
from benchmarks.repositories import REPOSITORY
from benchmarks.vast_bucket import VastBucket
from lakefs_gc_assets.embedded.faults import Fault
from lakefs_gc_assets.settings import CollectionSettings, Configuration, LakeFSSettings, SparkSettings
from lakefs_gc_assets_tests.replay.s3_endpoint import S3Answer, S3Endpoint
from lakefs_gc_assets_tests.replay.server import LoopbackServer, loopback_store

DELETED = "deleted.json"
_TASKS = 8
"""At once, on any machine: most of them wait for answers."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("branches", type=int)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds that each answer waits")
    asked = parser.parse_args()
    bucket = VastBucket(asked.folder, vast.Vast(asked.branches))
    endpoint = S3Endpoint(bucket, f"s3://{vast.BUCKET}/{REPOSITORY}")

    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> S3Answer:
        time.sleep(asked.latency)
        return endpoint.answer(method, target, headers, body)

    store = LoopbackServer(answer, lambda: datetime.now(UTC), [])
    Thread(target=store.serve_forever, daemon=True).start()
    with vast.server(asked.folder) as server:
        server.faults.add(Fault("slow", "/api/", times=None, seconds=asked.latency))
        settings = Configuration(
            repository=REPOSITORY,
            lakefs=LakeFSSettings(
                endpoint=server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
            ),
            store=loopback_store(store.url),
            collection=CollectionSettings(wait_before_dump_seconds=0, wait_before_recheck_seconds=0),
            spark=SparkSettings(master=f"local[{_TASKS}]", driver_memory="4g", many_objects=True),
        )
        print(settings.model_dump_json(exclude_defaults=True), flush=True)
        sys.stdin.read()
    garbage = sum(1 for number, gone in enumerate(bucket.deleted) if gone and vast.is_garbage(number))
    deleted = {"garbage": garbage, "live": sum(bucket.deleted) - garbage}
    (asked.folder / DELETED).write_text(json.dumps(deleted))


if __name__ == "__main__":
    main()

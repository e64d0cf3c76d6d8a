"""Serves a repository whose objects are numbers, in its own process: `python -m benchmarks.vast_server FOLDER BRANCHES`
a vast one, each answer late; `python -m benchmarks.vast_server FOLDER --shape SHAPE` one of a shape, as JSON.

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
from benchmarks.repositories import BUCKET, DELETED, REPOSITORY, NumberedObjects, objects_folder, server_of
from benchmarks.shapes import Shape
from benchmarks.vast_bucket import NumberedBucket
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import CollectionSettings, Configuration, LakeFSSettings, SparkSettings
from lakefs_gc_assets_tests.extensions.playground.embedded.faults import Fault, switch_on
from lakefs_gc_assets_tests.replay.s3_endpoint import S3Answer, S3Endpoint
from lakefs_gc_assets_tests.replay.server import LoopbackServer, loopback_store

_LATE = 0.02
"""Delay per answer in seconds, unless specified."""
_TASKS = 8
"""Concurrent tasks, on any machine: most tasks wait for answers."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("branches", type=int, nargs="?", default=0)
    parser.add_argument("--shape")
    parser.add_argument("--late", type=float, default=_LATE)
    asked = parser.parse_args()
    folder: Path = asked.folder
    if asked.shape:
        shape = Shape(**json.loads(asked.shape))
        bucket = NumberedBucket(objects_folder(folder), NumberedObjects.from_shape(folder, shape))
        if (folder / DELETED).exists():
            bucket.deleted[:] = (folder / DELETED).read_bytes()
        _serve(bucket, server_of(folder, shape), SparkSettings())
    else:
        bucket = NumberedBucket(folder / "objects", vast.VastObjects.from_size(folder, vast.Vast(asked.branches)))
        spark = SparkSettings(master=f"local[{_TASKS}]", many_objects=True)
        _serve(bucket, vast.server(folder), spark, asked.late)
    (folder / DELETED).write_bytes(bucket.deleted)


def _serve(bucket: NumberedBucket, embedded: EmbeddedServer, spark: SparkSettings, latency: float = 0) -> None:
    endpoint = S3Endpoint(bucket, f"s3://{BUCKET}/{REPOSITORY}")

    def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> S3Answer:
        time.sleep(latency)
        return endpoint.answer(method, target, headers, body)

    store = LoopbackServer(answer, lambda: datetime.now(UTC), [])
    Thread(target=store.serve_forever, daemon=True).start()
    with embedded as server:
        if latency:
            switch_on(server, Fault("slow", "/api/", times=None, seconds=latency))
        settings = Configuration(
            repository=REPOSITORY,
            lakefs=LakeFSSettings(
                endpoint=server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
            ),
            store=loopback_store(store.url),
            collection=CollectionSettings(wait_before_dump_seconds=0, wait_before_recheck_seconds=0),
            spark=spark,
        )
        print(settings.model_dump_json(exclude_defaults=True), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

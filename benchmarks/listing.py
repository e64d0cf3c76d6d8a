"""Objects listed per second: the project's stores compared with boto3's paginator."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from benchmarks import repositories
from benchmarks.listing_server import BUCKET
from benchmarks.marks import Measure, at_least, figure
from benchmarks.runs import served
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener

_KEYS = 100_000
_ROUNDS = 3
_KEY, _SECRET = "key", "secret"


def measured() -> list[Measure]:
    """Rates of a stream of pre-rendered pages from a server, and of a local folder."""
    with served("benchmarks.listing_server", str(_KEYS)) as server:
        settings = StoreSettings(
            endpoint_url=server["url"],
            region="us-east-1",
            path_style=True,
            access_key_id=_KEY,
            secret_access_key=_SECRET,
        )
        namespace = Namespace.parse(f"s3://{BUCKET}")
        store = StoreOpener(settings, namespace.uri).open()
        ours = _best(lambda: sum(batch.num_rows for batch in store.list("data/")), 1 + _ROUNDS)
        theirs = _best(lambda: _by_boto3(server["url"]), 1)
    with tempfile.TemporaryDirectory() as folder:
        names = list(repositories.addresses(_KEYS, repositories.BORN))
        repositories.make_files(Path(folder), names, repositories.BORN.timestamp())
        local = LocalStore(Path(folder))
        files = _best(lambda: sum(batch.num_rows for batch in local.list("data/")), _ROUNDS)
    return [
        figure("listing: S3, one stream", ours, "objects/s"),
        figure("listing: S3, boto3's paginator", theirs, "objects/s"),
        at_least("listing: S3, times boto3's paginator", ours / theirs, "times", 20),
        at_least("listing: local folder, one process", files, "objects/s", 300_000),
    ]


def _by_boto3(url: str) -> int:
    client: Any = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(s3={"addressing_style": "path"}),
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="data/")
    return sum(len(page["Contents"]) for page in pages)


def _best(listed: Callable[[], int], rounds: int) -> float:
    """Objects a second in the best of several rounds."""
    best = 0.0
    for _ in range(rounds):
        began = time.perf_counter()
        count = listed()
        best = max(best, count / (time.perf_counter() - began))
        if count != _KEYS:
            raise AssertionError(f"{count:,} of {_KEYS:,} objects were listed")
    return best

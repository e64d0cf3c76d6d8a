"""The whole graph on objects in a bucket: listing, frames, lock, receipts and report too."""

from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_collects_in_a_bucket(
    spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    # Workers of the Spark session got their environment when it started.
    monkeypatch.setattr(demo, "store_from_environment", lambda url: s3_server.settings())
    reported = StringIO()

    shown = demo.show(tmp_path, "oss", 60, Console(file=reported, width=200), f"s3://{bucket}/demo")

    assert shown, reported.getvalue()
    paginator = s3_server.client().get_paginator("list_objects_v2")
    keys = [found["Key"] for page in paginator.paginate(Bucket=bucket) for found in page["Contents"]]
    files = {key.partition("/_lakefs/retention/gc/")[2] for key in keys}
    for name in ("plan.json", "report.json", "store_df/", "candidates/", "receipts/"):
        assert any(name in file for file in files), name
    assert not any((tmp_path / "objects").rglob("*"))

"""Clients of a replay, and the content of its folder, read without the replay's own code."""

import gzip
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import boto3
import pytest
import urllib3
from obstore.store import S3Store

from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


NOW = datetime(2026, 11, 23, 12, 0, 1, 250_000, UTC)
RUNS = "_lakefs/retention/gc/uncommitted/"


@pytest.fixture(scope="module")
def small() -> Iterator[ReplayServer]:
    """The recording `small`, served for the tests of a module."""
    with ReplayServer(folder_of("small"), now=NOW) as server:
        yield server


def listing(name: str) -> list[dict[str, Any]]:
    plain = folder_of(name) / "listing.json"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())
    return list(json.loads(content))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder_of(name) / "api.jsonl").read_text().splitlines()]


def boto3_client(server: ReplayServer) -> "S3Client":
    return boto3.client(
        "s3",
        endpoint_url=server.s3_url,
        region_name="us-east-1",
        aws_access_key_id="anybody",
        aws_secret_access_key="anything",
    )


def place(server: ReplayServer) -> tuple[str, str]:
    """Bucket, and prefix of all keys."""
    bucket, _, prefix = server.storage_namespace.removeprefix("s3://").partition("/")
    return bucket, prefix + "/"


def obstore_store(server: ReplayServer) -> S3Store:
    return S3Store.from_url(
        server.storage_namespace,
        endpoint=server.s3_url,
        access_key_id="anybody",
        secret_access_key="anything",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


class Api:
    """Plain requests to the API of a replay."""

    def __init__(self, server: ReplayServer) -> None:
        self._server = server
        self._pool = urllib3.PoolManager()
        keys = b64encode(f"{server.access_key_id}:{server.secret_access_key}".encode()).decode()
        self.headers = {"Authorization": f"Basic {keys}"}

    def __call__(self, method: str, path: str, body: object = None, /, **query: str) -> tuple[int, Any]:
        """Sends a request; returns status and JSON. A leading dot in a path stands for the recorded repository."""
        if path.startswith("."):
            path = f"/repositories/{self._server.repository}{path[1:]}"
        query_string = "?" + urlencode(query) if query else ""
        url = f"{self._server.url}/api/v1{path}"
        content = b"" if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, url + query_string, body=content, headers=self.headers)
        return answer.status, json.loads(answer.data) if answer.data else None

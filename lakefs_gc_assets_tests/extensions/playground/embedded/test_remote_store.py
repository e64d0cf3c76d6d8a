from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import RemoteBlockstore
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats.ranges import read_metarange
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.servers.s3_server import S3Server


@pytest.fixture(scope="module")
def bucket_service() -> Iterator[S3Server]:
    service = S3Server()
    yield service
    service.stop()


def test_objects_and_files_lie_in_a_bucket(bucket_service: S3Server, tmp_path: Path) -> None:
    bucket = bucket_service.new_bucket()
    store = RemoteBlockstore("s3", lambda uri: open_store(bucket_service.settings(), Namespace.parse(uri)))
    with EmbeddedServer(tmp_path, blockstore=store, settings=ServerSettings(range_entries=3), routes=ROUTES) as server:
        body = {"name": "repo", "storage_namespace": f"s3://{bucket}/some/prefix"}
        assert clients.call(server, "POST", "/repositories", body)[0] == 201
        assert clients.call(server, "GET", "/config")[1]["storage_config"]["blockstore_type"] == "s3"
        status, answer = clients.call(server, "POST", "/repositories/repo/branches/main/objects", b"x", path="a")
        assert status == 201
        key = answer["physical_address"].removeprefix(f"s3://{bucket}/")
        client = bucket_service.client()
        assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == b"x"
        made = clients.commit(server, "one")
        file = f"some/prefix/_lakefs/{made['meta_range_id']}"
        data = client.get_object(Bucket=bucket, Key=file)["Body"].read()
        assert [record.count for record in read_metarange(data, file)] == [1]
        client.delete_object(Bucket=bucket, Key=key)
        assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a")[0] == 410
        clients.call(server, "POST", "/repositories/repo/branches/main/objects", b"y", path="b")
        _, prepared = clients.call(server, "POST", "/repositories/repo/gc/prepare_uncommited", {})
        assert prepared["gc_uncommitted_location"].startswith(f"s3://{bucket}/some/prefix/_lakefs/")
        assert prepared["gc_uncommitted_location"].endswith("/uncommitted/")

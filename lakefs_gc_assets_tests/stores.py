"""Fixtures of real stores: a folder, and buckets over HTTP. A test module imports the ones it asks for."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from lakefs_gc_assets.configuration import StoreSettings
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests import emulators
from lakefs_gc_assets_tests.emulators import ACCOUNT, AzureServer, GcsServer
from lakefs_gc_assets_tests.s3_server import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 service for as long as the tests run."""
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> str:
    """A bucket for as long as the tests run."""
    return s3_server.new_bucket()


@pytest.fixture
def s3_store(s3_server: S3Server, bucket: str) -> ObjectStore:
    """An empty storage namespace in a bucket."""
    return open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/{uuid4().hex}"))


@pytest.fixture
def local_store(tmp_path: Path) -> ObjectStore:
    """An empty storage namespace in a folder."""
    (tmp_path / "repository").mkdir()
    return open_store(StoreSettings(local_root=str(tmp_path)), Namespace.parse("local://repository"))


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """Google Cloud Storage for as long as the tests run."""
    program = emulators.fake_gcs_server()
    folder = tmp_path_factory.mktemp("gcs")

    def command(port: int) -> list[str]:
        here = f"127.0.0.1:{port}"
        listening = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", here]
        return [str(program), "-backend", "memory", *listening]

    with emulators.running(command, folder) as url:
        server = GcsServer(url, folder)
        yield server
        server.stop()


@pytest.fixture(scope="session")
def gcs_bucket(gcs_server: GcsServer) -> str:
    """A bucket for as long as the tests run."""
    return gcs_server.new_bucket("bucket")


@pytest.fixture
def gcs_store(gcs_server: GcsServer, gcs_bucket: str) -> ObjectStore:
    """An empty storage namespace in a bucket of Google Cloud Storage."""
    return open_store(gcs_server.settings(), Namespace.parse(f"gs://{gcs_bucket}/{uuid4().hex}"))


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """Azure Blob Storage for as long as the tests run."""
    program = emulators.azurite()

    def command(port: int) -> list[str]:
        listening = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        return [str(program), *listening, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]

    with emulators.running(command, tmp_path_factory.mktemp("azure")) as url:
        server = AzureServer(url)
        yield server
        server.stop()


@pytest.fixture(scope="session")
def azure_container(azure_server: AzureServer) -> str:
    """A container for as long as the tests run."""
    return azure_server.new_container("container")


@pytest.fixture
def azure_store(azure_server: AzureServer, azure_container: str) -> ObjectStore:
    """An empty storage namespace in a container of Azure Blob Storage."""
    namespace = f"https://{ACCOUNT}.blob.core.windows.net/{azure_container}/{uuid4().hex}"
    return open_store(azure_server.settings(), Namespace.parse(namespace))


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty storage namespace of each kind."""
    opened: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return opened

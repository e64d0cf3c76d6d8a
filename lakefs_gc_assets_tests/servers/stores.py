"""Fixtures of real stores: a folder, and buckets over HTTP. A test module imports the ones that it needs.

The fixtures that start emulators import them: most modules that import this one need none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.s3_server import S3Server

if TYPE_CHECKING:
    from lakefs_gc_assets_tests.servers.emulators import AzureServer, GcsServer


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
def gcs_server() -> "GcsServer":
    """Google Cloud Storage, one for all tests of the process."""
    from lakefs_gc_assets_tests.servers import emulators

    return emulators.google_cloud_storage()


@pytest.fixture(scope="session")
def gcs_bucket(gcs_server: "GcsServer") -> str:
    """A bucket for as long as the tests run."""
    return gcs_server.new_bucket(f"bucket-{uuid4().hex}")


@pytest.fixture
def gcs_store(gcs_server: "GcsServer", gcs_bucket: str) -> ObjectStore:
    """An empty storage namespace in a bucket of Google Cloud Storage."""
    return open_store(gcs_server.settings(), Namespace.parse(f"gs://{gcs_bucket}/{uuid4().hex}"))


@pytest.fixture(scope="session")
def azure_server() -> "AzureServer":
    """Azure Blob Storage, one for all tests of the process."""
    from lakefs_gc_assets_tests.servers import emulators

    return emulators.azure_blob_storage()


@pytest.fixture(scope="session")
def azure_container(azure_server: "AzureServer") -> str:
    """A container for as long as the tests run."""
    return azure_server.new_container(f"container-{uuid4().hex}")


@pytest.fixture
def azure_store(azure_server: "AzureServer", azure_container: str) -> ObjectStore:
    """An empty storage namespace in a container of Azure Blob Storage."""
    from lakefs_gc_assets_tests.servers.emulators import ACCOUNT

    namespace = f"https://{ACCOUNT}.blob.core.windows.net/{azure_container}/{uuid4().hex}"
    return open_store(azure_server.settings(), Namespace.parse(namespace))


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty storage namespace of each kind."""
    opened: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return opened


in_a_folder = pytest.mark.parametrize("store", ["local"], indirect=True)
"""For tests of rules that are the same for every store: `test_every_store` holds all of them to one contract."""

import pytest

from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.servers.stores import (
    azure_container,
    azure_server,
    azure_store,
    bucket,
    gcs_bucket,
    gcs_server,
    gcs_store,
    local_store,
    s3_server,
    s3_store,
)

__all__ = [
    "azure_container",
    "azure_server",
    "azure_store",
    "bucket",
    "gcs_bucket",
    "gcs_server",
    "gcs_store",
    "local_store",
    "s3_server",
    "s3_store",
    "store",
]


@pytest.fixture(params=["local", "s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty storage namespace of each kind."""
    opened: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return opened

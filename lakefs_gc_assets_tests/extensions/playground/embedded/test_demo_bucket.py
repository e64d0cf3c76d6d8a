"""The sample repository with its objects in a bucket."""

from pathlib import Path

import pytest

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import (
    link_pending,
    make_sample_repository,
    rename,
    unreadable,
)
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.servers.emulators import ACCOUNT
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from lakefs_gc_assets_tests.servers.stores import (
    azure_container,
    azure_server,
    bucket,
    gcs_bucket,
    gcs_server,
    s3_server,
)

__all__ = ["azure_container", "azure_server", "bucket", "gcs_bucket", "gcs_server", "s3_server"]


@pytest.fixture
def environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> StoreSettings:
    """The service in environment variables."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return demo.store_from_environment("s3://bucket")


def test_the_sample_lies_in_the_bucket_and_reads_back(
    environment: StoreSettings, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    url = f"s3://{bucket}/demo"
    with demo.open_server(tmp_path, "seed", url, environment) as server:
        sample = make_sample_repository(server, objects=100)
        link_pending(server, sample)
        rename(server, sample, sample.to_rename[0])
        assert unreadable(server, sample) == []
        assert demo.still_stored(server, sample) == sample.garbage
        assert (server.core.blockstore.type, server.core.blockstore.scheme) == ("s3", f"{url}/")
        assert clients.call(server, "GET", "/config/garbage-collection")[1] == {"grace_period": 5}
        collector = demo.configuration(server, sample.repository, environment)
        assert (collector.collection.min_age_hours, collector.collection.clock_skew_minutes) == (0, 0.2)
        assert collector.store == environment
    keys = {
        key
        for batch in open_store(environment, Namespace.parse(url)).list("")
        for key in batch.column("key").to_pylist()
    }
    assert {key.partition("/")[0] for key in keys} == {"sample", "outside-sample"}
    assert {f"sample/{garbage.address}" for garbage in sample.garbage} <= keys
    assert list(tmp_path.rglob("data")) == []


def test_a_service_without_an_endpoint_is_spoken_to_by_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert demo.store_from_environment("s3://bucket") == StoreSettings()


def test_other_clouds_have_nothing_to_do_with_an_endpoint_of_s3(environment: StoreSettings) -> None:
    assert environment.endpoint_url
    for url in ("gs://bucket", "https://account.blob.core.windows.net/container"):
        assert demo.store_from_environment(url) == StoreSettings()


@pytest.mark.parametrize("kind", ["gs", "azure"])
def test_the_sample_lies_in_other_clouds_too(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    if kind == "gs":
        settings = request.getfixturevalue("gcs_server").settings()
        url = f"gs://{request.getfixturevalue('gcs_bucket')}/demo"
    else:
        settings = request.getfixturevalue("azure_server").settings()
        url = f"https://{ACCOUNT}.blob.core.windows.net/{request.getfixturevalue('azure_container')}/demo"
    with demo.open_server(tmp_path, "oss", url, settings) as server:
        sample = make_sample_repository(server, objects=80)
        link_pending(server, sample)
        assert unreadable(server, sample) == []
        assert server.core.blockstore.type == kind
        _, prepared = clients.call(server, "POST", f"/repositories/{sample.repository}/gc/prepare_uncommited", {})
        assert prepared["gc_uncommitted_location"].startswith(f"{url}/sample/_lakefs/")
        assert demo.still_stored(server, sample) == sample.garbage
        store = server.core.blockstore.open(f"{url}/sample")
        outcomes = store.delete([garbage.address for garbage in sample.garbage])
        assert {outcome.result for outcome in outcomes} == {DeleteResult.ACCEPTED}
        assert demo.still_stored(server, sample) == []
        assert unreadable(server, sample) == []


@pytest.mark.parametrize("url", ["bucket/prefix", "local://folder"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=url):
        demo.in_bucket(url, StoreSettings())

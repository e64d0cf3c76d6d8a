"""Destination and signature of requests: both clients must agree."""

import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import boto3
import pytest
from botocore.loaders import JSONFileLoader

from lakefs_gc_assets import waits
from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.storage.s3.client import address, connect
from lakefs_gc_assets.waits import Waits
from lakefs_gc_assets_tests.servers import private_authority
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, Faults, S3Server


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_CA_BUNDLE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def signers(server: S3Server, store: ObjectStore) -> set[tuple[str, str]]:
    """Access key and session token of a request by each client."""
    store.put("key", b"")
    server.requests.clear()
    store.get("key")
    store.head("key")
    assert len(server.requests) == 2
    found = set()
    for request in server.requests:
        signed = re.search(r"Credential=([^/]+)/\d+/([^/]+)/s3", request.headers["authorization"])
        assert signed is not None
        found.add((signed[1], request.headers.get("x-amz-security-token", "")))
    return found


@pytest.mark.parametrize(
    ("endpoint", "path_style", "bucket", "expected"),
    [
        ("", False, "bucket", ("https://bucket.s3.eu-west-1.amazonaws.com", True)),
        ("", True, "bucket", ("https://s3.eu-west-1.amazonaws.com", False)),
        ("", False, "dotted.bucket", ("https://s3.eu-west-1.amazonaws.com", False)),
        ("http://127.0.0.1:9000", False, "bucket", ("http://127.0.0.1:9000", False)),
        ("http://store:9000", False, "bucket", ("http://bucket.store:9000", True)),
        ("http://store:9000", True, "bucket", ("http://store:9000", False)),
        ("https://gateway/s3/", True, "bucket", ("https://gateway/s3", False)),
        ("https://bucket.gateway", True, "bucket", ("https://bucket.gateway", False)),
    ],
)
def test_obstore_is_sent_where_boto3_goes(
    endpoint: str, path_style: bool, bucket: str, expected: tuple[str, bool]
) -> None:
    settings = StoreSettings(
        endpoint_url=endpoint,
        region="eu-west-1",
        path_style=path_style,
        access_key_id="key",
        secret_access_key="secret",
    )
    client, files, _ = connect(settings, bucket)
    assert address(client, bucket) == expected
    assert files.config["endpoint"] == expected[0]


def test_settings_win_over_the_environment(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other-secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/settings"))
    assert signers(s3_server, store) == {(ACCESS_KEY, "")}


def test_the_environment_fills_what_settings_leave_empty(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environment-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "environment-token")
    store = open_store(StoreSettings(path_style=True), Namespace.parse(f"s3://{bucket}/environment"))
    assert signers(s3_server, store) == {("environment-key", "environment-token")}


def test_temporary_credentials_are_sent_with_their_token(s3_server: S3Server, bucket: str) -> None:
    settings = s3_server.settings().model_copy(update={"session_token": "the-token"})
    store = open_store(settings, Namespace.parse(f"s3://{bucket}/token"))
    assert signers(s3_server, store) == {(ACCESS_KEY, "the-token")}


def test_a_profile_gives_credentials_to_both_clients(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id=profile-key\naws_secret_access_key=hush\n")
    (tmp_path / "config").write_text("[profile work]\nregion=eu-central-1\n")
    settings = StoreSettings(endpoint_url=s3_server.url, path_style=True, profile="work")
    store = open_store(settings, Namespace.parse(f"s3://{bucket}/profile"))
    assert signers(s3_server, store) == {("profile-key", "")}
    assert "/eu-central-1/s3/" in s3_server.requests[0].headers["authorization"]


def test_a_role_is_assumed_for_both_clients(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3_server.url)
    settings = s3_server.settings().model_copy(update={"role_arn": "arn:aws:iam::123456789012:role/collector"})
    store = open_store(settings, Namespace.parse(f"s3://{bucket}/role"))
    s3_server.requests.clear()
    [(access_key, token)] = signers(s3_server, store)
    assert access_key.startswith("ASIA")
    assert token


def test_the_region_is_found_out(s3_server: S3Server) -> None:
    bucket = "bucket-in-another-region"
    s3_server.client().create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-north-1"})
    settings = s3_server.settings().model_copy(update={"region": ""})
    store = open_store(settings, Namespace.parse(f"s3://{bucket}"))
    signers(s3_server, store)
    assert all("/eu-north-1/s3/" in request.headers["authorization"] for request in s3_server.requests)


def test_an_endpoint_that_ends_with_the_bucket_is_explained(s3_server: S3Server, bucket: str) -> None:
    settings = s3_server.settings().model_copy(update={"endpoint_url": f"{s3_server.url}/{bucket}/"})
    with pytest.raises(ConfigurationError, match=f"store.endpoint_url ends with .* leave out /{bucket}"):
        open_store(settings, Namespace.parse(f"s3://{bucket}/x"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"secret_access_key": ""}, ConfigurationError, "go together"),
        ({"access_key_id": ""}, ConfigurationError, "go together"),
        ({"access_key_id": "", "secret_access_key": ""}, StorageError, "found; set AWS_ACCESS_KEY_ID and AWS_SECRET_"),
        ({"profile": "nobody"}, ConfigurationError, "store.profile names 'nobody'"),
        ({"endpoint_url": "not a url"}, ConfigurationError, "not a url"),
        ({"access_key_id": "", "secret_access_key": "", "role_arn": "arn:x"}, ConfigurationError, "store.role_arn"),
    ],
)
def test_settings_that_cannot_work_are_explained(
    s3_server: S3Server, bucket: str, changes: dict[str, str], error: type[Exception], message: str
) -> None:
    settings = s3_server.settings().model_copy(update=changes)
    with pytest.raises(error, match=message) as caught:
        open_store(settings, Namespace.parse(f"s3://{bucket}/x"))
    assert settings.secret_access_key == "" or settings.secret_access_key not in str(caught.value)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    return private_authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def private_server(authority: tuple[Path, ssl.SSLContext]) -> Iterator[S3Server]:
    server = S3Server(authority[1])
    yield server
    server.stop()


@pytest.mark.parametrize("source", ["settings", "environment", "profile"])
def test_both_clients_trust_a_private_authority(
    private_server: S3Server,
    authority: tuple[Path, ssl.SSLContext],
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    settings = private_server.settings()
    bundle = str(authority[0])
    if source == "settings":
        settings = settings.model_copy(update={"ca_bundle": bundle})
    elif source == "environment":
        monkeypatch.setenv("AWS_CA_BUNDLE", bundle)
    else:
        (tmp_path / "config").write_text(f"[profile private]\nca_bundle={bundle}\n")
        settings = settings.model_copy(update={"profile": "private"})
    bucket = private_server.new_bucket(verify=bundle)
    assert signers(private_server, open_store(settings, Namespace.parse(f"s3://{bucket}/x"))) == {(ACCESS_KEY, "")}


def test_an_unknown_authority_is_not_trusted(private_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "ATTEMPTS", 2)
    store = open_store(private_server.settings(), Namespace.parse("s3://bucket/x"))
    for call in (lambda: store.get("key"), lambda: store.head("key")):
        with pytest.raises(StorageError, match="no connection"):
            call()


def test_a_bundle_that_is_not_there_is_named(s3_server: S3Server, tmp_path: Path) -> None:
    settings = s3_server.settings().model_copy(update={"ca_bundle": str(tmp_path / "nothing.pem")})
    with pytest.raises(ConfigurationError, match=r"nothing\.pem"):
        open_store(settings, Namespace.parse("s3://bucket/x"))


def test_what_one_store_read_of_the_service_no_other_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = StoreSettings(region="eu-west-1", access_key_id="a", secret_access_key="b")
    connect(settings, "bucket")

    def read(self: JSONFileLoader, path: str) -> NoReturn:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr(JSONFileLoader, "load_file", read)
    other = StoreSettings(region="eu-west-2", access_key_id="c", secret_access_key="d")
    client, _, _ = connect(other, "bucket")
    assert client.meta.region_name == "eu-west-2"
    with pytest.raises(AssertionError, match="is read again"):
        boto3.Session(region_name="eu-west-1").client("s3")


def test_a_wait_for_a_throttling_service_is_shown_while_it_lasts(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{s3_server.new_bucket()}/a"))
    store.put("key", b"content")
    monkeypatch.setattr(waits, "SHOWN_AFTER", 0.2)
    monkeypatch.setattr(cloud, "waits", Waits("the store"))
    busy_until = time.monotonic() + 1
    busy = Faults(answer=lambda _: ("503 Slow Down", b"") if time.monotonic() < busy_until else None)
    with s3_server.failing(busy):
        list(store.list(""))
    assert re.fullmatch(r"waiting for the store: no result for \d+ s \(ListObjectsV2\)", caplog.messages[0])
    caplog.clear()
    begun = time.monotonic()
    list(store.list(""))
    lasted = time.monotonic() - begun
    time.sleep(0.3)
    assert len(caplog.messages) <= lasted / waits.SHOWN_AFTER


@pytest.mark.parametrize(
    "arn",
    [
        "arn:aws:s3:us-east-1:123456789012:accesspoint/ours",
        "arn:aws:s3::123456789012:accesspoint/ours.mrap",
        "arn:aws:s3-outposts:us-east-1:123456789012:outpost/op-1/accesspoint/ours",
    ],
)
def test_a_namespace_by_the_arn_of_an_access_point_is_refused(arn: str) -> None:
    namespace = Namespace.parse(f"s3://{arn}/repo")
    with pytest.raises(ConfigurationError, match=r"ARN of an access point.*s3alias"):
        open_store(StoreSettings(region="us-east-1"), namespace)

"""Sources of tokens for Google Cloud Storage; both clients send the same tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, unquote
from uuid import uuid4

import pytest

from lakefs_gc_assets.errors import AlreadyExists, ConfigurationError, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.emulators import TOKEN, GcsServer, Response
from lakefs_gc_assets_tests.servers.s3_server import Request, S3Server


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    # Otherwise google-auth asks the cloud which project credentials belong to.
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")


def opened(server: GcsServer, bucket: str, **settings: str) -> ObjectStore:
    chosen = StoreSettings.model_validate({"endpoint_url": server.url, **settings})
    return open_store(chosen, Namespace.parse(f"gs://{bucket}/{uuid4().hex}"))


CALLS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.put("key", b"1"),
    lambda store: store.get("key"),
    lambda store: store.head("key"),
    lambda store: list(store.list("")),
    lambda store: store.list_level(""),
    lambda store: store.delete(["key"]),
]


@pytest.mark.parametrize("source", ["settings", "environment"])
def test_a_service_account_gets_one_token_for_both_clients(
    gcs_server: GcsServer, gcs_bucket: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"service_account_file": str(gcs_server.key_file)}
    if source == "environment":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", settings.pop("service_account_file"))
    store = opened(gcs_server, gcs_bucket, **settings)
    gcs_server.requests.clear()
    before = gcs_server.tokens
    for call in CALLS:
        call(store)
    assert gcs_server.tokens == before + 1
    assert {request.headers["authorization"] for request in gcs_server.requests} == {f"Bearer {TOKEN}"}
    assert {unquote(request.path).split("/")[1] for request in gcs_server.requests} == {
        "upload",
        gcs_bucket,
        "storage",
        "batch",
    }


def test_a_workload_of_another_cloud(
    gcs_server: GcsServer, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "identity").write_text("the cluster's word")
    federated = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/cluster",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{gcs_server.url}/token",
        "credential_source": {"file": str(tmp_path / "identity")},
    }
    (tmp_path / "federated.json").write_text(json.dumps(federated))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "federated.json"))
    store = opened(gcs_server, gcs_bucket)
    for call in CALLS:
        call(store)


def test_a_refused_account_is_named(
    gcs_server: GcsServer, gcs_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(gcs_server, gcs_bucket, service_account_file=str(gcs_server.key_file))
    refused = Response(401, {"content-type": "application/json"}, b'{"error": "invalid_grant", "hush": "hush"}')
    monkeypatch.setattr(gcs_server, "token_answer", lambda: refused)
    for call in CALLS:
        with pytest.raises(StorageError, match="no access token") as caught:
            call(store)
        assert "hush" not in str(caught.value)


def test_no_credentials_are_said(gcs_server: GcsServer, gcs_bucket: str) -> None:
    with pytest.raises(StorageError, match=r"no credentials were found; set store\.service_account_file"):
        opened(gcs_server, gcs_bucket)


@pytest.mark.parametrize("content", [None, "not JSON: hush", '{"private_key": "hush"}', "{}"])
def test_a_key_file_that_is_none_is_named(
    gcs_server: GcsServer, gcs_bucket: str, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"key\.json") as caught:
        opened(gcs_server, gcs_bucket, service_account_file=str(file))
    assert "hush" not in str(caught.value)


PUTS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.put_if_match("lock", b"mine", written(store)),
    lambda store: store.put_if_absent("other", b"mine"),
]


def written(store: ObjectStore) -> str:
    """The current version of an object."""
    etag = store.head("lock").etag
    assert etag is not None
    return etag


@pytest.mark.parametrize("put", PUTS)
def test_a_repeat_of_a_conditional_put_has_the_condition(
    gcs_server: GcsServer, gcs_bucket: str, put: Callable[[ObjectStore], object]
) -> None:
    """Otherwise a retry could replace an object that another client wrote in between."""
    store = opened(gcs_server, gcs_bucket, service_account_file=str(gcs_server.key_file))
    store.put("lock", b"first")
    conditions = {"0", written(store)}
    busy = iter([Response(503, {}, b"")] * 2)
    gcs_server.requests.clear()
    with gcs_server.failing(lambda request: next(busy, None) if request.method == "POST" else None):
        put(store)
    asked = [parse_qs(each.query)["ifGenerationMatch"] for each in gcs_server.requests if each.method == "POST"]
    assert len(asked) == 3 and asked == [asked[0]] * 3
    assert {*asked[0]} < conditions


def test_a_repeat_finds_what_was_written_in_between(gcs_server: GcsServer, gcs_bucket: str) -> None:
    store = opened(gcs_server, gcs_bucket, service_account_file=str(gcs_server.key_file))
    store.put("lock", b"first")
    etag = written(store)

    def overtake(request: Request) -> Response:
        gcs_server.answer = lambda request: None
        store.put("lock", b"theirs")
        return Response(503, {}, b"")

    with gcs_server.failing(overtake), pytest.raises(PreconditionFailed):
        store.put_if_match("lock", b"mine", etag)
    assert store.get("lock") == b"theirs"


def test_nobody_else_is_asked(gcs_server: GcsServer, gcs_bucket: str, s3_server: S3Server) -> None:
    """An answer cannot send requests, and the token in them, to another server."""
    store = opened(gcs_server, gcs_bucket, service_account_file=str(gcs_server.key_file))
    before = len(s3_server.requests)
    elsewhere = Response(307, {"location": f"{s3_server.url}/elsewhere"}, b"")
    with gcs_server.failing(lambda request: elsewhere):
        for call in (lambda: store.put("key", b"1"), lambda: store.head("key"), lambda: store.delete(["key"])):
            with pytest.raises(StorageError):
                call()
    assert len(s3_server.requests) == before


def test_a_put_is_one_request(gcs_server: GcsServer, gcs_bucket: str) -> None:
    """By itself, the library also checks the bucket, which takes a permission that a collector need not have."""
    store = opened(gcs_server, gcs_bucket, service_account_file=str(gcs_server.key_file))
    gcs_server.requests.clear()
    store.put("key", b"1")
    assert [request.method for request in gcs_server.requests] == ["POST"]


def test_a_large_object_is_put_in_parts_and_by_its_condition(gcs_server: GcsServer, gcs_bucket: str) -> None:
    store = opened(gcs_server, gcs_bucket, service_account_file=str(gcs_server.key_file))
    large = bytes(9 * 1024 * 1024)
    etag = store.put_if_absent("large", large)
    assert (store.get("large"), store.head("large").etag) == (large, etag)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("large", b"")
    newer = store.put_if_match("large", large, etag)
    with pytest.raises(PreconditionFailed):
        store.put_if_match("large", large, etag)
    assert store.head("large").etag == newer

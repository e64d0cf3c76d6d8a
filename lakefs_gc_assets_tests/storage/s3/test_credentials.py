"""Every usual source of credentials signs every call, of both clients."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.s3_server import S3Server

Credentials = dict[str, str]


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def signers(server: S3Server, bucket: str) -> set[tuple[str, str]]:
    """Access key and session token of every request of a store configured without credentials."""
    settings = StoreSettings(endpoint_url=server.url, path_style=True)
    store = open_store(settings, Namespace.parse(f"s3://{bucket}/signers"))
    store.delete(["key"])
    calls: dict[str, Callable[[ObjectStore], object]] = {
        "PUT": lambda store: store.put_if_match("key", b"2", store.put_if_absent("key", b"1")),
        "GET": lambda store: (store.get("key"), list(store.list("")), store.list_level("")),
        "HEAD": lambda store: store.head("key"),
        "POST": lambda store: store.delete(["key"]),
        "DELETE": lambda store: store.delete(["no\x01xml"]),
    }
    found = set()
    for method, call in calls.items():
        server.requests.clear()
        call(store)
        assert {request.method for request in server.requests} == {method}
        for request in server.requests:
            signed = re.search(r"Credential=([^/]+)/\d+/[^/]+/s3", request.headers["authorization"])
            assert signed is not None
            found.add((signed[1], request.headers.get("x-amz-security-token", "")))
    return found


@contextmanager
def answering(answers: dict[tuple[str, str], str]) -> Iterator[str]:
    """A service with fixed answers by method and path; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = answers.get((self.command, self.path))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or "")))
            self.end_headers()
            self.wfile.write((body or "").encode())

        do_GET = do_PUT = _answer

        def log_message(self, format: str, *arguments: object) -> None:
            """Logs nothing."""

    service = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=service.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{service.server_address[1]}"
    finally:
        service.shutdown()
        service.server_close()


def temporary(name: str) -> Credentials:
    """Credentials as AWS services issue them, valid for an hour."""
    return {
        "Code": "Success",
        "AccessKeyId": f"ASIA{name}",
        "SecretAccessKey": "hush",
        "Token": f"token-of-{name}",
        "Expiration": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
    }


def test_the_environment(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "environment-token")
    assert signers(s3_server, bucket) == {("environment-key", "environment-token")}


def test_an_instance(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = "/latest/meta-data/iam/security-credentials/"
    answers = {
        ("PUT", "/latest/api/token"): "session",
        ("GET", roles): "collector",
        ("GET", f"{roles}collector"): json.dumps(temporary("INSTANCE")),
    }
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    with answering(answers) as url:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        assert signers(s3_server, bucket) == {("ASIAINSTANCE", "token-of-INSTANCE")}


def test_a_container(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering({("GET", "/role"): json.dumps(temporary("CONTAINER"))}) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/role")
        assert signers(s3_server, bucket) == {("ASIACONTAINER", "token-of-CONTAINER")}


def test_a_web_identity(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "identity").write_text("a token of the cluster")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/collector")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3_server.url)
    [(access_key, token)] = signers(s3_server, bucket)
    assert access_key.startswith("ASIA")
    assert token


def test_a_role_of_a_profile(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[base]\naws_access_key_id=base-key\naws_secret_access_key=hush\n")
    (tmp_path / "config").write_text(
        "[profile work]\nrole_arn=arn:aws:iam::123456789012:role/collector\nsource_profile=base\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3_server.url)
    [(access_key, token)] = signers(s3_server, bucket)
    assert access_key.startswith("ASIA")
    assert token

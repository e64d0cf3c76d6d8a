"""Every usual source of credentials signs every call, of both clients."""

import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlencode
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from obstore.store import AzureStore as Files

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.azure import AzureStore
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.emulators import ACCOUNT, ACCOUNT_KEY, AzureServer, Proxy, Response
from lakefs_gc_assets_tests.servers.s3_server import Request

TENANT = {"tenant_id": "tenant", "client_id": "application"}


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_TENANT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "IDENTITY_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cloud, "ATTEMPTS", 2)
    # No server listens there, and there is no Azure command line.
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("PATH", str(tmp_path))


def opened(url: str, container: str = "container", **settings: str) -> ObjectStore:
    chosen = StoreSettings.model_validate({"endpoint_url": f"{url}/{ACCOUNT}", **settings})
    namespace = f"https://{ACCOUNT}.blob.core.windows.net/{container}/{uuid4().hex}"
    return open_store(chosen, Namespace.parse(namespace))


def all_works(store: ObjectStore) -> None:
    etag = store.put_if_absent("data/a//b", b"1")
    store.put_if_match("data/a//b", b"2", etag)
    store.put("data/c", b"3")
    assert (store.get("data/a//b"), store.get("data/c"), store.head("data/c").size) == (b"2", b"3", 1)
    assert {key for batch in store.list("") for key in batch["key"].to_pylist()} == {"data/a//b", "data/c"}
    assert store.list_level("").prefixes == ("data/",)
    assert {outcome.result for outcome in store.delete(["data/a//b", "data/c"])} == {DeleteResult.ACCEPTED}
    assert list(store.list("")) == []


# The account's key, and signatures made with it


@pytest.mark.parametrize("source", ["settings", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"])
def test_an_account_key(
    azure_server: AzureServer, azure_container: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"account_key": ACCOUNT_KEY} if source == "settings" else {}
    if not settings:
        monkeypatch.setenv(source, ACCOUNT_KEY)
    azure_server.requests.clear()
    all_works(opened(azure_server.url, azure_container, **settings))
    signed = {request.headers["authorization"].partition(":")[0] for request in azure_server.requests}
    assert signed == {f"SharedKey {ACCOUNT}"}


# obstore cannot name the second key, so it is deleted in a separate request.
@pytest.mark.parametrize("key", ["data/blob", "data//blob"])
def test_a_blob_with_snapshots_is_deleted_where_the_settings_say_so(
    azure_server: AzureServer, azure_container: str, key: str
) -> None:
    namespace = Namespace.parse(f"https://{ACCOUNT}.blob.core.windows.net/{azure_container}/{uuid4().hex}")
    settings = StoreSettings(endpoint_url=f"{azure_server.url}/{ACCOUNT}", account_key=ACCOUNT_KEY)
    store = AzureStore(settings, namespace)
    store.put(key, b"1")
    store._blob(f"{namespace.location.key}{key}").create_snapshot()
    (refused,) = store.delete([key])
    assert refused.result is DeleteResult.FAILED
    assert "SnapshotsPresent" in (refused.error or "") and "set store.delete_snapshots" in (refused.error or "")

    willing = AzureStore(settings.model_copy(update={"delete_snapshots": True}), namespace)
    (deleted,) = willing.delete([key])
    assert deleted.result is DeleteResult.ACCEPTED
    assert not list(store._container.list_blobs(namespace.location.key, include=["snapshots"]))


def signature(container: str) -> str:
    """A shared access signature for everything in a container."""
    until = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    fields = {"sp": "racwdl", "se": until, "sv": "2020-12-06", "sr": "c"}
    resource = f"/blob/{ACCOUNT}/{container}"
    lines = [fields["sp"], "", until, resource, "", "", "", fields["sv"], "c", "", "", "", "", "", "", ""]
    digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), "\n".join(lines).encode(), hashlib.sha256)
    return urlencode({**fields, "sig": base64.b64encode(digest).decode()})


@pytest.mark.parametrize("source", ["settings", "environment"])
def test_a_shared_access_signature(
    azure_server: AzureServer, azure_container: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = signature(azure_container)
    if source == "environment":
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"?{token}")
    azure_server.requests.clear()
    all_works(opened(azure_server.url, azure_container, **({"sas_token": token} if source == "settings" else {})))
    assert all("sig" in parse_qs(request.query) for request in azure_server.requests)
    assert not any("authorization" in request.headers for request in azure_server.requests)


def test_a_wrong_key_is_refused(azure_server: AzureServer, azure_container: str) -> None:
    wrong = base64.b64encode(b"hush" * 16).decode()
    store = opened(azure_server.url, azure_container, account_key=wrong)
    calls: list[Callable[[], object]] = [
        lambda: list(store.list("")),
        lambda: store.get("key"),
        lambda: store.head("key"),
        lambda: store.put("key", b""),
        lambda: store.delete(["key"]),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"access denied|credentials were refused") as caught:
            call()
        assert wrong not in str(caught.value)


# Tokens


class TokenService(Proxy):
    """Issues tokens in each of Azure's ways, and answers as a blob service to requests with a token."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__("http://nowhere", tls)
        self.asked: list[Request] = []
        self.lifetime = 3600
        self.certificate = Path()
        self.refuses = False

    def respond(self, request: Request) -> Response:
        if request.path.endswith("/openid-configuration"):
            there = f"{self.url}/tenant/oauth2/v2.0"
            known = {"issuer": f"{self.url}/tenant/v2.0", "token_endpoint": f"{there}/token"}
            body = json.dumps({**known, "authorization_endpoint": f"{there}/authorize"}).encode()
            return Response(200, {"content-type": "application/json"}, body)
        if "oauth2" in request.path or request.path == "/msi":
            self.asked.append(request)
            if self.refuses:
                return Response(
                    401,
                    {"content-type": "application/json"},
                    b'{"error": "invalid_client", "error_description": "AADSTS7000215: hush"}',
                )
            expires_on = str(int(time.time()) + self.lifetime)
            answer = {"access_token": f"token-{len(self.asked)}", "token_type": "Bearer", "resource": "storage"}
            answer |= {"expires_in": str(self.lifetime), "expires_on": expires_on}
            return Response(200, {"content-type": "application/json"}, json.dumps(answer).encode())
        self.requests.append(request)
        if request.method == "PUT":
            return Response(201, {"etag": '"1"'}, b"")
        if "comp=list" in request.query:
            return Response(200, {}, b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>")
        if "comp=batch" in request.query:
            head = b"--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n"
            parts = head + b"HTTP/1.1 202 Accepted\r\n\r\n\r\n--b--\r\n"
            return Response(202, {"content-type": "multipart/mixed; boundary=b"}, parts)
        return Response(200, {"last-modified": "Sat, 21 Nov 2026 00:00:00 GMT", "etag": '"1"'}, b"")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed certificate of 127.0.0.1, beside its key in key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.with_name("key.pem").write_bytes(private)
    file.write_bytes(made.public_bytes(Encoding.PEM))
    return file


@pytest.fixture
def tokens(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenService]:
    """Azure's libraries send tokens only over TLS."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_name("key.pem"))
    service = TokenService(tls)
    service.certificate = certificate
    yield service
    service.stop()


def bearers(service: TokenService, **settings: str) -> set[str]:
    """Authorizations of all requests of a store, including the parts of batches."""
    store = opened(service.url, ca_bundle=str(service.certificate), **settings)
    store.put("key", b"1")
    store.get("key")
    store.head("key")
    list(store.list(""))
    store.list_level("")
    [outcome] = store.delete(["key"])
    assert outcome.result == DeleteResult.ACCEPTED
    assert len(service.requests) == 6
    inner = [line for line in service.requests[-1].body.decode().splitlines() if line.startswith("Authorization: ")]
    assert len(inner) == 1
    return {request.headers["authorization"] for request in service.requests} | {inner[0].partition(": ")[2]}


def form(request: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.body.decode()).items()}


@pytest.mark.parametrize("source", ["settings", "environment"])
def test_an_application(tokens: TokenService, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", tokens.url)
    settings = {**TENANT, "client_secret": "hush"}
    if source == "environment":
        for name, value in settings.items():
            monkeypatch.setenv(f"AZURE_{name.upper()}", value)
        settings = {}
    assert bearers(tokens, **settings) == {"Bearer token-1"}
    [request] = tokens.asked
    assert request.path == "/tenant/oauth2/v2.0/token"
    assert form(request) == {
        "grant_type": "client_credentials",
        "client_id": "application",
        "client_secret": "hush",
        "scope": "https://storage.azure.com/.default",
        "client_info": "1",
    }


def test_a_workload(tokens: TokenService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "identity").write_text("the cluster's word")
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"{tokens.url}/")
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "application")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "identity"))
    assert bearers(tokens) == {"Bearer token-1"}
    assert form(tokens.asked[0])["client_assertion"] == "the cluster's word"
    (tmp_path / "identity").unlink()
    with pytest.raises(StorageError, match="AZURE_FEDERATED_TOKEN_FILE"):
        opened(tokens.url, ca_bundle=str(tokens.certificate)).head("key")


def test_the_managed_identity_of_a_machine(tokens: TokenService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", tokens.url)
    assert bearers(tokens, client_id="assigned") == {"Bearer token-1"}
    [request] = tokens.asked
    assert request.path == "/metadata/identity/oauth2/token"
    assert request.headers["metadata"] == "true"
    asked = parse_qs(request.query)
    assert (asked["resource"], asked["client_id"]) == (["https://storage.azure.com"], ["assigned"])


def test_the_managed_identity_of_a_service(tokens: TokenService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{tokens.url}/msi")
    monkeypatch.setenv("IDENTITY_HEADER", "proof")
    assert bearers(tokens) == {"Bearer token-1"}
    assert tokens.asked[0].headers["x-identity-header"] == "proof"


def test_a_person_at_the_command_line(tokens: TokenService, tmp_path: Path) -> None:
    expires = int((datetime.now(UTC) + timedelta(hours=1)).timestamp())
    program = tmp_path / "az"
    program.write_text(f'#!/bin/sh\necho \'{{"accessToken": "personal", "expires_on": {expires}}}\'\n')
    program.chmod(0o755)
    assert bearers(tokens) == {"Bearer personal"}
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(StorageError, match="az login"):
        opened(tokens.url, ca_bundle=str(tokens.certificate)).head("key")


def test_a_token_is_renewed_before_it_expires(tokens: TokenService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", tokens.url)
    tokens.lifetime = 60
    store = opened(tokens.url, ca_bundle=str(tokens.certificate))
    for _ in range(3):
        store.head("key")
    assert [request.headers["authorization"] for request in tokens.requests] == [
        "Bearer token-1",
        "Bearer token-2",
        "Bearer token-3",
    ]


@pytest.mark.parametrize("settings", [{**TENANT, "client_secret": "hush"}, {}])
def test_a_refusal_tells_no_secret(
    tokens: TokenService, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", tokens.url)
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", tokens.url)
    tokens.refuses = True
    store = opened(tokens.url, ca_bundle=str(tokens.certificate), **settings)
    for call in (lambda: store.head("key"), lambda: store.put("key", b""), lambda: store.delete(["key"])):
        with pytest.raises(StorageError, match=r"no access token \(\w+\): no credentials") as caught:
            call()
        assert "hush" not in str(caught.value)


def test_nothing_found_is_said(tokens: TokenService) -> None:
    with pytest.raises(StorageError, match="no credentials for Azure were found"):
        opened(tokens.url, ca_bundle=str(tokens.certificate)).head("key")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client_secret": "hush"}, "goes with store.tenant_id and store.client_id"),
        ({"account_key": "hush!"}, "store.account_key is not the key"),
        ({"account_key": ACCOUNT_KEY, "ca_bundle": "nothing.pem"}, r"nothing\.pem"),
    ],
)
def test_settings_that_cannot_work_are_explained(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        opened("http://127.0.0.1:9", **settings)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("namespace", "endpoint"),
    [
        ("https://Account.blob.core.windows.net/container/x", "https://account.blob.core.windows.net/container"),
        ("abfss://container@account.dfs.core.windows.net/x", "https://account.blob.core.windows.net/container"),
        ("abfs://container@account.dfs.core.windows.net", "https://account.blob.core.windows.net/container"),
        (
            "wasbs://container@account.blob.core.chinacloudapi.cn/x",
            "https://account.blob.core.chinacloudapi.cn/container",
        ),
    ],
)
def test_a_namespace_names_the_service(namespace: str, endpoint: str) -> None:
    store = open_store(StoreSettings(account_key=ACCOUNT_KEY), Namespace.parse(namespace))
    assert isinstance(store, AzureStore)
    assert store._container.url == endpoint
    assert isinstance(store._files, Files)
    assert store._files.config["account_name"] == "account"

"""Emulators of Google Cloud Storage and Azure Blob Storage, and S3 servers of other makes.

They are installed once into a cache folder, and started by the tests that need them. A proxy of ours stands before each
emulator, records every request and makes faults on demand. docs/stores.md lists the gaps of S3 servers. `python -m
lakefs_gc_assets_tests.servers.emulators` only installs the programs.
"""

import atexit
import fcntl
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import ContainerClient
from botocore.config import Config
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.azure import VERSION
from lakefs_gc_assets_tests.servers.free_ports import free_port
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, Request

AZURITE = "3.37.0"
FAKE_GCS_SERVER = "v1.56.1"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its published key."""
TOKEN = "token-of-the-service-account"
CACHE = Path(os.environ.get("XDGCACHE_HOME") or Path.home() / ".cache") / "lakefs-gc-assets"
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive", "host"})


@dataclass(frozen=True)
class Response:
    """An answer of the emulator, or of a test in its place.

    Attributes:
        pause: seconds before each eighth of the body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    pause: float = 0


class LimitedRate:
    """Rate limit of a throttling service, counted in keys or requests; its own time passes only in `pass_time`.

    Attributes:
        now: seconds.
        refused: keys refused so far.
    """

    def __init__(self, rate: float, at_once: float) -> None:
        self._rate, self._most, self._tokens = rate, at_once, at_once
        self._lock = threading.Lock()
        self.now = 0.0
        self.refused = 0

    def pass_time(self, seconds: float) -> None:
        """Lets time pass."""
        with self._lock:
            self.now += seconds
            self._tokens = min(self._most, self._tokens + seconds * self._rate)

    def take(self, keys: int) -> int:
        """Number of keys that the service takes now; it refuses the others."""
        with self._lock:
            taken = min(keys, int(self._tokens))
            self._tokens -= taken
            self.refused += keys - taken
            return taken

    def take_all(self, keys: int) -> bool:
        """True if the service takes all these keys now; otherwise it refuses them all."""
        with self._lock:
            is_taken = keys <= self._tokens
            self._tokens -= keys if is_taken else 0
            self.refused += 0 if is_taken else keys
            return is_taken


class Proxy:
    """A proxy before an emulator.

    Attributes:
        dropped: headers of requests and answers that are not passed on.
        url: its own address.
        upstream: the emulator's address.
        requests: every request, unchanged.
        answer: answers in place of the emulator, unless it returns None.
        change: changes the emulator's answer.
    """

    dropped = _HOP

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream
        self._upstream = urlsplit(upstream).netloc
        self._connections = threading.local()
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Response | None] = lambda request: None
        self.change: Callable[[Request, Response], Response] = lambda request, response: response
        self._server = _Listener(("127.0.0.1", 0), _handler(self))
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def failing(
        self,
        answer: Callable[[Request], Response | None] = lambda request: None,
        change: Callable[[Request, Response], Response] = lambda request, response: response,
    ) -> Iterator[None]:
        """Makes faults while the context is open."""
        self.answer, self.change = answer, change
        try:
            yield
        finally:
            self.answer, self.change = lambda request: None, lambda request, response: response

    def respond(self, request: Request) -> Response:
        """The answer to one request."""
        self.requests.append(request)
        return self.answer(request) or self.change(request, self._forward(request))

    def _forward(self, request: Request) -> Response:
        if not hasattr(self._connections, "open"):
            self._connections.open = HTTPConnection(self._upstream, timeout=900)
        connection: HTTPConnection = self._connections.open
        target = f"{request.path}?{request.query}" if request.query else request.path
        headers = {name: value for name, value in request.headers.items() if name not in self.dropped}
        connection.request(request.method, target, request.body, headers)
        response = connection.getresponse()
        body = response.read()
        kept = {name.lower(): value for name, value in response.getheaders() if name.lower() not in self.dropped}
        if request.method == "HEAD":
            kept["content-length"] = response.getheader("Content-Length", "0")
        return Response(response.status, kept, body)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that close their connection."""


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16

        def handle_expect_100(self) -> bool:
            """Answers at once: boto3 waits for a second, and sends the body then."""
            goes_on = super().handle_expect_100()
            self.wfile.flush()
            return goes_on

        def _serve(self) -> None:
            path, _, query = self.path.partition("?")
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            response = proxy.respond(Request(self.command, path, query, headers, body))
            self.send_response_only(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            if "content-length" not in response.headers:
                self.send_header("content-length", str(len(response.body)))
            self.end_headers()
            if self.command != "HEAD" and not response.pause:
                self.wfile.write(response.body)
            elif self.command != "HEAD":
                part = len(response.body) // 8 + 1
                for start in range(0, len(response.body), part):
                    self.wfile.flush()
                    time.sleep(response.pause)
                    self.wfile.write(response.body[start : start + part])

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *arguments: object) -> None:
            """Logs nothing."""

    return Handler


class GcsServer(Proxy):
    """Google Cloud Storage with a service account whose key is in a file; other tokens are refused.

    Attributes:
        tokens: number of token requests.
        token_answer: makes the answer to a token request.
    """

    def __init__(self, upstream: str, folder: Path) -> None:
        super().__init__(upstream)
        self.tokens = 0
        token = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        granted = Response(200, {"content-type": "application/json"}, json.dumps(token).encode())
        self.token_answer: Callable[[], Response] = lambda: granted
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.key_file = folder / "service-account.json"
        account = {
            "type": "service_account",
            "client_email": "collector@project.iam.gserviceaccount.com",
            "private_key_id": "1",
            "private_key": key.decode(),
            "token_uri": f"{self.url}/token",
        }
        self.key_file.write_text(json.dumps(account))

    def settings(self) -> StoreSettings:
        """Settings of a store that reach this service."""
        return StoreSettings(endpoint_url=self.url, service_account_file=str(self.key_file))

    def new_bucket(self, name: str) -> str:
        connection = HTTPConnection(self._upstream, timeout=900)
        body = json.dumps({"name": name})
        connection.request("POST", "/storage/v1/b?project=test", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
        return name

    def respond(self, request: Request) -> Response:
        if request.path == "/token":
            self.tokens += 1
            return self.token_answer()
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Response(401, {"content-type": "application/json"}, b'{"error": {"message": "no such token"}}')
        return super().respond(request)


class AzureServer(Proxy):
    """Azure Blob Storage with the emulator's one account."""

    def new_container(self, name: str) -> str:
        key = AzureNamedKeyCredential(ACCOUNT, ACCOUNT_KEY)
        with ContainerClient(f"{self.url}/{ACCOUNT}", name, credential=key, api_version=VERSION) as container:
            container.create_container()
        return name

    def settings(self) -> StoreSettings:
        """Settings of a store that reach this service."""
        return StoreSettings(endpoint_url=f"{self.url}/{ACCOUNT}", account_key=ACCOUNT_KEY)


def fake_gcs_server() -> Path:
    """The program; skips the test if it cannot be built."""
    return go_program("github.com/fsouza/fake-gcs-server", FAKE_GCS_SERVER)


def azurite() -> Path:
    """The program; skips the test if it cannot be installed."""
    return npm_program("azurite", AZURITE, "azurite-blob")


def go_program(module: str, version: str) -> Path:
    """A program, built from its Go module if it is not in the cache; skips the test without Go."""
    name = module.rpartition("/")[2]
    folder = CACHE / f"{name}-{version.removeprefix('v')}"
    return installed(folder / name, "go", ["install", f"{module}@{version}"], {"GOBIN": str(folder)})


def npm_program(package: str, version: str, program: str) -> Path:
    """A package's program, installed by npm if it is not in the cache; skips the test without npm."""
    folder = CACHE / f"{package}-{version}"
    install = ["install", "--prefix", str(folder), "--no-audit", "--no-fund", f"{package}@{version}"]
    return installed(folder / "node_modules/.bin" / program, "npm", install, {})


def installed(program: Path, installer: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Path:
    if program.exists():
        return program
    if shutil.which(installer) is None:
        pytest.skip(f"{program.name} is not installed, and there is no {installer} to install it with")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{program.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            done = subprocess.run(
                [installer, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
            )
            if done.returncode:
                pytest.skip(f"{program.name} cannot be installed here: {done.stderr.strip()[-300:]}")
    return program


@cache
def google_cloud_storage() -> GcsServer:
    """The emulator, started once and ended with this process."""
    program = str(fake_gcs_server())

    def command(port: int) -> list[str]:
        here = f"127.0.0.1:{port}"
        listening = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", here]
        return [program, "-backend", "memory", *listening]

    folder, url = started(command)
    return GcsServer(url, folder)


@cache
def azure_blob_storage() -> AzureServer:
    """The emulator, started once and ended with this process."""
    program = str(azurite())

    def command(port: int) -> list[str]:
        # It closes connections after 5 idle seconds, even if a request is on its way: keep them open.
        listening = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--blobKeepAliveTimeout", "3600"]
        return [program, *listening, "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]

    return AzureServer(started(command)[1])


def started(command: Callable[[int], Sequence[str]]) -> tuple[Path, str]:
    """Starts a program that listens on a free port; returns its folder and its address."""
    port = free_port()
    temporary = TemporaryDirectory()
    folder = Path(temporary.name)
    with (folder / "emulator.log").open("wb") as log:
        process = subprocess.Popen(command(port), stdout=log, stderr=log, cwd=folder)
    # Last registered, first called: the folder is deleted after the program ends.
    atexit.register(temporary.cleanup)
    atexit.register(process.wait, 10)
    atexit.register(process.terminate)
    _wait_for(port, process, folder / "emulator.log")
    return folder, f"http://127.0.0.1:{port}"


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 900
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"the emulator does not listen: {log.read_text()[-500:]}")


_COPY_JAR = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"


@dataclass(frozen=True)
class S3Service:
    """A running server, with its one pair of keys."""

    url: str
    access_key_id: str
    secret_access_key: str

    def settings(self) -> StoreSettings:
        """Settings of a store that reach this server."""
        return StoreSettings(
            endpoint_url=self.url,
            region="us-east-1",
            path_style=True,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )

    def new_bucket(self) -> str:
        """Makes a bucket with a unique name."""
        bucket = f"bucket-{uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        return bucket


class S3Proxy(Proxy):
    """A proxy before a server of S3, with faults on demand.

    Attributes:
        service: the server as it is reached through the proxy.
    """

    # The signature of a request includes its host.
    dropped = _HOP - {"host"}

    def __init__(self, service: S3Service) -> None:
        super().__init__(service.url)
        self.service = replace(service, url=self.url)


@dataclass(frozen=True)
class Make:
    """How a server is installed and started.

    Attributes:
        install: installs it if it is not in the cache; returns its program, or skips the test.
        command: command that starts the program on a port.
        keys: the pair of keys that it accepts.
    """

    install: Callable[[], Path]
    command: Callable[[Path, int], Sequence[str]]
    keys: tuple[str, str] = (ACCESS_KEY, SECRET_KEY)


def _jar(coordinates: str) -> Path:
    """A jar from Maven that contains its dependencies."""
    _, artifact, version, _, classifier = coordinates.split(":")
    jar = CACHE / f"{artifact}-{version}" / f"{artifact}-{version}-{classifier}.jar"
    copy = ["--batch-mode", "--quiet", _COPY_JAR, f"-Dartifact={coordinates}", f"-DoutputDirectory={jar.parent}"]
    return installed(jar, "mvn", copy, {})


def _s3proxy_command(jar: Path, port: int) -> list[str]:
    properties = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": ACCESS_KEY,
        "s3proxy.credential": SECRET_KEY,
        "jclouds.provider": "transient-nio2",
        "jclouds.identity": "unused",
        "jclouds.credential": "unused",
    }
    settings = [f"-D{name}={value}" for name, value in properties.items()]
    return ["java", "-Xmx512m", *settings, "-jar", str(jar), "--properties", "/dev/null"]


def _versitygw_command(program: Path, port: int) -> list[str]:
    keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
    # Data is in the working folder, which is deleted after the program ends.
    return [str(program), "--port", f"127.0.0.1:{port}", *keys, "--quiet", "posix", "."]


def _s3rver_command(program: Path, port: int) -> list[str]:
    return [str(program), "--directory", ".", "--port", str(port), "--silent"]


MAKES = {
    "s3proxy": Make(lambda: _jar("org.gaul:s3proxy:2.9.0:jar:jar-with-dependencies"), _s3proxy_command),
    "s3rver": Make(lambda: npm_program("s3rver", "3.7.1", "s3rver"), _s3rver_command, ("S3RVER", "S3RVER")),
    "versitygw": Make(lambda: go_program("github.com/versity/versitygw/cmd/versitygw", "v1.8.0"), _versitygw_command),
}


@cache
def s3_service(name: str) -> S3Service:
    """A server of the named make, ended with this process; skips the test if it cannot be installed."""
    make = MAKES[name]
    program = make.install()
    _, url = started(lambda port: make.command(program, port))
    return S3Service(url, *make.keys)


def _install() -> None:
    for install in (fake_gcs_server, azurite, *(make.install for make in MAKES.values())):
        try:
            print(f"{install()} is there")
        except pytest.skip.Exception as reason:
            print(reason)


if __name__ == "__main__":
    _install()

"""An HTTP server with scripted answers, including faults."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import LakeFSSettings

GOOD: dict[str, dict[str, Any]] = {
    "repository": {
        "id": "repo",
        "storage_namespace": "s3://bucket/repo",
        "default_branch": "main",
        "creation_date": 1,
        "read_only": False,
        "storage_id": "site-a",
    },
    "grace_period": {"grace_period": 60},
    "prepare_uncommitted": {"run_id": "r", "gc_uncommitted_location": "", "continuation_token": "t"},
    "branches": {
        "results": [{"id": "main", "commit_id": "c"}],
        "pagination": {"has_more": False, "next_offset": "", "results": 1},
    },
    "branch": {"id": "main", "commit_id": "c"},
    "tags": {
        "results": [{"id": "v1", "commit_id": "c"}],
        "pagination": {"has_more": False, "next_offset": "", "results": 1},
    },
    "first_change": {
        "results": [{"path": "p", "type": "added"}],
        "pagination": {"has_more": True, "next_offset": "p", "results": 1},
    },
    "stat": {"path": "p", "physical_address": "s3://bucket/repo/data/x", "size_bytes": 3},
    "list_objects": {
        "results": [
            {"path": "p", "path_type": "object", "physical_address": "s3://bucket/repo/data/x", "size_bytes": 3}
        ],
        "pagination": {"has_more": True, "next_offset": "p", "results": 1},
    },
    "start_refs_dump": {"id": "task"},
    "refs_dump": {
        "done": True,
        "refs": {"commits_meta_range_id": "a", "branches_meta_range_id": "b", "tags_meta_range_id": "c"},
    },
    "commit": {
        "id": "c",
        "meta_range_id": "",
        "parents": ["p"],
        "creation_date": 1,
        "version": 1,
        "generation": 2,
    },
    "retention_rules": {
        "default_retention_days": 21,
        "branches": [{"branch_id": "main", "retention_days": 28}, {"branch_id": "dev", "retention_days": 7}],
    },
    "start_prepare_commits": {"id": "task"},
    "prepare_commits_task": {
        "completed": True,
        "result": {"run_id": "r", "gc_commits_location": "s3://bucket/repo/commits.csv"},
    },
    "prepare_commits": {"run_id": "r", "gc_commits_location": "s3://bucket/repo/commits.csv"},
}


ARGUMENTS: dict[str, tuple[object, ...]] = {
    "prepare_uncommitted": (None,),
    "branch": ("main",),
    "first_change": ("main",),
    "stat": ("main", "p"),
    "list_objects": ("main", "o"),
    "refs_dump": ("task",),
    "commit": ("c",),
    "prepare_commits_task": ("task",),
}


def ask(client: LakeFSClient, method: str) -> Any:
    return cast(Callable[..., Any], getattr(client, method))(*ARGUMENTS.get(method, ()))


@dataclass(frozen=True)
class Scripted:
    """One answer. `truncated` announces more bytes than follow; `hangs` is the silence before it, in seconds."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    hangs: float = 0
    breaks: bool = False
    """True to close the connection without an answer."""


def said(content: object, status: int = 200, **headers: str) -> Scripted:
    """A JSON answer; underscores in names of headers stand for dashes."""
    return Scripted(status, json.dumps(content).encode(), {name.replace("_", "-"): v for name, v in headers.items()})


def refused(status: int, message: str, **headers: str) -> Scripted:
    """An error in lakeFS's format."""
    return said({"message": message}, status, **headers)


@dataclass
class ScriptedServer:
    """The running server; `requests` holds method, target and body of every request."""

    url: str
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    proxy_authorizations: list[str | None] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that give up are expected here."""


@contextmanager
def scripted(
    *answers: Scripted, now: Callable[[], datetime] = lambda: datetime.now(UTC), tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """Serves the answers in order, repeating the last one; with `tls` over secure connections."""
    rest = list(answers)
    lock = threading.Lock()
    ended = threading.Event()
    running = ScriptedServer("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            with lock:
                running.requests.append((self.command, self.path, body))
                running.authorizations.append(self.headers["Authorization"])
                running.proxy_authorizations.append(self.headers["Proxy-Authorization"])
                answer = rest.pop(0) if len(rest) > 1 else rest[0]
            ended.wait(answer.hangs)
            self.close_connection = answer.breaks or answer.truncated
            if answer.breaks:
                return
            self.send_response_only(answer.status)
            length = len(answer.body) + (10 if answer.truncated else 0)
            defaults = {"Date": format_datetime(now(), usegmt=True), "Content-Length": str(length)}
            for name, value in (defaults | answer.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        do_DELETE = do_GET = do_PATCH = do_POST = do_PUT = _answer

        def log_message(self, format: str, *arguments: object) -> None:
            """Prints nothing: requests are kept instead."""

    server = _Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        running.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        yield running
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


KEY_ID = "AKIA-never-to-be-shown"


SECRET = "secret/never+to=be-shown"


NOW = datetime(2026, 11, 21, 12, 0, 0, 250_000, UTC)


class FixedClock:
    def now(self) -> datetime:
        return NOW


class Sleeps:
    """Replaces time.sleep: records pauses without waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def settings(endpoint: str, **changes: Any) -> LakeFSSettings:
    values: dict[str, Any] = {"connect_timeout_seconds": 2, "read_timeout_seconds": 5, "retries": 3}
    return LakeFSSettings(endpoint=endpoint, access_key_id=KEY_ID, secret_access_key=SECRET, **(values | changes))


@contextmanager
def talking(*answers: Scripted, **changes: Any) -> Iterator[tuple[LakeFSClient, ScriptedServer, Sleeps]]:
    sleeps = Sleeps()
    pauses = mock.patch("tenacity.nap.time", SimpleNamespace(sleep=sleeps))
    with scripted(*answers, now=FixedClock().now) as server, pauses:
        yield LakeFSClient(settings(server.url, **changes), "repo", FixedClock()), server, sleeps

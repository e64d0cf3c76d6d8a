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

        do_DELETE = do_GET = do_POST = do_PUT = _answer

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

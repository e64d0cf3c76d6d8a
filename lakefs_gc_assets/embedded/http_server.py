"""A threading HTTP server with keep-alive: reads a request, hands it on, writes the answer, strikes with faults."""

import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from lakefs_gc_assets.embedded.clock import Clock
from lakefs_gc_assets.embedded.failures import ApiFailure
from lakefs_gc_assets.embedded.faults import Faults
from lakefs_gc_assets.embedded.http import Request, Response, json_response, parse_query
from lakefs_gc_assets.errors import ConfigurationError

Serve = Callable[[Request], Response]

_BACKLOG = 128


class Listener(ThreadingHTTPServer):
    """One port. `serve` answers requests; what it raises but ApiFailure is answered with 500.

    Raises ConfigurationError where the port cannot be had.
    """

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, host: str, port: int, serve: Serve, clock: Clock, faults: Faults) -> None:
        self.serve = serve
        self.clock = clock
        self.faults = faults
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port"
            ) from error

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Serves one connection, known as long as it is open."""
        assert isinstance(request, socket.socket)
        with self._connections_lock:
            self._connections.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            with self._connections_lock:
                self._connections.discard(request)

    def server_close(self) -> None:
        """Closes the port and, since clients keep them open, the connections."""
        super().server_close()
        with self._connections_lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: a client that hung up is no event."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: Listener

    def _serve(self) -> None:
        body = self._read_body()
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, parts.path, parse_query(parts.query), headers, body)
        fault = self.server.faults.strike(request.method, request.path)
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.seconds)
        if fault is not None and fault.kind in ("throttled", "failing"):
            if fault.acts:
                self._answered(request)
            self._write(json_response(fault.answer_status, {"message": "switched on fault"}), truncated=False)
            return
        self._write(self._answered(request), truncated=fault is not None and fault.kind == "truncated")

    def _answered(self, request: Request) -> Response:
        try:
            return self.server.serve(request)
        except ApiFailure as failure:
            return json_response(failure.status, {"message": failure.message})
        except UnicodeEncodeError:
            return json_response(400, {"message": "the request holds bytes that are no UTF-8"})
        except Exception as error:
            return json_response(500, {"message": f"{type(error).__name__}: {error}"})

    def _read_body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.flush()
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            body = bytearray()
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return bytes(body)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _write(self, response: Response, *, truncated: bool) -> None:
        self.send_response_only(response.status)
        # The server's own clock: a collector compares it with its own.
        self.send_header("Date", formatdate(self.server.clock.now().timestamp(), usegmt=True))
        self.send_header("X-Request-Id", str(uuid.uuid4()))
        self.send_header("X-Content-Type-Options", "nosniff")
        if response.content_type:
            self.send_header("Content-Type", response.content_type)
        if response.status != 204 and "Content-Length" not in response.headers:
            self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        if truncated:
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body[: len(response.body) // 2] if truncated else response.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

"""A local receiver of webhooks."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Receiver:
    """Posted messages, in order.

    Attributes:
        status: status of its answers.
        first: statuses of its first answers, before that.
    """

    url: str = ""
    status: int = 200
    first: list[int] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Accepts only TLS connections from now on."""
        assert self._server is not None
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = self.url.replace("http://", "https://")


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serves a receiver on this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            receiver.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(receiver.first.pop(0) if receiver.first else receiver.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = receiver._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

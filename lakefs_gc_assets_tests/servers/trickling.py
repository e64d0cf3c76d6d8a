"""A server whose answers never end: a byte every hundredth of a second, until the client hangs up."""

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

IN_BODY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n"
    b"Content-Length: 100000\r\nContent-Range: bytes 0-99999/100000\r\n\r\n"
)
IN_HEADERS = b"HTTP/1.1 200 OK\r\nX-Endless: "
_BYTES = 1_000


@dataclass
class TricklingServer:
    """The running server, with the number of answers that ended."""

    url: str
    given_up: int = 0
    broken_off: int = 0

    def was_given_up(self) -> bool:
        """True if the client gave up each answer. Others break off after a thousand bytes, or ten seconds."""
        until = time.monotonic() + 900
        while not self.given_up + self.broken_off and time.monotonic() < until:
            time.sleep(0.01)
        return self.given_up > 0 == self.broken_off


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def trickling(start: bytes) -> Iterator[TricklingServer]:
    """Serves answers with this start, after which bytes trickle."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            try:
                self.wfile.write(start)
                for _ in range(_BYTES):
                    time.sleep(0.01)
                    self.wfile.write(b" ")
                running.broken_off += 1
            except OSError:
                running.given_up += 1

    with _Server(("127.0.0.1", 0), Handler) as server:
        running = TricklingServer(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        server.shutdown()

"""A web server for the pages of runs and forecasts, beside the Dagster UI of `lakefs-gc ui`.

A browser does not follow links from the UI to files, and does not sign requests to a store. So this server reads the
stored pages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType
from typing import cast
from urllib.parse import unquote

from lakefs_gc_assets.cli.common import open_repository
from lakefs_gc_assets.collector.records import run_folder, stored_forecasts
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CollectionError, ObjectNotFound

HOST = "127.0.0.1"
_KEYS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "report.html": run_folder.page,
        "forecast.html": stored_forecasts.page_key,
        "routine.html": lambda owner: run_folder.ROUTINE_PAGE,
    }
)
_HEADERS = {
    # Any writer to the bucket controls a stored page's content, so the page may run and load nothing.
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@contextmanager
def serve_pages(repositories: Sequence[Loaded], port: int) -> Iterator[str]:
    """Serves pages as /REPOSITORY/ID/NAME, such as report.html, to this machine; yields the URL.

    Args:
        port: preferred port; if it is taken, any free port is used.
    """
    by_label = {loaded.configuration.label: loaded for loaded in repositories}
    handler = type("_Pages", (_Pages,), {"repositories": by_label})
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError):
        server = ThreadingHTTPServer((HOST, 0), handler)
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()


class _Pages(BaseHTTPRequestHandler):
    """Answers GET requests; reads the page from its store for each request.

    Attributes:
        repositories: configurations by label.
    """

    repositories: Mapping[str, Loaded]

    def do_GET(self) -> None:
        """Sends a page, or a text that says why there is none."""
        # Another site could point its own host name here, and its page would share our origin (DNS rebinding).
        server = cast("ThreadingHTTPServer", self.server)
        if self.headers.get("Host") != f"{HOST}:{server.server_port}":
            self._send(HTTPStatus.FORBIDDEN, b"open this page by the link in the Dagster UI\n")
            return
        folder, _, name = unquote(self.path).removeprefix("/").rpartition("/")
        label, _, owner = folder.rpartition("/")
        key_of, loaded = _KEYS.get(name), self.repositories.get(label)
        if key_of is None or loaded is None:
            self._send(HTTPStatus.NOT_FOUND, b"there is no such page\n")
            return
        try:
            content = open_repository(loaded, to_read=True).store.get(key_of(owner))
        except ObjectNotFound:
            self._send(
                HTTPStatus.NOT_FOUND, b"this page is not stored; `lakefs-gc report RUN --open` makes that of a run\n"
            )
        except CollectionError as error:
            self._send(HTTPStatus.BAD_GATEWAY, f"the page cannot be read: {error}\n".encode())
        else:
            self._send(HTTPStatus.OK, content, "text/html; charset=utf-8")

    def _send(self, status: HTTPStatus, content: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: standard output and error belong to the user who started the UI."""

"""The assembled server: `with EmbeddedServer(folder) as server: …`. Not a production server.

`server.url` is the address of the lakeFS API, which takes the credentials `server.access_key_id` and
`server.secret_access_key`. Connections are kept alive, each with its own thread.
"""

import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.playground.embedded import repositories
from lakefs_gc_assets.extensions.playground.embedded.core import (
    ApiFailure,
    Core,
    ServerSettings,
    Tasks,
    User,
    Writer,
    authenticate,
    new_user,
)
from lakefs_gc_assets.extensions.playground.embedded.http import (
    Request,
    Response,
    Route,
    Router,
    json_response,
    parse_query,
)
from lakefs_gc_assets.extensions.playground.embedded.routes import (
    ADMINISTRATION_PREFIX,
    ADMINISTRATION_ROUTES,
    ROUTES,
    serve_presigned,
)
from lakefs_gc_assets.extensions.playground.embedded.stores import Blockstore, Database, LocalBlockstore, StoreClock

Serve = Callable[[Request], Response]

_BACKLOG = 128


class Listener(ThreadingHTTPServer):
    """One port. `serve` answers requests; its exceptions other than ApiFailure become status 500.

    Raises ConfigurationError if it cannot listen on the port.
    """

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, host: str, port: int, serve: Serve, clock: StoreClock) -> None:
        self.serve = serve
        self.clock = clock
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
        """Endpoint of the server."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Serves one connection, and tracks it while it is open."""
        assert isinstance(request, socket.socket)
        with self._connections_lock:
            self._connections.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            with self._connections_lock:
                self._connections.discard(request)

    def server_close(self) -> None:
        """Closes the port, and the connections that clients keep open."""
        super().server_close()
        with self._connections_lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs nothing: a client that hangs up is not an error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: Listener

    def _serve(self) -> None:
        body = self._read_body()
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._write(self._answered(Request(self.command, parts.path, parse_query(parts.query), headers, body)))

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

    def _write(self, response: Response) -> None:
        self.send_response_only(response.status)
        # The server's own clock, which a collector compares with others.
        self.send_header("Date", formatdate(self.server.clock.now().timestamp(), usegmt=True))
        self.send_header("X-Request-Id", str(uuid.uuid4()))
        self.send_header("X-Content-Type-Options", "nosniff")
        if response.content_type:
            self.send_header("Content-Type", response.content_type)
        if response.status != 204 and "Content-Length" not in response.headers:
            self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


API_PREFIX = "/api/v1"
_HOST = "127.0.0.1"
"""Only this machine can reach the server: it does not protect secrets as a production server does."""
_DATABASE_FILE = "metadata.sqlite"
_OBJECTS_FOLDER = "objects"


class EmbeddedServer:
    """A lakeFS on this machine, from `__enter__` to `__exit__`.

    Args:
        folder: folder of the metadata and, unless `blockstore` is given, of the objects, in its subfolder `objects`.
            Existing content is served again.
        blockstore: other store of objects, such as a RemoteBlockstore on a bucket.
        settings: behaviour of the server.
        port: port of the API; 0 for any free one.
        access_key_id, secret_access_key: credentials of the user `admin`; generated unless given.
        routes: additional routes, which replace the server's own at the same path. Those below `ADMINISTRATION_PREFIX`
            are served beside the API.
    """

    def __init__(
        self,
        folder: Path,
        *,
        blockstore: Blockstore | Callable[[StoreClock], Blockstore] | None = None,
        settings: ServerSettings | None = None,
        clock: StoreClock | None = None,
        port: int = 0,
        access_key_id: str = "",
        secret_access_key: str = "",
        routes: Sequence[Route] = (),
    ) -> None:
        self.folder = folder
        self.clock = clock or StoreClock()
        chosen = settings or ServerSettings()
        folder.mkdir(parents=True, exist_ok=True)
        if blockstore is None:
            blockstore = LocalBlockstore(folder / _OBJECTS_FOLDER, self.clock)
        admin = new_user("admin")
        if access_key_id:
            admin = User("admin", access_key_id, secret_access_key)
        self.users = {admin.access_key_id: admin}
        self.access_key_id = admin.access_key_id
        self.secret_access_key = admin.secret_access_key
        self.core = Core(
            database=Database(folder / _DATABASE_FILE),
            blockstore=blockstore(self.clock) if callable(blockstore) else blockstore,
            clock=self.clock,
            settings=chosen,
            writer=Writer(self.clock, max_slice_size=chosen.max_slice_size),
            tasks=Tasks(self.clock),
            signing_key=_signing_key(folder),
        )
        beside = [route for route in routes if route.template.startswith(ADMINISTRATION_PREFIX)]
        self._api = Router((*(route for route in routes if route not in beside), *ROUTES))
        self._administration = Router((*ADMINISTRATION_ROUTES, *beside))
        self._listener = Listener(_HOST, port, self._serve, self.clock)
        self.url = self._listener.url
        self.core.public_url = self.url

    def __enter__(self) -> "EmbeddedServer":
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops listening, waits for running tasks, and closes the metadata."""
        self._listener.shutdown()
        self._listener.server_close()
        self.core.tasks.wait_for_all(5)
        self.core.database.close()

    @property
    def basic_authorization(self) -> str:
        """Value of the Authorization header for the user `admin`."""
        return self.users[self.access_key_id].basic_authorization

    @property
    def objects_folder(self) -> Path:
        """Root of `local://` namespaces: `store.local_root` of a collector."""
        return self.folder / _OBJECTS_FOLDER

    def _serve(self, request: Request) -> Response:
        if request.path.startswith(API_PREFIX + "/"):
            return self._serve_api(request)
        if request.path == "/_health":
            return json_response(200, {"status": "ok"})
        if request.path.startswith(repositories.PRESIGNED_PATH + "/"):
            return serve_presigned(self.core, request)
        if request.path.startswith(ADMINISTRATION_PREFIX + "/"):
            return self._serve_administration(request)
        raise ApiFailure(404, "not found")

    def _serve_api(self, request: Request) -> Response:
        match = self._api.find(request.method, request.path.removeprefix(API_PREFIX))
        if match is None:
            raise ApiFailure(404, "invalid API endpoint")
        route, values = match
        user = authenticate(self.users, request.headers)
        for action in route.actions.split():
            user.require(action)
        arguments: dict[str, Any] = dict(values)
        if "repository" in values:
            get = repositories.get_writable if route.needs_writable else repositories.get
            arguments["repository"] = get(self.core, values["repository"])
        return route.handler(self.core, replace(request, user=user.name), **arguments)

    def _serve_administration(self, request: Request) -> Response:
        authenticate(self.users, request.headers)
        match = self._administration.find(request.method, request.path)
        if match is None:
            raise ApiFailure(404, "not found")
        return match[0].handler(self.core, request, **match[1])


def _signing_key(folder: Path) -> bytes:
    """The key that signs issued addresses: stored, so that they can be linked after a restart."""
    file = folder / "signing.key"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(secrets.token_bytes(32))
    return file.read_bytes()

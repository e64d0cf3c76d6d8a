"""The server, put together: `with EmbeddedServer(folder) as server: …`. It is no production server.

`server.url` is the lakeFS API's address, `server.s3_url` that of the S3 gateway; both take the credentials
`server.access_key_id` and `server.secret_access_key`.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from lakefs_gc_assets.embedded import faults, presigned, users
from lakefs_gc_assets.embedded.api import (
    administration,
    collection,
    configuration,
    differences,
    objects,
    references,
    repositories,
)
from lakefs_gc_assets.embedded.blockstores import Blockstore, LocalBlockstore
from lakefs_gc_assets.embedded.clock import Clock
from lakefs_gc_assets.embedded.core import Core, RuleSet, Settings, Tasks
from lakefs_gc_assets.embedded.database import Database
from lakefs_gc_assets.embedded.failures import ApiFailure
from lakefs_gc_assets.embedded.gateway.service import Gateway
from lakefs_gc_assets.embedded.http import NO_CONTENT, Request, Response, Route, Router, json_response
from lakefs_gc_assets.embedded.http_server import Listener
from lakefs_gc_assets.embedded.object_names import Writer

API_PREFIX = "/api/v1"
_HOST = "127.0.0.1"
"""Of this machine alone: the server keeps no secret as a production server does."""
_DATABASE_FILE = "metadata.sqlite"
_OBJECTS_FOLDER = "objects"


class EmbeddedServer:
    """A lakeFS on this machine, from `__enter__` to `__exit__`.

    Args:
        folder: where metadata are kept and, unless `blockstore` is given, objects, in its folder `objects`. What is
            there already is served again.
        blockstore: where objects lie instead, such as a RemoteBlockstore on a bucket.
        settings: how the server behaves.
        rules: shorthand for the setting of that name.
        port: that of the API, 0 for any free one; the S3 gateway takes a free one.
        access_key_id, secret_access_key: credentials of the user `admin`; new ones unless given.
        routes: served besides its own; those of `administration.PREFIX` beside the API.
    """

    def __init__(
        self,
        folder: Path,
        *,
        blockstore: Blockstore | Callable[[Clock], Blockstore] | None = None,
        rules: RuleSet | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        port: int = 0,
        access_key_id: str = "",
        secret_access_key: str = "",
        routes: Sequence[Route] = (),
    ) -> None:
        self.folder = folder
        self.clock = clock or Clock()
        self.faults = faults.Faults()
        chosen = settings or Settings(rules=rules or "oss")
        if rules is not None and chosen.rules != rules:
            raise ValueError(f"rules {rules!r} contradict the settings, which say {chosen.rules!r}")
        folder.mkdir(parents=True, exist_ok=True)
        if blockstore is None:
            blockstore = LocalBlockstore(folder / _OBJECTS_FOLDER, self.clock)
        admin = users.new_user("admin")
        if access_key_id:
            admin = users.User("admin", access_key_id, secret_access_key)
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
        self._api = Router(
            (
                *repositories.ROUTES,
                *references.ROUTES,
                *objects.ROUTES,
                *differences.ROUTES,
                *collection.ROUTES,
                *configuration.ROUTES,
                *(route for route in routes if not route.template.startswith(administration.PREFIX)),
            )
        )
        self._administration = Router(
            (*administration.ROUTES, *(route for route in routes if route.template.startswith(administration.PREFIX)))
        )
        self._gateway = Gateway(self.core, self.users)
        self._listeners = (
            Listener(_HOST, port, self._serve, self.clock, self.faults),
            Listener(_HOST, 0, self._gateway.serve, self.clock, self.faults),
        )
        self.url = self._listeners[0].url
        self.s3_url = self._listeners[1].url
        self.core.public_url = self.url

    def __enter__(self) -> "EmbeddedServer":
        for listener in self._listeners:
            threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops listening and closes the metadata; running tasks are waited for."""
        for listener in self._listeners:
            listener.shutdown()
            listener.server_close()
        self.core.tasks.wait_for_all(5)
        self.core.database.close()

    @property
    def basic_authorization(self) -> str:
        """Value of the header Authorization for the user `admin`."""
        return self.users[self.access_key_id].basic_authorization

    @property
    def objects_folder(self) -> Path:
        """What `local://` namespaces are relative to: `store.local_root` of a collector."""
        return self.folder / _OBJECTS_FOLDER

    def _serve(self, request: Request) -> Response:
        if request.path.startswith(API_PREFIX + "/"):
            return self._serve_api(request)
        if request.path == "/_health":
            return json_response(200, {"status": "ok"})
        if request.path.startswith(presigned.PATH + "/"):
            return administration.serve_presigned(self.core, request)
        if request.path.startswith(administration.PREFIX + "/"):
            return self._serve_administration(request)
        raise ApiFailure(404, "not found")

    def _serve_api(self, request: Request) -> Response:
        found = self._api.find(request.method, request.path.removeprefix(API_PREFIX))
        if found is None:
            raise ApiFailure(404, "invalid API endpoint")
        route, values = found
        user = users.authenticate(self.users, request.headers)
        for action in route.actions.split():
            user.require(action)
        return route.handler(self.core, request.asked_by(user.name), **values)

    def _serve_administration(self, request: Request) -> Response:
        users.authenticate(self.users, request.headers)
        if request.path == faults.PATH:
            return self._serve_faults(request)
        found = self._administration.find(request.method, request.path)
        if found is None:
            raise ApiFailure(404, "not found")
        return found[0].handler(self.core, request, **found[1])

    def _serve_faults(self, request: Request) -> Response:
        match request.method:
            case "GET":
                return json_response(200, {"results": self.faults.switched_on()})
            case "POST":
                self.faults.add(faults.from_json(request.json_object("kind")))
            case "DELETE":
                self.faults.clear()
            case _:
                raise ApiFailure(404, "not found")
        return NO_CONTENT


def _signing_key(folder: Path) -> bytes:
    """The key of issued addresses: kept, so that they can be linked after a restart."""
    file = folder / "signing.key"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(secrets.token_bytes(32))
    return file.read_bytes()

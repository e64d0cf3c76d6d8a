"""Settings, tasks, users, addresses of new objects, and failures: shared by all parts of the server."""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from lakefs_gc_assets.extensions.playground.embedded.stores import Blockstore, Database, StoreClock
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, SLICE_SPAN_SECONDS


class ApiFailure(Exception):
    """A failure that is answered as `{"message": …}` with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_found(what: str = "") -> ApiFailure:
    """An answer with status 404."""
    return ApiFailure(404, f"{what} not found".strip())


def bad_request(message: str) -> ApiFailure:
    """An answer with status 400."""
    return ApiFailure(400, message)


@dataclass(frozen=True, slots=True)
class User:
    """Credentials and denied actions; `denied` holds patterns, in which `*` matches any part of an action."""

    name: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    denied: tuple[str, ...] = ()

    @property
    def basic_authorization(self) -> str:
        """Value of the Authorization header."""
        pair = f"{self.access_key_id}:{self.secret_access_key}".encode()
        return "Basic " + base64.b64encode(pair).decode()

    def require(self, action: str) -> None:
        """Raises ApiFailure 403 if the action is denied."""
        if any(fnmatch.fnmatchcase(action, pattern) for pattern in self.denied):
            raise ApiFailure(403, "insufficient permissions")


def new_user(name: str, denied: tuple[str, ...] = ()) -> User:
    """A user with new credentials."""
    return User(name, "AKIA" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30), denied)


def authenticate(users: Mapping[str, User], headers: Mapping[str, str]) -> User:
    """The user authenticated by HTTP basic authentication. Raises ApiFailure 401."""
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            key, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            key, secret = "", ""
        user = users.get(key)
        if user is not None and hmac.compare_digest(user.secret_access_key.encode(), secret.encode()):
            return user
    raise ApiFailure(401, "error authenticating request")


MAX_SLICE_SIZE = 50_000
_CLOCK_STEP = timedelta(minutes=1)


class Writer:
    """One lakeFS server process, with its own slices, its own machine bytes, and a clock that may be off.

    New objects are named `data/<slice>/<xid>`; only one writer writes to a slice. A slice ends an hour after it began,
    or with its 50,000th name, as in lakeFS's `pkg/upload/path_provider.go`.
    """

    def __init__(
        self,
        clock: StoreClock,
        *,
        machine: bytes | None = None,
        clock_offset: timedelta = timedelta(),
        max_slice_size: int = MAX_SLICE_SIZE,
    ) -> None:
        self._clock = clock
        self._offset = clock_offset
        self._max_slice_size = max_slice_size
        self._ids = layout.XidGenerator(machine)
        self._lock = threading.Lock()
        self._slice = ""
        self._slice_began: datetime | None = None
        self._names_in_slice = 0

    def now(self) -> datetime:
        """The time by this writer's clock."""
        return self._clock.now() + self._offset

    def new_address(self) -> str:
        """A new relative address."""
        with self._lock:
            now = self.now()
            began = self._slice_began
            # A clock that was set back also starts a new slice, so that a slice has no names much older than itself.
            if (
                began is None
                or not -_CLOCK_STEP <= now - began <= timedelta(seconds=SLICE_SPAN_SECONDS)
                or self._names_in_slice >= self._max_slice_size
            ):
                self._slice = self._ids.descending(now)
                self._slice_began, self._names_in_slice = now, 0
            self._names_in_slice += 1
            return f"{DATA_PREFIX}{self._slice}/{self._ids.ascending(now)}"

    def new_run_id(self) -> str:
        """A new id that sorts before older ones."""
        return self._ids.descending(self.now())

    def new_file_id(self) -> str:
        """A new id that sorts behind older ones."""
        return self._ids.ascending(self.now())


DAY_SECONDS = 86_400

RuleSet = Literal["oss", "seed"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Behaviour of the server; the defaults follow lakeFS.

    Attributes:
        rules: `oss` behaves like recorded servers. `seed` follows the design of uncommitted collection: an issued
            address can be linked once, copies within a branch's staging area are shallow, and only addresses outside
            the namespace can be staged.
        range_entries: average entries of a range: it ends at a path whose hash is divisible by this number.
        range_bytes: maximum bytes of a range.
        max_slice_size: maximum names in one slice.
        page_seconds: maximum duration of a page of prepare_uncommited.
        page_bytes: a page ends once its file exceeds this size; checked every `page_check_rows` rows.
        link_seconds: lifetime of an issued address.
        copy_seconds: how long shallow copies are remembered (rule set `seed`).
        dump_pause_seconds: pause of a refs dump between commits, branches and tags: the dump is not a snapshot.
    """

    rules: RuleSet = "oss"
    range_entries: int = 50_000
    range_bytes: int = 20 << 20
    max_slice_size: int = MAX_SLICE_SIZE
    page_seconds: float = 60
    page_bytes: int = 20 << 20
    page_check_rows: int = 100_000
    link_seconds: int = DAY_SECONDS
    copy_seconds: int = DAY_SECONDS
    dump_pause_seconds: float = 0


class Tasks:
    """Background tasks; their states are never deleted."""

    def __init__(self, clock: StoreClock) -> None:
        self._clock = clock
        self._states: dict[str, TaskState] = {}
        self._lock = threading.Lock()

    def start(self, prefix: str, work: Callable[[], dict[str, Any]]) -> str:
        """Runs `work` in a new thread; returns the task's id."""
        task_id = prefix + hashlib.sha256(os.urandom(16)).hexdigest()[:20]
        state = TaskState(self._clock.now())
        with self._lock:
            self._states[task_id] = state

        def run() -> None:
            try:
                state.result = work()
            except Exception as failure:
                state.error = str(failure)
            state.updated_at = self._clock.now()
            state.done.set()

        threading.Thread(target=run, name=task_id, daemon=True).start()
        return task_id

    def state(self, task_id: str) -> "TaskState | None":
        """The state of a task; None if it is unknown."""
        with self._lock:
            return self._states.get(task_id)

    def wait_for_all(self, seconds: float) -> None:
        """Waits for running tasks, at most this long for each."""
        with self._lock:
            states = list(self._states.values())
        for state in states:
            state.done.wait(seconds)


@dataclass(slots=True)
class TaskState:
    """State of a task; has a `result` or an `error` once it is done."""

    updated_at: datetime
    result: dict[str, Any] | None = None
    error: str | None = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Core:
    """One installation, shared by all requests."""

    database: Database
    blockstore: Blockstore
    clock: StoreClock
    settings: ServerSettings
    writer: Writer
    tasks: Tasks
    signing_key: bytes
    public_url: str = ""
    interrupted_writes: int = 0
    """Number of upcoming uploads and full copies that fail after writing the object, before staging it."""


def timestamp(moment: datetime) -> str:
    """A time in the format of lakeFS's JSON."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")

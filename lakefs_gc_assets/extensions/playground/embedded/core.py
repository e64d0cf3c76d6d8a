"""Shared by every part of the server: settings, tasks, users, names of new objects, failures.

New objects are named `data/<slice>/<xid>`, slices by time and size, each written by one writer. As lakeFS's
`pkg/upload/path_provider.go`: a slice ends an hour after it began or with its 50,000th name.
"""

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

from lakefs_gc_assets.extensions.playground.embedded.stores import Blockstore, Clock, Database
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, SLICE_SPAN_SECONDS


class ApiFailure(Exception):
    """Answered as `{"message": …}` with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_found(what: str = "") -> ApiFailure:
    """404."""
    return ApiFailure(404, f"{what} not found".strip())


def bad_request(message: str) -> ApiFailure:
    """400."""
    return ApiFailure(400, message)


@dataclass(frozen=True, slots=True)
class User:
    """Credentials and refusals; `denied` holds actions, with `*` for any part of one."""

    name: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    denied: tuple[str, ...] = ()

    @property
    def basic_authorization(self) -> str:
        """Value of the header Authorization."""
        pair = f"{self.access_key_id}:{self.secret_access_key}".encode()
        return "Basic " + base64.b64encode(pair).decode()

    def require(self, action: str) -> None:
        """Raises ApiFailure 403 where the user may not do this."""
        if any(fnmatch.fnmatchcase(action, pattern) for pattern in self.denied):
            raise ApiFailure(403, "insufficient permissions")


def new_user(name: str, denied: tuple[str, ...] = ()) -> User:
    """A user with new credentials."""
    return User(name, "AKIA" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30), denied)


def authenticate(users: Mapping[str, User], headers: Mapping[str, str]) -> User:
    """The user of HTTP basic authentication. Raises ApiFailure 401."""
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
    """One lakeFS server process: its own slices, its own machine bytes, a clock that may be off."""

    def __init__(
        self,
        clock: Clock,
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
        """This writer's idea of the time."""
        return self._clock.now() + self._offset

    def new_address(self) -> str:
        """A relative address that no object has yet."""
        with self._lock:
            now = self.now()
            began = self._slice_began
            # A clock set back also opens a new slice, so that a slice holds no names much older than itself.
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
        """A descending id, the newest first."""
        return self._ids.descending(self.now())

    def new_file_id(self) -> str:
        """An ascending id."""
        return self._ids.ascending(self.now())


DAY_SECONDS = 86_400

RuleSet = Literal["oss", "seed"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Behaviour of the server; defaults are those of lakeFS.

    Attributes:
        rules: `oss` as recorded servers behave; `seed` as the design of uncommitted collection asks: addresses to link
            once only, shallow copies in a branch's staging area, staging only outside the namespace.
        range_entries: a range ends at about each so many entries, where the path's hash says so.
        range_bytes: a range ends at this size at the latest.
        max_slice_size: names in one slice.
        page_seconds: a page of prepare_uncommited ends after so long.
        page_bytes: a page ends once so many bytes of its file were written; looked at every `page_check_rows` rows.
        link_seconds: how long an issued address may be linked.
        copy_seconds: how long shallow copies are remembered (rule set `seed`).
        dump_pause_seconds: pause of a refs dump between commits, branches and tags: the dump is no snapshot.
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
    """Work done after its answer was given; states are kept for ever."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, TaskState] = {}
        self._lock = threading.Lock()

    def start(self, prefix: str, work: Callable[[], dict[str, Any]]) -> str:
        """Runs `work` in a thread of its own; returns the task's id."""
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
        """The task of this id, None where there is none."""
        with self._lock:
            return self._states.get(task_id)

    def wait_for_all(self, seconds: float) -> None:
        """Waits for running tasks, each at most so long."""
        with self._lock:
            states = list(self._states.values())
        for state in states:
            state.done.wait(seconds)


@dataclass(slots=True)
class TaskState:
    """Progress of a task; `result` or `error` once it is done."""

    updated_at: datetime
    result: dict[str, Any] | None = None
    error: str | None = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Core:
    """One installation, shared by all requests."""

    database: Database
    blockstore: Blockstore
    clock: Clock
    settings: Settings
    writer: Writer
    tasks: Tasks
    signing_key: bytes
    public_url: str = ""
    interrupted_writes: int = 0
    """Number of next uploads and full copies that end between writing the object and staging it."""


def timestamp(moment: datetime) -> str:
    """A moment as lakeFS writes it into JSON."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")

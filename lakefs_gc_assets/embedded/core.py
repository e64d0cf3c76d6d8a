"""What every part of the server shares: database, stores, clock, writers, settings."""

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from lakefs_gc_assets.embedded.blockstores import Blockstore
from lakefs_gc_assets.embedded.clock import Clock
from lakefs_gc_assets.embedded.database import Database
from lakefs_gc_assets.embedded.object_names import MAX_SLICE_SIZE, Writer

DAY_SECONDS = 86_400

RuleSet = Literal["oss", "seed"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server behaves; defaults are those of lakeFS.

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
    """How far a task is; `result` or `error` once it is done."""

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
    lost_pages: int = 0
    """How many of the next pages of prepare_uncommited come without location and file (a recorded server's hole)."""
    interrupted_writes: int = 0
    """How many of the next uploads and full copies end between the writing of the object and its staging."""


def timestamp(moment: datetime) -> str:
    """A moment as lakeFS writes it into JSON."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")

"""Commits that a hook holds until a test lets them go, on a real server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lakefs_gc_assets.collector.repository.repository import SystemClock

_PATIENCE_SECONDS = 120


@dataclass
class Hook:
    """A webhook. It answers at once or, while holding, as soon as it is released.

    Attributes:
        url: address that lakeFS calls.
        asked: set once a call is held.
    """

    url: str = ""
    asked: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._released.set()

    def action(self, timeout: str) -> bytes:
        """An action file that calls the hook before every kind of new head."""
        events = "".join(f"  {event}:\n" for event in ("pre-commit", "pre-merge", "pre-revert", "pre-cherry-pick"))
        properties = f"      url: {self.url}\n      timeout: {timeout}\n"
        return (
            f"name: hold\non:\n{events}hooks:\n  - id: hold\n    type: webhook\n    properties:\n{properties}".encode()
        )

    @contextmanager
    def holding(self, update: Callable[[], object]) -> Iterator["Held"]:
        """Begins an update of a branch, which the hook holds once called, until it is released."""
        self.asked.clear()
        self._released.clear()
        held = Held(self._released.set, update)
        held.thread.start()
        try:
            assert self.asked.wait(_PATIENCE_SECONDS), f"no hook was called: {held.error}"
            yield held
        finally:
            held.release()

    def wait(self) -> None:
        """Waits, if the hook is holding, before a call is answered."""
        if not self._released.is_set():
            self.asked.set()
            self._released.wait(_PATIENCE_SECONDS)


class Held:
    """An update of a branch in progress.

    Attributes:
        result: its return value; None if it failed, with `error`.
    """

    def __init__(self, let_go: Callable[[], object], update: Callable[[], object]) -> None:
        self._let_go, self._update = let_go, update
        self.result: Any = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.result = self._update()
        except Exception as error:
            self.error = error

    def release(self) -> None:
        """Lets the hook answer, and waits until the update has ended."""
        self._let_go()
        self.thread.join(_PATIENCE_SECONDS)
        assert not self.thread.is_alive(), "the update did not end"


@contextmanager
def webhook() -> Iterator[Hook]:
    """A hook on a separate port."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            hook.wait()
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class PassingClock(SystemClock):
    """The true clock of a collector whose waits take no time: events that would happen meanwhile happen at once.

    Attributes:
        meanwhile: called with the seconds of a wait.
        waited: all waits, in seconds.
    """

    meanwhile: Callable[[float], object] = lambda seconds: None
    waited: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        """Calls `meanwhile` for a wait of minutes; pauses between polls stay pauses."""
        if seconds < 1:
            super().sleep(seconds)
            return
        self.waited.append(seconds)
        self.meanwhile(seconds)

"""Faults that tests enable in an embedded server: by path, they slow answers or refuse requests."""

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lakefs_gc_assets.extensions.playground.embedded.http import Request, Response, json_response
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer


@dataclass(slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: `slow` waits `seconds` and then answers; `failing` answers `status`.
        path: regular expression that the request's path must contain.
        times: number of requests that it affects; None for all.
    """

    kind: Literal["slow", "failing"]
    path: str
    times: int | None = 1
    seconds: float = 1
    status: int = 500


class FailingServer(EmbeddedServer):
    """An embedded server with faults that can be enabled. Thread-safe."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.faults: list[Fault] = []
        self._lock = threading.Lock()
        self._listener.serve = self._serve_with_faults

    def _strike(self, path: str) -> Fault | None:
        """The first fault that affects this request."""
        with self._lock:
            for fault in self.faults:
                if fault.times != 0 and re.search(fault.path, path):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def _serve_with_faults(self, request: Request) -> Response:
        fault = self._strike(request.path)
        if fault is not None and fault.kind == "failing":
            return json_response(fault.status, {"message": "switched on fault"})
        if fault is not None:
            time.sleep(fault.seconds)
        return self._serve(request)


def switch_on(server: EmbeddedServer, fault: Fault) -> None:
    """Enables a fault in a server that has faults."""
    assert isinstance(server, FailingServer)
    server.faults.append(fault)

"""Faults that tests enable in an embedded server: by path, they slow, throttle, fail or truncate answers.

A `FailingServer` takes them by `switch_on`, and over HTTP at `/_embedded/faults`.
"""

import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, authenticate, bad_request
from lakefs_gc_assets.extensions.playground.embedded.http import NO_CONTENT, Request, Response, json_response
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer, Serve

_THROTTLED_STATUS = 429
FAULTS_PATH = "/_embedded/faults"
_Count = Annotated[int, Field(ge=0)]


@dataclass(slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: `slow` waits `seconds` and then answers; `throttled` answers 429; `failing` answers `status`;
            `truncated` breaks the connection halfway through the answer's body.
        path: regular expression that the request's path must contain.
        times: number of requests that it affects; None for all.
        after: number of matching requests that it lets pass first.
        acts: true if a throttled or failing request is executed anyway.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["slow", "throttled", "failing", "truncated"]
    path: str
    method: str = ""
    times: _Count | None = 1
    after: _Count = 0
    seconds: Annotated[float, Field(ge=0, le=3600)] = 1
    status: Annotated[int, Field(ge=200, lt=600)] = 500
    acts: bool = False

    @property
    def answer_status(self) -> int:
        """Status of a throttled or failing answer."""
        return _THROTTLED_STATUS if self.kind == "throttled" else self.status


class Faults:
    """Enabled faults. Thread-safe."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Enables a fault."""
        with self._lock:
            self._faults.append(fault)

    def switched_on(self) -> list[dict[str, Any]]:
        """Faults that may still strike, as JSON objects, with the remaining `times` and `after`."""
        with self._lock:
            return [asdict(fault) for fault in self._faults if fault.times != 0]

    def clear(self) -> None:
        """Disables all faults."""
        with self._lock:
            self._faults.clear()

    def strike(self, method: str, path: str) -> Fault | None:
        """The first fault that strikes this request; faults never affect the path that disables them."""
        if path == FAULTS_PATH:
            return None
        with self._lock:
            for fault in self._faults:
                if fault.times == 0 or fault.method not in ("", method) or not re.search(fault.path, path):
                    continue
                if fault.after:
                    fault.after -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def striking(self, serve: Serve) -> Serve:
        """Answers requests as `serve` does, unless a fault strikes."""

        def answer(request: Request) -> Response:
            fault = self.strike(request.method, request.path)
            if fault is None:
                return serve(request)
            if fault.kind in ("throttled", "failing"):
                if fault.acts:
                    with suppress(ApiFailure):
                        serve(request)
                return json_response(fault.answer_status, {"message": "switched on fault"})
            if fault.kind == "slow":
                time.sleep(fault.seconds)
                return serve(request)
            whole = serve(request)
            headers = {"Content-Length": str(len(whole.body)), **whole.headers, "Connection": "close"}
            return replace(whole, body=whole.body[: len(whole.body) // 2], headers=headers)

        return answer

    def serve(self, request: Request) -> Response:
        """Lists faults, enables one, or disables all. Raises ApiFailure 400, 404."""
        match request.method:
            case "GET":
                return json_response(200, {"results": self.switched_on()})
            case "POST":
                self.add(fault_from_json(request.json_object("kind")))
            case "DELETE":
                self.clear()
            case _:
                raise ApiFailure(404, "not found")
        return NO_CONTENT


_FAULT = TypeAdapter(Fault)


def fault_from_json(body: dict[str, Any]) -> Fault:
    """Reads a fault. Raises ApiFailure 400."""
    try:
        fault = _FAULT.validate_json(json.dumps({"path": "", **body}))
        re.compile(fault.path)
    except (ValidationError, re.error) as error:
        raise bad_request(f"fault: {error}") from None
    return fault


class FailingServer(EmbeddedServer):
    """An embedded server with faults that can be enabled."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.faults = Faults()
        self._listener.serve = self.faults.striking(self._serve)

    def _serve(self, request: Request) -> Response:
        if request.path != FAULTS_PATH:
            return super()._serve(request)
        authenticate(self.users, request.headers)
        return self.faults.serve(request)


def switch_on(server: EmbeddedServer, fault: Fault) -> None:
    """Enables a fault in a server that has faults."""
    assert isinstance(server, FailingServer)
    server.faults.add(fault)

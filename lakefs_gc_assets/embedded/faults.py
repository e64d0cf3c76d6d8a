"""Faults that can be switched on: slow, throttled, failing and truncated answers, by path."""

import re
import threading
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lakefs_gc_assets.embedded.failures import bad_request

Kind = Literal["slow", "throttled", "failing", "truncated"]
_KINDS: tuple[Kind, ...] = ("slow", "throttled", "failing", "truncated")
_THROTTLED_STATUS = 429
PATH = "/_embedded/faults"
_TYPES: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "path": (str,),
    "method": (str,),
    "times": (int, type(None)),
    "after": (int,),
    "seconds": (int, float),
    "status": (int,),
    "acts": (bool,),
}
_STATUSES = range(200, 600)
_LONGEST_SECONDS = 3600


@dataclass(slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: `slow` waits `seconds` and then answers; `throttled` answers 429; `failing` answers `status`;
            `truncated` breaks the connection halfway through the answer's body.
        path: regular expression that the request's path must contain.
        times: how many requests it strikes; None for all.
        after: how many matching requests it lets pass first.
        acts: whether a throttled or failing request is carried out all the same.
    """

    kind: Kind
    path: str
    method: str = ""
    times: int | None = 1
    after: int = 0
    seconds: float = 1
    status: int = 500
    acts: bool = False

    @property
    def answer_status(self) -> int:
        """Status of a throttled or failing answer."""
        return _THROTTLED_STATUS if self.kind == "throttled" else self.status


class Faults:
    """Those that are switched on. Safe to use from several threads."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Switches one on."""
        with self._lock:
            self._faults.append(fault)

    def switched_on(self) -> list[dict[str, Any]]:
        """Those that may still strike, as JSON objects, with what is left of `times` and `after`."""
        with self._lock:
            return [asdict(fault) for fault in self._faults if fault.times != 0]

    def clear(self) -> None:
        """Switches all off."""
        with self._lock:
            self._faults.clear()

    def strike(self, method: str, path: str) -> Fault | None:
        """The first fault that strikes this request; none strikes what switches faults off."""
        if path == PATH:
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


def from_json(body: dict[str, Any]) -> Fault:
    """Reads a fault. Raises ApiFailure 400."""
    if body.get("kind") not in _KINDS:
        raise bad_request(f"kind must be one of {', '.join(_KINDS)}")
    for name, value in body.items():
        # True is an int for Python, not for JSON.
        if type(value) not in _TYPES.get(name, ()):
            raise bad_request(f"fault: {name} cannot be {value!r}" if name in _TYPES else f"fault: what is {name}?")
    try:
        re.compile(body.get("path", ""))
    except re.error as error:
        raise bad_request(f"fault: {error}") from None
    fault = Fault(**{"path": "", **body})
    if min(fault.after, fault.times or 0) < 0 or not 0 <= fault.seconds <= _LONGEST_SECONDS:
        raise bad_request(f"fault: no negative times, after or seconds, and at most {_LONGEST_SECONDS} seconds")
    if fault.status not in _STATUSES:
        raise bad_request("fault: status is a number from 200 to 599")
    return fault

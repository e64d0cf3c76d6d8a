"""A server and a store whose call number k fails once, in one of several ways."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from lakefs_gc_assets.errors import (
    AccessDenied,
    AlreadyExists,
    LakeFSError,
    PreconditionFailed,
    ServerUnavailable,
    StorageError,
)
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, Level, ObjectFacts
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.clocks import MINUTE
from lakefs_gc_assets_tests.simulation.collecting import Killed
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi

TIMEOUT_SECONDS = 20 * MINUTE
"""Longer than a recheck is valid."""
Answer = TypeVar("Answer")


class Fault(StrEnum):
    """How a call goes wrong.

    A process that dies after a call took effect equals one that dies before its next call, since nothing outlives it.
    An extra call after the last one stands for death at the end.
    """

    FAILS = "fails"
    FORBIDDEN = "is forbidden"
    TIMES_OUT = "times out"
    THROTTLED = "is throttled"
    TRUNCATED = "has a truncated answer"
    LOST = "takes effect and its answer is lost, which a client's own retry finds out"
    DENIED = "takes effect and is said to have failed"
    DIES = "is not reached: the process dies"


@dataclass
class Faults:
    """Counts calls; number `at` goes wrong.

    Attributes:
        struck: the call that went wrong.
        wait: lets time pass.
    """

    fault: Fault = Fault.FAILS
    at: int = 0
    wait: Callable[[float], None] = lambda seconds: None
    calls: int = 0
    struck: str | None = None
    dead: bool = False
    reported: list[str] = field(default_factory=list)

    def next(self, call: str) -> Fault | None:
        """Returns the fault of the next call, or None. Raises Killed if the process is dead."""
        if self.dead:
            raise Killed
        self.calls += 1
        self.reported.append(call)
        if self.calls != self.at:
            return None
        self.struck = call
        if self.fault is Fault.DIES:
            self.die()
        if self.fault is Fault.TIMES_OUT:
            self.wait(TIMEOUT_SECONDS)
        return self.fault

    def die(self) -> NoReturn:
        """Ends the process; none of its calls has an effect any more."""
        self.dead = True
        raise Killed

    def end(self) -> None:
        """Ends the process after its last call. Raises Killed if it dies at this point."""
        if self.next("the end"):
            self.struck = None


_WITHOUT_EFFECT = (Fault.FAILS, Fault.FORBIDDEN, Fault.TIMES_OUT, Fault.THROTTLED)


class FailingStore:
    """`ObjectStore` of one collector, with copy."""

    def __init__(self, view: BucketView, faults: Faults, denied: Callable[[str], object] = lambda key: None) -> None:
        """Opens the store for a collector.

        Args:
            denied: receives each key that was deleted but reported as still there.
        """
        self._view, self._faults, self._denied = view, faults, denied
        self.delete_limit = view.delete_limit

    def _do(self, call: str, action: Callable[[], Answer], lost: type[StorageError] = StorageError) -> Answer:
        """Makes one call.

        Args:
            lost: error of a client's retry after a lost answer.
        """
        fault = self._faults.next(call)
        if fault in _WITHOUT_EFFECT:
            raise StorageError(f"{call} {fault}")
        answer = action()
        if fault is not None:
            raise (lost if fault is Fault.LOST else StorageError)(f"{call} {fault}")
        return answer

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        pages = self._view.list(prefix)
        while (page := self._do(f"list {prefix}", lambda: next(pages, None))) is not None:
            yield page

    def list_level(self, prefix: str) -> Level:
        return self._do(f"list_level {prefix}", lambda: self._view.list_level(prefix))

    def get(self, key: str) -> bytes:
        return self._get(f"get {key}", lambda: self._view.get(key))

    def get_part(self, key: str, start: int, end: int) -> bytes:
        return self._get(f"get_part {key}", lambda: self._view.get(key)[start:end])

    def _get(self, call: str, read: Callable[[], bytes]) -> bytes:
        fault = self._faults.next(call)
        if fault is Fault.TRUNCATED:
            data = read()
            return data[: len(data) // 2]
        if fault is not None:
            raise StorageError(f"{call} {fault}")
        return read()

    def head(self, key: str) -> ObjectFacts:
        return self._do(f"head {key}", lambda: self._view.head(key))

    def put(self, key: str, data: bytes) -> str | None:
        return self._do(f"put {key}", lambda: self._view.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> str:
        return self._do(f"put_if_absent {key}", lambda: self._view.put_if_absent(key, data), AlreadyExists)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self._do(f"put_if_match {key}", lambda: self._view.put_if_match(key, data, etag), PreconditionFailed)

    def copy(self, source: str, target: str) -> ObjectFacts:
        return self._do(f"copy {source}", lambda: self._view.copy(source, target))

    def copy_if_absent(self, source: str, target: str) -> None:
        self._do(f"copy_if_absent {source}", lambda: self._view.copy_if_absent(source, target), AlreadyExists)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        call = f"delete {' '.join(keys)}"
        fault = self._faults.next(call)
        if fault in _WITHOUT_EFFECT:
            raise StorageError(f"{call} {fault}")
        outcomes = self._view.delete(keys)
        if fault is Fault.DENIED:
            for key in keys:
                self._denied(key)
            return [DeleteOutcome(key, DeleteResult.FAILED, "InternalError: we encountered an error") for key in keys]
        if fault is not None:
            raise StorageError(f"{call} {fault}")
        return outcomes


class FailingApi:
    """`LakeFSApi` of one collector, as far as the simulated servers implement it."""

    def __init__(self, api: CollectorsApi, faults: Faults) -> None:
        self._api, self._faults = api, faults

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._api, name)
        if not callable(asked):
            return asked

        def ask(*arguments: object) -> Any:
            call = f"{name} {' '.join(map(str, arguments))}"
            fault = self._faults.next(call)
            if fault in _WITHOUT_EFFECT:
                raise _REFUSALS[fault](f"{call} {fault}")
            answer = asked(*arguments)
            if isinstance(answer, Iterator):
                answer = iter([*answer])
            if fault is not None:
                raise _REFUSALS[fault](f"{call} {fault}")
            return answer

        return ask


def distinct(call: str) -> tuple[Fault, ...]:
    """Faults of a call, without those that have the same effect and look the same to a collector as one returned."""
    match call.split(" ")[0]:
        case "the":
            return (Fault.DIES,)
        case "get":
            return (Fault.FAILS, Fault.TIMES_OUT, Fault.TRUNCATED, Fault.DIES)
        case "list" | "list_level" | "head":
            return (Fault.FAILS, Fault.TIMES_OUT, Fault.DIES)
        case "put" | "copy":
            return (Fault.FAILS, Fault.TIMES_OUT, Fault.LOST, Fault.DIES)
        case "put_if_absent" | "put_if_match" | "copy_if_absent" | "delete":
            return (Fault.FAILS, Fault.TIMES_OUT, Fault.LOST, Fault.DENIED, Fault.DIES)
        case "prepare_uncommitted" | "start_refs_dump" | "refs_dump" | "start_prepare_commits" | "prepare_commits":
            return tuple(Fault)
        case _:
            return (Fault.FAILS, Fault.FORBIDDEN, Fault.TIMES_OUT, Fault.THROTTLED, Fault.DIES)


_REFUSALS: dict[Fault, type[LakeFSError]] = {
    Fault.FAILS: LakeFSError,
    Fault.FORBIDDEN: AccessDenied,
    Fault.TIMES_OUT: ServerUnavailable,
    Fault.THROTTLED: ServerUnavailable,
    Fault.TRUNCATED: LakeFSError,
    Fault.LOST: ServerUnavailable,
    Fault.DENIED: LakeFSError,
}

"""A store that breaks at one call, before or after its effect, once for each call of some work."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar, cast

import pyarrow as pa

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import (
    DeleteOutcome,
    KeepsVersions,
    Level,
    ObjectFacts,
    ObjectStore,
)

Answer = TypeVar("Answer")


class Killed(BaseException):
    """The process died."""


class Break(Enum):
    """How a call breaks. A process that dies before a call leaves what one that dies after the call before leaves."""

    FAILS = auto()
    ANSWER_LOST = auto()
    DIES_AFTER = auto()


@dataclass
class BreakingStore:
    """A store whose call number `at` breaks, once; `calls` is the number of calls."""

    store: ObjectStore
    at: int = 0
    how: Break = Break.FAILS
    calls: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)
    delete_limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.delete_limit = self.store.delete_limit

    def _do(self, call: Callable[[], Answer]) -> Answer:
        with self._counting:
            self.calls += 1
            breaks = self.calls == self.at
        if breaks and self.how is Break.FAILS:
            raise StorageError("503 SlowDown")
        answer = call()
        if breaks and self.how is Break.ANSWER_LOST:
            raise StorageError("the connection broke")
        if breaks:
            raise Killed
        return answer

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        return self._do(lambda: iter([*self.store.list(prefix)]))

    def list_level(self, prefix: str) -> Level:
        return self._do(lambda: self.store.list_level(prefix))

    def get(self, key: str) -> bytes:
        return self._do(lambda: self.store.get(key))

    def get_part(self, key: str, start: int, end: int) -> bytes:
        return self._do(lambda: self.store.get_part(key, start, end))

    def head(self, key: str) -> ObjectFacts:
        return self._do(lambda: self.store.head(key))

    def put(self, key: str, data: bytes) -> str | None:
        return self._do(lambda: self.store.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> str:
        return self._do(lambda: self.store.put_if_absent(key, data))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self._do(lambda: self.store.put_if_match(key, data, etag))

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        return self._do(lambda: self.store.delete(keys))

    def remove_delete_marker(self, key: str, version_id: str) -> bool:
        return self._do(lambda: cast(KeepsVersions, self.store).remove_delete_marker(key, version_id))

    def copy(self, source: str, target: str) -> ObjectFacts:
        return self._do(lambda: self.store.copy(source, target))

    def copy_if_absent(self, source: str, target: str) -> None:
        self._do(lambda: self.store.copy_if_absent(source, target))


def every_break(
    store: Callable[[], ObjectStore],
    work: Callable[[ObjectStore], object],
    prepare: Callable[[], None],
    how: Break,
) -> Iterator[str]:
    """Repeats the work once for each of its store calls, breaking another call each time; yields the broken call.

    Args:
        store: makes the store for the work, after `prepare`.
        work: may only raise the store's errors.
        prepare: resets everything before each repetition.
    """
    prepare()
    whole = BreakingStore(store())
    work(whole)
    assert whole.calls
    for at in range(1, whole.calls + 1):
        prepare()
        broken = BreakingStore(store(), at, how)
        with suppress(StorageError, Killed):
            work(broken)
        assert broken.calls >= at
        yield f"call {at} of {whole.calls}"


def flipped(whole: bytes, place: int) -> bytes:
    """A file with one flipped bit."""
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]

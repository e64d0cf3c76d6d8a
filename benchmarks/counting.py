"""Counts calls of API and store, and bytes read, over all processes of a run.

Each process counts in its own file, so no process waits for another, and a killed process leaves its counts. A second
file has the keys of objects read, with their bytes. A third file has every call with its start, its end, and its task.
"""

import mmap
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakefs_gc_assets.storage.interface import Level

FOLDER_VARIABLE = "LAKEFS_GC_BENCHMARK_COUNTS"
_GETS = ("get", "get_part", "head")
_PUTS = ("put", "put_if_absent", "put_if_match", "copy", "copy_if_absent")
LIST_PAGE = 1000
"""Maximum keys that a store lists in one request."""


@dataclass(frozen=True)
class Counts:
    """Calls of the lakeFS API, calls of the store (a batch of a listing counts as one), bytes of objects read.

    Attributes:
        lists, gets, puts, deletes: requests that a bucket would bill for these calls. A listing counts once per
            page, a HEAD as a GET, a copy as a PUT, and a bulk delete once. The server's own requests to the bucket are
            not counted.
    """

    api_calls: int = 0
    store_calls: int = 0
    bytes_read: int = 0
    lists: int = 0
    gets: int = 0
    puts: int = 0
    deletes: int = 0

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(*(mine - before for mine, before in zip(astuple(self), astuple(earlier), strict=True)))


_FIELDS = struct.Struct(f"<{len(fields(Counts))}q")


@dataclass(frozen=True)
class Call:
    """One call of a store or of the server.

    Attributes:
        kind: the store's method; "api" for the server; "task" for a worker's whole work on a task.
        task: Spark's number of the calling task; None for the driver.
        amount: bytes read or written, keys listed or deleted; for a worker, microseconds of processor time.
    """

    kind: str
    task: int | None
    began: float
    ended: float
    amount: int


_READ, _CALLS = ".read", ".calls"
_ID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}(?:[0-9a-f]{32})?|[0-9a-v]{20}|(?<=[-_/])[0-9]+(?=[-_./])"
)
"""Ids, digests and numbers in keys."""
_own: dict[int, mmap.mmap] = {}
_inside = threading.local()
"""The name of a thread's current call."""


def _add(**counts: int) -> None:
    pid = os.getpid()
    if pid not in _own:
        file = Path(os.environ[FOLDER_VARIABLE], str(pid))
        file.write_bytes(bytes(_FIELDS.size))
        with file.open("r+b") as opened:
            _own[pid] = mmap.mmap(opened.fileno(), _FIELDS.size)
    area = _own[pid]
    before, more = _FIELDS.unpack_from(area), astuple(Counts(**counts))
    _FIELDS.pack_into(area, 0, *(known + added for known, added in zip(before, more, strict=True)))


def pages(keys: int) -> int:
    """Number of requests that list `keys` keys; an empty folder takes one."""
    return max(-(-keys // LIST_PAGE), 1)


def total(folder: Path) -> Counts:
    """The counts of all processes so far."""
    files = (file for file in folder.iterdir() if file.suffix not in (_READ, _CALLS))
    found = [_FIELDS.unpack(data) for file in files if len(data := file.read_bytes()) == _FIELDS.size]
    return Counts(*(sum(column) for column in zip(*found, strict=True))) if found else Counts()


def read_by_kind(folder: Path) -> dict[str, int]:
    """Bytes that all processes have read so far, by kind of object; ids in keys do not count."""
    amounts: dict[str, int] = {}
    for file in folder.glob(f"*{_READ}"):
        for line in file.read_text(encoding="utf-8").splitlines():
            key, _, size = line.rpartition("\t")
            kind = _ID.sub("*", key)
            amounts[kind] = amounts.get(kind, 0) + int(size)
    return dict(sorted(amounts.items(), key=lambda each: -each[1]))


def log_call(kind: str, began: float, amount: int) -> None:
    """Records a call that ends now."""
    pyspark = sys.modules.get("pyspark")
    context = pyspark.TaskContext.get() if pyspark else None
    task = context.taskAttemptId() if context else -1
    with Path(os.environ[FOLDER_VARIABLE], f"{os.getpid()}{_CALLS}").open("a", encoding="utf-8") as file:
        file.write(f"{kind} {task} {began:.6f} {time.time():.6f} {amount}\n")


def calls(folder: Path) -> tuple[Call, ...]:
    """The calls of all processes so far, in order of their start."""
    found = []
    for file in folder.glob(f"*{_CALLS}"):
        for line in file.read_text(encoding="utf-8").splitlines():
            kind, task, began, ended, amount = line.split()
            found.append(Call(kind, int(task) if task != "-1" else None, float(began), float(ended), int(amount)))
    return tuple(sorted(found, key=lambda call: call.began))


def _amount(result: object, *arguments: Any) -> int:
    """Bytes that a call returned or took, or keys that it took or listed."""
    if prefixes := getattr(result, "prefixes", ()):
        return len(prefixes) + len(getattr(result, "objects", ()))
    return next((len(each) for each in (result, *arguments) if isinstance(each, bytes | list | tuple)), 0)


def _note_read(data: bytes | None, key: str, *part: int) -> None:
    size = len(data or b"")
    _add(bytes_read=size)
    if data and not part and key.startswith("_lakefs/") and key.count("/") == 1:
        from lakefs_gc_assets.lakefs.formats import ranges

        found = ranges.table_kind(data, key)
        key = f"{key} ({found.entity or found.type})"
    with Path(os.environ[FOLDER_VARIABLE], f"{os.getpid()}{_READ}").open("a", encoding="utf-8") as file:
        file.write(f"{key}\t{size}\n")


def install() -> None:
    """Counts calls of stores and API client in this process and its forks, if counting is requested."""
    from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, PreconditionFailed
    from lakefs_gc_assets.lakefs.api.transport import SdkClient
    from lakefs_gc_assets.storage.local import LocalStore
    from lakefs_gc_assets.storage.s3.store import S3Store

    if FOLDER_VARIABLE not in os.environ:
        return
    _wrap(SdkClient, "request", lambda *_: _add(api_calls=1))
    for store in (LocalStore, S3Store):
        for name in _GETS:
            _wrap(store, name, lambda *_: _add(store_calls=1, gets=1), ObjectNotFound)
        for name in _PUTS:
            _wrap(store, name, lambda *_: _add(store_calls=1, puts=1), AlreadyExists, PreconditionFailed)
        _wrap(store, "delete", lambda *_: _add(store_calls=1, deletes=1))
        _wrap(store, "list_level", lambda result, *_: _add(store_calls=1, lists=_pages_of(result)))
        for name in ("get", "get_part"):
            _wrap(store, name, _note_read)
        for name in ("list", "list_between"):
            _wrap_listing(store, name)


def _pages_of(level: "Level") -> int:
    return pages(len(level.prefixes) + len(level.objects))


def _wrap(kind: type, name: str, count: Callable[..., None], *answers: type[Exception]) -> None:
    """Makes a method count its calls.

    Args:
        count: called with a call's result and arguments.
        answers: exceptions that are an answer of the service, and are billed too; counted with None.
    """
    method = getattr(kind, name, None)
    if method is None:
        return

    @wraps(method)
    def counted(*arguments: Any, **options: Any) -> Any:
        # A store's nested call is no request of its own: a folder looks up facts that a bucket knows.
        if getattr(_inside, "call", name) != name:
            return method(*arguments, **options)
        outermost, _inside.call = not hasattr(_inside, "call"), name
        began, result = time.time(), None
        try:
            result = method(*arguments, **options)
        except answers:
            count(None, *arguments[1:])
            raise
        finally:
            if outermost:
                del _inside.call
                log_call("api" if name == "request" else name, began, _amount(result, *arguments[1:]))
        count(result, *arguments[1:])
        return result

    setattr(kind, name, counted)


def _wrap_listing(kind: type, name: str) -> None:
    method = getattr(kind, name)

    @wraps(method)
    def counted(*arguments: Any, **options: Any) -> Iterator[Any]:
        keys, began = 0, time.time()
        try:
            for batch in method(*arguments, **options):
                log_call(name, began, batch.num_rows)
                _add(store_calls=1)
                keys += batch.num_rows
                yield batch
                began = time.time()
        finally:
            _add(lists=pages(keys))

    setattr(kind, name, counted)

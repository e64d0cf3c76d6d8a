"""Processes that other processes started, and what they were started with, as Linux tells of them."""

from collections.abc import Iterator
from pathlib import Path

_PROCESSES = Path("/proc")


def children(parent: int) -> list[int]:
    """The processes that a process started, oldest first."""
    return sorted(pid for pid, started_by in _parents() if started_by == parent)


def descendants(ancestor: int) -> list[int]:
    """Its children, and theirs."""
    started: dict[int, list[int]] = {}
    for pid, started_by in sorted(_parents()):
        started.setdefault(started_by, []).append(pid)
    found = started.get(ancestor, [])[:]
    for pid in found:
        found += started.get(pid, ())
    return found


def command(pid: int) -> str:
    """Command and arguments of a process; empty where it is gone."""
    return _read(pid, "cmdline")


def environment(pid: int) -> str:
    """Names and values that a process was started with; empty where it is gone."""
    return _read(pid, "environ")


def ticks(pid: int) -> int:
    """What a process and its ended children have taken of the processor, in ticks of the system; 0 once it is gone."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def parent(pid: int) -> int:
    """The process that started a process. Raises StopIteration where it is gone."""
    return next(started_by for each, started_by in _parents() if each == pid)


def _read(pid: int, what: str) -> str:
    try:
        return (_PROCESSES / str(pid) / what).read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _parents() -> Iterator[tuple[int, int]]:
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            # The name in brackets may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(folder.name), int(fields[1])

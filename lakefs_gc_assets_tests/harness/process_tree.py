"""Processes that other processes started, with command and environment, as Linux reports them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

_PROCESSES = Path("/proc")
_LISTENS = "0A"


def children(parent: int) -> list[int]:
    """Child processes, oldest first."""
    return sorted(each.pid for each in _processes() if each.parent == parent)


def descendants(ancestor: int) -> list[int]:
    """All descendants of a process."""
    return [each.pid for each in _descendants(ancestor, sorted(_processes()))]


def ticks(ancestor: int) -> int:
    """Clock ticks of processor time taken by a process, its descendants and their ended children."""
    processes = [*_processes()]
    own = sum(each.ticks for each in processes if each.pid == ancestor)
    return own + sum(each.ticks for each in _descendants(ancestor, processes))


def command(pid: int) -> str:
    """Command and arguments of a process; empty if it has ended."""
    return _read(pid, "cmdline")


def environment(pid: int) -> str:
    """Environment that a process was started with; empty if it has ended."""
    return _read(pid, "environ")


def parent(pid: int) -> int:
    """The parent of a process. Raises StopIteration if it has ended."""
    return next(each.parent for each in _processes() if each.pid == pid)


def listening(pid: int) -> list[IPv4Address | IPv6Address]:
    """The addresses on which a process accepts TCP connections; none if it has ended."""
    sockets = set()
    for descriptor in (_PROCESSES / str(pid) / "fd").glob("*"):
        with suppress(OSError):
            sockets.add(descriptor.readlink().name)
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in (_PROCESSES / "net" / name).read_text().splitlines()[1:]
    ]
    return [_address(row[1]) for row in rows if row[3] == _LISTENS and f"socket:[{row[9]}]" in sockets]


def _address(text: str) -> IPv4Address | IPv6Address:
    """Parses an address as Linux writes it: words of four bytes, each in reverse order."""
    words = bytes.fromhex(text.partition(":")[0])
    address = ip_address(b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4)))
    return getattr(address, "ipv4_mapped", None) or address


def _read(pid: int, what: str) -> str:
    try:
        return (_PROCESSES / str(pid) / what).read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


class _Process(NamedTuple):
    pid: int
    parent: int
    ticks: int


def _descendants(ancestor: int, processes: Iterable[_Process]) -> list[_Process]:
    started: dict[int, list[_Process]] = {}
    for each in processes:
        started.setdefault(each.parent, []).append(each)
    found = started.get(ancestor, [])[:]
    for each in found:
        found += started.get(each.pid, ())
    return found


def _processes() -> Iterator[_Process]:
    # All processes are read after each test; with `Path` this took three times as long.
    for name in os.listdir(_PROCESSES):  # noqa: PTH208
        if not name.isdecimal():
            continue
        try:
            file = os.open(f"{_PROCESSES}/{name}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            # The name in brackets may contain any characters.
            fields = os.read(file, 4096).rpartition(b")")[2].split()
        except OSError:
            continue
        finally:
            os.close(file)
        yield _Process(int(name), int(fields[1]), sum(map(int, fields[11:15])))

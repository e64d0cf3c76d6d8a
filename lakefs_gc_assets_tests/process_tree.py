"""Processes that other processes started, and what they were started with, as Linux tells of them."""

from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_PROCESSES = Path("/proc")
_LISTENS = "0A"


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


def listening(pid: int) -> list[IPv4Address | IPv6Address]:
    """The addresses on which a process accepts connections over TCP; none where it is gone."""
    sockets = set()
    for descriptor in (_PROCESSES / str(pid) / "fd").glob("*"):
        with suppress(OSError):
            sockets.add(descriptor.readlink().name)
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in (_PROCESSES / "net" / name).read_text().splitlines()[1:]
    ]
    return [_address(row[1]) for row in rows if row[3] == _LISTENS and f"socket:[{row[9]}]" in sockets]


def _address(text: str) -> IPv4Address | IPv6Address:
    """An address as Linux writes it: words of four bytes, each the other way round."""
    words = bytes.fromhex(text.partition(":")[0])
    address = ip_address(b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4)))
    return getattr(address, "ipv4_mapped", None) or address


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

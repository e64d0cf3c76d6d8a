"""Memory of a process and all its descendants, sampled while it works."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_PAUSE_SECONDS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Memory:
    """Sums of the proportional set sizes (PSS) of a tree of processes: pairs of time and bytes.

    Attributes:
        processor_seconds: processor seconds by process when last seen.
        used: pairs of time and the processor seconds of all processes until then.
    """

    samples: list[tuple[float, int]] = field(default_factory=list)
    processor_seconds: dict[int, float] = field(default_factory=dict)
    used: list[tuple[float, float]] = field(default_factory=list)

    def peak(self, since: float = 0, until: float = float("inf")) -> int:
        """The largest sum in a span of time; 0 without a sample."""
        return max((size for at, size in self.samples if since <= at <= until), default=0)

    def used_until(self, moment: float) -> float:
        """Processor seconds of all processes until a moment, between two samples in proportion; 0 without a sample."""
        moments, seconds = zip(*(self.used or [(moment, 0.0)]), strict=True)
        return float(np.interp(moment, moments, seconds, left=0))


@contextmanager
def sampled(pid: int) -> Iterator[Memory]:
    """Samples a process and its descendants until the block ends."""
    memory, ended = Memory(), threading.Event()

    def sample() -> None:
        while not ended.wait(_PAUSE_SECONDS):
            found = tree(pid)
            # A process that has just ended has no seconds any more.
            seconds = {process: _processor_seconds(process) for process in found}
            memory.processor_seconds |= {process: used for process, used in seconds.items() if used}
            memory.used.append((time.time(), sum(memory.processor_seconds.values())))
            memory.samples.append((time.time(), sum(_pss(process) for process in found)))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        ended.set()
        thread.join()


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def processor_seconds(pid: int) -> float:
    """Processor seconds of a process and its existing descendants."""
    return sum(map(_processor_seconds, tree(pid)))


def _fields(pid: int) -> list[str]:
    """The fields after the name in /proc/PID/stat; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[1]) if fields else None


def _processor_seconds(pid: int) -> float:
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)

"""Makes a run in separate processes and measures its steps: seconds, rows, memory, calls and bytes."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from benchmarks import counting, processes
from benchmarks.counting import Call, Counts

_STORED = re.compile(r"^  (\w+): ([\d,]+) rows in [\d.]+ s(?:, [\d,]+ a second)?(?:, and ([\d.]+) s of waiting)?")
_SECRETS = {
    ("lakefs", "secret_access_key"): "BENCHMARK_LAKEFS_SECRET",
    ("store", "secret_access_key"): "BENCHMARK_STORE_SECRET",
}


@dataclass(frozen=True)
class Phase:
    """One step: seconds of work since the previous step ended, rows of its frame, and the process tree's peak memory.

    Attributes:
        cpu_seconds: processor seconds of the run's processes, without server and store.
        server_seconds: seconds in which the driver waited for an answer of the lakeFS server.
        waited: seconds of safety waits, which are no work; benchmarks set waits to zero.
    """

    name: str
    seconds: float
    cpu_seconds: float
    server_seconds: float
    waited: float
    rows: int | None
    peak_bytes: int
    api_calls: int
    store_calls: int
    bytes_read: int
    lists: int
    gets: int
    puts: int
    deletes: int


@dataclass(frozen=True)
class Run:
    """A whole run, from the start of its process to its end; `told` is its output on the command line.

    Attributes:
        cpu_seconds: processor seconds of all its processes together.
        driver_seconds: those of the driver's Python process alone.
        load: number of runnable processes on the machine in the minute before.
        read: bytes read by kind of object, largest first.
        began: seconds since the epoch.
        calls: calls of stores and of the server.
        used: moments, and the processor seconds of all its processes until then.
    """

    phases: tuple[Phase, ...]
    seconds: float
    peak_bytes: int
    cpu_seconds: float
    driver_seconds: float
    load: float
    told: tuple[str, ...]
    lines: tuple[str, ...]
    read: dict[str, int]
    began: float
    calls: tuple[Call, ...]
    used: tuple[tuple[float, float], ...]

    @property
    def counts(self) -> Counts:
        """Calls and bytes of all steps."""
        return Counts(*(sum(getattr(phase, name) for phase in self.phases) for name in vars(Counts())))

    @property
    def waited(self) -> float:
        """Seconds of waiting in all steps."""
        return sum(phase.waited for phase in self.phases)

    def rows(self, phase: str) -> int:
        """Rows of a step's frame."""
        return next(found.rows or 0 for found in self.phases if found.name == phase)

    def as_json(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return asdict(replace(self, calls=(), used=()))


class Show(Protocol):
    """Shows a run, with its title and the fewest requests for the same work."""

    def __call__(self, title: str, made: Run, least: Counts | None = None) -> None:
        """Shows it."""
        ...


class RunFailed(Exception):
    """A run did not finish."""


@contextmanager
def served(*command: str) -> Iterator[dict[str, Any]]:
    """Starts a server process that prints its settings; yields them, and ends it by closing its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RunFailed(f"{' '.join(command)} did not start")
        yield json.loads(line)
    finally:
        process.stdin.close()
        process.wait()


@contextmanager
def configured(settings: dict[str, Any]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Writes a configuration file; yields it and the environment with its secrets."""
    content = json.loads(json.dumps(settings))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    environment.pop("DAGSTER_HOME", None)
    for (section, name), variable in _SECRETS.items():
        if secret := content.get(section, {}).pop(name, None):
            content[section][name] = {"env": variable}
            environment[variable] = secret
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-bench-") as folder:
        counts = Path(folder, "counts")
        counts.mkdir()
        environment[counting.FOLDER_VARIABLE] = str(counts)
        file = Path(folder, "lakefs-gc.yaml")
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        yield file, environment


def run(settings: dict[str, Any], *options: str, show: bool = False) -> Run:
    """Makes a run by `benchmarks.collecting`. Raises RunFailed."""
    with configured(settings) as (file, environment):
        command = [sys.executable, "-m", "benchmarks.collecting", str(file), *options]
        load, began = os.getloadavg()[0], time.time()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stderr is not None
        events: list[dict[str, Any]] = []
        try:
            with processes.sampled(process.pid) as memory:
                for line in process.stdout:
                    events.append(json.loads(line))
                    if show and "line" in events[-1]:
                        print(f"{events[-1]['at'] - began:8.1f} {events[-1]['line']}", file=sys.stderr, flush=True)
                said = process.stderr.read()
                process.wait()
                ended = time.time()
                counted = Path(environment[counting.FOLDER_VARIABLE])
                read, calls = counting.read_by_kind(counted), counting.calls(counted)
        finally:
            process.kill()
    if process.returncode != 0 or not events or not events[-1].get("succeeded"):
        raise RunFailed(f"the run ended with status {process.returncode}: {said.strip()[-2000:]}")
    told, steps = events[-1]["told"], events[:-1]
    return Run(
        _phases(began, steps, memory, calls),
        ended - began,
        memory.peak(),
        sum(memory.processor_seconds.values()),
        memory.processor_seconds.get(process.pid, 0.0),
        load,
        tuple(told),
        tuple(step["line"] for step in steps),
        read,
        began,
        calls,
        tuple(memory.used),
    )


def run_command_line(settings: dict[str, Any], *options: str) -> float:
    """Makes a run by the command line itself; returns its seconds. Raises RunFailed."""
    with configured(settings) as (file, environment):
        command = [sys.executable, "-c", "from lakefs_gc_assets.cli import main; main()", "run", "--config", str(file)]
        began = time.time()
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RunFailed(f"the command line ended with status {done.returncode}: {done.stderr.strip()[-2000:]}")
        return time.time() - began


def join_spans(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of time without overlaps, in order."""
    joined: list[tuple[float, float]] = []
    for begun, ended in sorted(span for span in spans if span[0] < span[1]):
        if joined and begun <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], ended)
        else:
            joined.append((begun, ended))
    return joined


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one of the spans covers."""
    return sum(ended - begun for begun, ended in join_spans(spans))


def _phases(
    began: float, steps: Sequence[dict[str, Any]], memory: processes.Memory, calls: Sequence[Call]
) -> tuple[Phase, ...]:
    """A step ends with the line that reports its stored frame; its checks belong to the next step."""
    marks: list[tuple[str, int | None, float, dict[str, Any]]] = []
    for step in steps:
        stored = _STORED.match(step["line"])
        if not marks and "cutoff" in step["line"]:
            marks.append(("start", None, 0.0, step))
        elif stored:
            marks.append((stored[1], int(stored[2].replace(",", "")), float(stored[3] or 0), step))
    marks.append(("report", None, 0.0, steps[-1]))
    phases, since, before = [], began, Counts()
    for name, rows, waited, step in marks:
        counts = Counts(**{name: step[name] for name in vars(Counts())})
        seconds, peak = max(step["at"] - since - waited, 0.0), memory.peak(since, step["at"])
        cpu = memory.used_until(step["at"]) - memory.used_until(since)
        answers = ((call.began, call.ended) for call in calls if call.kind == "api" and call.task is None)
        waiting = length((max(begun, since), min(ended, step["at"])) for begun, ended in answers)
        phases.append(Phase(name, seconds, cpu, waiting, waited, rows, peak, **vars(counts - before)))
        since, before = step["at"], counts
    return tuple(phases)

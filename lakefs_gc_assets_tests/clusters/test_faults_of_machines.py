"""Full disks, too little memory and killed processes, each in every step of a run on a local Spark.

A run fails with an error that names cause and remedy, or ends well if Spark replaces what it lost. No live object is
gone, the lock is free, and the last run deletes all garbage.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets_tests.clusters.spark_clusters import EventLog, SampleRuns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
_FOLDER, _DISK = "TEST_FAULTS", "TEST_DISK"
_IN_EVERY_PYTHON = """
import os, re, resource, signal, sys
from pathlib import Path

def begins(fault, step):
    # The first process that removes the file has the fault.
    try:
        Path(os.environ["TEST_FAULTS"], f"{fault} {step}").unlink()
    except FileNotFoundError:
        return False
    return True

def limit_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 24), resource.RLIM_INFINITY))

if "lakefs_gc_assets.spark.start.worker_daemon" in sys.orig_argv:
    from lakefs_gc_assets.storage.local import LocalStore

    put, delete = LocalStore.put, LocalStore.delete

    def strike(step):
        daemon = os.getppid()
        if begins("worker memory", step):
            import numpy
            limit_memory()
            numpy.ones(1 << 28)
        if begins("daemon", step):
            os.kill(daemon, signal.SIGKILL)
        if begins("java", step):
            java = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]
            os.kill(int(java), signal.SIGKILL)

    def put_and_strike(self, key, data):
        answer = put(self, key, data)
        if written := re.search("/(\\\\w+)/slice_window=", key):
            strike(written[1])
        return answer

    def delete_and_strike(self, keys):
        answer = delete(self, keys)
        if any(key.startswith("data/") for key in keys):
            strike("deleted_report")
        return answer

    LocalStore.put, LocalStore.delete, LocalStore.delete_limit = put_and_strike, delete_and_strike, 2
else:
    from py4j.protocol import Py4JJavaError
    from lakefs_gc_assets.collector.frame import files
    from lakefs_gc_assets.spark.engine import SparkEngine
    from lakefs_gc_assets.spark import engine

    # Else the driver itself would do everything with so few objects.
    files.LOCAL_ROWS = engine.LOCAL_ROWS = -1
    name_work = SparkEngine.name_work

    def begin(self, work, run=""):
        if begins("disk", work):
            with Path(os.environ["TEST_DISK"], "filler").open("wb", buffering=0) as filler:
                for piece in (bytes(1 << 16), bytes(1)):
                    try:
                        while True:
                            filler.write(piece)
                    except OSError:
                        pass
        if begins("heap", work):
            java = self.spark.sparkContext._jvm.java
            begin.kept = java.util.ArrayList()
            try:
                while True:
                    begin.kept.add(java.nio.ByteBuffer.allocate(1 << 24))
            except Py4JJavaError:
                # A Java that does not end at once goes on with a full heap.
                pass
        if begins("driver memory", work):
            import pyarrow
            limit_memory()
            pyarrow.allocate_buffer(1 << 31)
        return name_work(self, work, run)

    SparkEngine.name_work = begin
"""
"""Loaded when Python starts: a step has the faults that files in a folder name.

It has those of the driver and of disks as it begins, the others once a task has written a part of its frame, or deleted
some of its objects.
"""
_RUNS = """
import json, sys
from click.testing import CliRunner
from lakefs_gc_assets.cli import main

for line in sys.stdin:
    ended = CliRunner().invoke(main, ["run", "--sweep"])
    print(json.dumps([ended.exit_code, ended.stderr]), flush=True)
"""
"""A process that makes a run for each line, all on the session that the first one starts."""
_KILLED = "Spark's Java was killed in the middle of the work, most often by the system for lack of memory."
_HEAP = "Spark's Java needs more memory. Raise spark.driver_memory"
_WORKER_MEMORY = "a job of Spark failed: a Python worker of Spark got no more memory from the system. Give the machine"
_DRIVER_MEMORY = "the system gave this process no more memory. Give the machine or the container more"


@dataclass
class FaultyRuns:
    """Runs of a sample repository in which something of the machine fails.

    Attributes:
        spark: settings of the sessions.
        disk: folder of Spark's temporary files; None for Spark's own.
    """

    runs: SampleRuns
    spark: dict[str, Any]
    disk: Path | None = None
    _faults: Path = field(init=False)

    def __post_init__(self) -> None:
        self._faults = self.runs.folder / "faults"
        self._faults.mkdir()
        (self.runs.folder / "sitecustomize.py").write_text(_IN_EVERY_PYTHON)

    @contextmanager
    def session(self) -> Iterator[Callable[..., tuple[int, str]]]:
        """A process for several runs; yields a function that makes one with some faults.

        It returns the exit status, and what the run printed.
        """
        path = os.pathsep.join(filter(None, [str(self.runs.folder), os.environ.get("PYTHONPATH")]))
        environment = {"PYTHONPATH": path, _FOLDER: str(self._faults), _DISK: str(self.disk)}
        spark = {"master": "local[2]", "driver_memory": "512m", **self.spark}
        with (
            (self.runs.folder / "java.log").open("ab") as log,
            self.runs.start([_RUNS], spark, environment, errors=log) as process,
        ):
            assert process.stdin is not None and process.stdout is not None
            stdin, stdout = process.stdin, process.stdout

            def make(*faults: str) -> tuple[int, str]:
                for fault in faults:
                    (self._faults / fault).touch()
                print(flush=True, file=stdin)
                status, printed = json.loads(stdout.readline())
                assert list(self._faults.iterdir()) == [], printed
                return status, printed

            try:
                yield make
            finally:
                process.communicate()

    def require_failed(self, ended: tuple[int, str], step: str, why: str) -> None:
        """Requires that a run failed in a step for a reason, left no lock, and deleted nothing that is live."""
        status, printed = ended
        assert status == 1, printed
        assert f" failed in {step}: {why}" in printed.splitlines()[-1], printed
        assert lock.holder(self.runs.store) is None
        assert unreadable(self.runs.server, self.runs.sample) == []

    def require_all_stored(self) -> None:
        """Requires that no run deleted anything."""
        runs = self.runs
        assert demo.still_stored(runs.server, runs.sample) == runs.sample.garbage
        assert unreadable(runs.server, runs.sample) == []


@pytest.fixture
def sample_runs(tmp_path: Path) -> Iterator[SampleRuns]:
    """A sample repository with enough garbage for several interrupted sweeps."""
    with demo.open_server(tmp_path / "lakefs", "oss", "", None) as server:
        yield SampleRuns(tmp_path, server, make_sample_repository(server, objects=120))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 32 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this user may mount no file system: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_that_is_full_as_any_step_begins(sample_runs: SampleRuns, small_disk: Path, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    config = {"spark.local.dir": str(small_disk), "spark.shuffle.spill.numElementsForceSpillThreshold": "1"}
    faulty = FaultyRuns(sample_runs, {"config": {**config, **log.properties}}, small_disk)
    full = (
        f"the folder for Spark's temporary files, {small_disk}, is full. Free space on that disk, or name a folder "
        "with more space by spark.local.dir under spark.config"
    )
    with faulty.session() as make:
        for step in STEPS:
            ended = make(f"disk {step}")
            # Listing the store needs no temporary file.
            failed_in = STEPS[1] if step == STEPS[0] else step
            faulty.require_failed(ended, failed_in, "")
            assert full in ended[1].splitlines()[-1]
            faulty.require_all_stored()
            (small_disk / "filler").unlink()
        status, printed = make()
    assert status == 0, printed
    sample_runs.require_collected()
    # Tasks that a full disk ended may have no metrics.
    metrics = [event.get("Task Metrics") for event in log.read("SparkListenerTaskEnd")]
    assert any(each["Disk Bytes Spilled"] for each in metrics if each)


def test_killed_processes_and_too_little_memory_in_any_step(sample_runs: SampleRuns) -> None:
    faulty = FaultyRuns(sample_runs, {})
    with faulty.session() as make:
        faulty.require_failed(make("driver memory committed_df"), "committed_df", _DRIVER_MEMORY)
    for step in STEPS[:-1]:
        with faulty.session() as make:
            faulty.require_failed(make(f"java {step}"), step, _KILLED)
    with faulty.session() as make:
        faulty.require_failed(make("worker memory uncommitted_df"), "uncommitted_df", _WORKER_MEMORY)
        faulty.require_failed(make("heap candidates"), "candidates", _HEAP)
    faulty.require_all_stored()
    with faulty.session() as make:
        faulty.require_failed(make(f"java {STEPS[-1]}"), STEPS[-1], _KILLED)
    remaining = demo.still_stored(sample_runs.server, sample_runs.sample)
    assert 0 < len(remaining) < len(sample_runs.sample.garbage)

    # Spark starts another daemon each time.
    with faulty.session() as make:
        status, printed = make(*(f"daemon {step}" for step in STEPS))
    assert status == 0, printed
    sample_runs.require_collected()

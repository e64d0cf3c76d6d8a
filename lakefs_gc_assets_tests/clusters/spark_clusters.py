"""Spark clusters of processes on this machine, started from the pyspark package, and runs of the sample repository by
the command, with only the settings of `spark` changed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import pyspark
import pytest
import yaml

from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import Sample, make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.spark.start.java import ensure_java
from lakefs_gc_assets.storage.interface import ObjectStore

HOST = "127.0.0.1"
_SECONDS = 900
_SECONDS_TO_END = 30
_EXECUTOR = b"CoarseGrainedExecutorBackend"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that does little: the second compiler and parallel collector threads cost more than they save."""
QUICKLY = MappingProxyType({"JDK_JAVA_OPTIONS": QUICK})
"""Environment of processes whose JVMs, and the JVMs that they start, use these options."""


@dataclass(frozen=True)
class Standalone:
    """A standalone cluster: a master, and workers with one core each."""

    master: str
    workers: tuple[int, ...]

    def kill_an_executor(self) -> bool:
        """Kills an executor's process, as if its machine went away; returns False if there was none."""
        for executor in sorted(_children(self.workers)):
            os.kill(executor, signal.SIGKILL)
            return True
        return False


@contextmanager
def standalone(folder: Path, environments: Sequence[Mapping[str, str]] = ({}, {})) -> Iterator[Standalone]:
    """Starts a standalone cluster, and ends it.

    Args:
        environments: variables for each worker and its executors, in addition to this process's environment.
    """
    with ExitStack() as stack:
        named = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        master = stack.enter_context(started(folder / "master.log", "org.apache.spark.deploy.master.Master", *named))
        url = reported(master, r"Starting Spark master at (spark://\S+)")
        running = [
            stack.enter_context(
                started(
                    folder / f"worker-{number}.log",
                    "org.apache.spark.deploy.worker.Worker",
                    # Spark makes no copy of a slow task on the host that runs it.
                    *("--host", f"127.0.0.{number}", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
                    *("--work-dir", str(folder / f"worker-{number}"), url),
                    environment=environment,
                )
            )
            for number, environment in enumerate(environments, 1)
        ]
        for worker in running:
            reported(worker, r"Successfully (registered) with master")
        yield Standalone(url, tuple(worker.process.pid for worker in running))


@contextmanager
def connect_server(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Starts a Spark Connect server with a local master; yields its address.

    Args:
        more: further properties of its application.
    """
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    properties = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **more,
    }
    given = [part for name, value in properties.items() for part in ("--conf", f"{name}={value}")]
    arguments = [*server, *given, "--master", "local[2]", "spark-internal"]
    with started(folder / "connect.log", "org.apache.spark.deploy.SparkSubmit", *arguments) as process:
        port = reported(process, r"Spark Connect server started at: .*:(\d+)")
        yield f"sc://{HOST}:{port}"


@dataclass(frozen=True)
class Process:
    """A process and its output."""

    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def started(
    log: Path, name: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Process]:
    """Starts a Spark class, or one that a Spark variable adds to the classpath; ends it."""
    home = Path(pyspark.__file__).parent
    with_spark = {
        **os.environ,
        "JAVA_HOME": str(ensure_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        **QUICKLY,
        **environment,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, *arguments],
            env=with_spark,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Process(process, log)
        finally:
            process.terminate()
            # A worker told to end has been seen waiting forever.
            try:
                process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True)
class EventLog:
    """Spark's own event log of an application that has ended."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()

    @property
    def properties(self) -> dict[str, str]:
        """Properties that Spark needs before the application begins."""
        return {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.folder.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }

    def read(self, *kinds: str) -> list[dict[str, Any]]:
        """Events of the given kinds, of all applications, in order."""
        lines = [line for file in sorted(self.folder.iterdir()) for line in file.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event["Event"] in kinds]


def reported(started: Process, pattern: str) -> str:
    """The text that a process logs once it is ready. Raises AssertionError if it never becomes ready."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until and started.process.poll() is None:
        if found := re.search(pattern, started.log.read_text()):
            return found[1]
        time.sleep(0.2)
    raise AssertionError(f"{started.log.name} never said {pattern!r}; it ends:\n{started.log.read_text()[-5000:]}")


def _children(parents: Sequence[int]) -> Iterator[int]:
    """Executors among the children of processes."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, state = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except OSError:
            continue
        if _EXECUTOR in command and int(state.rpartition(")")[2].split()[1]) in parents:
            yield int(folder.name)


_SECRET, _STORE_SECRET = "LAKEFS_GC_TEST_SECRET", "LAKEFS_GC_TEST_STORE_SECRET"


@dataclass
class SampleRuns:
    """A sample repository on an embedded server, and the command that collects it.

    Attributes:
        bucket: settings of the bucket with the server's objects; None for a folder.
    """

    folder: Path
    server: EmbeddedServer
    sample: Sample
    bucket: StoreSettings | None = None

    @property
    def store(self) -> ObjectStore:
        """The object store of the repository."""
        blockstore = self.server.core.blockstore
        return blockstore.open(f"{blockstore.scheme}{self.sample.repository}")

    def objects(self) -> set[str]:
        """The addresses of all stored data objects."""
        return {key for batch in self.store.list("data/") for key in batch.column("key").to_pylist()}

    def run(
        self,
        flow: str,
        spark: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        collection: Mapping[str, Any] | None = None,
        reported: Callable[[str], None] = lambda line: None,
    ) -> str:
        """Makes a sweeping run and returns its table; passes its lines on as they come."""
        program = "from lakefs_gc_assets.cli import main; main()"
        arguments = [program, "run", "--sweep", "--flow", flow, "--verbose"]
        with self.start(arguments, spark, environment, collection) as process:
            assert process.stdout is not None and process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                reported(line)
            table = process.stdout.read()
        assert process.returncode == 0, "".join(lines)
        return table

    def start(
        self,
        arguments: Sequence[str],
        spark: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        collection: Mapping[str, Any] | None = None,
        errors: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Starts a Python program, with its arguments, whose environment names a configuration of the repository.

        Args:
            errors: file for its standard error, including that of its Java.
        """
        content = demo.configuration(self.server, self.sample.repository, self.bucket).model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": _SECRET}
        if self.bucket:
            content["store"]["secret_access_key"] = {"env": _STORE_SECRET}
        content["collection"] |= collection or {}
        content["spark"] = dict(spark)
        file = self.folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content))
        secret = {CONFIGURATION_VARIABLE: str(file), _SECRET: self.server.secret_access_key}
        if self.bucket:
            secret[_STORE_SECRET] = self.bucket.secret_access_key
        return subprocess.Popen(
            [sys.executable, "-c", *arguments],
            env={**_environment(), **QUICKLY, **(environment or {}), **secret},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def require_collected(self) -> None:
        """Requires that all garbage is gone and nothing else."""
        assert unreadable(self.server, self.sample) == []
        assert demo.still_stored(self.server, self.sample) == []


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "LAKEFS_"))}


@pytest.fixture
def sample_runs(tmp_path: Path) -> Iterator[SampleRuns]:
    """A small sample repository before any collection."""
    with demo.open_server(tmp_path / "lakefs", "oss", "", None) as server:
        yield SampleRuns(tmp_path, server, make_sample_repository(server, objects=60))

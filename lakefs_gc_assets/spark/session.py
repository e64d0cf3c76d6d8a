"""Spark's session: its properties, and starting it while this process still imports and asks the server.

On an idle machine of two cores a session and its first job take as long as everything else that a small run does before
it needs them; the two hardly disturb each other, since the session starts in a process of its own.
"""

import atexit
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark.start import class_archive
from lakefs_gc_assets.spark.start.java import ensure_java, use_this_python

if TYPE_CHECKING:
    import pyarrow as pa

TASKS_PER_CORE = 4
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LOCAL_CORES = re.compile(r"local\[(\d+)")
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""Most of what the JVM of a small run does it does a few times: the second compiler took a third of all its time."""
_LIGHT_SIDE = "12m"
"""Of a join, where one side is no more than this in any task, its rows are looked up instead of sorting both sides.

Looked up, rows take several times as much memory, which a task cannot spill. Spark asks that tasks are not meant to be
larger.
"""
_OF_EVERY_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": _LIGHT_SIDE,
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": _LIGHT_SIDE,
}
_SOCKET_NAME = len("/.00000000-0000-0000-0000-000000000000.sock")
_LONGEST_ADDRESS = 103
"""Of a Unix socket, in bytes, on macOS; Linux has four more."""
_starting: list[threading.Thread] = []


def properties(settings: SparkSettings) -> dict[str, str]:
    """Properties of a session: ours, then those of the settings.

    Where this process starts the driver, a JRE is found or brought along.

    Raises ConfigurationError where there is no Java.
    """
    if settings.remote:
        return {"spark.remote": settings.remote, **_OF_EVERY_SESSION, **settings.config}
    if not settings.master:
        return {**_OF_EVERY_SESSION, **settings.config}
    home = ensure_java()
    use_this_python()
    options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *class_archive.options(home)]
    found = {
        "spark.master": settings.master,
        "spark.app.name": "lakefs-gc",
        "spark.driver.memory": settings.driver_memory,
        "spark.speculation": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_OF_EVERY_SESSION,
    }
    if settings.master.startswith("local"):
        if not settings.many_objects:
            options.append(_QUICK_COMPILER)
        found["spark.python.daemon.module"] = "lakefs_gc_assets.spark.start.worker_daemon"
        found |= _sockets(_socket_folder())
        found["spark.sql.shuffle.partitions"] = str(TASKS_PER_CORE * _local_cores(settings.master))
    return {**found, "spark.driver.extraJavaOptions": " ".join(options), **settings.config}


def _sockets(folder: str) -> dict[str, str]:
    """Lets Python workers and Spark talk over sockets in a folder, unless its name is too long for their addresses.

    Over TCP each task waits 40 ms for an acknowledgement that the other side delays.
    """
    if len(os.fsencode(folder)) + _SOCKET_NAME > _LONGEST_ADDRESS:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}


@cache
def _socket_folder() -> str:
    """A folder for sockets, which Spark leaves behind; it is gone with this process."""
    folder = tempfile.mkdtemp(prefix="gc")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def start(settings: SparkSettings) -> None:
    """Begins to start the session in the background, for a process that is going to need it.

    What goes wrong here is left to the one who needs the session: the attempt is repeated there.
    """

    def build() -> None:
        with suppress(Exception):
            _warm(session(settings))

    thread = threading.Thread(target=build, name="start of Spark", daemon=True)
    _starting.append(thread)
    thread.start()


def wait_for_start() -> None:
    """Returns when no session is being started in the background."""
    for thread in _starting:
        thread.join()


def _local_cores(master: str) -> int:
    named = _LOCAL_CORES.match(master)
    return int(named[1]) if named else 1 if master == "local" else os.cpu_count() or 1


def session(settings: SparkSettings) -> Any:
    """The session with these settings, started where there is none."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in properties(settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _warm(spark: Any) -> None:
    """Runs one job of the kind that every frame is made by, which starts a Python worker."""

    def same(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        yield from batches

    spark.range(0, 2, 1, 2).mapInArrow(same, "id long").distinct().collect()

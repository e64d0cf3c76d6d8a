"""Spark's session: its properties, and its start in the background while this process imports and calls the server.

On an idle machine with two cores, starting a session and its first job takes as long as all earlier work of a small
run. They hardly slow each other down, because the session starts in its own process.
"""

import atexit
import logging
import os
import re
import shutil
import socketserver
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark.start import java
from lakefs_gc_assets.spark.start.java import ensure_java, use_python

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 4
_REMOTE_CORES = 8
_UNLIMITED = 2**31 - 1
"""Spark's default for the maximum number of executors: no maximum. It counts as unset."""
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LOCAL_CORES = re.compile(r"local\[(\d+)")
_MASTER = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_MEMORY = re.compile(r"[1-9]\d*[kmgtKMGT]?")
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""Disables the JVM's second compiler: it took a third of a small run's time, whose code runs only a few times."""
SMALL_HEAP = (
    "-XX:+UseSerialGC",
    "-Xms64m",
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=40",
    "-XX:MetaspaceSize=64m",
)
"""Makes the heap follow its content, which is small: rows are in blocks that the JVM does not unpack.

By default the heap begins with 1/64 of the machine's memory, regardless of the settings. A full collection runs when
21 MB of classes are loaded, which is before the first job.
"""
_END_WITHOUT_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""Ends the JVM with its first allocation that fails.

Otherwise Spark goes on without the threads that failed, and collects garbage for minutes, until a job fails with an
error that does not name memory. One JVM is the whole of a local Spark, so no other can take over its tasks.
"""
_NO_EXECUTORS = "-Dlakefs.gc.executors=off"
"""Suppresses warnings about lost or missing executors (log4j2.properties): a local master has no executors."""
ONE_ARENA = "-Dio.netty.allocator.numDirectArenas=1"
"""One shared arena for copying blocks to and from Python: by default each thread keeps its own, 100 MB in all."""
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Disables Spark's compilation of queries to Java, which takes longer than processing the few rows left to Spark."""
_HASHED_SIDE = "12m"
"""Largest side of a join, in any task, for which Spark builds a hash table instead of sorting both sides.

The table takes several times as much memory, which a task cannot spill to disk. Spark builds it only if the target size
of tasks (`advisoryPartitionSizeInBytes`) is no larger than this.
"""
_BATCH_BYTES = "8m"
"""Maximum bytes of a batch for Python, held in Spark's memory and in the worker's; Spark's default is 64 MB."""
_COMMON_PROPERTIES = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": _BATCH_BYTES,
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": _HASHED_SIDE,
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": _HASHED_SIDE,
}
_SPECULATION = "spark.speculation"
_OF_SPECULATION = {"spark.rdd.cache.visibilityTracking.enabled": "true"}
"""Keeps Spark from using incomplete cached rows of a speculative task that was killed."""
_LOOPBACK = "127.0.0.1"
_ON_THIS_MACHINE = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.authenticate": "true",
}
"""Properties of a local master: no other machine can reach it, and local processes need Spark's secret."""
_PYTHON = "spark.pyspark.python"
"""Property for the Python of workers."""
_REDACTION, _REDACTED_BY_SPARK = "spark.redaction.regex", "(?i)secret|password|token|access[.]?key"
"""Property for the names of properties with hidden values, and its default."""
_DAEMON, _OUR_DAEMON = "spark.python.daemon.module", "lakefs_gc_assets.spark.start.worker_daemon"
"""Property for the module that forks workers, and its value on a local master."""
_CONNECT = ("SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE", "SPARK_LOCAL_REMOTE", "MASTER")
_CONNECT_FOR_GOOD = "SPARK_CONNECT_MODE_ENABLED"
"""Variable that makes pyspark's functions take each session for one of Spark Connect."""
_GATEWAY = ("PYSPARK_PIN_THREAD", "PYSPARK_UDS_MODE", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_TESTING")
"""Variables that change pyspark's communication with a Java that it starts."""
_SOCKET_NAME = len("/.00000000-0000-0000-0000-000000000000.sock")
_LONGEST_ADDRESS = 103
"""Maximum bytes of a Unix socket's address on macOS; Linux allows four more."""
_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""Linux's file with a container's CPU limit: microseconds per period, or `max`."""
_starting: list[threading.Thread] = []


def properties(settings: SparkSettings) -> dict[str, str]:
    """Properties of a session: our own, overridden by the settings.

    If this process starts the driver, it finds a Java or uses the included one.

    Raises ConfigurationError if there is no Java, if master or memory are invalid, or if an environment variable for a
    property is not set.
    """
    given = {**settings.config, **_from_environment(settings)}
    if settings.remote:
        return {"spark.remote": settings.remote, **_COMMON_PROPERTIES, **given}
    if not settings.master:
        return {**_COMMON_PROPERTIES, **given}
    _check(settings)
    home = ensure_java()
    use_python(given.get(_PYTHON), is_local=settings.master.startswith("local"))
    options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *java.archive_options(home)]
    spark_properties = {
        "spark.master": settings.master,
        "spark.app.name": "lakefs-gc",
        "spark.driver.memory": settings.driver_memory,
        _SPECULATION: "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_COMMON_PROPERTIES,
    }
    if settings.master.startswith("local"):
        options += [_END_WITHOUT_MEMORY, _NO_EXECUTORS]
        if not settings.many_objects:
            options += [_QUICK_COMPILER, *SMALL_HEAP, ONE_ARENA]
            spark_properties |= _INTERPRETED
        spark_properties |= _ON_THIS_MACHINE
        spark_properties[_DAEMON] = _OUR_DAEMON
        spark_properties |= _sockets(_private_folder())
        spark_properties["spark.local.dir"] = _private_folder()
        spark_properties["spark.sql.shuffle.partitions"] = str(TASKS_PER_CORE * _local_cores(settings.master))
    if given.get(_SPECULATION, "").lower() == "true":
        spark_properties |= _OF_SPECULATION
    return {**spark_properties, "spark.driver.extraJavaOptions": " ".join(options), **given}


def _check(settings: SparkSettings) -> None:
    """Raises ConfigurationError for values for which Java would print a stack trace without the setting's name.

    It does not repeat the values, because they may come from the environment.
    """
    if not _MASTER.fullmatch(settings.master):
        raise ConfigurationError("spark.master must be local[*], local[4] or the like, yarn, spark://… or k8s://…")
    if not _MEMORY.fullmatch(settings.driver_memory):
        raise ConfigurationError("spark.driver_memory must be a number and m or g")


def _from_environment(settings: SparkSettings) -> dict[str, str]:
    """Properties with values from the environment, and a property that keeps Spark from showing them."""
    if not settings.config_from_environment:
        return {}
    secrets = {}
    for name, variable in settings.config_from_environment.items():
        if variable not in os.environ:
            raise ConfigurationError(
                f"spark.config.{name} is to come from the environment variable {variable}, which is not set"
            )
        secrets[name] = os.environ[variable].rstrip("\r\n")
    # Spark shows properties of Hadoop twice, with and without their prefix.
    hidden = "|".join(re.escape(name.removeprefix("spark.hadoop.")) for name in secrets)
    shown = settings.config.get(_REDACTION, _REDACTED_BY_SPARK)
    return {_REDACTION: f"{shown}|{hidden}", **secrets}


def _sockets(folder: str) -> dict[str, str]:
    """Properties for Unix sockets between Spark and Python workers; empty if the folder's path is too long.

    Over TCP, each task waits 40 ms for a delayed acknowledgement.
    """
    if len(os.fsencode(folder)) + _SOCKET_NAME > _LONGEST_ADDRESS:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}


@cache
def _private_folder() -> str:
    """A folder that only this user can read, for sockets and rows on disk; deleted at exit."""
    folder = tempfile.mkdtemp(prefix="gc")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def start(settings: SparkSettings) -> None:
    """Starts the session in the background, for a process that will need it.

    Errors are ignored here, because the first use of the session repeats the attempt.
    """

    def build() -> None:
        with suppress(Exception):
            _warm(session(settings))

    thread = threading.Thread(target=build, name="start of Spark", daemon=True)
    _starting.append(thread)
    thread.start()


def wait_for_start() -> None:
    """Waits for all session starts in the background."""
    for thread in _starting:
        thread.join()


class _OnDemand:
    """Proxy of a session that is started at first use, in any thread."""

    def __init__(self, make: "Callable[[], SparkSession]") -> None:
        self._lock, self._make = threading.Lock(), make
        self._session: SparkSession | None = None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._session is None:
                self._session = self._make()
        return getattr(self._session, name)


def on_demand(make: "Callable[[], SparkSession]") -> "SparkSession":
    """A session that is started at first use, because a JVM takes three seconds and 0.5 GB."""
    return cast("SparkSession", _OnDemand(make))


def is_used(spark: "SparkSession") -> bool:
    """True unless it is a session on demand that was not started yet."""
    return not isinstance(spark, _OnDemand) or spark._session is not None


def starts_on_demand(settings: SparkSettings) -> bool:
    """True on a local master, where the first task starts the session.

    On a cluster, every run starts one. Raises ConfigurationError as `properties`, but does not search for Java.
    """
    if settings.remote or not settings.master.startswith("local"):
        return False
    _check(settings)
    _from_environment(settings)
    return not settings.master.startswith("local-cluster")


def local_parallelism(settings: SparkSettings) -> int:
    """Parallel tasks on a local master, even before it is started."""
    parallelism = settings.config.get("spark.default.parallelism", "")
    return int(parallelism) if parallelism.isdigit() else _local_cores(settings.master)


def _local_cores(master: str) -> int:
    named = _LOCAL_CORES.match(master)
    return int(named[1]) if named else 1 if master == "local" else _available_cores()


def _available_cores() -> int:
    """Cores for this process, as Java counts them: a container may have fewer than its machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CPU_LIMIT.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))


def session(settings: SparkSettings) -> Any:
    """The session with these settings, started if there is none."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    with launching(settings) as remaining:
        for name, value in remaining.items():
            builder = builder.config(name, value)
        hide_errors_of_ended_java()
        return builder.getOrCreate()


def _is_not_of_the_gateway(record: logging.LogRecord) -> bool:
    """Filter for the root logger: True unless the gateway to Java wrote the record."""
    return "py4j" not in Path(record.pathname).parts


def hide_errors_of_ended_java() -> None:
    """Suppresses the stack traces that Spark's accumulators and its gateway print when their Java is killed.

    A signal to the process group kills Java together with this process, which reports the end itself.
    """
    from pyspark import accumulators

    def handle_error(server: socketserver.BaseServer, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            socketserver.BaseServer.handle_error(server, request, client_address)

    # Names of the server classes differ between versions of Spark.
    for kind in vars(accumulators).values():
        if isinstance(kind, type) and issubclass(kind, socketserver.BaseServer):
            kind.handle_error = handle_error  # type: ignore[method-assign, assignment]
    logging.getLogger().addFilter(_is_not_of_the_gateway)


@contextmanager
def launching(settings: SparkSettings) -> Iterator[dict[str, str]]:
    """Context for starting a session; yields the properties to set on its builder.

    If a Java is started, it yields none: a builder puts its properties on Java's command line, which all users of the
    machine can read. Instead, Java reads them from a temporary file that only this user can read.

    Raises SparkNotStarted if Java ends before it answers, or if the builder gets an exception of Java.
    """
    spark_properties = properties(settings)
    if settings.remote or not settings.master:
        yield spark_properties
        return
    is_local = settings.master.startswith("local")
    with _without_variables(*_CONNECT, *(_GATEWAY if is_local else ())), java.readable_errors():
        if java.is_started():
            yield spark_properties
            return
        with _properties_file(spark_properties, java.default_properties(is_local)) as file:
            has_own_workers = is_local and spark_properties[_DAEMON] == _OUR_DAEMON
            java.launch(file, is_local, has_own_workers)
        yield {}


@contextmanager
def _properties_file(spark_properties: Mapping[str, str], defaults: bytes) -> Iterator[Path]:
    """A properties file that only this user can read: the defaults, then our properties. It is deleted at the exit.

    On Linux it is in memory: a file on disk, with its secrets, would remain if this process were killed meanwhile.
    """
    own = "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in spark_properties.items()).encode()
    content = b"\n\n".join((defaults, own))
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("session.properties"), "wb") as memory:
            os.fchmod(memory.fileno(), 0o600)
            memory.write(content)
            memory.flush()
            yield java.OPEN_FILES / str(memory.fileno())
        return
    with tempfile.TemporaryDirectory(prefix="gc") as folder:
        file = Path(folder, "session.properties")
        file.touch(mode=0o600)
        file.write_bytes(content)
        yield file


@contextmanager
def _without_variables(*names: str) -> Iterator[None]:
    """Removes the shell's variables from the environment until the exit, because the configuration names a master.

    The variable that makes pyspark's functions choose Spark Connect is not restored: they read it at each call.
    """
    os.environ.pop(_CONNECT_FOR_GOOD, None)
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def _escape(text: str) -> str:
    """A name or a value, escaped for a Java properties file."""
    written = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(f"\\{each}" if each in " :=#!" else written.get(each, each) for each in text)


def _warm(spark: Any) -> None:
    """Runs a small job with `mapInArrow` and a shuffle, as frames do, which starts a Python worker."""

    def same(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        yield from batches

    spark.range(0, 2, 1, 2).mapInArrow(same, "id long").distinct().collect()


def parallelism(spark: "SparkSession") -> int:
    """Parallel tasks of a classic or remote session, on all executors that dynamic allocation may add."""
    parallelism = spark.conf.get("spark.default.parallelism", None)
    if parallelism is None and hasattr(spark, "_jsc"):
        dynamic = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        # Executors start for tasks that wait, so the cores of this moment say nothing.
        executors = int(spark.conf.get("spark.dynamicAllocation.maxExecutors", "0") or 0) if dynamic else 0
        cores = executors % _UNLIMITED * int(spark.conf.get("spark.executor.cores", "1") or 1)
        parallelism = str(max(spark.sparkContext.defaultParallelism, cores))
    return int(parallelism or _REMOTE_CORES)


def ui_address(spark: "SparkSession") -> str | None:
    """Address of the application's jobs: at YARN's history server, behind the proxy of Spark's UI, or at the driver.

    None without UI, over Spark Connect, and if no session was started.
    """
    if not is_used(spark) or not hasattr(spark, "_jsc"):
        return None
    context = spark.sparkContext
    if history := context.getConf().get("spark.yarn.historyServer.address"):
        return f"{'' if '://' in history else 'http://'}{history.rstrip('/')}/history/{context.applicationId}/jobs/"
    if proxy := context.getConf().get("spark.ui.reverseProxyUrl"):
        return f"{proxy.rstrip('/')}/proxy/{context.applicationId}/jobs/"
    return f"{context.uiWebUrl}/jobs/" if context.uiWebUrl else None


def tasks_of_stages() -> dict[int, tuple[int, int]]:
    """Completed and total tasks by running stage of this process's session.

    Empty if no session was started here, or if it is a remote one.
    """
    if "pyspark" not in sys.modules:
        return {}
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return {}
    tracker = context.statusTracker()
    stages = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
    return {stage: (info.numCompletedTasks, info.numTasks) for stage, info in stages.items() if info is not None}

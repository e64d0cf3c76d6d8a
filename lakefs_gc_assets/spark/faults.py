"""Conversion of Spark's errors to our own, with cause and remedy instead of a stack trace."""

import os
import re
import signal
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext

from lakefs_gc_assets import errors
from lakefs_gc_assets.errors import CollectionError, SparkFailed, error_chain, exhausted

_RAISED = re.compile(r"^\s*(?:lakefs_gc_assets\.errors\.)(\w+): (.+)$", re.MULTILINE)


def from_worker(error: BaseException) -> CollectionError | None:
    """Our own error in the text of a failed Spark job; None if the job failed for another reason.

    A worker's error arrives as a traceback in the driver's exception. Its class is kept if it can be constructed from a
    message alone.
    """
    raised = _RAISED.findall(_text(error))
    if not raised:
        return None
    name, message = raised[-1]
    kind = getattr(errors, name, CollectionError)
    if kind in (errors.CorruptFile, errors.GuardTripped) or not issubclass(kind, CollectionError):
        return CollectionError(message)
    return kind(message)


_NO_SPACE = re.compile("No space left on device|Disk quota exceeded")
_MORE_HEAP = (
    "Spark's Java needs more memory. Raise spark.driver_memory, on a cluster also spark.executor.memory under "
    "spark.config"
)
_FEWER_WORKERS = "Give the machine or the container more memory, or use fewer workers: spark.master local[1] has one"
_REMEDIES = (
    (re.compile("OutOfMemoryError|Not enough memory to build and broadcast"), _MORE_HEAP),
    (
        re.compile("Python worker (exited unexpectedly|failed to connect back)"),
        f"a Python worker of Spark was killed, most often by the system for lack of memory. {_FEWER_WORKERS}",
    ),
    # Arrow's and numpy's own errors have names with these beginnings.
    (
        re.compile(r"\b(Arrow|_Array)?MemoryError\b"),
        f"a Python worker of Spark got no more memory from the system. {_FEWER_WORKERS}",
    ),
    (
        re.compile("ExecutorLostFailure"),
        "each attempt of a task lost its executor, most often because the cluster ended it for its memory. Raise "
        "spark.executor.memoryOverhead under spark.config: Python workers are outside of the heap",
    ),
    (
        re.compile("Cannot run program|reading the port number from|PYTHON_VERSION_MISMATCH"),
        "a Python worker of Spark did not start. Each machine of Spark needs this version of Python with this package: "
        "check the image of the executors, or set spark.pyspark.python under spark.config. If both are right, "
        "the worker was killed, most often for lack of memory",
    ),
)
_OWN_TEXT = re.compile(r"Cannot run program [^\n]+|(?<=Error from python worker:\n)[^\n]+|(?<=\) Reason: )\s*[^\n]+")
_CAUSED_BY = re.compile(r"^(?:Caused by|): (.+)$", re.MULTILINE)
_MAX_CAUSE = 300
_OF_PYSPARK = re.compile(r"pyspark\.")
_FOLDERS = "SPARK_LOCAL_DIRS"
"""Variable that replaces the property `spark.local.dir`."""
_OUT_OF_MEMORY = (3, 52)
"""Statuses of a Java that ended itself for lack of memory: by the option of our sessions, and by Spark."""
_NO_FOLDER = 53
"""Status of a Java in which Spark could not create its folder for temporary files."""


@contextmanager
def errors_of_spark() -> Iterator[None]:
    """Context that raises errors of Spark jobs as our own; other exceptions propagate unchanged."""
    try:
        yield
    except Exception as error:
        ours = None if isinstance(error, CollectionError) else from_spark(error)
        if ours is None:
            raise
        raise ours from error


def from_spark(error: BaseException) -> CollectionError | None:
    """Our error for a failed Spark job or an ended Java; None for errors in the code of this program."""
    ours = from_worker(error)
    if ours is not None:
        return ours
    chain = list(error_chain(error))
    if any(map(_is_full_disk_in_pyspark, chain)):
        return SparkFailed(_full_folder())
    failed_job = next((each for each in chain if isinstance(each, Py4JJavaError)), None)
    if failed_job is None:
        # Cleanup after the failed call fails too, so search the whole chain of exceptions.
        if any(isinstance(each, Py4JNetworkError | ConnectionError) for each in chain) and (end := _end_of_java()):
            return SparkFailed(end)
        return None
    text = _text(failed_job)
    if _NO_SPACE.search(text):
        return SparkFailed(f"a job of Spark failed: {_full_folder()}")
    remedy = next((remedy for pattern, remedy in _REMEDIES if pattern.search(text)), None)
    if remedy is not None:
        why = _OWN_TEXT.search(text)
        return SparkFailed(f"a job of Spark failed: {remedy}{f'. Its own words: {why[0].strip()}' if why else ''}")
    if "PythonException" in text:
        return None
    causes = _CAUSED_BY.findall(text)
    return SparkFailed(f"a job of Spark failed: {causes[-1][:_MAX_CAUSE]}") if causes else None


def _text(error: BaseException) -> str:
    """The text of an error; its class name if Java must supply the text and is gone."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _is_full_disk_in_pyspark(error: BaseException) -> bool:
    """True if pyspark found no space for a temporary file that it passes to Java; the error does not name the file."""
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, OSError) and bool(exhausted(error)) and any(map(_OF_PYSPARK.match, modules))


def _full_folder() -> str:
    """A message that the disk of Spark's temporary files is full; on a local master, with the folder."""
    folder, context = "", SparkContext._active_spark_context
    if context is not None and str(context.master).startswith("local"):
        # Java may be gone.
        with suppress(Py4JError, OSError):
            folder = f", {os.environ.get(_FOLDERS) or context.getConf().get('spark.local.dir')},"
    return (
        f"the folder for Spark's temporary files{folder} is full. Free space on that disk, or name a folder with more "
        f"space by {_FOLDERS if _FOLDERS in os.environ else 'spark.local.dir under spark.config'}"
    )


def _end_of_java() -> str | None:
    """A message how this process's Java ended, with a remedy; None if it runs, or another process started it."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        status = process.wait(5)
    except subprocess.TimeoutExpired:
        return None
    if status == -signal.SIGKILL:
        return (
            "Spark's Java was killed in the middle of the work, most often by the system for lack of memory. Give the "
            "machine or the container more memory, or lower spark.driver_memory"
        )
    if status in _OUT_OF_MEMORY:
        return _MORE_HEAP
    if status == _NO_FOLDER:
        return (
            "Spark could not create a folder for its temporary files, which Java's output above names. Make room, and "
            f"let this user write there, or name another folder by spark.local.dir under spark.config or by {_FOLDERS}"
        )
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return (
        f"Spark's Java ended {how} in the middle of the work. A file hs_err_pid….log in the working folder, or "
        "Java's output above, names the cause. JAVA_HOME chooses another Java"
    )

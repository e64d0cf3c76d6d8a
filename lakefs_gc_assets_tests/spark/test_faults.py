"""Errors raised in workers, and failures of Spark, arrive in the driver as our own errors."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.spark.faults import from_spark, from_worker
from lakefs_gc_assets.storage.opening import StoreOpener


def test_an_executor_without_a_credential_says_which_variable_it_lacks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session was started before the variable was set, so its workers do not have it."""
    variable = f"TEST_{uuid4().hex}"
    monkeypatch.setenv(variable, "secret")
    opener = StoreOpener(StoreSettings(from_environment={"secret_access_key": variable}), "s3://bucket/repository")

    def open_there(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opener.open()
        yield from batches

    with pytest.raises(Exception, match=variable) as caught:
        spark.range(1).mapInArrow(open_there, "id long").collect()
    found = from_worker(caught.value)
    assert isinstance(found, ConfigurationError)
    assert f"{variable}, which is not set on" in str(found)


_SESSION = """
import os, signal, threading, time
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session
from lakefs_gc_assets.spark.faults import from_spark

spark = session.session(SparkSettings(master="local[2]", driver_memory="512m"))
java = spark.sparkContext._gateway.proc.pid

def work(fault, batches):
    if fault == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "disk":
        raise OSError(28, os.strerror(28))
    if fault == "bug":
        raise KeyError("bug")
    time.sleep(20)
    yield from batches

for fault in ("worker", "disk", "bug", "java"):
    if fault == "java":
        threading.Timer(3, os.kill, [java, signal.SIGKILL]).start()
    try:
        spark.range(4).mapInArrow(lambda batches: work(fault, batches), "id long").distinct().collect()
    except Exception as error:
        print(from_spark(error))
try:
    spark.range(4).count()
except Exception as error:
    print(from_spark(error))
"""


@pytest.mark.slow
def test_what_the_system_does_to_spark_is_reported_with_a_remedy(tmp_path: Path) -> None:
    """One session for all faults, since each start takes seconds."""
    done = subprocess.run([sys.executable, "-c", _SESSION], capture_output=True, text=True, cwd=tmp_path, timeout=300)

    java = "Spark's Java was killed in the middle of the work, most often by the system for lack of memory."
    expected = [
        "a job of Spark failed: a Python worker of Spark was killed, most often by the system for lack of",
        "a job of Spark failed: the folder for Spark's temporary files, /",
        "None",
        java,
        java,
    ]
    printed = done.stdout.splitlines()
    assert len(printed) == len(expected), done.stdout + done.stderr
    for line, beginning in zip(printed, expected, strict=True):
        assert line.startswith(beginning)


def test_a_java_that_broke_down_is_reported_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SimpleNamespace(wait=lambda seconds: -signal.SIGABRT)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=ended))
    line = "Spark's Java ended by SIGABRT in the middle of the work. A file hs_err_pid….log"
    assert str(from_spark(ConnectionResetError())).startswith(line)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (3, "Spark's Java needs more memory. Raise spark.driver_memory"),
        (52, "Spark's Java needs more memory. Raise spark.driver_memory"),
        (53, "Spark could not create a folder for its temporary files, which Java's output above names. Make room"),
        (1, "Spark's Java ended with status 1 in the middle of the work."),
    ],
)
def test_a_java_that_ended_is_reported_by_its_status(monkeypatch: pytest.MonkeyPatch, status: int, line: str) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=SimpleNamespace(wait=lambda seconds: status)))
    assert str(from_spark(ConnectionResetError())).startswith(line)


def _context(master: str, folder: str) -> SimpleNamespace:
    return SimpleNamespace(master=master, getConf=lambda: {"spark.local.dir": folder})


@pytest.mark.parametrize(
    ("master", "folders", "where", "setting"),
    [
        ("local[2]", "", ", /first,", "spark.local.dir under spark.config"),
        ("local[2]", "/second,/third", ", /second,/third,", "SPARK_LOCAL_DIRS"),
        ("yarn", "", "", "spark.local.dir under spark.config"),
    ],
)
def test_a_full_folder_of_spark_is_named_on_this_machine_with_what_sets_it(
    monkeypatch: pytest.MonkeyPatch, master: str, folders: str, where: str, setting: str
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", _context(master, "/first"))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if folders:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
    full = OfJava(_FAILED.format(cause="java.io.IOException: No space left on device"))
    assert str(from_spark(full)) == (
        f"a job of Spark failed: the folder for Spark's temporary files{where} is full. Free space on that disk, or "
        f"name a folder with more space by {setting}"
    )


class OfJava(Py4JJavaError):  # type: ignore[misc]
    """A Java error with its own text, or with None if its Java process is gone."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __str__(self) -> str:
        if self._text is None:
            raise ConnectionRefusedError
        return self._text


_FAILED = """An error occurred while calling o79.count.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
	at org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:318)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
	at org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
Caused by: {cause}
	... 1 more
"""


_LOST = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 5.0 failed 4 times, most "
    "recent failure: Lost task 3.3 in stage 5.0 (TID 31) (10.0.0.3 executor 7): ExecutorLostFailure (executor 7 exited "
    "caused by one of the running tasks) Reason: {reason}\nDriver stacktrace:"
)


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("java.io.IOException: No space left on device", "the folder for Spark's temporary files"),
        ("java.lang.OutOfMemoryError: Java heap space", "Spark's Java needs more memory. Raise spark.driver_memory"),
        (
            "org.apache.spark.SparkException: Not enough memory to build and broadcast the table to all worker nodes",
            "Spark's Java needs more memory. Raise spark.driver_memory",
        ),
        ("org.apache.spark.api.python.PythonException: Traceback\nMemoryError", "a Python worker of Spark got no more"),
        (
            "org.apache.spark.api.python.PythonException: Traceback\npyarrow.lib.ArrowMemoryError: malloc of size 1",
            "a Python worker of Spark got no more memory from the system",
        ),
        (
            'java.io.IOException: Cannot run program "/python": Exec failed, error: 2',
            "a Python worker of Spark did not start",
        ),
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  python3: No module named 'x'\n"
            "org.apache.spark.SparkException: EOFException occurred while reading the port number from x's stdout",
            "Each machine of Spark needs this version of Python with this package",
        ),
        (
            'java.io.IOException: Cannot run program "/python": Exec failed, error: 13 (Permission denied) ',
            '. Its own words: Cannot run program "/python": Exec failed, error: 13 (Permission denied)',
        ),
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  python3: No module named 'x'\n"
            "org.apache.spark.SparkException: EOFException occurred while reading the port number from x's stdout",
            ". Its own words: python3: No module named 'x'",
        ),
        (_LOST.format(reason="Command exited with code 137"), "spark.executor.memoryOverhead under spark.config"),
        (
            _LOST.format(reason="Container killed by YARN for exceeding physical memory limits. 4.5 GB of 4.5 GB"),
            ". Its own words: Container killed by YARN for exceeding physical memory limits. 4.5 GB of 4.5 GB",
        ),
        (
            _LOST.format(reason="\nThe executor with id 4 exited with exit code 137(SIGKILL, possible container OOM)."),
            ". Its own words: The executor with id 4 exited with exit code 137(SIGKILL, possible container OOM).",
        ),
        ("java.net.BindException: Address in use", "a job of Spark failed: java.net.BindException: Address in use"),
    ],
)
def test_the_deepest_cause_of_a_failed_job_is_reported(cause: str, line: str) -> None:
    try:
        raise RuntimeError from OfJava(_FAILED.format(cause=cause))
    except RuntimeError as error:
        assert line in str(from_spark(error))


def test_errors_of_this_program_and_of_others_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for error in (OfJava(None), OfJava("PythonException: KeyError"), ConnectionRefusedError(), ValueError("bug")):
        assert from_spark(error) is None

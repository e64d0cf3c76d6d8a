"""Starting the Java of a session, with what it prints kept until it answers.

pyspark starts its Java from the environment of this process, and lets it print to standard error. Here that environment
is filtered first, and a Java that ends before it answers is reported by one error.
"""

import os
import pwd
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home

from lakefs_gc_assets.errors import SparkNotStarted
from lakefs_gc_assets.spark.start import process

_SHELL = "pyspark-shell"
"""Name that spark-submit gives to a Python program that started it."""
_STANDARD_ERROR = 2
_LINES_SHOWN = 3
OPEN_FILES = Path("/proc/self/fd")
"""Folder of a process's open files on Linux, by their numbers."""
_NO_REASON = re.compile(r"\s|Picked up |WARNING: |Using Spark's default log4j|Setting Spark log4j|:: ")
"""How lines begin that do not say why a Java ended: stacks, warnings, notes."""
_ADVICE = (
    (
        re.compile("UnknownHostException|UnresolvedAddress"),
        "That host name does not resolve: add this machine's name to /etc/hosts, or see to the host of spark.master",
    ),
    (
        re.compile("object heap|heap size|OutOfMemory|Cannot allocate memory"),
        "Lower spark.driver_memory, or give the process more memory",
    ),
    (
        re.compile("Unrecognized (VM )?option|Could not create the Java Virtual Machine"),
        "Correct spark.driver.extraJavaOptions in spark.config, and JAVA_TOOL_OPTIONS, JDK_JAVA_OPTIONS and "
        "_JAVA_OPTIONS in the environment",
    ),
    (
        re.compile("BindException"),
        "No port could be opened at that address: see to spark.driver.bindAddress and spark.driver.host",
    ),
)
_OTHER_ADVICE = "Check the section spark of the configuration, and what the environment sets for Java and Spark"


def launch(properties_file: Path, is_local: bool, has_own_workers: bool) -> None:
    """Starts the Java of this process, which reads its properties from a file; returns when it answers.

    Args:
        is_local: True for a local master, whose Java is started without variables and arguments of the shell.
        has_own_workers: True if our `worker_daemon` starts the workers, which undoes what is changed here for Java.
    Raises:
        SparkNotStarted: with what Java printed.
    """
    start = _Start(properties_file, is_local, has_own_workers)
    with _started_by(start):
        try:
            gateway = java_gateway.launch_gateway()  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            raise not_started(start.last_words()) from None
        except OSError as error:
            raise not_started(str(error)) from None
    start.show_words()
    if _is_nameless():
        _name_user(gateway)
    SparkContext._ensure_initialized(gateway=gateway)


def default_properties(is_local: bool) -> bytes:
    """Content of Spark's file of defaults, which Spark skips if it gets a file of properties.

    From version 4.0 on it has the option --load-spark-defaults, which makes it read both.
    """
    configuration = None if is_local else os.environ.get("SPARK_CONF_DIR")
    file = Path(configuration or _spark_home(is_local) / "conf") / "spark-defaults.conf"
    return file.read_bytes() if file.is_file() else b""


def _spark_home(is_local: bool) -> Path:
    """Home of the Spark that is started: on a local master the one of pyspark itself, unless that has no jars."""
    own = Path(pyspark.__file__).parent
    return own if is_local and (own / "jars").is_dir() else Path(_find_spark_home())


def not_started(reason: str) -> SparkNotStarted:
    """The error for a session that could not be started, with advice that fits the reason."""
    advice = next((text for pattern, text in _ADVICE if pattern.search(reason)), _OTHER_ADVICE)
    return SparkNotStarted(f"Spark's session could not be started: {reason}. {advice}")


@contextmanager
def readable_errors() -> Iterator[None]:
    """Raises SparkNotStarted for what Java raises of a session that is made here."""
    try:
        yield
    except Py4JJavaError as error:
        raise not_started(_reason_of(error)) from error


def _reason_of(error: Py4JJavaError) -> str:
    """Java's exception, with the one that caused it."""
    exception, cause = error.java_exception, error.java_exception.getCause()
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(exception.toString()) if cause is None else f"{exception.toString()}, caused by {cause.toString()}"


@contextmanager
def _started_by(start: "_Start") -> Iterator[None]:
    """Lets pyspark start its Java by `start`: it has no argument for the environment or the command."""
    module: Any = java_gateway
    before = module.Popen
    module.Popen = start
    try:
        yield
    finally:
        module.Popen = before


class _Start:
    """Starts one Java as `subprocess.Popen` would, and keeps what it prints."""

    def __init__(self, properties_file: Path, is_local: bool, has_own_workers: bool) -> None:
        self._properties_file = properties_file
        self._is_local = is_local
        self._has_own_workers = has_own_workers
        self._lock = threading.Lock()
        self._kept: list[bytes] | None = []
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="words of Spark's Java", daemon=True)

    def __call__(self, command: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts Spark's own script."""
        inherited = dict(env)
        home, arguments = _spark_home(self._is_local), command[1:]
        if self._is_local:
            process.keep_own_settings(inherited)
            arguments = [_SHELL]
            inherited["SPARK_HOME"] = str(home)
            # Spark's UI, where it is turned on, goes by this variable alone.
            inherited["SPARK_LOCAL_IP"] = "127.0.0.1"
        if _is_nameless():
            # Java then takes "?" for the home, which Spark refuses.
            inherited.setdefault("HOME", tempfile.gettempdir())
        umask = -1
        if self._has_own_workers:
            process.hide_aws_keys(inherited)
            process.keep_umask(inherited)
            umask = 0o077  # Java keeps rows in files, which are nobody else's to read.
        properties = ["--properties-file", str(self._properties_file)]
        numbers = [int(self._properties_file.name)] if self._properties_file.parent == OPEN_FILES else []
        # A Java that cannot begin says so on standard output, where commands write their results.
        started = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), *properties, *arguments],
            env=inherited,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=numbers,
            umask=umask,
            **options,
        )
        self._process = started
        self._reader.start()
        return started

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        lines: IO[bytes] = self._process.stdout
        for line in lines:
            with self._lock:
                if self._kept is not None:
                    self._kept.append(line)
                    continue
            _show(line)

    def show_words(self) -> None:
        """Prints what was kept, and from now on what comes."""
        with self._lock:
            kept, self._kept = self._kept or [], None
            for line in kept:
                _show(line)

    def last_words(self) -> str:
        """The reason that an ended Java printed."""
        self._reader.join(10)
        with self._lock:
            lines = [line.decode(errors="replace").rstrip() for line in self._kept or []]
        reasons = [line for line in lines if line and not _NO_REASON.match(line)]
        code = None if self._process is None else self._process.poll()
        return "; ".join(reasons[:_LINES_SHOWN]) or f"its Java ended with status {code} and printed nothing"


def _show(line: bytes) -> None:
    with suppress(OSError):
        os.write(_STANDARD_ERROR, line)


def _is_nameless() -> bool:
    """True if the system has no name for this process's user.

    OpenShift and `docker run --user` start containers by numbers without an entry in /etc/passwd.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return True
    return False


def _name_user(gateway: JavaGateway) -> None:
    """Gives Hadoop a name of the user: Java finds none, and Spark would end. Where Hadoop is secured, it does nothing.

    The variable HADOOP_USER_NAME alone comes too late, since Hadoop asks for the system's name first.
    """
    users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
    if not users.isSecurityEnabled():
        users.setLoginUser(users.createRemoteUser(os.environ.get("HADOOP_USER_NAME") or f"uid-{os.getuid()}"))


def is_started() -> bool:
    """True if this process has a Java, or was started by spark-submit, which has one."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ

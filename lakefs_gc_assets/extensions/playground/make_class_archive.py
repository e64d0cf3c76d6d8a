"""Makes the archive of Spark's Java classes, by collecting a small sample repository: `make setup` runs it once.

As a module, it starts itself again in a process whose JVM writes the archive (`java.make_archive`).
"""

import io
import warnings
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.spark.start import java

_OBJECTS = 100
_JVM_EXIT_SECONDS = 300


def collect_sample(folder: Path) -> None:
    """Collects a sample repository in a folder, and waits for the JVM to write its loaded classes at its end."""
    demo.show(folder, "oss", _OBJECTS, Console(file=io.StringIO()))
    session = SparkSession.getActiveSession()
    gateway = SparkContext._gateway
    if session is None or gateway is None:
        return
    session.stop()
    jvm = gateway.proc
    jvm.stdin.close()
    jvm.wait(timeout=_JVM_EXIT_SECONDS)


if __name__ == "__main__":
    # As in the command line: Dagster warns of each use of an unstable API.
    warnings.filterwarnings("ignore", message=r".* is currently in (beta|preview)")
    if building := java.archive_being_made():
        collect_sample(building.parent)
    else:
        print(java.make_archive("lakefs_gc_assets.extensions.playground.make_class_archive"))

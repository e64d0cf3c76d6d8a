"""The process from which local Spark forks Python workers: it has imported all modules that workers need.

Spark starts it instead of `pyspark.daemon` (property `spark.python.daemon.module`). A worker with its own imports takes
three seconds to begin, and shares no memory for them with the others.
"""

import gc
import os
import sys
import zipimport
from collections.abc import Callable

from lakefs_gc_assets.spark.start import process

process.show_aws_keys(os.environ)
process.restore_umask(os.environ)

# Imported objects stay, and garbage collection took a third of the time of the imports.
gc.disable()

# Spark puts its source archives first on the path, and imports from archives are compiled anew each time.
sys.path[:] = process.without_archives(sys.path)

# Before Spark 4.2, each task invalidates import caches, so that Python reads these archives again, 13 times.
zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]

# A thread that runs during a fork could hold a lock for which the worker then waits. numpy's threads are not needed.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# pyarrow would import pandas with its first array of Python objects.
process.exclude_pandas()

import pyspark.daemon
import pyspark.worker

import lakefs_gc_assets.collector.engine.hashing
import lakefs_gc_assets.collector.engine.local
import lakefs_gc_assets.collector.engine.port
import lakefs_gc_assets.collector.frame.files
import lakefs_gc_assets.collector.live.live_files
import lakefs_gc_assets.lakefs.formats.records
import lakefs_gc_assets.spark.blocks
import lakefs_gc_assets.storage.opening
import lakefs_gc_assets.storage.s3.store  # noqa: F401
from lakefs_gc_assets.lakefs.formats.compilation import load_compiler

_LOADING_TASKS = 20
"""Number of tasks after which a worker has loaded all that it needs, such as the clients of its store."""

_LEFT = 1
"""Exit code of a worker whose socket is closed."""


def without_garbage_collection(work: Callable[..., int]) -> Callable[..., int]:
    """Wraps a worker's loop body so that garbage collection skips the objects that the first tasks loaded.

    A worker collects garbage after each task. With half a million permanent objects, that takes a quarter of a second.

    A worker ends silently if Spark has closed its socket: the end of Spark is not an error to print.
    """
    done = 0

    def work_once(*arguments: object) -> int:
        nonlocal done
        try:
            code = work(*arguments)
        except ConnectionError:
            # The socket's files are closed with this frame. Their last writes fail, which would be printed.
            sys.unraisablehook = lambda _: None
            return _LEFT
        done += 1
        if done <= _LOADING_TASKS:
            gc.freeze()
        return code

    return work_once


def serve() -> None:
    """Forks workers on Spark's request until Spark ends."""
    load_compiler()
    gc.freeze()
    gc.enable()
    pyspark.daemon.worker = without_garbage_collection(pyspark.daemon.worker)
    pyspark.daemon.manager()


if __name__ == "__main__":
    serve()

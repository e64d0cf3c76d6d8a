"""The process that local Spark forks Python workers from: it has imported what every worker needs.

Spark starts it in place of `pyspark.daemon` (property `spark.python.daemon.module`). A worker that imports for itself
takes three seconds to begin, and memory of its own for what all have alike.
"""

import gc
import os
import sys
import zipimport
from collections.abc import Callable

from lakefs_gc_assets.spark.start import process

process.show_aws_keys(os.environ)
process.restore_umask(os.environ)

# What is imported stays: to look for what may go took a third of the time.
gc.disable()

# Spark puts archives of its sources first: what is imported from those is compiled anew each time.
sys.path[:] = process.without_archives(sys.path)

# Before Spark 4.2 each task lets Python look for modules anew, which then read these archives again, 13 times.
zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]

# A thread that runs while workers are forked could hold a lock that they then wait for: numpy's is not needed here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# pyarrow would import it as soon as it makes an array of Python objects.
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
"""Number of tasks after which a worker has loaded everything that it needs, such as the clients of its store."""

_LEFT = 1
"""Exit code of a worker whose socket is closed."""


def without_garbage_collection(work: Callable[..., int]) -> Callable[..., int]:
    """Wraps a worker's loop body so that garbage collection skips the objects that the first tasks loaded.

    A worker collects garbage after each task. With half a million objects that stay, a collection takes a quarter of a
    second.

    A worker whose socket Spark has closed ends: where Spark ends, that is no error to print on a person's screen.
    """
    done = 0

    def work_once(*arguments: object) -> int:
        nonlocal done
        try:
            code = work(*arguments)
        except ConnectionError:
            # Files of the socket that go with this frame fail to write their last bytes, and would say so.
            sys.unraisablehook = lambda _: None
            return _LEFT
        done += 1
        if done <= _LOADING_TASKS:
            gc.freeze()
        return code

    return work_once


def serve() -> None:
    """Forks a worker whenever Spark asks for one, until Spark ends."""
    load_compiler()
    gc.freeze()
    gc.enable()
    pyspark.daemon.worker = without_garbage_collection(pyspark.daemon.worker)
    pyspark.daemon.manager()


if __name__ == "__main__":
    serve()

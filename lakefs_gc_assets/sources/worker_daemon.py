"""The process that local Spark forks Python workers from: it has imported what every worker needs.

Spark starts it in place of `pyspark.daemon` (property `spark.python.daemon.module`). A worker that imports for itself
takes three seconds to begin, and memory of its own for what all have alike.
"""

import gc
import os

# A thread that runs while workers are forked could hold a lock that they then wait for: numpy's is not needed here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# pyarrow imports pandas, where there is one, as soon as it makes an array of Python objects.
import pandas  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import lakefs_gc_assets.collection.live_files
import lakefs_gc_assets.frames.files
import lakefs_gc_assets.lakefs.records
import lakefs_gc_assets.storage.opening
import lakefs_gc_assets.storage.s3  # noqa: F401
from lakefs_gc_assets.lakefs.compilation import load_compiler

if __name__ == "__main__":
    load_compiler()
    # A worker collects garbage after each task. Of a million objects that never go this takes a quarter of a second.
    gc.collect()
    gc.freeze()
    manager()

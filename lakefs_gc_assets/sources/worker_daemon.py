"""The process that local Spark forks Python workers from: it has imported what every worker needs.

Spark starts it in place of `pyspark.daemon` (property `spark.python.daemon.module`). A worker that imports for itself
takes three seconds to begin, and memory of its own for what all have alike.
"""

import os

# A thread that runs while workers are forked could hold a lock that they then wait for: numpy's is not needed here.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import lakefs_gc_assets.collection.live_files
import lakefs_gc_assets.lakefs.records
import lakefs_gc_assets.storage.opening  # noqa: F401

if __name__ == "__main__":
    manager()

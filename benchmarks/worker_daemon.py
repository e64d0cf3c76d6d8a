"""The project's daemon of Python workers, whose workers count what they read."""

from pyspark.daemon import manager

import lakefs_gc_assets.sources.worker_daemon  # noqa: F401
from benchmarks import counting

if __name__ == "__main__":
    counting.install()
    manager()

"""The project's daemon of Python workers, whose workers count what they read."""

from benchmarks import counting
from lakefs_gc_assets.spark.start import worker_daemon

if __name__ == "__main__":
    counting.install()
    worker_daemon.serve()

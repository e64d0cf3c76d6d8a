"""The project's daemon of Python workers, whose workers count reads, and log each task's processor time."""

import time

from pyspark import TaskContext

from benchmarks import counting
from lakefs_gc_assets.spark.start import worker_daemon


def _log_tasks() -> None:
    """Makes workers log each task's processor time since the previous task, or since their start."""
    put, before, began = TaskContext._setTaskContext, 0.0, 0.0

    def put_and_log(context: TaskContext | None) -> None:
        nonlocal before, began
        if context is not None:
            began = time.time()
        elif TaskContext.get() is not None:
            used = time.process_time()
            counting.log_call("task", began, int(1e6 * (used - before)))
            before = used
        put(context)

    TaskContext._setTaskContext = put_and_log  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    counting.install()
    _log_tasks()
    worker_daemon.serve()

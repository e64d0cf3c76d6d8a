"""Deals test files out to processes so that half of the processes start no Spark.

A session takes a JVM, some ten seconds of processor until it is warm, and half a GB. The other half takes files without
Spark first, those with Spark last.
"""

import re
from functools import cache

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_NEEDS_SPARK = re.compile(r"SparkSession|graph_runs|usefixtures\(.*\"spark\"")


class SparkOnFew(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """As `--dist loadfile`, but takes the first file that suits a process instead of the first of the queue."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._needs_spark = cache(lambda file: bool(_NEEDS_SPARK.search((config.rootpath / file).read_text())))

    def _assign_work_unit(self, node: WorkerController) -> None:
        takes_spark = self.nodes.index(node) % 2 == 0
        suitable = next((file for file in self.workqueue if self._needs_spark(file) == takes_spark), None)
        if suitable is not None:
            self.workqueue.move_to_end(suitable, last=False)
        super()._assign_work_unit(node)

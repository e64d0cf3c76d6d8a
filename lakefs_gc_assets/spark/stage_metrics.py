"""Requests of tasks to the store, as accumulators of their stage in Spark's UI, event log and history server.

Spark shows only accumulators with a name, and accumulators of Python have none. So a Python accumulator brings the
numbers of each task to the driver, which adds them to the facts of the running stage. Spark waits for this before it
handles the end of the task, so the facts do not change while Spark reads them. Spark has no public method for it: if a
version of Spark refuses, the numbers are missing, and nothing else is.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.port import ChangeBatches
from lakefs_gc_assets.spark.work_names import renamed
from lakefs_gc_assets.storage import traffic

Numbers = Counter[tuple[int, str]]
"""Totals by stage and name."""
_log = logging.getLogger(__name__)


def counted(spark: SparkSession, change: ChangeBatches) -> ChangeBatches:
    """A function of a task's rows that also reports the task's requests, if Spark's UI or event log shows them.

    Spark Connect has no accumulators; there, and without UI and event log, it is the function itself.
    """
    if not hasattr(spark, "_jsc") or not _is_shown(spark):
        return change
    totals = _totals_of(spark.sparkContext)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = traffic.total()
        yield from change(batches)
        task = TaskContext.get()
        if task is not None and (more := traffic.total() - before):
            totals.add(Counter({(task.stageId(), name): number for name, number in more.items()}))

    return renamed(run, change)


def _is_shown(spark: SparkSession) -> bool:
    shown = {"spark.ui.enabled": "true", "spark.eventLog.enabled": "false"}
    return any(spark.conf.get(name, default) == "true" for name, default in shown.items())


class _TaskTotals(AccumulatorParam[Numbers]):
    """Adds numbers, and shows numbers that reach the driver. Its copies in workers only add."""

    def __init__(self, show: Callable[[Numbers], None] | None = None) -> None:
        self._show = show

    def __reduce__(self) -> tuple[type["_TaskTotals"], tuple[()]]:
        return _TaskTotals, ()

    def zero(self, value: Numbers) -> Numbers:
        """No numbers."""
        return Counter()

    def addInPlace(self, value1: Numbers, value2: Numbers) -> Numbers:
        """The sum; on the driver, the second value has the numbers of one task."""
        value1.update(value2)
        if self._show:
            self._show(Counter({key: value1[key] for key in value2}))
        return value1


_totals: WeakKeyDictionary[SparkContext, Accumulator[Numbers]] = WeakKeyDictionary()


def _totals_of(context: SparkContext) -> Accumulator[Numbers]:
    if context not in _totals:
        _totals[context] = context.accumulator(Counter(), _TaskTotals(_Stages(context).show))
    return _totals[context]


class _Stages:
    """The running stages of a session, with the accumulators that Spark shows for them.

    Spark's scheduler waits for each call of Java, so classes are looked up once. The first task does that, because
    some platforms refuse it.
    """

    def __init__(self, context: SparkContext) -> None:
        self._jvm: Any = context._jvm
        self._context: Any = context._jsc

    @cached_property
    def _scheduler(self) -> Any:
        return self._context.sc().dagScheduler()

    @cached_property
    def _ids(self) -> dict[str, int]:
        return defaultdict(self._jvm.org.apache.spark.util.AccumulatorContext.newId)

    @cached_property
    def _classes(self) -> tuple[Any, Any, Any]:
        scala = self._jvm.scala
        return self._jvm.org.apache.spark.scheduler.AccumulableInfo, scala.Some, scala.Option.empty()

    def show(self, numbers: Numbers) -> None:
        """Sets the numbers of a task's stage. It must not raise: Spark would wait for its answer without end."""
        try:
            stage_id = next(stage_id for stage_id, _ in numbers)
            stage = self._scheduler.stageIdToStage().get(stage_id)
            if stage.isDefined():
                self._set(stage.get().latestInfo().accumulables(), numbers)
        except Exception as error:
            _log.debug("Spark does not take the numbers of a stage: %s", error)

    def _set(self, accumulables: Any, numbers: Numbers) -> None:
        info, some, none = self._classes
        for (_, name), number in numbers.items():
            named, value = some(name), some(number)
            accumulables.update(self._ids[name], info(self._ids[name], named, none, value, False, False, none))

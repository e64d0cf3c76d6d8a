"""One run as the command line makes it, in this process, which tells as JSON lines when each step ended.

Usage: python -m benchmarks.collecting CONFIGURATION [--flow FLOW] [--sweep] [--windows FIRST..LAST] [--now ISO]
[--forecast] [--holdings] [--engine NAME] [--thresholds FACTOR]
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks import counting
from lakefs_gc_assets.configuration_file import Loaded, load
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as spark_session
from lakefs_gc_assets.spark.start import process
from lakefs_gc_assets.storage.interface import ObjectFacts

_POLICIES = {
    "short": "{default: 2d, replace: true, keep_tags: false}",
    "main": "{default: 7d, replace: true, branches: {main: 30d}}",
    "branches": "{default: 30d, branches: {main: 1d, branch-*: 3d}}",
}
"""Policies for a forecast, in addition to the rules in force and its default ages."""

THRESHOLDS = ("LOCAL_ROWS", "MANY_ADDRESSES", "FEW_HASHES")
"""Numbers of rows: those that stay in the driver, and those that decide how frames are compared."""


class MovedClock:
    """This machine's clock, shifted."""

    def __init__(self, moved: timedelta) -> None:
        self._moved = moved

    def now(self) -> datetime:
        """The shifted present, UTC."""
        return datetime.now(UTC) + self._moved

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """The shifted present, in seconds."""
        return self.now().timestamp()


def move_local_store(moved: timedelta) -> None:
    """Shifts the times of files in a local folder when read one by one; listings keep the real times."""
    from dataclasses import replace

    from lakefs_gc_assets.storage.local import LocalStore

    head = LocalStore.head

    def moved_head(self: LocalStore, key: str) -> ObjectFacts:
        facts = head(self, key)
        return replace(facts, last_modified=facts.last_modified + moved)

    LocalStore.head = moved_head  # type: ignore[method-assign]


def scale_thresholds(factor: float) -> None:
    """Multiplies the numbers of rows from which on a run takes another way, so that a small run goes a large one's way.

    A tenth of a repository with a tenth of these numbers keeps the same frames in the driver as the whole repository.
    """
    from lakefs_gc_assets.spark import engine

    assert engine.FEW_HASHES, "the module that has them is imported"
    for name, module in [*sys.modules.items()]:
        for threshold in THRESHOLDS if name.startswith("lakefs_gc_assets.") else ():
            if threshold in vars(module):
                setattr(module, threshold, int(vars(module)[threshold] * factor))


def main() -> None:
    """Prints one line for each step with its end and the counts so far, then one line with the run's output."""
    process.collect_cycles_rarely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configuration", type=Path)
    parser.add_argument("--flow", default="clean")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--windows", default="")
    parser.add_argument("--now", type=datetime.fromisoformat)
    parser.add_argument("--forecast", action="store_true", help="make a forecast in place of a run")
    parser.add_argument("--holdings", action="store_true", help="add up holdings in place of a run")
    parser.add_argument("--engine", help="compare addresses as one of `other_engines`")
    parser.add_argument("--thresholds", type=float, default=1, help="factor for numbers of rows that change the plan")
    asked = parser.parse_args()
    loaded = load(asked.configuration)
    spark: SparkSettings = loaded.configuration.spark
    loaded = _counting(loaded, in_session_of_spark(spark) if asked.engine else spark)
    if asked.flow != "optimized" and not asked.holdings:
        spark_session.start(loaded.configuration.spark)
    moved = asked.now - datetime.now(UTC) if asked.now else timedelta()
    from lakefs_gc_assets.cli.run import collect
    from lakefs_gc_assets.collector.records.plan import Flow
    from lakefs_gc_assets.collector.records.report import describe
    from lakefs_gc_assets.defs.running import AskedRun

    counting.install()
    scale_thresholds(asked.thresholds)
    if asked.engine:
        from benchmarks import other_engines

        other_engines.install(asked.engine)
    if moved and loaded.configuration.store.local_root:
        move_local_store(moved)
    folder = Path(os.environ[counting.FOLDER_VARIABLE])

    def progress(line: str) -> None:
        counts = counting.total(folder)
        print(json.dumps({"at": time.time(), "line": line, **vars(counts)}), flush=True)

    try:
        if asked.forecast:
            succeeded, told = True, _forecast(loaded, progress)
        elif asked.holdings:
            succeeded, told = True, _holdings(loaded, progress)
        else:
            found = collect(loaded, AskedRun(asked.sweep, Flow(asked.flow), asked.windows), progress, MovedClock(moved))
            succeeded, told = found.success, describe(found)
    except CollectionError as error:
        sys.exit(f"benchmarks: {error}")
    progress("the end")
    print(json.dumps({"succeeded": succeeded, "told": told}), flush=True)


def _forecast(loaded: Loaded, progress: Callable[[str], None]) -> list[str]:
    """A forecast for all ages, three policies, and every branch."""
    from lakefs_gc_assets.collector.repository.repository import SystemClock
    from lakefs_gc_assets.collector.retention import rules
    from lakefs_gc_assets.defs.resources import Collector
    from lakefs_gc_assets.extensions.forecast.definitions import forecast_now
    from lakefs_gc_assets.extensions.forecast.forecast_command import describe

    policies = {name: rules.parse_policy(text, name) for name, text in _POLICIES.items()}
    _, found = forecast_now(Collector.from_loaded(loaded, SystemClock()), progress, policies=policies)
    return [*describe(found)]


def _holdings(loaded: Loaded, progress: Callable[[str], None]) -> list[str]:
    """Bytes of each branch and folder after the newest run."""
    from lakefs_gc_assets.collector.repository.repository import SystemClock
    from lakefs_gc_assets.defs.resources import Collector
    from lakefs_gc_assets.extensions.holdings.definitions import holdings_now
    from lakefs_gc_assets.extensions.holdings.holdings_command import describe
    from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension

    _, found = holdings_now(Collector.from_loaded(loaded, SystemClock()), progress, progress)
    return [*describe(found, [Dimension.STATE, Dimension.BRANCH], None)]


def _counting(loaded: Loaded, spark: SparkSettings) -> Loaded:
    config = {"spark.python.daemon.module": "benchmarks.worker_daemon", **spark.config}
    # Executors on a cluster have another environment.
    for name, value in os.environ.items():
        if name in ("PYTHONPATH", counting.FOLDER_VARIABLE, "BENCHMARK_STORE_SECRET"):
            config[f"spark.executorEnv.{name}"] = value
    counted = loaded.configuration.model_copy(update={"spark": spark.model_copy(update={"config": config})})
    return Loaded(counted, loaded.secret_variables)


def in_session_of_spark(spark: SparkSettings) -> SparkSettings:
    """Settings of a session for Spark's own joins: Spark compiles queries, and Java uses its second compiler.

    All other settings equal the product's, including the heap.
    """
    if spark.many_objects:
        return spark
    heap = " ".join((*spark_session.SMALL_HEAP, spark_session.ONE_ARENA))
    config = {"spark.driver.defaultJavaOptions": heap, **spark.config}
    return spark.model_copy(update={"many_objects": True, "config": config})


if __name__ == "__main__":
    main()

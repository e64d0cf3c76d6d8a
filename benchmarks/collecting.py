"""One run as the command line makes it, in this process, which tells as JSON lines when each step ended.

Usage: python -m benchmarks.collecting CONFIGURATION [--flow FLOW] [--sweep] [--now ISO]
"""

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks import counting
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import Loaded, SparkSettings, load
from lakefs_gc_assets.spark import session as spark_session
from lakefs_gc_assets.spark.start import interpreter
from lakefs_gc_assets.storage.interface import ObjectFacts


class MovedClock:
    """The clock of this machine, moved."""

    def __init__(self, moved: timedelta) -> None:
        self._moved = moved

    def now(self) -> datetime:
        """The moved present, UTC."""
        return datetime.now(UTC) + self._moved

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)


def move_local_store(moved: timedelta) -> None:
    """Lets files of a local folder seem as much older or younger, one by one; listings keep what the files say."""
    from dataclasses import replace

    from lakefs_gc_assets.storage.local.store import LocalStore

    head = LocalStore.head

    def moved_head(self: LocalStore, key: str) -> ObjectFacts:
        facts = head(self, key)
        return replace(facts, last_modified=facts.last_modified + moved)

    LocalStore.head = moved_head  # type: ignore[method-assign]


def main() -> None:
    """Prints one line for each step with its end and the counts so far, then one with what the run told."""
    interpreter.look_for_cycles_seldom()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configuration", type=Path)
    parser.add_argument("--flow", default="clean")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--now", type=datetime.fromisoformat)
    asked = parser.parse_args()
    loaded = _counting(load(asked.configuration))
    spark_session.start(loaded.configuration.spark)
    moved = asked.now - datetime.now(UTC) if asked.now else timedelta()
    from lakefs_gc_assets.cli.run import collect
    from lakefs_gc_assets.collector.described_report import describe
    from lakefs_gc_assets.collector.plan import Flow

    counting.install()
    if moved and loaded.configuration.store.local_root:
        move_local_store(moved)
    folder = Path(os.environ[counting.FOLDER_VARIABLE])

    def progress(line: str) -> None:
        counts = counting.total(folder)
        print(json.dumps({"at": time.time(), "line": line, **vars(counts)}), flush=True)

    try:
        found = collect(loaded, asked.sweep, progress, MovedClock(moved), Flow(asked.flow))
    except CollectionError as error:
        sys.exit(f"benchmarks: {error}")
    progress("the end")
    print(json.dumps({"succeeded": found.success, "told": describe(found)}), flush=True)


def _counting(loaded: Loaded) -> Loaded:
    spark: SparkSettings = loaded.configuration.spark
    config = {"spark.python.daemon.module": "benchmarks.worker_daemon", **spark.config}
    counted = loaded.configuration.model_copy(update={"spark": spark.model_copy(update={"config": config})})
    return Loaded(counted, loaded.secret_variables)


if __name__ == "__main__":
    main()

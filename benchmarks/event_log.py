"""How long each task of a run took, from the log of Spark's events."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Task:
    """One task that succeeded: its stage, from launch to end, and rows that it read of earlier stages."""

    stage: str
    seconds: float
    rows: int


@contextmanager
def kept(settings: dict[str, Any], master: str) -> Iterator[Path]:
    """Makes runs of a configuration keep the log in a folder, for as long as the block; yields the folder."""
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-events-") as folder:
        log = {"enabled": "true", "dir": Path(folder).as_uri(), "compress": "false", "rolling.enabled": "false"}
        config = {f"spark.eventLog.{name}": value for name, value in log.items()}
        settings["spark"] = {"master": master, "config": config}
        yield Path(folder)


def tasks(folder: Path) -> list[Task]:
    """The tasks of all runs whose logs lie in a folder."""
    found = []
    for file in folder.iterdir():
        stages: dict[int, str] = {}
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerStageSubmitted":
                stages[event["Stage Info"]["Stage ID"]] = event["Stage Info"]["Stage Name"]
            elif event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                took, read = event["Task Info"], event["Task Metrics"]["Shuffle Read Metrics"]
                seconds = (took["Finish Time"] - took["Launch Time"]) / 1000
                found.append(Task(stages[event["Stage ID"]], seconds, read["Total Records Read"]))
    return found

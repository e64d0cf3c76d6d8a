"""Durations of a run's tasks, from Spark's event log."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Task:
    """One successful task: its stage, its time from launch to end, and the rows it read from earlier stages.

    Attributes:
        number: unique in a run.
        submitted: submission of its stage, in seconds since the epoch.
        cpu: processor seconds of Java.
    """

    stage: str
    seconds: float
    rows: int
    number: int
    stage_id: int
    submitted: float
    began: float
    cpu: float
    executor: str

    @property
    def ended(self) -> float:
        """Seconds since the epoch."""
        return self.began + self.seconds


@contextmanager
def kept(settings: dict[str, Any], master: str, config: Mapping[str, str] = MappingProxyType({})) -> Iterator[Path]:
    """Makes runs of a configuration write the log into a folder during the block; yields the folder."""
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-events-") as folder:
        log = {"enabled": "true", "dir": Path(folder).as_uri(), "compress": "false", "rolling.enabled": "false"}
        own = {f"spark.eventLog.{name}": value for name, value in log.items()}
        settings["spark"] = {"master": master, "config": {**own, **config}}
        yield Path(folder)


def tasks(folder: Path) -> list[Task]:
    """The tasks of all runs with logs in a folder."""
    found = []
    for file in folder.iterdir():
        stages: dict[int, tuple[str, float]] = {}
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerStageSubmitted":
                stage = event["Stage Info"]
                stages[stage["Stage ID"]] = stage["Stage Name"], stage["Submission Time"] / 1000
            elif event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                took, metrics, stage_id = event["Task Info"], event["Task Metrics"], event["Stage ID"]
                name, submitted = stages[stage_id]
                seconds = (took["Finish Time"] - took["Launch Time"]) / 1000
                cpu = sum(metrics[f"Executor {each}CPU Time"] for each in ("", "Deserialize ")) / 1e9
                rows = metrics["Shuffle Read Metrics"]["Total Records Read"]
                identity = took["Task ID"], stage_id, submitted, took["Launch Time"] / 1000
                found.append(Task(name, seconds, rows, *identity, cpu, took["Executor ID"]))
    return found

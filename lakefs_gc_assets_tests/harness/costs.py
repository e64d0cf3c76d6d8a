"""Cost of every test: seconds of wall and of processor, including all processes that it started.

`make costs` writes `costs.json`, by which files are dealt out, most expensive first. The end of a run names each test
over its budget. Processor times hardly depend on other work of the machine; wall times do.

Test files are dealt out to processes so that half of the processes start no Spark. A session takes a JVM, some ten
seconds of processor until it is warm, and half a GB. The other half takes files without Spark first, those with Spark
last.
"""

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from lakefs_gc_assets_tests.harness import process_tree

FILE = Path(__file__).with_name("costs.json")
BUDGET = 6.0
"""Processor seconds for one test of `make test`. A more expensive test must be marked slow, or made cheaper."""
_PROPERTY = "cost"
_NAMED = 2.0
"""Minimum seconds for a test to be named; cheaper tests are only in the sums of their files."""
Making = Generator[None, pytest.TestReport, pytest.TestReport]
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds of wall and of processor."""

    wall: float = 0.0
    processor: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.wall + other.wall, self.processor + other.processor)

    def as_json(self) -> dict[str, float]:
        """Rounded, as in the file."""
        return {"wall": round(self.wall, 1), "processor": round(self.processor, 1)}


def spent() -> float:
    """Processor seconds of this process and its descendants, including ended ones."""
    return process_tree.ticks(os.getpid()) / _TICKS


def of_files(tests: Set[str]) -> Mapping[str, float]:
    """Seconds by test file, as last measured: wall or processor, whichever is greater; empty without a measurement.

    Args:
        tests: ids of the tests to run. Costs of other tests are subtracted if the file names these tests.
    """
    if not FILE.exists():
        return {}
    measured = json.loads(FILE.read_text())
    # A test skipped in the measurement cost nothing there, but may be expensive elsewhere.
    seconds = {file: more for file, cost in measured["files"].items() if (more := _more(cost))}
    for test, cost in measured["tests"].items():
        if test not in tests and test.partition("::")[0] in seconds:
            seconds[test.partition("::")[0]] -= _more(cost)
    return seconds


def _more(cost: Mapping[str, float]) -> float:
    return max(cost["wall"], cost["processor"])


@dataclass(eq=False)
class Costs:
    """Pytest plugin: measures in the processes that run tests, and collects results in the process that gets all
    reports.

    Attributes:
        written_to: the file to write at the end, or None.
    """

    written_to: Path | None
    tests: dict[str, Cost] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    _began: float = 0.0
    _before: float | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Starts with the fixtures, which count for the first test that needs them."""
        self._began = time.monotonic()
        # No work happens between two tests.
        if self._before is None:
            self._before = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Making:
        """Adds the cost to the last report of a test."""
        report = yield
        if call.when == "teardown":
            before, self._before = self._before or 0.0, spent()
            cost = (time.monotonic() - self._began, max(0.0, self._before - before))
            report.user_properties.append((_PROPERTY, (*cost, item.get_closest_marker("slow") is not None)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the costs."""
        for name, value in report.user_properties:
            if name == _PROPERTY and report.when == "teardown":
                wall, processor, slow = cast("tuple[float, float, bool]", value)
                self.tests[report.nodeid] = Cost(wall, processor)
                if slow:
                    self.slow.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Names the tests over their budget, and writes the file."""
        over = sorted(
            ((cost, test) for test, cost in self.tests.items() if cost.processor > BUDGET and test not in self.slow),
            key=lambda each: -each[0].processor,
        )
        if over:
            terminalreporter.section(f"tests over their budget of {BUDGET:.0f} seconds of processor")
            for cost, test in over:
                terminalreporter.line(f"{cost.processor:6.1f} s, {cost.wall:6.1f} s of wall: {test}")
        if self.written_to is not None:
            self.written_to.write_text(json.dumps(self._as_json(), indent=1, sort_keys=True) + "\n")

    def _as_json(self) -> dict[str, object]:
        files: defaultdict[str, Cost] = defaultdict(Cost)
        for test, cost in self.tests.items():
            files[test.partition("::")[0]] += cost
        named = {test: cost.as_json() for test, cost in self.tests.items() if max(cost.wall, cost.processor) >= _NAMED}
        return {"files": {file: cost.as_json() for file, cost in files.items()}, "tests": named}


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

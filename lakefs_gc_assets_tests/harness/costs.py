"""What each test costs: seconds of wall and of processor, those of all processes counted that its own one started.

`make costs` writes `costs.json`: files are dealt out by it, dearest first. A test over its budget is named at the end
of a run. Times of the processor hardly depend on what else the machine does; those of the wall do.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from lakefs_gc_assets_tests.harness import process_tree

FILE = Path(__file__).with_name("costs.json")
BUDGET = 6.0
"""Seconds of processor for one test of `make test`; what costs more is marked slow, or made cheaper."""
_PROPERTY = "cost"
_NAMED = 2.0
"""Tests that cost less than these seconds are not named, only their files."""
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
        """Rounded, as the file holds it."""
        return {"wall": round(self.wall, 1), "processor": round(self.processor, 1)}


def spent() -> float:
    """Seconds of processor of this process and its descendants, those that have ended included."""
    return process_tree.ticks(os.getpid()) / _TICKS


def of_files(tests: Set[str]) -> Mapping[str, float]:
    """Seconds by test file, as measured last: of wall or of processor, whichever are more; none where nothing was.

    Args:
        tests: ids of those that are to run; what others of their files cost is left out, as far as they are named.
    """
    if not FILE.exists():
        return {}
    measured = json.loads(FILE.read_text())
    # What was skipped where the costs were measured cost nothing there, and is dear elsewhere.
    seconds = {file: more for file, cost in measured["files"].items() if (more := _more(cost))}
    for test, cost in measured["tests"].items():
        if test not in tests and test.partition("::")[0] in seconds:
            seconds[test.partition("::")[0]] -= _more(cost)
    return seconds


def _more(cost: Mapping[str, float]) -> float:
    return max(cost["wall"], cost["processor"])


@dataclass(eq=False)
class Costs:
    """The plugin: measures in the processes that run tests, gathers where all reports arrive.

    Attributes:
        written_to: the file that is written at the end; None for none.
    """

    written_to: Path | None
    tests: dict[str, Cost] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    _began: float = 0.0
    _before: float | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begins with the fixtures, which belong to the test that needs them first."""
        self._began = time.monotonic()
        # Between two tests nothing is done.
        if self._before is None:
            self._before = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Making:
        """Hands the cost over with the last report of a test."""
        report = yield
        if call.when == "teardown":
            before, self._before = self._before or 0.0, spent()
            cost = (time.monotonic() - self._began, max(0.0, self._before - before))
            report.user_properties.append((_PROPERTY, (*cost, item.get_closest_marker("slow") is not None)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gathers them."""
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

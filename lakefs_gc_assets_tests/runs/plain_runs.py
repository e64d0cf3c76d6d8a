"""Runs of replayed recordings on the engine of plain tables, step by step as Dagster makes them, but without it and
Spark.

They have the interface of `graph_runs`. A test of the run, not of Spark or Dagster, takes half a second here.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import pytest

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.replay.recording import Deletes
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns, Between, Made, Opened
from lakefs_gc_assets_tests.runs.replayed_runs import ReplayedRuns, served

_OWNERS = count()


@dataclass
class PlainRuns(ReplayedRuns):
    """Opens runs and makes them."""

    def open(self, flow: Flow = Flow.CLEAN) -> Opened:
        """Opens a run over every window that it needs."""
        return self._process(None).open_run(flow, layout.issue_run_id(self.clock.now()))

    def make(
        self,
        opened: Opened,
        *,
        assets: Sequence[str] = STEPS,
        sweep: bool | None = None,
        between: Between = lambda name: None,
    ) -> Made:
        """Makes steps of an opened run in one process.

        Args:
            sweep: True to delete; None for the value in the settings.
            between: called with the name of each step after it was made.
        """
        process = self._process(sweep)
        process.between = between
        return process.make(opened, assets, f"process {next(_OWNERS)}")

    def again(self, failed: Made) -> Made:
        """Makes the remaining steps, as a process of the same owner."""
        return self._process(None).make(failed.opened, failed.asked[len(failed.done) :], failed.owner)

    def _process(self, sweep: bool | None) -> ArrowRuns:
        decided = running.decided_here(self.loaded, **({} if sweep is None else {"sweep": sweep}))
        return ArrowRuns(decided, self.clock, self.lines)


class Replaying(Protocol):
    """Opens a recording for runs, from its beginning or in the state after other runs."""

    def __call__(
        self, folder: str, *, deletes: Deletes = "refuse", after: PlainRuns | None = None, **settings: Any
    ) -> PlainRuns: ...


@contextmanager
def replays() -> Iterator[Replaying]:
    """Serves recordings, aged by two days, while the context is open."""
    with ExitStack() as stack:

        def opened(
            folder: str, *, deletes: Deletes = "refuse", after: PlainRuns | None = None, **settings: Any
        ) -> PlainRuns:
            server, clock = served(folder, deletes, after)
            stack.enter_context(server)
            return PlainRuns(server, clock, settings)

        yield opened


@pytest.fixture
def replaying() -> Iterator[Replaying]:
    """Serves recordings until the test ends."""
    with replays() as opened:
        yield opened

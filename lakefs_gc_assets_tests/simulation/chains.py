"""Histories in which runs build on each other: clean, optimized, optimized, …, with other events in between."""

import random
from dataclasses import replace

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.histories import LEAST_STEPS, Maker
from lakefs_gc_assets_tests.simulation.playing import FLOWS, MIN_AGES, WINDOWS, History, Step
from lakefs_gc_assets_tests.simulation.world import BRANCHES, Setup

LEAST_RUNS = 7
_SKEWS = (0, 0, -14 * MINUTE, 14 * MINUTE)
_CLEAN, _OPTIMIZED = (FLOWS.index(flow) for flow in (Flow.CLEAN, Flow.OPTIMIZED))


def generate(seed: int) -> History:
    """Returns the history of a seed."""
    maker = ChainMaker(random.Random(f"chain {seed}"))
    setup = maker.setup(seed)
    while len(maker.steps) < LEAST_STEPS or maker.runs < LEAST_RUNS:
        maker.round()
    return History(setup, tuple(maker.steps), kind="optimized")


class ChainMaker(Maker):
    """Makes a history in which settings mostly stay and most runs are requested as optimized."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.runs = 0
        self.episodes = (*self.episodes, (self.refused, 3), (self.little_between, 8))
        self.age, self.window = chance.randrange(len(MIN_AGES)), chance.randrange(len(WINDOWS))

    def stay_with(self, age: int, window: int) -> None:
        self.age, self.window = age, window

    def setup(self, seed: int) -> Setup:
        setup = super().setup(seed)
        drawn = self.chance.random()
        return replace(setup, layout="sharded" if drawn < 0.1 else "switched" if drawn > 0.8 else "slice")

    def round(self) -> None:
        """Some writing, time, perhaps a change of the files that the next run builds on, and a run."""
        for _ in range(self.chance.randint(3, 8)):
            self.fill()
        if self.chance.random() < 0.2:
            self.misbehave()
        if self.chance.random() < 0.15:
            self.set_clock()
        kind = self.chance.random()
        if kind < 0.6:
            self.wait(self.chance.uniform(24, 38) * HOUR)
        elif kind < 0.8:
            self.wait(self.chance.uniform(0.1, 9) * HOUR)
        elif kind < 0.9:
            self.wait(self.chance.uniform(2, 5) * DAY)
        else:
            self.near()
        if self.chance.random() < 0.6:
            self.end_commits()
        chosen = self.chance.choices([each for each, _ in self.episodes], [weight for _, weight in self.episodes])[0]
        chosen("c0" if self.chance.random() < 0.9 else "c1")

    def end_commits(self) -> None:
        """Users retry failed commits, which keep runs from deleting and chains from growing."""
        for branch in range(len(BRANCHES)):
            self.steps.append(Step("w8", "upload_now", (branch, self.chance.randrange(10), 2, 0)))
            self.steps.append(Step("w8", "commit_now", (branch, 0, 0)))

    def set_clock(self) -> None:
        """Sets the clock of a machine."""
        skew = int(self.chance.choice(_SKEWS))
        self.steps.append(Step("time", "set_clock", (self.chance.randrange(4), skew)))

    def start(self, name: str) -> None:
        """Starts a run, mostly with the settings of the previous one."""
        if self.chance.random() < 0.05:
            self.age = self.chance.randrange(len(MIN_AGES))
        if self.chance.random() < 0.05:
            self.window = self.chance.randrange(len(WINDOWS))
        flow = _OPTIMIZED if self.chance.random() < (0.9 if self.runs else 0.3) else _CLEAN
        only_windows = self.chance.randint(1, 2) if self.chance.random() < 0.04 else 0
        sweep = int(self.chance.random() < 0.87)
        self.runs += 1
        numbers = (sweep, self.age, self.window, self.budget(), flow, only_windows)
        self.steps.append(Step(name, "start", numbers))

    def refused(self, name: str) -> None:
        """Deletions fail; the next run retries them."""
        self.wait(self.chance.uniform(2, 6) * HOUR)
        self.start(name)
        self.steps.append(Step(name, "refuse_deletes", (self.chance.randint(1, 2),)))
        self.finish(name)
        self.little_between(name)

    def little_between(self, name: str) -> None:
        """Runs in quick succession, with little or nothing new in between."""
        self.plain_run(name)
        for _ in range(self.chance.randint(1, 3)):
            for _ in range(self.chance.randint(0, 3)):
                self.fill()
            self.wait(self.chance.choice((0.1, 1, 3, 27)) * HOUR)
            self.start(name)
            self.finish(name)

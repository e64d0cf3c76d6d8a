"""Histories in which runs by retention rules build on each other, with other events in between."""

import random
from dataclasses import replace

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation.final_runs import Kind
from lakefs_gc_assets_tests.simulation.histories import LEAST_STEPS
from lakefs_gc_assets_tests.simulation.playing import DELETE, FULL_LISTING_DAYS, History, Step
from lakefs_gc_assets_tests.simulation.retention_histories import RetentionMaker, with_false_dates
from lakefs_gc_assets_tests.simulation.world import Setup

LEAST_RUNS = 7
_FLOWS = {Flow.UNIFIED: 16, Flow.COMMITTED: 3, Flow.CLEAN: 1}
_FLOWS_COMMITTED = {Flow.COMMITTED: 16, Flow.UNIFIED: 3, Flow.CLEAN: 1}
_LONGEST, _LISTING_ALL = len(FULL_LISTING_DAYS) - 1, 0


def generate(seed: int) -> History:
    """Returns the history of a seed."""
    return _generate(RulesChainMaker(random.Random(f"rules chain {seed}")), "unified", seed)


def generate_committed(seed: int) -> History:
    """Returns the history of a seed in which most runs list nothing."""
    return _generate(CommittedChainMaker(random.Random(f"committed chain {seed}")), "committed", seed)


def _generate(maker: "RulesChainMaker", kind: Kind, seed: int) -> History:
    setup = maker.setup(seed)
    maker.do("set_rules")
    while len(maker.steps) < LEAST_STEPS or maker.runs < LEAST_RUNS:
        maker.round()
    return History(setup, with_false_dates(maker.steps, seed), kind)


class RulesChainMaker(RetentionMaker):
    """Makes a history in which most runs list new slices and examine expired ranges."""

    flows = _FLOWS

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.runs = 0
        self.episodes = (*self.episodes, (self.little_between, 6), (self.comes_and_goes, 6))

    def setup(self, seed: int) -> Setup:
        setup = super().setup(seed)
        return replace(setup, layout="switched") if seed % 10 == 8 else setup

    def open(self, name: str, flow: Flow, *, sweep: int = DELETE) -> None:
        """Starts a run, mostly one that lists. The requested flow is ignored."""
        flow = self.chance.choices(tuple(self.flows), tuple(self.flows.values()))[0]
        super().open(name, flow, sweep=sweep)
        self.runs += 1
        days = self.chance.choices((_LONGEST, 1, _LISTING_ALL), (12, 3, 1))[0]
        step = self.steps[-1]
        self.steps[-1] = replace(step, numbers=(*step.numbers, days))

    def little_between(self, name: str) -> None:
        """Runs in quick succession, with little or nothing new in between."""
        for _ in range(self.chance.randint(2, 4)):
            for _ in range(self.chance.randint(0, 3)):
                self.fill()
            self.wait(self.chance.choice((0.1, 1, 3, 27, 50)) * 3600)
            self.start(name)
            self.finish(name)

    def comes_and_goes(self, name: str) -> None:
        """Expired data comes back and expires again, with a run each time."""
        for what in ("branch_commit", "delete_branch", "tag_commit", "lengthen_rules", "set_rules", "delete_tag"):
            if self.chance.random() < 0.6:
                self.do(what)
                self.wait(self.chance.uniform(0.1, 30) * 3600)
                self.steps += [Step("w7", "go_on", (0,))] if self.chance.random() < 0.3 else []
                self.start(name)
                self.finish(name)


class CommittedChainMaker(RulesChainMaker):
    """Makes a history in which most runs list nothing and examine ranges expired since the previous run."""

    flows = _FLOWS_COMMITTED

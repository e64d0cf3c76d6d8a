"""Histories in which data expires: runs by retention rules, while rules, branches and tags change and days pass.

In chains, these runs build on each other.
"""

import random
from dataclasses import replace

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation import writers
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.histories import ARGUMENTS, LEAST_RUNS, LEAST_STEPS, Maker
from lakefs_gc_assets_tests.simulation.playing import (
    DELETE,
    DRY_RUN,
    FLOWS,
    FULL_LISTING_DAYS,
    MIN_AGES,
    MOVE,
    WINDOWS,
    History,
    Kind,
    Step,
)
from lakefs_gc_assets_tests.simulation.processes import CALLS
from lakefs_gc_assets_tests.simulation.world import Setup

_ARGUMENTS = ARGUMENTS | {
    "set_rules": 3,
    "lengthen_rules": 1,
    "lengthen_rule": 2,
    "delete_rules": 0,
    "branch_commit": 2,
    "tag_commit": 2,
}
_FILLING = {
    "upload": 1,
    "upload_now": 12,
    "misdated_upload": 1,
    "gateway_multipart": 1,
    "link": 2,
    "delete": 5,
    "commit_now": 14,
    "merge": 3,
    "revert": 2,
    "hard_reset": 2,
    "create_branch": 4,
    "delete_branch": 2,
    "create_tag": 1,
    "copy": 1,
    "move": 2,
    "set_metadata": 2,
    "import_objects": 1,
    "go_on": 5,
    "branch_commit": 1,
    "tag_commit": 1,
}
_MEANWHILE = {
    "upload_now": 3,
    "delete": 3,
    "reset_path": 1,
    "commit": 2,
    "commit_now": 6,
    "merge": 3,
    "revert": 4,
    "cherry_pick": 3,
    "hard_reset": 4,
    "create_branch": 3,
    "delete_branch": 3,
    "create_tag": 1,
    "delete_tag": 1,
    "copy": 2,
    "move": 3,
    "set_metadata": 4,
    "import_objects": 2,
    "stage_object": 3,
    "set_rules": 2,
    "lengthen_rules": 2,
    "lengthen_rule": 2,
    "delete_rules": 1,
    "branch_commit": 6,
    "tag_commit": 2,
    "go_on": 10,
    "crash": 1,
}
_FLOWS = {Flow.COMMITTED: 11, Flow.UNIFIED: 6, Flow.OPTIMIZED: 2, Flow.CLEAN: 1}
_COMMITS = ("commit", "commit_now")
_DATES = (0, 0, 0, 0, 0, 0, 0, 2, 4, 4)
"""Most commits bear their true date, some a much earlier one; `with_false_dates` adds others."""
_FALSE_DAYS = (-2000, -2000, -40, -3, 2, 30)
_LATE_CALLS = ((11, 1), (11, 1), (11, 1), (3, 2), (9, 2), (7, 1), (7, 1))
"""First call of a sweep; dump and rules request of its recheck, which a mark makes too; a deletion."""


def generate(seed: int) -> History:
    """Returns the history of a seed."""
    maker = RetentionMaker(random.Random(f"retention {seed}"))
    setup = maker.setup(seed)
    maker.do("set_rules")
    while len(maker.steps) < LEAST_STEPS:
        maker.round()
    return History(setup, with_false_dates(maker.steps, seed), "retention")


def with_false_dates(steps: list[Step], seed: int) -> tuple[Step, ...]:
    """Returns the steps; in every fifth history some writers commit several times in a row with false dates.

    They record events of years or days ago, or their clock is days ahead.
    """
    if seed % 5 != 4:
        return tuple(steps)
    chance, made, left, date = random.Random(f"dates {seed}"), list[Step](), 0, 0
    for step in steps:
        if step.what in _COMMITS:
            if not left and chance.random() < 0.15:
                left, date = chance.randint(1, 4), writers.dated(chance.choice(_FALSE_DAYS))
            if left:
                left -= 1
                step = replace(step, numbers=(step.numbers[0], date, step.numbers[2]))
        made.append(step)
    return tuple(made)


class RetentionMaker(Maker):
    """Makes a history: days between runs, and most runs go by rules."""

    arguments = _ARGUMENTS
    meanwhile = _MEANWHILE
    calls = len(CALLS)

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.age, self.window = chance.randrange(len(MIN_AGES)), chance.randrange(len(WINDOWS))
        self.episodes = (
            (self.plain_run, 6),
            (self.rescued, 6),
            (self.kept_longer, 4),
            (self.to_the_second, 5),
            (self.restaged, 4),
            (self.just_replaced, 3),
            (self.killed, 5),
            (self.overtaken, 3),
            (self.put_aside, 2),
            (self.troubled, 4),
            (self.refused, 3),
            (self.between, 2),
            (self.killed_late, 4),
            (self.brought_back, 3),
        )

    def stay_with(self, age: int, window: int) -> None:
        self.age, self.window = age, window

    def setup(self, seed: int) -> Setup:
        return replace(super().setup(seed), retention=True, dumps=True)

    def round(self) -> None:
        """Days in which branches go on, perhaps other rules, and a run."""
        for _ in range(self.chance.randint(2, 3)):
            for _ in range(self.chance.randint(1, 4)):
                self.write(_FILLING)
            self.replace()
            self.wait(self.chance.uniform(0.2, 3) * DAY)
        if self.chance.random() < 0.3:
            self.do("set_rules")
        if self.chance.random() < 0.25:
            self.misbehave()
        chosen = self.chance.choices([each for each, _ in self.episodes], [weight for _, weight in self.episodes])[0]
        chosen("c0" if self.chance.random() < 0.9 else "c1")

    def replace(self) -> None:
        """A branch goes on: uploads or deletions, and a commit."""
        branch = self.chance.randrange(5)
        for _ in range(self.chance.randint(1, 2)):
            self.steps.append(Step("w5", "upload_now", (branch, self.chance.randrange(6), self.chance.randrange(7), 0)))
        if self.chance.random() < 0.3:
            self.steps.append(Step("w5", "delete", (branch, self.chance.randrange(60))))
        self.steps.append(Step("w5", "commit_now", (branch, self.chance.choice(_DATES), 0)))
        if self.chance.random() < 0.3:
            self.steps.append(Step("w5", "merge", (branch, self.chance.randrange(5), 0)))

    def do(self, what: str) -> None:
        super().do(what)
        if what in _COMMITS:
            step = self.steps[-1]
            branch, _, lag = step.numbers
            self.steps[-1] = replace(step, numbers=(branch, self.chance.choice(_DATES), lag))

    def misbehave(self) -> None:
        """Adds a fault of the servers."""
        what = self.chance.choices(
            ("missing_commits", "failed_lists", "blocking_lists", "old_lists", "failed_dumps"), (3, 1, 2, 2, 1)
        )[0]
        self.steps.append(Step("servers", what, (self.chance.randint(0, 2),)))

    def start(self, name: str) -> None:
        """Starts a run."""
        flow = self.chance.choices(tuple(_FLOWS), tuple(_FLOWS.values()))[0]
        self.open(name, flow, sweep=self.chance.choices((DRY_RUN, DELETE, MOVE), (2, 17, 1))[0])

    def open(self, name: str, flow: Flow, *, sweep: int = DELETE) -> None:
        """Starts a run of a flow."""
        numbers = (sweep, self.age, self.window, self.budget(), FLOWS.index(flow), 0)
        self.steps.append(Step(name, "start", numbers))

    def marked(self, name: str) -> None:
        """Starts a run by retention rules, up to some moment between mark and deletion."""
        flow = self.chance.choice((Flow.COMMITTED, Flow.COMMITTED, Flow.UNIFIED))
        self.open(name, flow)
        kind, count = self.chance.choice(_LATE_CALLS)
        # A run that lists nothing makes these calls once more at its beginning, except deletions.
        self.steps.append(Step(name, "until", (kind, count + (kind != 7 and flow is Flow.COMMITTED))))

    def rescued(self, name: str) -> None:
        """Users need expired data again between mark and deletion."""
        self.marked(name)
        for _ in range(self.chance.randint(1, 4)):
            self.do(self.chance.choice(("branch_commit",) * 4 + ("revert", "cherry_pick", "tag_commit")))
        if self.chance.random() < 0.4:
            self.going_on(name, 1)
        self.finish(name)

    def kept_longer(self, name: str) -> None:
        """Rules are made longer, or deleted, between mark and deletion."""
        self.marked(name)
        self.do(self.chance.choice(("lengthen_rules", "lengthen_rules", "lengthen_rule", "delete_rules")))
        self.finish(name)

    def to_the_second(self, name: str) -> None:
        """A run begins when a commit is exactly as old as a rule says, or nearly."""
        self.replace()
        # Dates are cut to seconds, so one second later is often the exact moment.
        near = self.chance.choice((0, 1, 1, 1, 2, 841, 600))
        self.steps.append(Step("time", "age", (self.chance.randrange(8), self.chance.randrange(2), near)))
        self.open(name, self.chance.choice((Flow.COMMITTED, Flow.UNIFIED)))
        self.finish(name)

    def restaged(self, name: str) -> None:
        """Entries are staged again while their branch is set back; days later its old head has expired."""
        branch = self.chance.randrange(5)
        self.steps.append(Step("w7", "hard_reset", (branch, self.chance.randrange(60), 1)))
        for _ in range(self.chance.randint(1, 3)):
            self.steps.append(Step("w6", "set_metadata", (branch, self.chance.randrange(60), 1)))
        self.steps.append(Step("w7", "go_on", (0,)))
        self.wait(self.chance.uniform(1, 6) * DAY)
        self.plain_run(name)

    def just_replaced(self, name: str) -> None:
        """Objects committed a moment ago are replaced, and only heads stay."""
        branch = self.chance.randrange(5)
        self.steps.append(Step("w7", "upload_now", (branch, 1, 2, 0)))
        self.steps.append(Step("w7", "commit_now", (branch, 2, 0)))
        self.steps.append(Step("w7", "upload_now", (branch, 1, 3, 0)))
        self.steps.append(Step("w7", "commit_now", (branch, self.chance.choice(_DATES), 0)))
        if self.chance.random() < 0.6:
            self.do("set_rules")
        self.wait(self.chance.uniform(0, 26) * HOUR)
        self.plain_run(name)

    def refused(self, name: str) -> None:
        """Deletions fail; the next run retries them."""
        for fails in (True, False):
            self.open(name, Flow.COMMITTED)
            if fails:
                self.steps.append(Step(name, "refuse_deletes", (1,)))
            self.finish(name)

    def killed_late(self, name: str) -> None:
        """A collector dies after its mark, and goes on later, when other commits count."""
        self.marked(name)
        self.steps.append(Step(name, "kill"))
        for _ in range(self.chance.randint(1, 3)):
            self.do(self.chance.choice(("branch_commit", "branch_commit", "lengthen_rules", "commit_now")))
        self.wait(self.chance.choice((1, MINUTE, 20 * MINUTE, 3 * HOUR)))
        self.steps.append(Step(name, "resume", (int(self.chance.random() < 0.3), self.budget())))
        self.finish(name)

    def brought_back(self, name: str) -> None:
        """Objects moved to quarantine are restored, and may be deleted once more."""
        self.open(name, Flow.COMMITTED, sweep=MOVE)
        self.finish(name)
        self.steps.append(Step(name, "put_back"))
        if self.chance.random() < 0.4:
            self.do("branch_commit")
        self.wait(self.chance.choice((MINUTE, 3 * HOUR, 30 * HOUR)))
        self.start(name)
        self.finish(name)

    def between(self, name: str) -> None:
        """A run by rules between a clean run and one that builds on that."""
        for flow in (Flow.CLEAN, Flow.COMMITTED, Flow.OPTIMIZED):
            self.open(name, flow)
            self.finish(name)
            self.replace()
            self.wait(self.chance.choice((3, 27)) * HOUR)

    def troubled(self, name: str) -> None:
        if self.chance.random() < 0.5:
            super().troubled(name)
            return
        self.open(name, self.chance.choice((Flow.COMMITTED, Flow.UNIFIED)))
        self.steps.append(Step(name, "fail_on", (self.chance.choice((9, 10)), self.chance.randint(1, 3))))
        self.finish(name)
        if self.chance.random() < 0.5:
            self.wait(self.chance.choice((MINUTE, HOUR)))
            self.steps.append(Step(name, "resume", (int(self.chance.random() < 0.5), 1000)))
            self.finish(name)


_FLOWS_UNIFIED = {Flow.UNIFIED: 16, Flow.COMMITTED: 3, Flow.CLEAN: 1}
_FLOWS_COMMITTED = {Flow.COMMITTED: 16, Flow.UNIFIED: 3, Flow.CLEAN: 1}
_LONGEST, _LISTING_ALL = len(FULL_LISTING_DAYS) - 1, 0


def generate_chain(seed: int) -> History:
    """Returns the history of a seed."""
    return _generate_chain(RulesChainMaker(random.Random(f"rules chain {seed}")), "unified", seed)


def generate_committed_chain(seed: int) -> History:
    """Returns the history of a seed in which most runs list nothing."""
    return _generate_chain(CommittedChainMaker(random.Random(f"committed chain {seed}")), "committed", seed)


def _generate_chain(maker: "RulesChainMaker", kind: Kind, seed: int) -> History:
    setup = maker.setup(seed)
    maker.do("set_rules")
    while len(maker.steps) < LEAST_STEPS or maker.runs < LEAST_RUNS:
        maker.round()
    return History(setup, with_false_dates(maker.steps, seed), kind)


class RulesChainMaker(RetentionMaker):
    """Makes a history in which most runs list new slices and examine expired ranges."""

    flows = _FLOWS_UNIFIED

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

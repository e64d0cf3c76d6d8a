"""Histories at random, of clean runs and of optimized ones: the same seed gives the same setup and steps.

A history goes in rounds: users fill the repository, time passes until many objects are about old enough, and a
collector runs while users go on. Most steps are drawn one by one. Some come as episodes: short sequences known to be
delicate. In chains, runs build on each other: clean, optimized, optimized, …
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.playing import FLOWS, MIN_AGES, WINDOWS, History, Step
from lakefs_gc_assets_tests.simulation.processes import CALLS_OF_ALL
from lakefs_gc_assets_tests.simulation.run_requests import MARK_VALID
from lakefs_gc_assets_tests.simulation.world import BRANCHES, START, Setup

LEAST_STEPS = 60
_WRITERS = ("w0", "w1", "w2", "w3")
_NUMBERS = 60
ARGUMENTS = {
    "upload": 4,
    "upload_now": 4,
    "misdated_upload": 4,
    "gateway_multipart": 4,
    "link": 5,
    "delete": 2,
    "reset_branch": 1,
    "reset_path": 2,
    "commit": 3,
    "commit_now": 3,
    "merge": 3,
    "revert": 3,
    "cherry_pick": 3,
    "hard_reset": 3,
    "create_branch": 2,
    "delete_branch": 1,
    "create_tag": 2,
    "delete_tag": 1,
    "copy": 4,
    "move": 4,
    "set_metadata": 3,
    "upload_again": 3,
    "import_objects": 3,
    "stage_object": 3,
    "drop_foreign": 1,
    "go_on": 1,
    "crash": 1,
}
_FILLING = {
    "upload": 3,
    "upload_now": 14,
    "misdated_upload": 1,
    "gateway_multipart": 2,
    "link": 4,
    "delete": 3,
    "reset_path": 2,
    "commit": 1,
    "commit_now": 4,
    "merge": 1,
    "create_branch": 4,
    "copy": 3,
    "move": 1,
    "set_metadata": 2,
    "upload_again": 3,
    "import_objects": 1,
    "drop_foreign": 1,
    "go_on": 8,
}
_MEANWHILE = {
    "upload": 2,
    "upload_now": 3,
    "gateway_multipart": 1,
    "link": 2,
    "delete": 3,
    "reset_branch": 1,
    "reset_path": 2,
    "commit": 4,
    "commit_now": 8,
    "merge": 3,
    "revert": 1,
    "cherry_pick": 1,
    "hard_reset": 4,
    "create_branch": 3,
    "delete_branch": 6,
    "create_tag": 2,
    "delete_tag": 1,
    "copy": 4,
    "move": 9,
    "set_metadata": 4,
    "upload_again": 2,
    "import_objects": 2,
    "stage_object": 5,
    "go_on": 14,
    "crash": 1,
}


def generate(seed: int) -> History:
    """Returns the history of a seed."""
    maker = Maker(random.Random(seed))
    setup = maker.setup(seed)
    while len(maker.steps) < LEAST_STEPS:
        maker.round()
    return History(setup, tuple(maker.steps))


class Maker:
    """Makes a history.

    Attributes:
        arguments: count of numbers that each operation takes.
        meanwhile: operations of users while a collector works, with weights.
        calls: number of kinds of calls at which a collector may be stopped.
    """

    arguments = ARGUMENTS
    meanwhile = _MEANWHILE
    calls = CALLS_OF_ALL

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.steps: list[Step] = []
        self.episodes: Sequence[tuple[Callable[[str], None], int]] = (
            (self.long_upload, 3),
            (self.late_link, 4),
            (self.renamed, 3),
            (self.young_commit, 3),
            (self.killed, 5),
            (self.overtaken, 3),
            (self.put_aside, 3),
            (self.troubled, 3),
            (self.plain_run, 8),
        )

    def stay_with(self, age: int, window: int) -> None:
        """Sets minimum age and slice window, in histories whose runs share them."""

    def setup(self, seed: int) -> Setup:
        """Draws the setup of the world."""
        chance = self.chance
        skews = tuple(chance.choice((0.0, 60.0, -14 * MINUTE, 14 * MINUTE)) for _ in range(chance.randint(1, 3)))
        return Setup(
            seed=seed,
            start=START + chance.randrange(0, int(30 * DAY)),
            rules=chance.choice(("oss", "seed")),
            etags=chance.choices(("md5", "foreign", "none"), (8, 1, 1))[0],
            layout=chance.choices(("slice", "sharded"), (6, 1))[0],
            uri=chance.choice(("s3://bucket/repo/", "s3://bucket/deep/er/repo/")),
            server_skews=skews,
            seen_servers=chance.choice((1, len(skews))),
            store_skew=chance.choice((0.0, 0.0, 0.0, -14 * MINUTE, 14 * MINUTE)),
            collector_skew=chance.choice((0.0, 0.0, 0.0, -14 * MINUTE, 14 * MINUTE)),
            listing_page=chance.choice((2, 1000, 1000)),
            delete_limit=chance.choice((1, 2, 4, 1000)),
            page_rows=chance.choice((1, 1, 3, 1000)),
            dumps=chance.random() < 0.95,
            old_objects=chance.choice((0, 0, 3, 6)),
            signed=seed % 4 == 3,
            hook_minutes=17 if seed % 3 == 1 else 0,
        )

    def round(self) -> None:
        """Fills the repository, waits and collects."""
        for _ in range(self.chance.randint(5, 16)):
            self.fill()
        if self.chance.random() < 0.3:
            self.misbehave()
        if self.chance.random() < 0.85:
            self.wait(self.chance.uniform(24, 34) * HOUR)
        else:
            self.near()
        chosen = self.chance.choices([each for each, _ in self.episodes], [weight for _, weight in self.episodes])[0]
        chosen("c0" if self.chance.random() < 0.9 else "c1")

    def fill(self) -> None:
        """One step of a user between runs."""
        self.write(_FILLING)

    def write(self, weights: dict[str, int]) -> None:
        """One step of a user."""
        self.do(self.chance.choices(tuple(weights), tuple(weights.values()))[0])

    def do(self, what: str) -> None:
        """Adds an operation with random arguments."""
        numbers = tuple(self.chance.randrange(_NUMBERS) for _ in range(self.arguments[what]))
        self.steps.append(Step(self.chance.choice(_WRITERS), what, numbers))

    def wait(self, seconds: float) -> None:
        self.steps.append(Step("time", "seconds", (int(seconds),)))

    def near(self) -> None:
        """Passes time to shortly before or after an address stops being linkable."""
        numbers = (self.chance.randrange(20), self.chance.randrange(-int(HOUR), int(2 * HOUR)))
        self.steps.append(Step("time", "near", numbers))

    def misbehave(self) -> None:
        """Adds a fault of the servers."""
        what = self.chance.choices(
            ("page_rows", "stuck_pages", "lost_branches", "failed_dumps", "missing_commits"),
            (4, 1, 1, 1, 5),
        )[0]
        number = self.chance.randint(1, 3)
        self.steps.append(Step("servers", what, (number,)))

    def start(self, name: str) -> None:
        """Starts a run."""
        sweep = int(self.chance.random() < 0.85)
        numbers = (sweep, self.chance.randrange(6), self.chance.randrange(3), self.budget())
        self.steps.append(Step(name, "start", numbers))

    def budget(self) -> int:
        """Draws the number of calls that a collector makes before other steps follow."""
        return self.chance.choice((1, 2, 4, 8, 15, 25, 40))

    def going_on(self, name: str, times: int) -> None:
        """Alternates between calls of the collector and operations of users."""
        for _ in range(times):
            for _ in range(self.chance.choice((1, 1, 2))):
                self.write(self.meanwhile)
            if self.chance.random() < 0.12:
                self.wait(self.chance.choice((20, 2 * MINUTE, 12 * MINUTE, 40 * MINUTE)))
            self.go_on(name)

    def go_on(self, name: str) -> None:
        """Makes some more calls, or goes on up to a call of some kind."""
        if self.chance.random() < 0.6:
            self.steps.append(
                Step(name, "until", (self.chance.randrange(self.calls), self.chance.choice((1, 1, 2, 3))))
            )
        else:
            self.steps.append(Step(name, "go_on", (self.budget(),)))

    def finish(self, name: str) -> None:
        self.steps.append(Step(name, "finish"))

    def plain_run(self, name: str) -> None:
        """A run while users go on."""
        self.start(name)
        self.going_on(name, self.chance.randint(2, 9))
        self.finish(name)

    def long_upload(self, name: str) -> None:
        """An upload that began long ago ends while the collector starts."""
        self.steps.append(Step("w9", self.chance.choice(("upload", "gateway_multipart")), (1, 2, 3, 4)))
        self.wait(self.chance.uniform(24, 40) * HOUR)
        if self.chance.random() < 0.3:
            self.do("misdated_upload")
        else:
            self.steps.append(Step("w9", "go_on", (0,)))
        self.plain_run(name)

    def late_link(self, name: str) -> None:
        """A client links an address as late as it can, while a collector runs."""
        server = self.chance.randrange(3)
        self.steps.append(Step("w9", "link", (self.chance.randrange(5), 1, 2, server, self.chance.randrange(12))))
        self.steps.append(Step("w9", "go_on", (0,)))
        self.steps.append(Step("time", "near", (-1, self.chance.randrange(-int(25 * MINUTE), int(5 * MINUTE)))))
        self.start(name)
        self.going_on(name, self.chance.randint(1, 3))
        self.steps.append(Step("w9", "go_on", (0,)))
        self.finish(name)

    def renamed(self, name: str) -> None:
        """Staged objects are renamed while the server writes its uncommitted data, page by page."""
        self.steps.append(Step("servers", "page_rows", (1,)))
        self.start(name)
        for _ in range(self.chance.randint(2, 5)):
            self.steps.append(Step(name, "until", (1, self.chance.randint(1, 4))))
            self.do(self.chance.choice(("move", "move", "move", "copy", "delete", "delete_branch")))
            self.do("move")
        self.finish(name)

    def young_commit(self, name: str) -> None:
        """Old staged entries are committed right before a run whose dump lacks that commit; a branch or tag soon shows
        it."""
        self.steps.append(Step("servers", "missing_commits", (1,)))
        branch = self.chance.randrange(_NUMBERS)
        self.steps.append(Step("w8", "commit_now", (branch, 0, 0)))
        match self.chance.randrange(3):
            case 0:
                self.steps.append(Step("w8", "create_tag", (self.chance.randrange(3), branch)))
                self.steps.append(Step("w8", "hard_reset", (branch, self.chance.randrange(_NUMBERS), 1)))
                self.wait(2 * MINUTE)
            case 1:
                self.steps.append(Step("w8", "create_tag", (self.chance.randrange(3), branch)))
                self.steps.append(Step("w8", "delete_branch", (branch,)))
        self.start(name)
        self.going_on(name, self.chance.randint(1, 3))
        self.finish(name)

    def killed(self, name: str) -> None:
        """A collector dies and is resumed later, perhaps much later, or restarted from the first step."""
        self.start(name)
        self.going_on(name, self.chance.randint(2, 8))
        if len(self.steps) % 2:
            # One batch of a sweep is done by then.
            self.steps.append(Step(name, "until", (7, 2)))
        self.steps.append(Step(name, "kill"))
        for _ in range(self.chance.randint(0, 4)):
            self.write(self.meanwhile if self.chance.random() < 0.6 else _FILLING)
        if self.chance.random() < 0.6:
            self.wait(self.chance.choice((MINUTE, 20 * MINUTE, 3 * HOUR, 27 * HOUR)))
        if self.chance.random() < 0.5:
            self.do("stage_object")
            self.wait(self.chance.choice((1, 20 * MINUTE)))
        whole = int(self.chance.random() < 0.35)
        self.steps.append(Step(name, "resume", (whole, self.budget())))
        self.going_on(name, self.chance.randint(0, 3))
        self.finish(name)

    def overtaken(self, name: str) -> None:
        """A collector stands still, another one begins, the first goes on."""
        other = "c1" if name == "c0" else "c0"
        self.start(name)
        self.going_on(name, self.chance.randint(1, 7))
        if self.chance.random() < 0.6:
            self.steps.append(Step(name, "freeze"))
            self.wait(self.chance.choice((10 * MINUTE, 65 * MINUTE, 3 * HOUR)))
        self.start(other)
        for _ in range(self.chance.randint(2, 6)):
            self.steps.append(Step(self.chance.choice((name, other)), "go_on", (self.budget(),)))
        self.finish(name)
        self.finish(other)

    def put_aside(self, name: str) -> None:
        """Between mark and sweep, or within the sweep, much time passes and old objects are staged again."""
        self.start(name)
        self.going_on(name, self.chance.randint(2, 6))
        if self.chance.random() < 0.5:
            self.steps.append(Step(name, "until", (3, 1)))
            if len(self.steps) % 2:
                # The commits of the mark's dump are written by then.
                self.steps.append(Step(name, "until", (4, 4)))
        self.do("stage_object")
        if self.chance.random() < 0.5:
            branch = self.steps[-1].numbers[0]
            self.do("commit_now")
            self.steps[-1] = Step("w8", "commit_now", (branch, *self.steps[-1].numbers[1:]))
        if self.chance.random() < 0.3:
            self.wait(MARK_VALID + self.chance.uniform(-30, 30) * MINUTE)
        else:
            self.wait(self.chance.choice((5 * MINUTE, 17 * MINUTE, 2 * HOUR, 30 * HOUR)))
        if self.chance.random() < 0.5:
            self.going_on(name, self.chance.randint(1, 3))
        self.finish(name)
        if self.chance.random() < 0.5:
            self.steps.append(Step(name, "approve", (1000,)))

    def troubled(self, name: str) -> None:
        """Some calls fail, and some deletes are refused."""
        self.start(name)
        for _ in range(self.chance.randint(2, 6)):
            if self.chance.random() < 0.3:
                self.steps.append(Step(name, "fail", (self.chance.randrange(60), self.chance.randrange(2))))
            elif self.chance.random() < 0.4:
                kind = self.chance.choice((5, 5, self.chance.randrange(self.calls)))
                self.steps.append(Step(name, "fail_on", (kind, self.chance.randint(1, 18))))
            self.go_on(name)
        fault = self.chance.choice(("refuse_deletes", "refuse_deletes", "break_delete", "pretend_delete"))
        self.steps.append(Step(name, fault, (self.chance.randint(1, 3),)))
        self.finish(name)
        if self.chance.random() < 0.5:
            self.steps.append(Step(name, "resume", (0, 1000)))


LEAST_RUNS = 7
_SKEWS = (0, 0, -14 * MINUTE, 14 * MINUTE)
_CLEAN, _OPTIMIZED = (FLOWS.index(flow) for flow in (Flow.CLEAN, Flow.OPTIMIZED))


def generate_chain(seed: int) -> History:
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

"""Surroundings of a repository, added at random to some histories.

Each has its own random numbers, so that a history without surroundings stays the same. A surrounding changes the setup,
adds operations now and then, and has an episode in which it matters.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.histories import Maker
from lakefs_gc_assets_tests.simulation.other_repository import Around, Repositories
from lakefs_gc_assets_tests.simulation.playing import DELETE, DRY_RUN, FLOWS, MOVE, History, Step
from lakefs_gc_assets_tests.simulation.retention_oracle import POLICIES

SHARE = 0.4
"""Share of histories with surroundings."""
SHARE_OF_FALSE_SIZES, SHARE_OF_FALSE_TIMES = 0.1, 0.1
"""Shares of the histories in which clients misstate sizes, and in which files of commits have false times."""
SHARE_OF_TWO_SWEEPS = 0.2
"""Share of the histories that end with two runs that mark the same garbage."""
_OPERATIONS = {
    "other_import": 3,
    "other_import_old": 2,
    "other_commit": 1,
    "other_delete": 1,
    "other_reset": 0,
    "twin_commit": 2,
    "twin_commit_old": 1,
    "twin_stage": 1,
    "twin_leaves": 0,
    "lose_object": 1,
    "delete_branches": 0,
    "stage_moved": 3,
    "stage_spelled": 2,
}
"""Count of numbers that each operation takes."""
_SWEEP_BEGINS, _PREPARES, _DUMPS, _DELETES = 11, 1, 3, 7
"""Kinds of calls, see `calls.CALLS`."""
_MANY = 60


@dataclass
class Surroundings:
    """Adds surroundings to a history.

    Attributes:
        maker: writes steps that users and collectors make in histories of this kind.
        scattered: steps at any time.
        late: steps towards the end.
        episodes: called with the name of a collector; each is inserted after a run.
        moves: True if some sweeps move to quarantine.
    """

    history: History
    maker: Maker
    chance: random.Random
    around: Around = field(default_factory=Around)
    scattered: list[Step] = field(default_factory=list)
    late: list[Step] = field(default_factory=list)
    episodes: list[Callable[[str], None]] = field(default_factory=list)
    moves: bool = False

    def added(self) -> History:
        """The history with one or two surroundings."""
        every = self._every()
        wanted = self.chance.choices([each for each, _ in every], [weight for _, weight in every], k=2)
        for add in wanted[: self.chance.choice((1, 1, 2))]:
            add()
        steps = [*self.history.steps]
        if self.moves:
            steps = [self._moving(step) for step in steps]
        for episode in self.episodes:
            self.maker.steps = []
            episode(self.chance.choice(("c0", "c0", "c1")))
            # Replace the last steps: histories keep their length.
            del steps[-len(self.maker.steps) :]
            at = self._end_of_a_run(steps)
            steps[at:at] = self.maker.steps
        for step in self.scattered:
            steps.insert(self.chance.randrange(len(steps)), step)
        for step in self.late:
            steps.insert(self.chance.randrange(len(steps) // 2, len(steps)), step)
        return replace(self.history, setup=replace(self.history.setup, around=self.around), steps=tuple(steps))

    def _every(self) -> Sequence[tuple[Callable[[], None], int]]:
        always: tuple[tuple[Callable[[], None], int], ...] = (
            (self.importer, 5),
            (self.committing_twin, 4),
            (self.staging_twin, 2),
            (self.lost_branches, 4),
            (self.lost_objects, 3),
            (self.lost_uncommitted, 3),
            (self.vanished_commits, 3),
            (self.quarantine, 5),
            (self.refused_dumps, 2),
            (self.aliased, 1),
            (self.commits_under_way, 3),
        )
        if self.history.kind not in ("retention", "unified"):
            return always
        return (*always, (self.known_branches, 8), (self.heads_move, 4), (self.staged_otherwise, 3))

    def _end_of_a_run(self, steps: Sequence[Step]) -> int:
        ends = [at for at, step in enumerate(steps) if step.what == "finish"]
        return 1 + self.chance.choice(ends[len(ends) // 3 :]) if ends else len(steps)

    def _moving(self, step: Step) -> Step:
        """Makes some sweeps move to quarantine."""
        if step.what == "start" and step.numbers[0] == DELETE and self.chance.random() < 0.5:
            return replace(step, numbers=(MOVE, *step.numbers[1:]))
        return step

    def _step(self, what: str) -> Step:
        numbers = (self.chance.randrange(_MANY) for _ in range(_OPERATIONS[what]))
        return Step("o0", what, tuple(numbers))

    def _do(self, *what: str) -> None:
        self.maker.steps += map(self._step, what)

    def _scatter(self, what: str, least: int, most: int) -> None:
        self.scattered += [self._step(what) for _ in range(self.chance.randint(least, most))]

    def _servers(self, what: str, number: int) -> None:
        self.maker.steps.append(Step("servers", what, (number,)))

    def _fill(self, times: int) -> None:
        for _ in range(times):
            self.maker.fill()

    def _wait(self, *hours: float) -> None:
        self.maker.wait(self.chance.uniform(*hours) * HOUR)

    def _start(self, name: str, sweep: int = DELETE) -> None:
        """Starts a run with a fixed fate of its candidates."""
        self.maker.start(name)
        step = self.maker.steps[-1]
        self.maker.steps[-1] = replace(step, numbers=(sweep, *step.numbers[1:]))

    def _until(self, name: str, kind: int) -> None:
        self.maker.steps.append(Step(name, "until", (kind, 1)))

    def _until_sweep(self, name: str) -> None:
        """Goes on to the first call of a sweep, or to its check for deletions of other runs."""
        self._until(name, _SWEEP_BEGINS)
        if self.chance.random() < 0.5:
            self._until(name, _SWEEP_BEGINS)

    def importer(self) -> None:
        """Another repository imports our objects, and `also_live` names it."""
        self.around = replace(self.around, other="importer", repositories="all")
        self._scatter("other_import", 4, 8)
        self._scatter("other_import_old", 0, 2)
        self._scatter("other_commit", 1, 3)
        self._scatter("other_delete", 0, 2)
        self._scatter("other_reset", 0, 1)
        self.episodes.append(self.held_elsewhere)

    def held_elsewhere(self, name: str) -> None:
        """Only the other repository holds objects that ours drops."""
        self._fill(3)
        self._do(*["other_import"] * self.chance.randint(2, 5))
        if self.chance.random() < 0.4:
            self._do("other_commit")
        for what in ("reset_branch", "reset_path", "reset_path", "delete"):
            self.maker.do(what)
        self._wait(27, 36)
        self._start(name)
        self.maker.going_on(name, 1)
        self._until_sweep(name)
        self._do(self.chance.choice(("other_commit", "other_import", "other_delete", "other_import_old")))
        self.maker.finish(name)

    def committing_twin(self) -> None:
        """Another server has a repository on our namespace, and commits."""
        said: Repositories = self.chance.choice(("own alone", "refused"))
        self.around = replace(self.around, other="committing twin", repositories=said)
        self._scatter("twin_commit", 2, 4)
        self._scatter("twin_commit_old", 1, 3)
        self.episodes.append(self.twin_commits_meanwhile)

    def twin_commits_meanwhile(self, name: str) -> None:
        """The twin commits objects that our run is about to delete."""
        self._fill(2)
        self._do("twin_commit")
        self._wait(27, 36)
        self._start(name)
        self._until_sweep(name)
        self._do("twin_commit_old", "twin_commit_old")
        self.maker.finish(name)

    def staging_twin(self) -> None:
        """A repository on our namespace stages entries missing from our uncommitted data; servers may list that
        repository."""
        said: Repositories = self.chance.choice(("all", "refused"))
        self.around = replace(self.around, other="staging twin", repositories=said)
        self._scatter("twin_stage", 3, 6)
        self._scatter("twin_commit", 1, 2)
        if self.chance.random() < 0.7:
            self.late.append(self._step("twin_leaves"))
        self.episodes.append(self.twin_has_staged)

    def twin_has_staged(self, name: str) -> None:
        self._do("twin_stage", "twin_stage")
        self._wait(27, 36)
        self._start(name)
        self.maker.finish(name)

    def lost_branches(self) -> None:
        """Users delete many branches, or the servers lose them; the settings allow no loss."""
        self.around = replace(self.around, branches_stay=True)
        self._scatter("delete_branches", 0, 1)
        self.episodes.append(self.chance.choice((self.branches_lost_before, self.branches_lost_meanwhile)))

    def _branches(self) -> None:
        """Makes three branches whose commits are not empty."""
        for branch in range(3):
            self.maker.steps += [
                Step("o0", "create_branch", (branch, 0)),
                Step("o0", "upload_now", (branch, branch, 2, 0)),
                Step("o0", "commit_now", (branch, 0, 0)),
            ]

    def branches_lost_before(self, name: str) -> None:
        """The servers lose branches with staged entries, days after a sweep that knew them."""
        self._branches()
        self._start(name)
        self.maker.finish(name)
        self._fill(4)
        self._wait(27, 36)
        self._servers("lost_branches_but_one", 1)
        for _ in range(self.chance.choice((1, 2))):
            self._start(name)
            self.maker.finish(name)
        self._servers("lost_branches_but_one", 0)

    def branches_lost_meanwhile(self, name: str) -> None:
        """The servers lose branches between mark and sweep, after old objects were staged there again."""
        self._branches()
        self._fill(4)
        self._wait(27, 36)
        self._start(name)
        self._until_sweep(name)
        for _ in range(3):
            self.maker.do("stage_object")
        if self.chance.random() < 0.7:
            self._servers("lost_branches_but_one", 1)
        else:
            self._do("delete_branches")
        self.maker.finish(name)
        self._servers("lost_branches_but_one", 0)

    def lost_objects(self) -> None:
        """Live objects are deleted past lakeFS."""
        self.around = replace(self.around, objects_lost=True)
        self.episodes.append(self.objects_lost)

    def objects_lost(self, name: str) -> None:
        self._fill(2)
        self._do("lose_object")
        self._wait(27, 36)
        self._start(name)
        self.maker.finish(name)

    def lost_uncommitted(self) -> None:
        """Servers answer without a location, or uncommitted data is lost between mark and sweep although none may."""
        if self.chance.random() < 0.5:
            self.scattered += [Step("servers", "blank_pages", (self.chance.randint(1, 4),)) for _ in range(3)]
            self.episodes.append(self.pages_left_blank)
            return
        self.around = replace(self.around, uncommitted_stays=True)
        self.episodes.append(self.uncommitted_goes)

    def pages_left_blank(self, name: str) -> None:
        """Answers come without a location while staged entries are on pages of their own."""
        self._fill(4)
        self._wait(27, 36)
        self._servers("page_rows", 1)
        self._servers("blank_pages", self.chance.randint(1, 6))
        self._start(name)
        self.maker.going_on(name, 1)
        self._servers("blank_pages", self.chance.randint(1, 6))
        self.maker.finish(name)

    def uncommitted_goes(self, name: str) -> None:
        self._fill(4)
        self._wait(27, 36)
        self._start(name)
        self._until_sweep(name)
        self.maker.do(self.chance.choice(("reset_branch", "reset_path", "delete")))
        self.maker.finish(name)

    def vanished_commits(self) -> None:
        """Unnamed commits are missing from the servers' answers."""
        self.scattered += [Step("servers", "vanish_commit", (self.chance.randrange(_MANY),)) for _ in range(2)]
        self.episodes.append(self.commits_vanish)

    def commits_vanish(self, name: str) -> None:
        """A branch is deleted, then its commit."""
        self._branches()
        self.maker.steps += [
            Step("o0", "delete", (2, self.chance.randrange(_MANY))),
            Step("o0", "delete_branch", (2,)),
            Step("o0", "delete_branch", (1,)),
        ]
        for _ in range(3):
            self._servers("vanish_commit", self.chance.randrange(_MANY))
        self._wait(27, 36)
        self._start(name)
        self.maker.going_on(name, 1)
        self.maker.finish(name)

    def quarantine(self) -> None:
        """Runs move to quarantine, which a user restores or purges."""
        self.moves = True
        for what in ("put_back", "purge", "purge"):
            self.scattered.append(Step(self.chance.choice(("c0", "c1")), what))
        self._scatter("stage_moved", 0, 2)
        self.episodes.append(self.chance.choice((self.moved_and_purged, self.back_before_a_sweep)))

    def moved_and_purged(self, name: str) -> None:
        """Moved objects are perhaps staged again, then purged or restored."""
        self._fill(3)
        self._wait(27, 36)
        self._start(name, MOVE)
        self.maker.finish(name)
        self._wait(20, 50)
        if self.chance.random() < 0.6:
            self._do("stage_moved")
        self.maker.steps.append(Step(name, self.chance.choice(("purge", "purge", "put_back"))))
        self._wait(1, 30)

    def back_before_a_sweep(self, name: str) -> None:
        """A dry run is approved after objects of an earlier run were restored."""
        other = "c1" if name == "c0" else "c0"
        self._fill(3)
        self._wait(27, 36)
        self._start(other, MOVE)
        self.maker.finish(other)
        self._fill(3)
        self._wait(27, 36)
        self._start(name, DRY_RUN)
        self.maker.finish(name)
        self.maker.steps += [Step(other, "put_back"), Step(name, "approve", (1000,))]
        self.maker.finish(name)

    def two_sweeps_of_the_same_garbage(self) -> None:
        """Two runs mark the same garbage; the older one deletes it first, and then the newer one goes on.

        The newer one is a dry run that is approved as well, or a sweep that failed right before its first deletion.
        """
        maker, (older, newer) = self.maker, self.chance.sample(("c0", "c1"), 2)
        maker.finish(older)
        maker.finish(newer)
        self._fill(4)
        self._wait(27, 36)
        self._start(older, DRY_RUN)
        maker.finish(older)
        maker.wait(self.chance.choice((10, 20 * MINUTE)))
        if self.chance.random() < 0.5:
            self._start(newer, DRY_RUN)
            maker.finish(newer)
            last = Step(newer, "approve", (1000,))
        else:
            self._start(newer, self.chance.choice((DELETE, MOVE)))
            maker.steps += [Step(newer, "fail_on", (_SWEEP_BEGINS, self.chance.randint(1, 2)))]
            maker.finish(newer)
            last = Step(newer, "resume", (0, 1000))
        maker.steps.append(Step(older, "approve", (1000,)))
        maker.finish(older)
        maker.steps.append(last)
        maker.finish(newer)

    def refused_dumps(self) -> None:
        """The permission to dump is revoked between mark and sweep."""
        self.episodes.append(self.dumps_refused)

    def dumps_refused(self, name: str) -> None:
        self._fill(3)
        self._wait(27, 36)
        self._start(name)
        self._until_sweep(name)
        self._servers("refuse_dumps", 1)
        self.maker.finish(name)
        self._servers("refuse_dumps", 0)

    def aliased(self) -> None:
        """For a while the servers spell addresses by an access point."""
        self.episodes.append(self.addresses_aliased)

    def addresses_aliased(self, name: str) -> None:
        self._fill(3)
        self._wait(27, 36)
        self._servers("aliased", 1)
        self._start(name)
        self.maker.finish(name)
        self._servers("aliased", 0)

    def commits_under_way(self) -> None:
        """Commits take hours."""
        self.episodes.append(self.commit_under_way)

    def commit_under_way(self, name: str) -> None:
        """A path is staged again while it is being committed."""
        branch, path = self.chance.randrange(5), self.chance.randrange(10)
        self.maker.steps.append(Step("w8", "upload_now", (branch, path, self.chance.randrange(7), 0)))
        self._wait(27, 36)
        self.maker.steps.append(Step("w8", "commit", (branch, 0, 0)))
        self.maker.steps.append(Step("w9", "upload_now", (branch, path, self.chance.randrange(7), 1)))
        self._start(name)
        self.maker.finish(name)

    def known_branches(self) -> None:
        """Rules may not name a branch that does not exist."""
        self.around = replace(self.around, branches_known=True)
        self.episodes.append(self.rules_of_unknown_branches)

    def rules_of_unknown_branches(self, name: str) -> None:
        """Rules name a branch that is deleted, or made, between mark and sweep."""
        self.maker.do("set_rules")
        rules = self.maker.steps[-1].numbers
        self._wait(24, 80)
        create, delete = Step("o0", "create_branch", (rules[1], 0)), Step("o0", "delete_branches", ())
        before, after = self.chance.choice(((create, delete), (delete, create)))
        self.maker.steps.append(before)
        self._start_by_rules(name)
        self._until_sweep(name)
        self.maker.steps.append(after)
        self.maker.finish(name)

    def _start_by_rules(self, name: str) -> None:
        self._start(name)
        step = self.maker.steps[-1]
        flow = FLOWS.index(self.chance.choice((Flow.COMMITTED, Flow.UNIFIED)))
        self.maker.steps[-1] = replace(step, numbers=(*step.numbers[:4], flow, *step.numbers[5:]))

    def staged_otherwise(self) -> None:
        """Committed objects are staged by addresses that uncommitted data leaves out."""
        self.episodes.append(self.expires_while_staged)

    def expires_while_staged(self, name: str) -> None:
        """Their commits expire while only such entries hold the objects, until the branch is committed or reset."""
        self.maker.do("set_rules")
        for content in (1, 2):
            self.maker.steps += [
                Step("w0", "upload_now", (0, 3, content, 0)),
                Step("w0", "commit_now", (0, 0, 0)),
            ]
        branch = self.chance.randrange(5)
        for _ in range(3):
            self.maker.steps.append(Step("o0", "stage_spelled", (branch, self.chance.randrange(_MANY))))
        self.maker.wait(self.chance.randint(2, 7) * DAY)
        self._start_by_rules(name)
        self.maker.finish(name)
        self.maker.steps.append(Step("w0", "reset_branch", (branch,)))

    def heads_move(self) -> None:
        """Branches that show expired data are set back during a recheck."""
        self.episodes.append(self.heads_moved)

    def heads_moved(self, name: str) -> None:
        """Entries that a branch shows are staged while it is set back, after uncommitted data was prepared."""
        self.maker.do("set_rules")
        for content in (1, 2):
            self.maker.steps += [
                Step("w0", "upload_now", (0, 0, content, 0)),
                Step("w0", "commit_now", (0, 0, 0)),
            ]
        self.maker.wait(self.chance.randint(4, 7) * DAY)
        self._start_by_rules(name)
        self._until_sweep(name)
        for _ in range(3):
            self.maker.do("branch_commit")
        self._until(name, _DUMPS)
        for branch in range(3):
            self.maker.steps += [
                Step("w2", "hard_reset", (branch, 0, 1)),
                Step("w3", "set_metadata", (branch, 0, 1)),
                Step("w2", "go_on", (0,)),
            ]
        self.maker.finish(name)


_COUNTING = {"retention": (3, 6), "unified": (1, 2, 7)}
"""Remainders modulo 9 of the seeds, by kind, whose histories have a policy that counts."""
_EXPIRING = {"retention": 3, "unified": 7}
"""The remainder whose histories also have commits of object lifecycle, real and forged ones."""
COMPACTING = 16
"""The last of this many consecutive histories has a server that compacts staging."""


def surrounded(history: History, maker_of: Callable[[random.Random], Maker]) -> History:
    """The history as it is, or with surroundings, or with a server that compacts.

    Args:
        maker_of: makes histories of its kind.
    """
    found = counting(told_falsely(_surrounded(history, maker_of)))
    return compacting(found) if history.setup.seed % COMPACTING == COMPACTING - 1 else found


def counting(history: History) -> History:
    """The history with a policy that counts; most have none."""
    number = _COUNTING.get(history.kind, ()).count(history.setup.seed % 9)
    if not number:
        return history
    chance = random.Random(f"counting {history.kind} {history.setup.seed}")
    around = replace(history.setup.around, policy=chance.choice([name for name in POLICIES if name]))
    steps = [*history.steps]
    if history.setup.seed % 9 == _EXPIRING[history.kind]:
        for _ in range(chance.randint(8, 16)):
            numbers = chance.randrange(5), chance.randrange(_MANY), chance.randrange(3)
            steps.insert(chance.randrange(len(steps)), Step("o4", "expire", numbers))
    return replace(history, setup=replace(history.setup, around=around), steps=tuple(steps))


def told_falsely(history: History) -> History:
    """The history with sizes that clients misstate, or false times of commits' files; most have neither."""
    chance, steps = random.Random(f"falsely {history.kind} {history.setup.seed}"), [*history.steps]
    if chance.random() < SHARE_OF_FALSE_SIZES:
        steps = [
            replace(step, numbers=(*step.numbers, chance.randint(1, 9)))
            if step.what == "link" and chance.random() < 0.5
            else step
            for step in steps
        ]
        for _ in range(chance.randint(2, 4)):
            at = chance.randrange(len(steps))
            steps[at:at] = _linked_twice(chance)
    if chance.random() < SHARE_OF_FALSE_TIMES:
        for _ in range(chance.randint(1, 4)):
            what, number = chance.choice((("renew_files", _MANY), ("set_files_back", 900)))
            steps.insert(chance.randrange(len(steps)), Step("o2", what, (chance.randrange(number),)))
    return replace(history, steps=tuple(steps))


def _linked_twice(chance: random.Random) -> list[Step]:
    """A wrong size is linked, committed, and linked again at the same path, so that servers do not list the second
    entry."""
    branch, path, content, beyond = (chance.randrange(number) for number in (5, _MANY, _MANY, 9))
    linked = [
        Step("o3", "link", (branch, path, content, chance.randrange(3), 1, beyond)),
        Step("o3", "go_on", (0,)),
        Step("o3", "go_on", (0,)),
    ]
    return [*linked, Step("o3", "commit_now", (branch, 0, 0)), *linked]


def compacting(history: History) -> History:
    """The history with compactions of staging at any moment, and some while a run requests uncommitted data.

    If no other repository is on the namespace, and servers forget no commits, old unnamed ranges do not count.
    """
    chance = random.Random(f"compacting {history.kind} {history.setup.seed}")
    around, steps = history.setup.around, [*history.steps]
    forgets = any(step.what == "vanish_commit" for step in steps)
    alone = around.other in ("none", "importer") and not forgets
    for _ in range(chance.randint(6, 14)):
        what = chance.choice(("compact", "compact_now", "compact_now"))
        steps.insert(chance.randrange(len(steps)), Step("o1", what, (chance.randrange(_MANY),)))
    start = next(step for step in steps if step.what == "start")
    for _ in range(2):
        branch, path = chance.randrange(_MANY), chance.randrange(_MANY)
        steps += [
            Step("o1", "upload_now", (branch, path, 2, 0)),
            Step("time", "seconds", (int(chance.uniform(27, 36) * HOUR),)),
            Step("o1", "upload_now", (branch, path + 1, 3, 0)),
            replace(start, actor="c0", numbers=(DELETE, *start.numbers[1:])),
        ]
        if chance.random() < 0.5:
            steps += [
                Step("c0", "until", (_SWEEP_BEGINS, 1)),
                Step("o1", "stage_object", (branch, path + 2, chance.randrange(1, 4))),
            ]
        steps += [
            Step("c0", "until", (_PREPARES, chance.randint(1, 5))),
            Step("o1", "compact_now", (branch,)),
            Step("o1", "upload_now", (branch, path, 4, 0)),
            Step("c0", "finish"),
        ]
    around = replace(around, only_young_count=alone)
    return replace(history, setup=replace(history.setup, around=around), steps=tuple(steps))


def _surrounded(history: History, maker_of: Callable[[random.Random], Maker]) -> History:
    chance = random.Random(f"around {history.kind} {history.setup.seed}")
    if chance.random() < SHARE:
        history = Surroundings(history, _maker_like(history, chance, maker_of), chance).added()
    chance = random.Random(f"two sweeps {history.kind} {history.setup.seed}")
    if chance.random() < SHARE_OF_TWO_SWEEPS:
        two = Surroundings(history, _maker_like(history, chance, maker_of), chance)
        two.two_sweeps_of_the_same_garbage()
        history = replace(history, steps=(*history.steps, *two.maker.steps))
    return history


def _maker_like(history: History, chance: random.Random, maker_of: Callable[[random.Random], Maker]) -> Maker:
    """Makes steps with the settings of the first run of a history."""
    maker = maker_of(chance)
    _, age, window, *_ = next(step.numbers for step in history.steps if step.what == "start")
    maker.stay_with(age, window)
    return maker

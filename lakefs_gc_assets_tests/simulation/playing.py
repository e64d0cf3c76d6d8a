"""Plays a history: a setup and a list of steps, which are plain data, in one world with up to two collectors.

At its end come a few more runs in quiet times. A failing history is shortened: steps are left out as long as it fails
in the same way.
"""

import dataclasses
import gc
import os
import pkgutil
import random
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal

from lakefs_gc_assets import collector
from lakefs_gc_assets.collector import make_step
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.live import current, hidden
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.settings import SweepMode
from lakefs_gc_assets.storage import interface
from lakefs_gc_assets_tests.simulation import writers
from lakefs_gc_assets_tests.simulation.bucket import DeleteFaults
from lakefs_gc_assets_tests.simulation.bug import Bug, replace
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.collecting import observing
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.processes import Figures, Process
from lakefs_gc_assets_tests.simulation.repository import Branch, Refused
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle
from lakefs_gc_assets_tests.simulation.run_oracles import Exactness, Refusals, RetentionExactness
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, LOCK_EXPIRY, Asked, settings
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import COPY_SECONDS, Setup, World

Kind = Literal["clean", "optimized", "retention", "unified", "committed"]
"""Kind of runs that a history is about."""
_QUIET_SECONDS = max(COPY_SECONDS, 26 * HOUR) + 30 * HOUR
_BEFORE_TIME_PASSES: dict[Kind, tuple[Flow, ...]] = {
    "clean": (),
    "optimized": (Flow.CLEAN,),
    "retention": (),
    "unified": (Flow.UNIFIED,),
    "committed": (Flow.COMMITTED,),
}
_AFTERWARDS: dict[Kind, tuple[Flow, ...]] = {
    "clean": (Flow.CLEAN, Flow.CLEAN),
    "optimized": (Flow.OPTIMIZED, Flow.OPTIMIZED),
    "retention": (Flow.COMMITTED, Flow.UNIFIED, Flow.UNIFIED),
    "unified": (Flow.UNIFIED, Flow.UNIFIED),
    "committed": (Flow.COMMITTED, Flow.UNIFIED, Flow.UNIFIED),
}
_BUILT_ON_DAYS = 60


class Left(Violation):
    """Garbage stays although nothing keeps it."""


class Quiet:
    """Ends a history."""

    def __init__(self, world: World, collectors: Mapping[str, Process], figures: Figures) -> None:
        self._world, self._collectors, self._figures = world, collectors, figures
        self._unlisted: Set[str] = frozenset()

    def end(self, kind: Kind) -> None:
        """Stops writers, lets time pass and makes two runs that list; raises Left if garbage stays.

        With retention rules a run without a listing comes first, and must leave no garbage that it examined.
        """
        world = self._world
        self.calm(kind)
        if not all(self._run_alone(flow) for flow in _BEFORE_TIME_PASSES[kind]):
            return
        self._unlisted = self._live_after_deletion()
        world.pass_time(_QUIET_SECONDS)
        for flow in _AFTERWARDS[kind]:
            builds = kind == "unified" or (kind == "committed" and flow is Flow.COMMITTED)
            if not self._run_alone(flow, _BUILT_ON_DAYS if builds else 0):
                return
            garbage = self._garbage(flow)
            if not garbage and flow is not Flow.COMMITTED:
                return
            if garbage and flow is Flow.COMMITTED:
                break
            world.pass_time(2 * HOUR)
        raise Left(f"{len(garbage)} objects stay although nothing reaches them: {', '.join(garbage[:5])}")

    def calm(self, kind: Kind) -> None:
        """Ends collectors, writers and server faults."""
        world = self._world
        for process in self._collectors.values():
            process.go_on(None)
        for running in list(world.jobs):
            if running.due is None:
                world.abandon(running)
        world.behave()
        world.dismiss_twin()
        self._end_commits(kind)

    def _garbage(self, flow: Flow) -> list[str]:
        """Objects that the last run had to delete and did not."""
        garbage, last = self._world.garbage(), self._collectors["c0"]
        assert last.run is not None
        setup = self._world.setup
        if not (setup.around.only_young_count and setup.dumps):
            # Unnamed ranges count at any age, as another repository may have them.
            kept = self._world.repository.compacted_keys
            garbage = [key for key in garbage if key not in kept]
        if last.run.plan.follows_expiry:
            return [key for key in garbage if key not in self._unlisted and not last.exactness.named_oddly(key)]
        if flow is not Flow.COMMITTED:
            return garbage
        listed = addresses(last.exactness.store, last.run.run_id, STEPS[0])
        return [key for key in garbage if key in listed]

    def _live_after_deletion(self) -> Set[str]:
        """Live objects that a store called deleted when they had expired, and did not delete.

        Longer rules made them live again. When they expire once more, only a run that lists everything finds them.
        """
        called_deleted = {key for run in self._world.oracle.runs.values() for key in run.accepted}
        return called_deleted.intersection(self._world.bucket.keys).difference(self._world.garbage())

    def _run_alone(self, flow: Flow, full_listing_days: float = 0) -> bool:
        """Makes a run while nothing else happens. Returns True if it did its deletions.

        Args:
            full_listing_days: how long a run by retention rules builds on one that listed everything.
        """
        world, last, failed = self._world, self._collectors["c0"], self._figures.failed
        around = world.setup.around.lenient
        options = settings(True, 24.0, "month", around=around, full_listing_days=full_listing_days)
        last.start(options, None, Asked(flow))
        if self._figures.failed > failed:
            if world.oracle.commits_hold_nothing and "empty live set" in world.log[-1]:
                return False
            if "guard address form: the server gives s3://elsewhere/" in world.log[-1]:
                # Imports replaced all objects by which the spelling of addresses could be compared.
                return False
            raise Left(f"a run in quiet times failed: {world.log[-1]}")
        assert last.run is not None
        if last.run.plan.flow is not flow:
            raise Left(f"a clean run in quiet times instead of an optimized one: {last.run.plan.why_clean}")
        if full_listing_days and not world.setup.around.also_live and last.run.plan.base_run is None:
            raise Left(f"everything was listed in quiet times: {last.run.plan.why_clean}")
        return True

    def _end_commits(self, kind: Kind) -> None:
        """Retries failed commits, or resets their branches.

        With retention rules it also commits entries that uncommitted data cannot hold, since no run could complete
        before.
        """
        world = self._world
        # The lock of a killed collector expires, too.
        world.pass_time(max(writers.longest_commit_seconds(world), LOCK_EXPIRY + 5 * MINUTE))
        for number, branch in enumerate([branch for _, branch in sorted(world.repository.branches.items())]):
            compacted = branch.compacted is not None
            by_rules = kind in ("retention", "unified", "committed") and self._spelled_otherwise(branch)
            if len(branch.tokens) > 1 or by_rules or compacted:
                world.start("w0 commit_now", writers.commit_now(world, number, 0, 0))
                branch.tokens = branch.tokens[:1] if not branch.sealed() else branch.tokens
                # Entries staged over a compacted base that is never listed again would be kept with it forever.
                branch.compacted, branch.base_id = None, ""
        world.oracle.look()

    def _spelled_otherwise(self, branch: Branch) -> bool:
        staged = self._world.repository.staged(branch)
        full = [entry.address for entry in staged.values() if entry and entry.address_type == 2]
        return any(not address.startswith(self._world.repository.uri) for address in full)


MIN_AGES = (24.0, 24.0, 24.0, 48.0, 6.0, 0.0)
WINDOWS = ("month", "day", "slice")
DRY_RUN, DELETE, MOVE = range(3)
"""Fate of a run's candidates."""
FLOWS = (Flow.CLEAN, Flow.OPTIMIZED, Flow.COMMITTED, Flow.UNIFIED)
FULL_LISTING_DAYS = (0, 7, 60)
"""Days for which runs by retention rules build on one that listed everything; histories without such a number mean 0.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history.

    Attributes:
        actor: a writer, time, servers or a collector.
        numbers: choose among the targets that exist.
    """

    actor: str
    what: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.actor}: {self.what}({', '.join(map(str, self.numbers))})"


@dataclass(frozen=True)
class History:
    """A history to play; its kind decides the runs that end it."""

    setup: Setup
    steps: tuple[Step, ...]
    kind: Kind = "clean"


@dataclass
class Result:
    """Result of a history that broke no rule.

    Attributes:
        compared: optimized runs that were compared with clean ones.
        late: objects that clean runs reported as late arrivals.
        went: candidates of runs by retention rules that had expired and were not listed.
        defined: marks by retention rules that were compared with the commits that must stay.
        expired: deleted objects that commits had held.
        too_late: expired objects that were used again after the last recheck.
    """

    steps: int
    figures: Figures
    deleted: int
    live: int
    losses: int
    compared: int
    late: int
    went: int
    defined: int
    expired: int
    too_late: int
    log: list[str] = field(repr=False)

    def totals(self) -> dict[str, int]:
        """All numbers by name, with those of the collectors' figures."""
        both = vars(self) | vars(self.figures)
        return {name: number for name, number in both.items() if isinstance(number, int)}


def play(history: History, *, quiet: bool = True) -> Result:
    """Plays a history to its end, then a few more runs in quiet times.

    Raises:
        Violation: a rule is broken; raised at once.
    """
    with uncollected(), deterministic(history.setup.seed), remembering():
        player = Player(history.setup)
        try:
            for step in history.steps:
                player.do(step)
            if quiet:
                Quiet(player.world, player.collectors, player.figures).end(history.kind)
        finally:
            player.stop()
    return player.result(len(history.steps))


@contextmanager
def played(history: History) -> Iterator[World]:
    """The world at the end of a history, after all jobs in progress. Its time is simulated until the exit."""
    with uncollected(), deterministic(history.setup.seed), remembering():
        player = Player(history.setup)
        try:
            for step in history.steps:
                player.do(step)
            Quiet(player.world, player.collectors, player.figures).calm(history.kind)
        finally:
            player.stop()
        yield player.world


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspends Python's garbage collector, which would scan all modules again and again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Makes random names and threads of the tested code depend on the seed alone."""
    chance = random.Random(seed)
    with ExitStack() as patches:

        def made() -> uuid.UUID:
            return uuid.UUID(int=chance.getrandbits(128), version=4)

        replace(patches, uuid, "uuid4", made)
        replace(patches, os, "urandom", chance.randbytes)
        for module in _with_threads():
            replace(patches, module, "ThreadPoolExecutor", _OneByOne)
        # Some worlds are treated as large, so that servers are asked for many paths at once.
        if seed % 8 == 7:
            replace(patches, hidden, "_WORTH_LISTING", 1)
        # Some look expired entries up in parts, without those that live ranges hold.
        if seed % 3 == 1:
            replace(patches, checkpoint, "_MANY_ENTRIES", 0)
            replace(patches, current, "_LOOKED_UP_AT_ONCE", 3)
            replace(patches, current, "_ROUNDS", sys.maxsize)
        # The world renews the lock of a process that does not stand still.
        for module in (make_step, lock):
            replace(patches, module, "renewed", lambda *about: nullcontext())
        patches.enter_context(observing())
        yield


@cache
def _with_threads() -> tuple[ModuleType, ...]:
    """Modules of the run that make several calls at once."""
    names = [found.name for found in pkgutil.walk_packages(collector.__path__, f"{collector.__name__}.")]
    modules = map(import_module, [*names, interface.__name__])
    return tuple(module for module in modules if "ThreadPoolExecutor" in vars(module))


class _OneByOne:
    """A thread pool without threads: calls happen in order."""

    def __init__(self, workers: int) -> None:
        pass

    def __enter__(self) -> "_OneByOne":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def shutdown(self, **how: bool) -> None:
        pass

    def map(self, function: Callable[..., object], *items: Sequence[object]) -> list[object]:
        return list(map(function, *items))

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:
            # Other exceptions, such as the end of the process, end everything at once.
            done.set_exception(error)
        return done


class Player:
    """Plays steps one after the other."""

    def __init__(self, setup: Setup) -> None:
        self.world = World.from_setup(setup)
        self.figures = Figures()
        self.exactness = Exactness(self.world.bucket, self.world.oracle)
        oracle = self.world.oracle
        self.retention = RetentionExactness(oracle) if isinstance(oracle, RetentionOracle) else None
        watching = self.figures, self.exactness, self.retention, Refusals(self.world)
        self.collectors = {name: Process(self.world, name, *watching) for name in ("c0", "c1")}

    def do(self, step: Step) -> None:
        """Plays one step; one that is impossible now has no effect."""
        if step.actor in self.collectors:
            self._collect(self.collectors[step.actor], step.what, step.numbers)
        elif step.actor == "time":
            self._pass(step.what, step.numbers)
        elif step.actor == "servers":
            self._misbehave(step.what, step.numbers)
        else:
            self._write(step.actor, step.what, step.numbers)

    def _write(self, writer: str, what: str, numbers: tuple[int, ...]) -> None:
        world = self.world
        if what in ("go_on", "crash"):
            mine = [running for running in world.jobs if running.name.startswith(writer)] or world.jobs
            if mine:
                running = mine[numbers[0] % len(mine)]
                (world.go_on if what == "go_on" else world.abandon)(running)
            return
        try:
            job = writers.OPERATIONS[what](world, *numbers)
        except Refused:
            return
        world.start(f"{writer} {what}", job)

    def _pass(self, what: str, numbers: tuple[int, ...]) -> None:
        if what == "seconds":
            self.world.pass_time(float(numbers[0]))
            return
        if what == "set_clock":
            self.world.set_clock(numbers[0], float(numbers[1]))
            return
        if what == "age":
            self._until_age(*numbers)
            return
        # To a moment near the one when an object, issued a while ago, becomes old enough.
        issued = sorted({int(until) for until in self.world.oracle.linkable_until.values()})
        future = [moment for moment in issued if moment + 2 * HOUR > self.world.time.now]
        if future:
            target = future[numbers[0] % len(future)] + numbers[1]
            self.world.pass_time(max(0.0, target - self.world.time.now))

    def _until_age(self, commit: int, rule: int, more: int) -> None:
        """Passes time until one of the newest commits is exactly as old as a rule says, or some seconds older."""
        world, rules = self.world, self.world.repository.rules
        if rules is None:
            return
        days = (rules.default_days, *rules.branches.values())[rule % (1 + len(rules.branches))]
        dates = sorted(record.facts.creation_date for record in world.repository.commits.values())[-8:]
        moments = [date + days * DAY + more for date in dates]
        future = [moment for moment in moments if moment >= world.time.now]
        if future:
            world.pass_time(future[commit % len(future)] - world.time.now)

    def _misbehave(self, what: str, numbers: tuple[int, ...]) -> None:
        at_work = [process for process in self.collectors.values() if process.active]
        match what:
            case "lost_branches_but_one" if not numbers[0] and at_work:
                # Servers do not contradict themselves while a collector works.
                return
            case "refuse_dumps" if numbers[0] and not all(process.is_sweeping for process in at_work):
                # Other histories cover runs without any dumps.
                return
        self.world.misbehave(what, numbers[0])

    def _collect(self, process: Process, what: str, numbers: tuple[int, ...]) -> None:
        match what:
            case "start":
                sweep, age, window, budget, *asked = numbers
                mode: SweepMode = "quarantine" if sweep == MOVE else "delete"
                min_age, slice_window = MIN_AGES[age % len(MIN_AGES)], WINDOWS[window % len(WINDOWS)]
                around = self.world.setup.around
                days = FULL_LISTING_DAYS[asked[2]] if asked[2:] else 0
                options = settings(
                    bool(sweep), min_age, slice_window, sweep_mode=mode, around=around, full_listing_days=days
                )
                process.start(options, budget, Asked(FLOWS[asked[0]], asked[1]) if asked else ASKED)
            case "go_on":
                process.go_on(numbers[0])
            case "until":
                process.go_on_until(*numbers)
            case "fail_on":
                process.fail_on(*numbers)
            case "finish":
                process.go_on(None)
            case "kill":
                process.kill()
            case "freeze":
                process.frozen = True
            case "resume":
                process.resume(numbers[1], whole=bool(numbers[0]))
            case "put_back":
                process.put_back()
            case "purge":
                process.purge()
            case "approve":
                process.approve(numbers[0])
            case "fail":
                process.fail_in, process.lose_answer = numbers[0], bool(numbers[1])
            case "refuse_deletes":
                if process.view is not None:
                    process.view.faults = DeleteFaults(refuse_every=numbers[0])
            case "break_delete":
                if process.view is not None:
                    process.view.faults = DeleteFaults(break_after=numbers[0])
            case "pretend_delete":
                if process.view is not None:
                    process.view.faults = DeleteFaults(pretend=True)
            case _:
                raise ValueError(f"no such step: {what}")

    def stop(self) -> None:
        """Ends all active processes."""
        for process in self.collectors.values():
            if process.coroutine is not None:
                process.dead = True
                process.coroutine.resume()

    def result(self, steps: int) -> Result:
        oracle = self.world.oracle
        live = [key for key in self.world.bucket.keys if not key.startswith("_lakefs/") and oracle.reachable(key)]
        exactness, retention = self.exactness, self.retention
        return Result(
            steps,
            self.figures,
            oracle.deleted,
            len(live),
            len(oracle.losses),
            exactness.compared,
            exactness.late,
            exactness.went,
            retention.compared if retention else 0,
            retention.oracle.expired if retention else 0,
            len(retention.oracle.too_late) if retention else 0,
            self.world.log,
        )


NONE = Bug(tuple)
_NAMES = re.compile(r"\S*[0-9a-v]{20}\S*|\d+")


def failure(history: History, bug: Bug = NONE) -> Violation | None:
    """How a history fails, or None."""
    try:
        with bug.patches():
            play(history)
    except Violation as violation:
        return violation
    return None


def shortened(history: History, bug: Bug = NONE) -> History:
    """The shortest history found that fails in the same way, apart from names and numbers."""
    first = failure(history, bug)
    if first is None:
        raise ValueError("the history does not fail")
    wanted = _kind(first)

    def fails(steps: list[Step]) -> bool:
        found = failure(dataclasses.replace(history, steps=tuple(steps)), bug)
        return found is not None and _kind(found) == wanted

    return dataclasses.replace(history, steps=tuple(_without(list(history.steps), fails)))


def _kind(violation: Violation) -> str:
    return type(violation).__name__ + _NAMES.sub("", str(violation))


def _without(steps: list[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """Leaves out halves, then quarters, down to single steps."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if fails(fewer):
                steps = fewer
            else:
                start += size
        size //= 2
    return steps


def reported(history: History, bug: Bug = NONE) -> str:
    """Describes a failing history: its setup with the seed, its steps, and the failure."""
    lines = [f"seed {history.setup.seed}, {len(history.steps)} steps", repr(history.setup)]
    lines += [f"  {step}" for step in history.steps]
    return "\n".join([*lines, f"=> {failure(history, bug)}"])

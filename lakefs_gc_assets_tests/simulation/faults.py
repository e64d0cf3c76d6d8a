"""Whole runs of each kind in which one call goes wrong, and what people do then: resume the run, or begin a new one.

Each is played in the same small world. A play is a kind of run, a fault, the number of the call, and the recovery.
"""

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, cast

from lakefs_gc_assets.bringing_back import brought_back
from lakefs_gc_assets.collection import lock, quarantining, report, run_folder
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.collection.report import Ending
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.configuration import CollectionSettings
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.facts import LakeFSApi, RetentionRules
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import versioning, writers
from lakefs_gc_assets_tests.simulation.asked import ASKED, LOCK_EXPIRY, Asked, settings
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE, CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.exactness import Exactness
from lakefs_gc_assets_tests.simulation.failing_calls import FailingApi, FailingStore, Fault, Faults, distinct
from lakefs_gc_assets_tests.simulation.filed import FiledRun
from lakefs_gc_assets_tests.simulation.frames import Shelf
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import deterministic
from lakefs_gc_assets_tests.simulation.processes import Figures, Process
from lakefs_gc_assets_tests.simulation.retention_exactness import RetentionExactness
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.stepping import STEPS, Killed
from lakefs_gc_assets_tests.simulation.world import Setup, World

_COLLECTORS_OWN = "_lakefs/retention/"
_MEANWHILE_SECONDS = 20 * MINUTE
"""Longer than a recheck is valid, and less than the lock of a dead process."""
QUIET_SECONDS = 4 * DAY
"""Then all that was young is old, and copies are forgotten."""
OPERATIONS = writers.OPERATIONS | versioning.OPERATIONS
SWEEP, DRY = settings(True, 24.0, "month"), settings(False, 24.0, "month")
MOVE = SWEEP.model_copy(update={"sweep_mode": "quarantine"})
OPTIMIZED = Asked(Flow.OPTIMIZED)
_SETUP = Setup(rules="seed", listing_page=8, delete_limit=2, old_objects=5)
_BY_RULES = replace(_SETUP, retention=True)
RULES = RetentionRules(default_days=5, branches={"alpha": 6})
BEFORE: tuple[tuple[str, tuple[int, ...]], ...] = (
    # Two commits of main, the first alone holds an object that was replaced; a tag holds the second.
    ("upload_now", (0, 0, 1, 0)),
    ("upload_now", (0, 1, 2, 1)),
    ("upload_now", (0, 2, 3, 0)),
    ("commit_now", (0, 0, 0)),
    ("upload_now", (0, 0, 4, 1)),
    ("delete", (0, 1)),
    ("commit_now", (0, 2, 0)),
    ("create_tag", (0, 0)),
    # Another branch with a commit of its own, and one that only a tag holds.
    ("create_branch", (1, 0)),
    ("upload_now", (0, 3, 5, 0)),
    ("commit_now", (0, 3, 1)),
    ("create_branch", (2, 0)),
    ("upload_now", (1, 4, 6, 1)),
    ("commit_now", (1, 0, 0)),
    ("create_tag", (1, 1)),
    ("delete_branch", (1,)),
    # Garbage: replaced before a commit, deleted, reset; one of it was uploaded in parts.
    ("upload_now", (1, 5, 1, 0)),
    ("upload_now", (1, 5, 2, 1)),
    ("upload_now", (1, 6, 3, 0)),
    ("upload_now", (1, 6, 4, 0)),
    ("gateway_multipart", (1, 7, 5, 0)),
    ("upload_now", (1, 7, 1, 1)),
    ("upload_now", (0, 8, 6, 1)),
    ("upload_now", (0, 9, 2, 0)),
    ("reset_branch", (0,)),
    # Staged: alone, copied by reference, linked, hidden below an equal object of the head, committed and staged again.
    ("upload_now", (0, 6, 5, 1)),
    ("copy", (0, 2, 7, 0)),
    ("link", (1, 8, 3, 0, 1)),
    ("upload_again", (1, 0, 1)),
    ("set_metadata", (1, 2, 1)),
)
LATER: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("upload_now", (1, 9, 1, 0)),
    ("commit_now", (1, 0, 0)),
    ("upload_now", (1, 9, 3, 0)),
    ("upload_now", (1, 9, 4, 1)),
    ("upload_now", (0, 5, 3, 0)),
    ("upload_now", (0, 5, 4, 1)),
    ("upload_now", (0, 5, 5, 1)),
    ("delete", (0, 3)),
)
YOUNG: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("upload_now", (1, 3, 2, 0)),
    ("upload_now", (1, 3, 3, 1)),
    ("upload_now", (1, 4, 1, 1)),
)


class Recovery(StrEnum):
    """What people do when a run did not end well."""

    RESUMED = "resumed"
    REPEATED = "a new run"


class NotFinished(Violation):
    """The work is not done in the end, or nobody can go on with it."""


class Ended(StrEnum):
    """How a process ended, as Dagster sees it."""

    WELL = "well"
    FAILED = "with an error"
    DIED = "by dying"


@dataclass(frozen=True)
class Opened:
    """What is known of a run outside of its processes."""

    run_id: str
    owner: str
    windows: tuple[str, ...]
    options: CollectionSettings
    lock: None = None


@dataclass
class FailingProcess(Process):
    """A collector process whose calls can go wrong.

    Attributes:
        completed: steps that Dagster takes for done, by run.
    """

    faults: Faults = field(default_factory=Faults)
    completed: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        make_run = self.make_run
        self.make_run = lambda **given: make_run(**given, completed=self.completed, ended=self.faults.end)

    def reached_api(self, api: CollectorsApi) -> LakeFSApi:
        return cast(LakeFSApi, FailingApi(api, self.faults))

    def reached_store(self, view: BucketView) -> ObjectStore:
        return FailingStore(view, self.faults, self._denied)

    def _denied(self, key: str) -> None:
        """Nobody can know of this deletion."""
        assert self.run is not None
        del self.world.oracle.runs[self.run.run_id].accepted[key]

    def goes_on(self, opened: Opened, options: CollectionSettings) -> None:
        """A process of the same owner makes the steps that are not done."""
        self.options = options
        done = [name for name in STEPS if name in self.completed.get(opened.run_id, ())]
        self._launch(opened.run_id, opened.owner, opened.windows, done, None)


@dataclass
class Scene:
    """The world with all that outlives processes, and the run that is looked at."""

    world: World
    make_run: type[FiledRun] = FiledRun
    exactness: Exactness = field(init=False)
    retention: RetentionExactness | None = field(init=False)
    shelf: Shelf = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    completed: dict[str, list[str]] = field(default_factory=dict)
    opened: Opened | None = None

    def __post_init__(self) -> None:
        oracle = self.world.oracle
        self.exactness = Exactness(self.world.bucket, oracle)
        self.retention = RetentionExactness(oracle) if isinstance(oracle, RetentionOracle) else None

    def do(self, operations: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Writers do something, and end it."""
        world = self.world
        for name, numbers in operations:
            world.start(name, OPERATIONS[name](world, *numbers))
            for running in list(world.jobs):
                while running in world.jobs:
                    world.go_on(running)

    def process(self, faults: Faults) -> FailingProcess:
        """A new process."""
        world = self.world
        world.background.clear()
        self.figures.failed = 0
        given = (self.shelf, self.figures, self.exactness, self.make_run, self.retention)
        return FailingProcess(world, "c0", *given, faults=faults, completed=self.completed)

    def start(self, options: CollectionSettings, faults: Faults, asked: Asked = ASKED) -> Ended:
        """A new run."""
        process = self.process(faults)
        process.start(options, None, asked)
        return self.after(process, options)

    def go_on(self, options: CollectionSettings, faults: Faults, asked: Asked = ASKED) -> Ended:
        """The last run, from the step that is not done."""
        assert self.opened is not None
        process = self.process(faults)
        process.asked = asked
        process.goes_on(self.opened, options)
        return self.after(process, options)

    def after(self, process: FailingProcess, options: CollectionSettings) -> Ended:
        """Notes the run that a process made, and says how it ended."""
        if process.run is not None:
            run = process.run
            self.opened = Opened(run.run_id, run.owner, run.windows, options)
        if process.faults.dead:
            return Ended.DIED
        return Ended.FAILED if process.figures.failed else Ended.WELL

    def restore(self, faults: Faults) -> Ended:
        """The command `restore` for the last run."""
        assert self.opened is not None
        world, run_id = self.world, self.opened.run_id
        world.background.clear()

        def point(call: str) -> bool:
            world.tick(0.05)
            return False

        def written(key: str, data: bytes) -> None:
            if key.startswith(run_folder.receipts(run_id)):
                world.oracle.receipts(run_id, data)

        machine = MachineClock(world.time, 0.0)
        view = BucketView(world.bucket, point, self._copy_removed, written, page=8, delete_limit=2)
        api = cast(LakeFSApi, FailingApi(CollectorsApi(world.servers, point, lambda: None, machine, 1), faults))
        store = FailingStore(view, faults)

        try:
            facts = api.repository()
            namespace, clock = Namespace.parse(facts.storage_namespace), CollectorClock(machine, world.pass_time)
            repository = OpenRepository(facts, namespace, api, store, cast(Any, None), MOVE, clock)
            told = list(brought_back(repository, run_id, (), f"restore-{world.time.now}", world.log.append))
            faults.end()
        except Killed:
            return Ended.DIED
        except CollectionError as error:
            world.log.append(str(error))
            return Ended.FAILED
        return Ended.WELL if all(each.fate.is_well for each in told) else Ended.FAILED

    def _copy_removed(self, key: str, gone: bool) -> None:
        objects = self.world.bucket.objects
        _, _, address = key.removeprefix(quarantining.ROOT).partition("/")
        if address not in objects or objects[address].data != objects[key].data:
            raise Violation(f"{key} is removed although {address} is not back")

    @property
    def store(self) -> ObjectStore:
        """The store as it is now; no call is counted."""
        return self.exactness.store

    def last_report(self) -> report.Report | None:
        """The report of the last run, if it has one."""
        assert self.opened is not None
        return report.read(self.store, self.opened.run_id)

    @property
    def told(self) -> report.Report:
        """The report of the last run, which must have one."""
        found = self.last_report()
        assert found is not None
        return found


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        prepare: what happened before it.
        run: makes it.
        resume: goes on with it.
        repeat: makes another one in its place.
        follow: what comes after it days later, and deletes what became old enough.
        flow: that the report of the run and of its repetition names; None where there is none.
        deletes: whether it deletes.
        setup: of its world.
    """

    prepare: Callable[[Scene], object]
    run: Callable[[Scene, Faults], Ended]
    resume: Callable[[Scene, Faults], Ended]
    repeat: Callable[[Scene, Faults], Ended]
    follow: Callable[[Scene, Faults], Ended]
    flow: Flow | None = Flow.CLEAN
    deletes: bool = True
    setup: Setup = _SETUP


def _begin(scene: Scene) -> None:
    """Objects of some days, seen by a dry run some hours ago."""
    scene.do(BEFORE)
    scene.world.pass_time(60 * HOUR)
    require_well(scene.start(DRY, Faults()))
    scene.world.pass_time(3 * HOUR)


def _young(scene: Scene) -> None:
    _begin(scene)
    scene.do(YOUNG)


def _after_clean(scene: Scene) -> None:
    _begin(scene)
    scene.do(YOUNG)
    require_well(scene.start(SWEEP, Faults()))
    scene.do(LATER)
    scene.world.pass_time(30 * HOUR)
    scene.do(YOUNG)


def _expired(scene: Scene) -> None:
    """Commits of two weeks ago, which others took the place of a few days later, with rules that keep a few days."""
    scene.do(tuple((name, _on_time(name, numbers)) for name, numbers in BEFORE))
    scene.world.pass_time(3 * DAY)
    scene.do((*LATER, ("commit_now", (0, 0, 0)), ("commit_now", (1, 0, 0))))
    scene.world.pass_time(10 * DAY)
    scene.world.repository.rules = RULES
    require_well(scene.start(DRY, Faults(), Asked(Flow.UNIFIED)))
    scene.world.pass_time(3 * HOUR)
    scene.do(YOUNG)


def _on_time(name: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Commits are dated to when they are made."""
    return (numbers[0], 0, 0) if name == "commit_now" else numbers


def _marked(scene: Scene) -> None:
    _young(scene)
    require_well(scene.start(DRY, Faults()))
    scene.completed[cast(Opened, scene.opened).run_id].remove(STEPS[-1])
    scene.world.pass_time(2 * HOUR)


def _moved(scene: Scene) -> None:
    _young(scene)
    require_well(scene.start(MOVE, Faults()))
    scene.world.pass_time(2 * HOUR)


def _approve(scene: Scene, faults: Faults) -> Ended:
    assert scene.opened is not None
    return scene.go_on(DRY.model_copy(update={"approve_run": scene.opened.run_id}), faults)


def _begun(options: CollectionSettings, asked: Asked = ASKED) -> Callable[[Scene, Faults], Ended]:
    return lambda scene, faults: scene.start(options, faults, asked)


def _resumed(options: CollectionSettings, asked: Asked = ASKED) -> Callable[[Scene, Faults], Ended]:
    def resume(scene: Scene, faults: Faults) -> Ended:
        return scene.start(options, faults, asked) if scene.opened is None else scene.go_on(options, faults, asked)

    return resume


_SWEPT, _REPEATED = _begun(SWEEP), _begun(SWEEP, OPTIMIZED)
_COMMITTED, _UNIFIED = Asked(Flow.COMMITTED), Asked(Flow.UNIFIED)
_BY_COMMITTED, _BY_UNIFIED = _begun(SWEEP, _COMMITTED), _begun(SWEEP, _UNIFIED)
KINDS = {
    "clean": Kind(_young, _SWEPT, _resumed(SWEEP), _SWEPT, _SWEPT),
    "dry": Kind(_young, _begun(DRY), _resumed(DRY), _begun(DRY), _SWEPT, deletes=False),
    "optimized": Kind(_after_clean, _REPEATED, _resumed(SWEEP, OPTIMIZED), _REPEATED, _REPEATED, Flow.OPTIMIZED),
    "approved": Kind(_marked, _approve, _approve, _SWEPT, _SWEPT),
    "quarantine": Kind(_young, _begun(MOVE), _resumed(MOVE), _begun(MOVE), _begun(MOVE)),
    "restore": Kind(_moved, Scene.restore, Scene.restore, _SWEPT, _SWEPT, flow=None, deletes=False),
    "committed": Kind(
        *(_expired, _BY_COMMITTED, _resumed(SWEEP, _COMMITTED), _BY_COMMITTED, _BY_UNIFIED),
        flow=Flow.COMMITTED,
        setup=_BY_RULES,
    ),
    "unified": Kind(
        *(_expired, _BY_UNIFIED, _resumed(SWEEP, _UNIFIED), _BY_UNIFIED, _BY_UNIFIED),
        flow=Flow.UNIFIED,
        setup=_BY_RULES,
    ),
}


def require_well(ended: Ended) -> None:
    """Raises NotFinished."""
    if ended is not Ended.WELL:
        raise NotFinished(f"a run in which nothing goes wrong ends {ended}")


@cache
def _prepared(name: str) -> bytes:
    """A scene right before the run."""
    with deterministic(1):
        scene = Scene(World.of(KINDS[name].setup))
        KINDS[name].prepare(scene)
        if name not in ("approved", "restore"):
            scene.opened = None
        scene.world.background.clear()
        scene.world.log.clear()
    return pickle.dumps(scene)


@dataclass(frozen=True)
class Whole:
    """A run in which nothing goes wrong: its calls, and the garbage that is gone afterwards, or back."""

    calls: tuple[str, ...]
    gone: frozenset[str]
    back: frozenset[str]


@cache
def whole(name: str) -> Whole:
    """Makes a run of a kind as nothing goes wrong."""
    with deterministic(2):
        scene: Scene = pickle.loads(_prepared(name))
        before = frozenset(scene.world.garbage())
        faults = Faults()
        require_well(KINDS[name].run(scene, faults))
        after = frozenset(scene.world.garbage())
    return Whole(tuple(faults.told), before - after, after - before)


@dataclass(frozen=True)
class Play:
    """What is played."""

    kind: str
    fault: Fault
    at: int
    recovery: Recovery

    def __str__(self) -> str:
        call = whole(self.kind).calls[self.at - 1]
        return f"{self.kind} run, call {self.at} ({call}) {self.fault}, then {self.recovery}"


def plays(kind: str) -> Iterator[Play]:
    """Every fault of every call of a kind of run, with every recovery."""
    for number, call in enumerate(whole(kind).calls, 1):
        for fault in distinct(call):
            for recovery in Recovery:
                yield Play(kind, fault, number, recovery)


def play(played: Play, make_run: type[FiledRun] = FiledRun, *, follow: bool = True) -> None:
    """Makes a run in which one call goes wrong, recovers, and looks at what is there then.

    Args:
        follow: whether another run comes days later.

    Raises Violation.
    """
    kind, expected = KINDS[played.kind], whole(played.kind)
    with deterministic(2):
        scene: Scene = pickle.loads(_prepared(played.kind))
        scene.make_run = make_run
        watch = Watch(scene, expected)
        faults = Faults(played.fault, played.at, scene.world.pass_time)
        ended = kind.run(scene, faults)
        watch.look(ended, faults)
        meanwhile(scene, expected)
        if ended is not Ended.WELL:
            recover(scene, kind, played.recovery, faults)
        elif not expected.back and not scene.told.success:
            # What could not be deleted is told, and waits for the next run.
            require_well(kind.repeat(scene, Faults()))
        watch.finish(kind)
        if follow:
            scene.world.pass_time(QUIET_SECONDS)
            require_well(kind.follow(scene, Faults()))
            watch.end(kind)


def recover(scene: Scene, kind: Kind, recovery: Recovery, faults: Faults) -> None:
    """Resumes or repeats a run, at once; only the lock of a process that died, or could not write it, is waited for.

    Where a resumed run asks for a new one, it is opened.

    Raises NotFinished.
    """
    again = kind.resume if recovery is Recovery.RESUMED else kind.repeat
    scene.world.log.clear()
    if again(scene, Faults()) is Ended.WELL:
        return
    told = scene.world.log[-1]
    if again is kind.resume and "open a new run" in told:
        require_well(kind.repeat(scene, Faults()))
        return
    if "wait until it ends" not in told:
        raise NotFinished(f"nobody can go on: {told}")
    if not faults.dead and not re.match(f"put_if.* {lock.KEY}", faults.struck or ""):
        raise NotFinished(f"the lock is held although its process could release it: {told}")
    scene.world.pass_time(LOCK_EXPIRY + 5 * MINUTE)
    if again(scene, Faults()) is not Ended.WELL:
        raise NotFinished(f"nobody can go on even after the lock expired: {scene.world.log[-1]}")


def meanwhile(scene: Scene, expected: Whole) -> None:
    """What users do before somebody goes on: one object that was garbage is staged again, staged ones are committed."""
    world = scene.world
    left = sorted((expected.gone | expected.back).intersection(world.garbage()))
    if left:
        entry = Entry(left[-1], 1, len(world.bucket.objects[left[-1]].data), "again", soft_at=world.time.now)
        world.repository.stage(world.repository.branches["alpha"], "again", entry)
        world.oracle.look()
    scene.do((("commit_now", (1, 2, 0)), ("upload_now", (1, 0, 2, 0))))
    world.pass_time(_MEANWHILE_SECONDS)


class Watch:
    """What must be so after a run in which something went wrong, and in the end."""

    def __init__(self, scene: Scene, expected: Whole) -> None:
        self._scene, self._expected = scene, expected
        bucket = scene.world.bucket
        self._there = {key: bucket.objects[key] for key in bucket.keys if not key.startswith(_COLLECTORS_OWN)}
        self._garbage = {key: bucket.objects[key] for key in scene.world.garbage()}

    def look(self, ended: Ended, faults: Faults) -> None:
        """Nothing claims what did not happen. Raises Violation."""
        self._require_live()
        scene = self._scene
        if scene.opened is None or self._expected.back:
            return
        told = scene.last_report()
        if ended is Ended.WELL and (told is None or told.ending is Ending.FAILED):
            raise Violation("the run ends well and has no report that says so")
        if told is not None and told.success and not told.dry_run:
            self._require_gone()

    def end(self, kind: Kind) -> None:
        """Nothing was lost, and nothing is left; runs build on each other again. Raises Violation."""
        self._require_live()
        if kind.flow is Flow.OPTIMIZED and self._scene.told.why_clean is not None:
            raise NotFinished(f"the last run is a clean one: {self._scene.told.why_clean}")
        if left := self._scene.world.garbage():
            raise NotFinished(f"{len(left)} objects stay although nothing reaches them: {left[0]}")

    def finish(self, kind: Kind) -> None:
        """The work is done, and nobody is kept from the next. Raises Violation."""
        self._require_live()
        scene = self._scene
        if holder := lock.holder(scene.store):
            raise NotFinished(f"the lock is still {holder}")
        told = scene.told
        if kind.flow is not None and not told.success:
            raise NotFinished(f"the report tells of {told.ending}: {told.error}")
        if kind.flow is not None and told.flow != kind.flow and told.why_clean is None:
            raise NotFinished(f"the report tells of a {told.flow} run")
        if kind.deletes:
            self._require_gone()

    def _require_gone(self) -> None:
        bucket = self._scene.world.bucket
        left = sorted(self._expected.gone.intersection(self._scene.world.garbage()))
        if left:
            raise NotFinished(f"{len(left)} objects are still there: {left[0]}")
        if self._scene.opened is not None and self._scene.opened.options.sweep_mode == "quarantine":
            for key in self._expected.gone - bucket.objects.keys():
                copies = [each for each in bucket.below(quarantining.ROOT) if each.endswith(f"/{key}")]
                if self._garbage[key].data not in [bucket.objects[copy].data for copy in copies]:
                    raise Violation(f"{key} is gone without a copy in quarantine")

    def _require_live(self) -> None:
        bucket, oracle = self._scene.world.bucket, self._scene.world.oracle
        for key, stored in self._there.items():
            if oracle.reachable(key) and bucket.objects.get(key) != stored:
                raise Violation(f"{key} is lost")

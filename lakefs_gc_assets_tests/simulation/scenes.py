"""A world in which a process fails at one call, with all state that outlives processes: a collector's, or that of the
commands `restore` and `purge`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import cast

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.quarantine import restore as restore_run
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, PurgeFate, purge_by
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.outcomes import Tally, describe_result
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import writers
from lakefs_gc_assets_tests.simulation.bucket import BucketView, address_of, is_back
from lakefs_gc_assets_tests.simulation.clocks import MINUTE
from lakefs_gc_assets_tests.simulation.collecting import TASKS, Killed, Run, Watch, WatchedRepository, open_repository
from lakefs_gc_assets_tests.simulation.failing_calls import FailingApi, FailingStore, Faults
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.processes import Command, Figures, Process, is_own
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle
from lakefs_gc_assets_tests.simulation.run_oracles import Exactness, RetentionExactness
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, Asked
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.world import World


class NotFinished(Violation):
    """The work is not done in the end, or no process can go on with it."""


class Ended(StrEnum):
    """How a process ended, as Dagster sees it."""

    WELL = "well"
    FAILED = "with an error"
    DIED = "by dying"


@dataclass(frozen=True)
class Opened:
    """Facts about a run that outlive its processes."""

    run_id: str
    owner: str
    windows: tuple[str, ...]
    options: CollectionSettings
    lock: None = None


@dataclass
class FailingProcess(Process):
    """A collector process whose calls can go wrong."""

    faults: Faults = field(default_factory=Faults)

    def ended(self) -> None:
        self.faults.end()

    def reached_api(self, api: CollectorsApi) -> LakeFSApi:
        return cast(LakeFSApi, FailingApi(api, self.faults))

    def reached_store(self, view: BucketView) -> ObjectStore:
        return self.world.bucket.opened(FailingStore(view, self.faults, self._denied))

    def _denied(self, key: str) -> None:
        """Removes a deletion that was reported as failed from the oracle's account, unless it was of a collector's own
        file."""
        assert self.run is not None
        if not is_own(key):
            del self.world.oracle.runs[self.run.run_id].accepted[key]

    def goes_on(self, opened: Opened, options: CollectionSettings) -> None:
        """A process of the same owner makes the remaining steps."""
        self.options = options
        done = [*self.completed.get(opened.run_id, ())]
        self._launch(opened.run_id, opened.owner, opened.windows, done, None)


@dataclass
class Scene:
    """The world with all state that outlives processes, and the run under test.

    Attributes:
        denied: copies in quarantine whose deletion was reported as failed.
    """

    world: World
    exactness: Exactness = field(init=False)
    retention: RetentionExactness | None = field(init=False)
    figures: Figures = field(default_factory=Figures)
    completed: dict[str, list[str]] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    opened: Opened | None = None

    def __post_init__(self) -> None:
        oracle = self.world.oracle
        self.exactness = Exactness(self.world.bucket, oracle)
        self.retention = RetentionExactness(oracle) if isinstance(oracle, RetentionOracle) else None

    def do(self, operations: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Writers make operations and complete them."""
        world = self.world
        for name, numbers in operations:
            world.start(name, writers.OPERATIONS[name](world, *numbers))
            for running in list(world.jobs):
                while running in world.jobs:
                    world.go_on(running)

    def process(self, faults: Faults) -> FailingProcess:
        """Makes a new process."""
        world = self.world
        world.background.clear()
        self.figures.failed = 0
        given = (self.figures, self.exactness, self.retention)
        return FailingProcess(world, "c0", *given, faults=faults, completed=self.completed)

    def start(self, options: CollectionSettings, faults: Faults, asked: Asked = ASKED) -> Ended:
        """Makes a new run."""
        process = self.process(faults)
        process.start(options, None, asked)
        return self.after(process, options)

    def go_on(self, options: CollectionSettings, faults: Faults, asked: Asked = ASKED) -> Ended:
        """Resumes the last run from its first unfinished step."""
        assert self.opened is not None
        process = self.process(faults)
        process.asked = asked
        process.goes_on(self.opened, options)
        return self.after(process, options)

    def after(self, process: FailingProcess, options: CollectionSettings) -> Ended:
        """Records the run of a process, and returns how it ended."""
        if process.run is not None:
            run = process.run
            self.opened = Opened(run.run_id, run.owner, run.windows, options)
        if process.faults.dead:
            return Ended.DIED
        return Ended.FAILED if process.figures.failed else Ended.WELL

    @property
    def store(self) -> ObjectStore:
        """The store as it is now; no call is counted."""
        return self.exactness.store

    def last_report(self) -> report.Report | None:
        """The report of the last run, if it has one."""
        assert self.opened is not None
        return report.read(self.store, self.opened.run_id)

    @property
    def reported(self) -> report.Report:
        """The report of the last run, which must have one."""
        found = self.last_report()
        assert found is not None
        return found


def require_well(ended: Ended) -> None:
    """Raises NotFinished unless a process ended well."""
    if ended is not Ended.WELL:
        raise NotFinished(f"a run in which nothing goes wrong ends {ended}")


_LOOK_SECONDS = 20 * MINUTE
"""Duration of a purge's first look, longer than its result stays valid."""


def restore(scene: Scene, faults: Faults, options: CollectionSettings) -> Ended:
    """Restores the objects that the last run moved."""
    assert scene.opened is not None
    world, run_id = scene.world, scene.opened.run_id

    def removed(key: str, gone: bool) -> None:
        if address_of(key) is not None:
            raise Violation(f"{key} is removed, and a deletion may yet be done")

    def work(repository: WatchedRepository) -> bool:
        reported = list(restore_run.restore(repository, run_id, (), f"restore-{world.time.now}", world.log.append))
        return all(each.fate.is_well for each in reported)

    return _Command(scene, faults, removed).ended(options, work)


def purge(scene: Scene, faults: Faults, options: CollectionSettings) -> Ended:
    """Empties the quarantine of all runs. During its first look an object becomes live again."""
    world = scene.world

    def removed(key: str, gone: bool) -> None:
        moved = address_of(key)
        if moved is not None and not is_back(world.bucket, key):
            world.oracle.deletion(*moved, command.recheck)

    def looks() -> None:
        if not world.repository.branches["alpha"].staged().get("between"):
            stage_moved(scene, "between")
        world.pass_time(_LOOK_SECONDS)

    def work(repository: WatchedRepository) -> bool:
        def check(plan: Plan, lock: Lock) -> "_PausedCheck":
            watched = replace(repository, run=command.run(plan, options))
            step = Step(world.log.append, world.log.append, watched, LocalEngine(TASKS), plan, lock)
            return _PausedCheck(step, looks)

        tally = Tally(PurgeFate.PURGED)
        each = purge_by(repository, None, f"purge-{world.time.now}", check, world.log.append)
        world.log += [describe_result(reported.address, reported) for reported in tally.counted(each)]
        return not tally.failed

    command = _Command(scene, faults, removed)
    return command.ended(options, work)


def copies(scene: Scene) -> dict[str, str]:
    """Address of each copy in quarantine, by key."""
    keys = scene.world.bucket.keys_below(layout.QUARANTINE_PREFIX)
    return {key: moved[1] for key in keys if (moved := address_of(key)) is not None}


def stage_moved(scene: Scene, path: str) -> None:
    """Stages an unreferenced object by its address when only quarantine still holds it."""
    world = scene.world
    moved = sorted(
        (address, key)
        for key, address in copies(scene).items()
        if address not in world.bucket.objects and not world.oracle.reachable(address)
    )
    if moved:
        address, key = moved[-1]
        entry = Entry(address, 1, len(world.bucket.objects[key].data), path, soft_at=world.time.now)
        world.repository.stage(world.repository.branches["alpha"], path, entry)
        world.oracle.look()


class _PausedCheck(LiveCheck[ArrowRows]):
    """The product's check, with an event between its first look and the second."""

    def __init__(self, step: Step[ArrowRows], between: Callable[[], None]) -> None:
        super().__init__(step)
        self._between: Callable[[], None] | None = between

    def look_again(self, copies: ArrowRows) -> None:
        if self._between is not None:
            self._between()
            self._between = None
        super().look_again(copies)


class _Command(Command):
    """A process of a command, whose calls can go wrong."""

    def __init__(self, scene: Scene, faults: Faults, removed: Callable[[str, bool], None]) -> None:
        super().__init__(scene.world, 1, removed, page=8)
        self.scene, self.faults = scene, faults
        self.world.background.clear()

    def ended(self, options: CollectionSettings, work: Callable[[WatchedRepository], bool]) -> Ended:
        """Runs `work`, which returns True if all went well."""
        try:
            well = work(self._opened(options))
            self.faults.end()
        except Killed:
            return Ended.DIED
        except CollectionError as error:
            self.world.log.append(str(error))
            return Ended.FAILED
        return Ended.WELL if well else Ended.FAILED

    def run(self, plan: Plan, options: CollectionSettings) -> Run:
        """The run whose settings define liveness, for the watchers."""
        oracle = self.world.oracle
        watch = Watch(oracle.listing, oracle.marked, self.recheck.opens, self.recheck.ends, self.scene.exactness)
        noted = watch, self.world.log.append
        return Run(self.api_of_command(), self.store, options, self.clock, plan.run_id, plan.owner, *noted, [])

    def api_of_command(self) -> LakeFSApi:
        """The server, as the command sees it."""
        return cast(LakeFSApi, FailingApi(self.api, self.faults))

    def _opened(self, options: CollectionSettings) -> WatchedRepository:
        store = self.world.bucket.opened(FailingStore(self.view, self.faults, self.scene.denied.add))
        return open_repository(self.api_of_command(), store, options, self.clock)

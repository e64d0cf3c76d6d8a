"""A world in which a collector's process fails at one call, with all state that outlives processes."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import versioning, writers
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.exactness import Exactness
from lakefs_gc_assets_tests.simulation.failing_calls import FailingApi, FailingStore, Faults
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.processes import Figures, Process, is_own
from lakefs_gc_assets_tests.simulation.retention_exactness import RetentionExactness
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle
from lakefs_gc_assets_tests.simulation.run_requests import ASKED, Asked
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.world import World

OPERATIONS = writers.OPERATIONS | versioning.OPERATIONS


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
            world.start(name, OPERATIONS[name](world, *numbers))
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

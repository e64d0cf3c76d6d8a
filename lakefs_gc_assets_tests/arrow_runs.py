"""Whole runs on the engine of plain Arrow tables, in this process and without Dagster, of any server and store."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from lakefs_gc_assets.collector import planning, report
from lakefs_gc_assets.collector import run as protocol
from lakefs_gc_assets.collector.clock import Clock, SystemClock
from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF, COMMITTED_DF, STEPS, STORE_DF, UNCOMMITTED_DF
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.collector.report import Report
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step, Turn, step
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.settings import Loaded
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.arrow_engine import ArrowEngine, ArrowRows

Between = Callable[[str], None]
_OPENED = count()


@dataclass
class ArrowRuns:
    """Makes runs of one configuration; `lines` is everything that they told.

    Attributes:
        between: is told the name of each step after it was made.
    """

    loaded: Loaded
    clock: Clock = field(default_factory=SystemClock)
    lines: list[str] = field(default_factory=list)
    between: Between = lambda name: None

    def open(self) -> OpenRepository:
        """See Process.open."""
        return running.opened(self.loaded, self.clock).open()

    def last_opened(self) -> ObjectStore | None:
        """See Process.last_opened."""
        return self.open().store

    def engine(self, repository: OpenRepository) -> ArrowEngine:
        """See Process.engine."""
        return ArrowEngine()

    def now(self) -> datetime:
        """See Process.now."""
        return self.clock.now()

    def log(self, line: str) -> None:
        """See Process.log."""
        self.lines.append(line)

    def warn(self, line: str) -> None:
        """See Process.warn."""
        self.lines.append(line)

    def explain(self, error: BaseException) -> str:
        """See Process.explain."""
        return str(error)

    def collect(self, flow: Flow = Flow.CLEAN) -> Report:
        """One run over every window that it needs. Raises what ends it."""
        windows, _ = planning.windows_to_collect(self.open(), flow)
        # Ids tell which run is newer by the second; tests open several in one.
        run_id = xids.Generator().descending(self.now() + timedelta(seconds=next(_OPENED)))
        for name in STEPS:
            turn = Turn(
                run_id,
                windows,
                "owner",
                begins=flow if name == STEPS[0] else None,
                continues=name != STEPS[0],
                goes_on=name != STEPS[-1],
            )
            with step(turn, self) as this:
                _make(name, this)
            self.between(name)
        found = report.read(self.open().store, run_id)
        if found is None:
            raise CollectionError(f"run {run_id} left no report")
        return found


def _make(name: str, this: Step[ArrowRows]) -> None:
    match name:
        case "store_df":
            protocol.list_stored(this)
        case "uncommitted_df":
            protocol.read_uncommitted(this, this.stored(STORE_DF))
        case "committed_df":
            protocol.read_committed(this, this.stored(UNCOMMITTED_DF))
        case "candidates":
            protocol.mark(this, this.stored(STORE_DF), this.stored(UNCOMMITTED_DF), this.stored(COMMITTED_DF))
        case _:
            protocol.sweep(this, this.stored(CANDIDATES_DF))

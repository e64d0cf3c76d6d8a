"""Collections of replayed recordings, through the real graph or on plain tables."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import Clock, OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CollectionError, LogLine
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock

Collect = Callable[[Loaded, bool, LogLine, Clock, Flow], str]
"""Makes a run, sweeping if asked to; returns its id. Raises CollectionError if it fails."""
Engine = Callable[[], AbstractContextManager[Collect]]
_PACE = timedelta(days=2)


@contextmanager
def graph() -> Iterator[Collect]:
    """Collects through the real graph, on Spark; all runs share one instance."""
    with running.instance() as home:

        def collect(loaded: Loaded, sweep: bool, progress: LogLine, clock: Clock, flow: Flow) -> str:
            run_id, error = running.execute(loaded, running.AskedRun(sweep, flow), progress, clock, home)
            if error is not None:
                raise error
            return run_id

        yield collect


@contextmanager
def plain_tables() -> Iterator[Collect]:
    """Collects without Dagster and Spark."""

    def collect(loaded: Loaded, sweep: bool, progress: LogLine, clock: Clock, flow: Flow) -> str:
        return ArrowRuns(running.decided_here(loaded, sweep=sweep), clock).collect(flow).run_id

    yield collect


def replay(
    folder: Path,
    flow: Flow,
    now: datetime | None,
    variant: int | None,
    progress: LogLine,
    *,
    keep_tags: bool = False,
    engine: Engine = graph,
) -> dict[str, Any]:
    """Collects a recording in a dry run; every deletion would be refused.

    Args:
        keep_tags: True if retention keeps the objects of tagged commits; the server's own rules do not know tags.

    Returns:
        The results of the run, see `collected`.

    Raises:
        CollectionError: the run fails.
    """
    moment = now or datetime.now(UTC)
    with (
        ReplayServer(folder, now=moment, variant=variant) as server,
        engine() as collect,
        tempfile.TemporaryDirectory() as scratch,
    ):
        policy = Path(scratch, "policy.yaml")
        policy.write_text(f"keep_tags: {str(keep_tags).lower()}\n", encoding="utf-8")
        return collected(server, collect, flow, False, moment, progress, {"retention_policy": str(policy)})


def chain(folders: Sequence[Path], moments: Sequence[datetime] | None, progress: LogLine) -> Iterator[dict[str, Any]]:
    """Sweeps recordings of one repository one after the other: the first with a clean run, the others optimized.

    Deletions happen in a layer over the recordings, and hide the objects from the later ones.

    Args:
        moments: time of the clocks in each run; by default each recording's own time plus two days for each run.

    Returns:
        The results of every run, see `collected`.
    """
    earlier: ReplayServer | None = None
    with ExitStack() as stack:
        collect = stack.enter_context(graph())
        for number, folder in enumerate(folders, start=1):
            clock = MovingClock(datetime.now(UTC))
            server = stack.enter_context(ReplayServer(folder, now=clock.now, deletes="overlay", continues=earlier))
            clock.moment = moments[number - 1] if moments else server.recorded_at + number * _PACE
            flow = Flow.CLEAN if number == 1 else Flow.OPTIMIZED
            yield collected(server, collect, flow, True, clock.moment, progress)
            earlier = server


def collected(
    server: ReplayServer,
    collect: Collect,
    flow: Flow,
    sweep: bool,
    moment: datetime,
    progress: LogLine,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Makes one run on a server, with changes to its settings.

    Returns:
        Flow, run_id, candidates and unrecognised (sorted addresses), counts, slices_listed, ranges_read, why_clean and
        base_run.
    """
    # Small recordings are mostly garbage on purpose.
    configuration = server.configuration()
    collection = configuration.collection.model_copy(update={"max_candidate_share": 1.0, **changes})
    loaded = Loaded(configuration.model_copy(update={"collection": collection}), {})
    clock = MovingClock(moment)
    run_id = collect(loaded, sweep, progress, clock, flow)
    repository = Collector.from_loaded(loaded, clock).open()
    ended = report.read(repository.store, run_id)
    if ended is None:
        raise CollectionError(f"run {run_id} left no report")
    return {
        "flow": ended.flow,
        "run_id": run_id,
        "candidates": _addresses(repository, run_id, "candidates"),
        "unrecognised": _addresses(repository, run_id, "unrecognised"),
        "counts": {**ended.counts, "kept": ended.kept},
        "slices_listed": ended.counts["slices_listed"],
        "ranges_read": ended.counts["ranges_read"],
        "why_clean": ended.why_clean,
        "base_run": ended.base_run,
    }


def _addresses(repository: OpenRepository, run_id: str, frame: str) -> list[str]:
    stored = StoredFrame.from_run(repository.store, repository.opener, run_id, FRAMES[frame])
    return sorted(stored.table().column("address").to_pylist())

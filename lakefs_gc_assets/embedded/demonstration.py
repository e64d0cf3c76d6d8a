"""A whole collection shown to a person: a dry run, what would go and why, the sweep, what an optimized run looks at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from rich.console import Console
from rich.table import Table

from lakefs_gc_assets.collector.clock import Clock
from lakefs_gc_assets.collector.described_report import describe
from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF, FRAMES
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.sizes import size
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.errors import CollectionError, LogLine
from lakefs_gc_assets.settings import Loaded


@dataclass(frozen=True)
class Shown:
    """What a demonstration did: addresses that the dry run named, how many went, and the flows of the sweeps."""

    candidates: frozenset[str]
    deleted: int
    failed: int
    flows: tuple[str, ...]


def demonstrate(
    loaded: Loaded,
    clock: Clock,
    console: Console,
    why: Mapping[str, str],
    meanwhile: LogLine = lambda line: None,
    then: Sequence[Flow] = (),
) -> Shown:
    """Makes a dry run and a sweep in one process and one Spark session, and shows both.

    Args:
        why: what happened to an object that makes it garbage, by address, as far as the one who made it knows.
        meanwhile: is told each line of the sweep as it happens, to work on the repository at the same time.
        then: flows of further sweeps, to compare what each looks at.
    Raises:
        CollectionError: where one of the runs fails.
    """
    with running.instance() as home:
        console.rule("dry run: what would go")
        dry = _run(loaded, clock, console, home, sweep=False)
        repository = running.opened(loaded, clock).open()
        candidates = stored(repository, dry, "candidates")
        console.print(_table(candidates, {**reasons(repository, dry), **why}))
        unrecognised = stored(repository, dry, "unrecognised")
        if unrecognised:
            console.print(f"kept, names that lakeFS never makes: {', '.join(unrecognised)}", soft_wrap=True)
        console.rule("sweep")
        swept = [_run(loaded, clock, console, home, sweep=True, meanwhile=meanwhile)]
        for flow in then:
            console.rule(f"the next run, {flow}")
            swept.append(_run(loaded, clock, console, home, sweep=True, flow=flow))
        ended = [found for run_id in swept if (found := report.read(repository.store, run_id))]
        console.rule("report")
        for found in ended:
            for line in describe(found):
                console.print(line, highlight=False, soft_wrap=True)
        if then:
            console.print(_compared(ended))
        deleted, failed = (sum(found.counts[name] for found in ended) for name in ("deleted", "failed"))
        return Shown(frozenset(candidates), deleted, failed, tuple(found.flow for found in ended))


def stored(repository: OpenRepository, run_id: str, frame: str) -> dict[str, int]:
    """Size of each address of a frame."""
    table = StoredFrame.of(repository.store, repository.opener, run_id, FRAMES[frame]).table()
    return dict(zip(table.column("address").to_pylist(), table.column("size").to_pylist(), strict=True))


def reasons(repository: OpenRepository, run_id: str) -> dict[str, str]:
    """Why each candidate of a run is garbage, as far as the run knows, by its address."""
    table = StoredFrame.of(repository.store, repository.opener, run_id, CANDIDATES_DF).table()
    return dict(zip(table.column("address").to_pylist(), table.column("why").to_pylist(), strict=True))


def _run(
    loaded: Loaded,
    clock: Clock,
    console: Console,
    home: dg.DagsterInstance,
    *,
    sweep: bool,
    meanwhile: LogLine = lambda line: None,
    flow: Flow = Flow.CLEAN,
) -> str:
    def progress(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)
        meanwhile(line)

    succeeded, run_id, error = running.execute(loaded, sweep, progress, clock, home, flow)
    if not succeeded:
        raise error or CollectionError(f"run {run_id} failed")
    return run_id


def _table(candidates: Mapping[str, int], why: Mapping[str, str]) -> Table:
    """The largest objects of each reason, and how many there are of it."""
    table = Table("why it is garbage", "objects", "bytes", "for example", title="what a sweep would delete")
    found: dict[str, list[str]] = {}
    for address in sorted(candidates):
        found.setdefault(why[address], []).append(address)
    for reason, addresses in sorted(found.items()):
        total = sum(candidates[address] for address in addresses)
        table.add_row(reason, f"{len(addresses):,}", size(total), addresses[0])
    table.add_section()
    table.add_row("all", f"{len(candidates):,}", size(sum(candidates.values())), "")
    return table


def _compared(reports: Sequence[Report]) -> Table:
    """What each run had to look at."""
    table = Table("run", "slices listed", "objects looked at", "ranges read", "did", title="what each run looked at")
    for found in reports:
        counted = (found.counts[name] for name in ("slices_listed", "listed", "ranges_read"))
        table.add_row(found.flow, *(f"{count:,}" for count in counted), found.did)
    return table

"""Runs as tables for a terminal."""

from collections.abc import Iterator

from benchmarks.runs import Run

_HEADER = (
    f"{'step':16} {'seconds':>8} {'CPU s':>7} {'server s':>8} {'waited':>7} {'rows':>12} {'rows/s':>12} "
    f"{'peak MB':>8} {'API calls':>9} {'store calls':>11} {'MB read':>9}"
)


def of_run(title: str, run: Run) -> Iterator[str]:
    """One line for each step, then the total; the seconds exclude safety waits."""
    yield title
    yield "  " + _HEADER
    for phase in run.phases:
        rows, rate = "", ""
        if phase.rows is not None:
            rows, rate = f"{phase.rows:,}", f"{phase.rows / max(phase.seconds, 1e-3):,.0f}"
        yield (
            f"  {phase.name:16} {phase.seconds:>8.1f} {phase.cpu_seconds:>7.1f} {phase.server_seconds:>8.1f} "
            f"{phase.waited:>7.1f} {rows:>12} {rate:>12} "
            f"{phase.peak_bytes / 1e6:>8,.0f} {phase.api_calls:>9,} {phase.store_calls:>11,} "
            f"{phase.bytes_read / 1e6:>9,.1f}"
        )
    counts, server = run.counts, sum(phase.server_seconds for phase in run.phases)
    yield (
        f"  {'whole':16} {run.seconds - run.waited:>8.1f} {run.cpu_seconds:>7.1f} {server:>8.1f} "
        f"{run.waited:>7.1f} {'':>12} {'':>12} {run.peak_bytes / 1e6:>8,.0f} "
        f"{counts.api_calls:>9,} {counts.store_calls:>11,} {counts.bytes_read / 1e6:>9,.1f}"
    )
    yield f"  load of the machine at the start {run.load:.1f}; CPU s are the run's, without server and store"


def of_bytes(before: Run, after: Run) -> Iterator[str]:
    """One line for each kind of object that two runs read, most bytes of the second run first."""
    yield f"  {'MB read':>9} {'and then':>9} of what kind of object"
    kinds = sorted({*before.read, *after.read}, key=lambda kind: -after.read.get(kind, 0))
    for kind in kinds:
        yield f"  {before.read.get(kind, 0) / 1e6:>9.3f} {after.read.get(kind, 0) / 1e6:>9.3f} {kind}"

"""The minimum size that the design of uncommitted collection requires, with delayed answers.

The repository has 20 million objects, one million of which are garbage. Its main branch has 30,000 commits, each with
280 of 120,000 ranges, which have 50 million entries together. 1,000 branches from it have 5 million staged objects.
"""

import os
from pathlib import Path

from benchmarks import vast
from benchmarks.marks import Measure, at_most, figure
from benchmarks.repositories import DELETED, ROOT
from benchmarks.runs import RunFailed, Show, run, served
from benchmarks.vast import Vast

_WORKERS = 16
_BY_SPARK = ("store_df", "committed_df", "candidates", "deleted_report")
"""Steps whose work is divided among executors; the others wait for the server or this process."""
_SHARES = ("uncommitted_df", "candidates")
"""Steps whose share of the run is stated: the first one is mostly the server's work."""

SIZE = Vast(branches=1000)


def bottom_line(show: Show, size: Vast = SIZE) -> list[Measure]:
    """A forecast, one clean run with sweep, and an optimized one, each of them with the holdings after it."""
    folder = vast.made(size, ROOT)
    with served("benchmarks.vast_server", str(folder), str(size.branches)) as settings:
        forecast = run(settings, "--forecast", show=True)
        show(f"bottom line: {size.entries:,} committed entries, forecast", forecast)
        made = run(settings, "--sweep", show=True)
        first = run(settings, "--holdings", show=True)
        optimized = run(settings, "--flow", "optimized", show=True)
        again = run(settings, "--holdings", show=True)
    if f"commits hold {size.committed:,} objects" not in forecast.told[0]:
        raise RunFailed(f"the forecast said {forecast.told[0]!r}; commits hold {size.committed:,} objects")
    title = f"{size.objects:,} objects and {size.entries:,} committed entries"
    show(f"bottom line: {title}, clean with sweep", made)
    show(f"bottom line: {title}, optimized", optimized)
    require_exact(folder, size)
    cores = os.cpu_count() or 1
    return [
        figure("bottom line: forecast", forecast.seconds, "s"),
        figure("bottom line: peak memory of the forecast", forecast.peak_bytes / 1e9, "GB"),
        at_most("bottom line: clean run with sweep", made.seconds / 60, "min", 25),
        at_most("bottom line: peak memory", made.peak_bytes / 1e9, "GB", 6),
        at_most("bottom line: processor time of the driver", made.driver_seconds, "s", 60),
        *(
            figure(f"bottom line: {name}, {what}", amount, unit)
            for name, each in (("optimized run", optimized), ("holdings, first time", first), ("holdings again", again))
            for what, amount, unit in (
                ("whole", each.seconds, "s"),
                ("processor time", each.cpu_seconds, "s"),
                ("peak memory", each.peak_bytes / 1e9, "GB"),
                ("bytes read", each.counts.bytes_read / 1e6, "MB"),
                ("store calls", each.counts.store_calls, "calls"),
            )
        ),
        *(
            figure(f"bottom line: {phase.name}, {what}", share * 100 / made.seconds, "% of the run")
            for phase in made.phases
            if phase.name in _SHARES
            for what, share in (
                ("whole", phase.seconds),
                ("waiting for the server", phase.server_seconds),
                ("without that", phase.seconds - phase.server_seconds),
            )
        ),
        *(
            figure(f"bottom line: {phase.name} on {_WORKERS} workers, implied", phase.seconds * cores / _WORKERS, "s")
            for phase in made.phases
            if phase.name in _BY_SPARK
        ),
    ]


def require_exact(folder: Path, size: Vast) -> None:
    """Raises RunFailed if a sweep, whose server has ended, deleted a live object or left garbage."""
    deleted = [number for number, gone in enumerate((folder / DELETED).read_bytes()) if gone]
    live = sum(not vast.is_garbage(number) for number in deleted)
    if live or len(deleted) != size.garbage:
        raise RunFailed(f"deleted {len(deleted):,} objects, {live:,} of them live; {size.garbage:,} were garbage")

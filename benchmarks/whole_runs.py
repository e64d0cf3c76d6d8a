"""Whole runs of generated repositories: a clean run with sweep and an optimized run without changes, and a forecast.

The forecast is compared with a dry run.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import changes, event_log, prices, repositories, scaling, tables, vast
from benchmarks.bottom_line import SIZE, bottom_line, require_exact
from benchmarks.counting import Counts
from benchmarks.marks import Measure, at_most, figure
from benchmarks.prices import least, least_of_clean
from benchmarks.runs import Run, RunFailed, Show, run, run_command_line, served
from benchmarks.shapes import EMPTY, LABORATORY, LARGE, MONTHS, SKEWED, SMALL, STEP, Shape
from benchmarks.vast import Vast
from lakefs_gc_assets.collector.frame.slices import windows_of

if TYPE_CHECKING:
    from benchmarks.other_engines import Way

_GIGABYTE = 1e9
_RANGES_READ = re.compile(r"([\d,]+) ranges to read")
_FORECAST = 1.3
"""Maximum duration of a forecast, relative to a clean dry run."""
_LINEAR, _LINEAR_MEMORY = 1.25, 1.3
"""Maximum cost per object of a larger repository, and maximum memory of a run with four times the objects, as factors.
"""

_PARTS = 12
"""Limited runs that collect a repository together."""
_TURNS = 3
"""Runs per way of comparing addresses."""
SMALL_BOTTOM_LINE = Vast(SIZE.branches // 25)
"""A twenty-fifth of the bottom line, for suites that make many runs."""

_CHANGE = {"store calls": 1.1, "bytes read": 1.1, "API calls": 1.1, "seconds": 1.2, "seconds of processor": 1.2}
"""Maximum cost of a few changes in a repository four times as large, as factors."""


@dataclass(frozen=True)
class _Marks:
    """Marks of a clean run with sweep and of the following optimized run.

    Attributes:
        clean, optimized: seconds.
        peak: memory of the clean run in GB; None without a mark.
    """

    clean: float
    optimized: float
    peak: float | None = None


def empty(show: Show) -> list[Measure]:
    """An empty repository, by the command line itself."""
    with served("benchmarks.serving", str(repositories.made(EMPTY))) as settings:
        return [at_most("empty repository, command line", run_command_line(settings), "s", 6)]


def small(show: Show) -> list[Measure]:
    """200,000 committed objects."""
    return _clean_then_optimized(SMALL, _Marks(14, 8, 1.0), show)


def laboratory(show: Show) -> list[Measure]:
    """100,000 objects on 100 branches: the case with measurements of lakeFS's own standalone collector."""
    return _clean_then_optimized(LABORATORY, _Marks(30, 20), show)


def large(show: Show) -> list[Measure]:
    """2 million committed objects."""
    return _clean_then_optimized(LARGE, _Marks(35, 12, 1.5), show)


def linear(show: Show) -> list[Measure]:
    """One shape in three sizes: the cost per object must not grow."""
    factors = (1, 4, 16)
    seconds, peaks = {}, {}
    for factor in factors:
        shape = STEP.times(factor)
        with served("benchmarks.serving", str(repositories.made(shape))) as settings:
            made = run(settings, "--sweep")
        show(f"{shape.name}, clean", made, least_of_clean(shape))
        seconds[factor], peaks[factor] = made.seconds, made.peak_bytes / _GIGABYTE
    first, second = ((seconds[b] - seconds[a]) / (b - a) for a, b in ((1, 4), (4, 16)))
    return [
        *(
            measure
            for factor in factors
            for measure in (
                figure(f"{STEP.times(factor).objects:,} objects, clean with sweep", seconds[factor], "s"),
                figure(f"{STEP.times(factor).objects:,} objects, peak memory", peaks[factor], "GB"),
            )
        ),
        at_most("cost of an object from 4x to 16x, by that from 1x to 4x", second / first, "times", _LINEAR),
        at_most("peak memory at 16x, by that at 4x", peaks[16] / peaks[4], "times", _LINEAR_MEMORY),
    ]


def skewed(show: Show, shape: Shape = SKEWED) -> list[Measure]:
    """One slice with half of all objects, one range of a million, one branch with all staged objects; four workers."""
    folder = repositories.made(shape)
    with served("benchmarks.serving", str(folder)) as settings, event_log.kept(settings, "local[4]") as events:
        made = run(settings, "--sweep")
        show(f"{shape.name}: {shape.objects:,} objects, clean with sweep, four workers", made, least_of_clean(shape))
        _require(made, shape, folder)
        tasks = event_log.tasks(events)
    largest = max(tasks, key=lambda task: task.seconds)
    together = sum(task.seconds for task in tasks)
    return [
        at_most(f"{shape.name}: longest task, of the run's time", 100 * largest.seconds / made.seconds, "%", 20),
        at_most(f"{shape.name}: longest task, of the time of all tasks", 100 * largest.seconds / together, "%", 20),
        figure(f"{shape.name}: clean run with sweep", made.seconds, "s"),
        figure(f"{shape.name}: longest task ({largest.stage[:24]})", largest.seconds, "s"),
    ]


def change(show: Show, shape: Shape = LARGE) -> list[Measure]:
    """The cost of an optimized run after a few changes, in a repository and in one four times as large.

    Both have the same number of uncommitted objects, with the same age: a server writes all uncommitted data again for
    every run. Objects are numbers: the larger repository would have 9.2 million files.
    """
    made = {factor: _after_a_change(show, shape, factor, "clean", "optimized")[1] for factor in (1, 4)}
    small, large = made[1], made[4]
    for line in tables.of_bytes(small, large):
        print(line, file=sys.stderr, flush=True)
    before, after = _costs(small), _costs(large)
    return [
        measure
        for what, most in _CHANGE.items()
        for measure in (
            figure(f"change: {what}, {shape.name}", before[what], what),
            figure(f"change: {what}, four times {shape.name}", after[what], what),
            at_most(
                f"change: {what}, four times {shape.name} by {shape.name}", after[what] / before[what], "times", most
            ),
        )
    ]


def rules(show: Show, shape: Shape = LARGE) -> list[Measure]:
    """A run by retention rules, after a few changes, that builds on a run which listed and read everything."""
    everything, made = _after_a_change(show, shape, 1, "unified", "unified")
    for line in tables.of_bytes(everything, made):
        print(line, file=sys.stderr, flush=True)
    return [
        figure(f"rules: {what}, {which}", cost, what)
        for which, costs in (("everything", _costs(everything)), ("what changed", _costs(made)))
        for what, cost in costs.items()
    ]


def windows(show: Show, shape: Shape = MONTHS) -> list[Measure]:
    """A repository collected in twelve parts, one after the other; an hour of slices stands for a month."""
    folder = repositories.made(shape)
    with served("benchmarks.serving", str(folder)) as settings:
        settings["collection"]["slice_window"] = "hour"
        slices = tuple(file.name for file in (repositories.objects_folder(folder) / "data").iterdir())
        hours = windows_of(slices, "hour")
        ends = [len(hours) * part // _PARTS for part in range(_PARTS + 1)]
        runs = []
        for first, end in pairwise(ends):
            runs.append(run(settings, "--sweep", "--windows", f"{hours[first]}..{hours[end - 1]}"))
            show(f"{shape.name}: {hours[first]} to {hours[end - 1]}", runs[-1])
    if left := repositories.garbage_left(folder, shape):
        raise RunFailed(f"{left:,} objects of garbage are left")
    costs = [_costs(made) for made in runs]
    steps = [phase for made in runs for phase in made.phases if phase.name == "committed_df"]
    return [
        *(figure(f"windows: {_PARTS} runs", sum(each[what] for each in costs), what) for what in costs[0]),
        figure("windows: their committed_df", sum(step.store_calls for step in steps), "store calls"),
        figure("windows: their committed_df", sum(step.bytes_read for step in steps), "bytes read"),
    ]


def _costs(made: Run) -> dict[str, float]:
    """Costs of a run, by unit."""
    return {
        "store calls": made.counts.store_calls,
        "bytes read": made.counts.bytes_read,
        "API calls": made.counts.api_calls,
        "seconds": made.seconds,
        "seconds of processor": made.cpu_seconds,
    }


def _after_a_change(show: Show, shape: Shape, factor: int, flow: str, then: str) -> tuple[Run, Run]:
    """A run of a repository `factor` times as large as a shape, and a run that follows after a few changes."""
    larger = replace(
        shape.times(factor),
        name=f"change-{shape.name}-x{factor}",
        uncommitted=shape.uncommitted,
        staged_among=shape.objects,
        numbered=True,
    )
    folder = repositories.made(larger)
    serving = ("benchmarks.vast_server", str(folder), "--shape", json.dumps(asdict(larger)))
    with served(*serving) as settings:
        before = run(settings, "--sweep", "--flow", flow)
    _require(before, larger, folder)
    with changes.changed(folder, larger) as garbage:
        with served(*serving) as settings:
            after = run(settings, "--sweep", "--flow", then)
        # A range and a metarange per commit.
        new, files = changes.OBJECTS + changes.GARBAGE, 2 * changes.COMMITS + bool(larger.uncommitted)
        title = f"{larger.name}: {larger.objects:,} objects, {then} after {flow}, {changes.OBJECTS:,} new"
        show(title, after, least(new, files, changes.GARBAGE))
        left = sum(file.exists() for file in garbage)
        if (found := after.rows("candidates")) != changes.GARBAGE or left:
            raise RunFailed(f"{found:,} candidates, there are {changes.GARBAGE:,}; {left:,} of them are left")
    return before, after


def forecast(show: Show, shape: Shape = LARGE) -> list[Measure]:
    """A forecast of all ages, three policies and every branch, between two clean dry runs of the same repository."""
    folder = repositories.made(shape)
    expected = f"commits hold {shape.committed:,} objects"
    with served("benchmarks.serving", str(folder)) as settings:
        before = run(settings)
        show(f"{shape.name}: {shape.objects:,} objects, clean dry run", before)
        made = run(settings, "--forecast")
        show(f"{shape.name}: forecast", made)
        after = run(settings)
        show(f"{shape.name}: clean dry run again", after)
    if expected not in made.told[0]:
        raise RunFailed(f"the forecast said {made.told[0]!r}; {expected}")
    seconds, processor = ((getattr(before, name) + getattr(after, name)) / 2 for name in ("seconds", "cpu_seconds"))
    return [
        figure(f"{shape.name}: clean dry run, mean of two", seconds, "s"),
        figure(f"{shape.name}: forecast", made.seconds, "s"),
        at_most(f"{shape.name}: forecast by clean dry run", made.seconds / seconds, "times", _FORECAST),
        figure(f"{shape.name}: the same in processor time", made.cpu_seconds / processor, "times"),
        figure(f"{shape.name}: peak memory of the forecast", made.peak_bytes / _GIGABYTE, "GB"),
    ]


def libraries(show: Show) -> list[Measure]:
    """Clean runs with sweep by the product's engine, by Spark's own DataFrames, and by libraries, in turns."""
    # These ways need Spark 4.0 or later.
    from benchmarks import other_engines

    measures = []
    for size in (SMALL, LARGE, SMALL_BOTTOM_LINE):
        names = [None, *(name for name, way in other_engines.ways().items() if runs_way(size, way))]
        runs: dict[str | None, list[Run]] = {name: [] for name in names}
        for name in names * _TURNS:
            runs[name].append(clean_run_of(size, name))
        for name, turns in runs.items():
            title = f"{_name_of(size)}: {name or 'our own blocks'}"
            show(f"{title}, one of {len(turns)}", turns[-1])
            costs = [(made.seconds, made.cpu_seconds, made.peak_bytes / _GIGABYTE) for made in turns]
            for what, each in zip(("s", "processor s", "GB"), zip(*costs, strict=True), strict=True):
                measures.append(figure(title, statistics.median(each), what))
    return measures


def runs_way(size: Shape | Vast, way: "Way") -> bool:
    """True if runs of this size can be made this way: Spark's own readers have no connector for a bucket."""
    return not (way.parquet and isinstance(size, Vast))


def clean_run_of(size: Shape | Vast, name: str | None) -> Run:
    """One clean run with sweep, in a way of `other_engines` or by the product's engine.

    Raises RunFailed if it finds or deletes anything except garbage. Its deletions are restored for the next run.
    """
    engine = () if name is None else ("--engine", name)
    if isinstance(size, Vast):
        folder = vast.made(size, repositories.ROOT)
        with served("benchmarks.vast_server", str(folder), str(size.branches)) as settings:
            made = run(settings, "--sweep", *engine)
        require_exact(folder, size)
    else:
        folder = repositories.made(size)
        with served("benchmarks.serving", str(folder)) as settings:
            made = run(settings, "--sweep", *engine)
        _require(made, size, folder)
    return made


def _name_of(size: Shape | Vast) -> str:
    return size.name if isinstance(size, Shape) else f"{size.objects:,} objects of the bottom line"


def warm_up() -> None:
    """One unmeasured run: compiles code that is not compiled yet, and fills caches."""
    with served("benchmarks.serving", str(repositories.made(EMPTY))) as settings:
        run(settings)


def _clean_then_optimized(shape: Shape, marks: _Marks, show: Show) -> list[Measure]:
    folder = repositories.made(shape)
    with served("benchmarks.serving", str(folder)) as settings:
        clean = run(settings, "--sweep")
        show(f"{shape.name}: {shape.objects:,} objects, clean with sweep", clean, least_of_clean(shape))
        _require(clean, shape, folder)
        again = run(settings, "--sweep", "--flow", "optimized")
        # A server writes all uncommitted data again for every run.
        show(f"{shape.name}, optimized, nothing new", again, least(0, int(shape.uncommitted > 0), 0))
    measures = [at_most(f"{shape.name}: clean run with sweep", clean.seconds, "s", marks.clean)]
    if marks.peak is not None:
        measures.append(at_most(f"{shape.name}: peak memory", clean.peak_bytes / _GIGABYTE, "GB", marks.peak))
    return [
        *measures,
        at_most(f"{shape.name}: optimized run, nothing new", again.seconds, "s", marks.optimized),
        at_most(f"{shape.name}: ranges read by the optimized run", ranges_read(again), "ranges", 0),
    ]


def ranges_read(made: Run) -> int:
    """Number of ranges that a run announced to read."""
    found = [int(match[1].replace(",", "")) for line in made.lines if (match := _RANGES_READ.search(line))]
    if not found:
        raise RunFailed("the run did not say how many ranges it would read")
    return found[0]


def _require(made: Run, shape: Shape, folder: Path) -> None:
    """A fast run with other results does not count."""
    expected = {
        "store_df": shape.objects,
        "uncommitted_df": shape.uncommitted,
        "committed_df": shape.committed,
        "candidates": shape.garbage,
    }
    found = {name: made.rows(name) for name in expected}
    left = repositories.garbage_left(folder, shape)
    if found != expected or left:
        raise RunFailed(f"found {found}, there are {expected}; {left:,} objects of garbage are left")


SUITES: dict[str, Callable[[Show], list[Measure]]] = {
    "empty": empty,
    "small": small,
    "laboratory": laboratory,
    "large": large,
    "linear": linear,
    "skewed": skewed,
    "forecast": forecast,
    "change": change,
    "rules": rules,
    "windows": windows,
    "libraries": libraries,
    "scaling": scaling.scaling,
    "bottom-line": bottom_line,
}
ASKED_FOR_ONLY = ("bottom-line", "change", "rules", "windows", "libraries", "scaling")
"""Suites that take half an hour or more, some because they first make the repositories that they measure."""


def show_table(title: str, made: Run, possible: Counts | None = None) -> None:
    """Prints a run's table, and the cost of its requests beside the minimum, to standard error."""
    for line in (*tables.of_run(title, made), *prices.table(made.counts, possible)):
        print(line, file=sys.stderr, flush=True)

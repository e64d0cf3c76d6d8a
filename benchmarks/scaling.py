"""Scaling of a run: on as many executors as fit here, then on simulated ones with the measured costs of real tasks.

Real runs of the same plan on 1, 2 and 4 executors of a standalone cluster on this machine show the simulation's error.
They have a tenth of the bottom line's objects, and a further run has a fifth. All numbers of rows that change a run's
way are as much smaller, so these runs go the bottom line's way. The tasks of the larger run, repeated five times,
represent the bottom line's, which has more tasks with the same work. Two bounds remain: the driver's work may be that
of the larger run, or grow on as it grew from the smaller one.
"""

import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks import counting, event_log, vast
from benchmarks.bottom_line import SIZE, require_exact
from benchmarks.cluster import Cluster, Cost, Phase, Stage, Store, simulate
from benchmarks.counting import Call
from benchmarks.event_log import Task
from benchmarks.marks import Measure, at_most, figure
from benchmarks.repositories import ROOT
from benchmarks.runs import Run, Show, join_spans, length, run, served
from benchmarks.vast import Vast
from lakefs_gc_assets.collector.sweep.sweeping import MOST_DELETING
from lakefs_gc_assets_tests.clusters import spark_clusters as clusters

_LATE = 0.2
"""Delay per answer in seconds while costs are recorded."""
_SMALL, _LARGE = Vast(SIZE.branches // 10), Vast(SIZE.branches // 5)
_REAL = (1, 2, 4)
_RECORDED = 2
"""Executors of the run whose task costs predict the runs on other numbers of executors."""
_SIMULATED = (4, 16, 64, 256)
_LIKE = max(_SIMULATED)
"""Planned number of executors for the bottom line; smaller runs are planned for as many fewer."""
_LATENCIES = (0.02, 0.1, 0.2)
_S3 = Store(bandwidth=50e6, reads=5500, writes=3500)
"""Limits of S3 for one prefix, applied to the whole repository; the bandwidth of a connection is assumed."""
_SEVERE = replace(_S3, latency=0.2, resets=0.01, storms=(300, 20))
_LITTLE = 0.1
"""Tasks with fewer processor seconds show the overhead of a task."""
_START = "start"
"""The step whose tasks start the first workers, and do not grow."""
_OFF = 25
"""Maximum error of a prediction in percent."""
_SEED = {"store_df": 60, "uncommitted_df": 90, "committed_df": 900, "deleted_report": 9000}
"""Seconds in the design for listing, staged objects, entries of commits and deletes."""
_SEED_WHOLE, _SEED_WORKERS = 3 * 3600, 16
"""The design's bound for the whole run under severe latency, and its number of workers for listing."""


@dataclass(frozen=True)
class _DriverStep:
    """The driver's work in a step, alone and beside tasks.

    Attributes:
        thinking: seconds in which the driver was alone and waited for no answer.
    """

    name: str
    since: float
    until: float
    alone: Sequence[Call]
    beside: Sequence[Call]
    thinking: float
    cpu_alone: float
    cpu_beside: float


@dataclass(frozen=True)
class Recording:
    """A run, and its tasks from Spark's own log.

    Attributes:
        late: delay per answer in seconds.
    """

    made: Run
    tasks: Sequence[Task]
    late: float

    @cached_property
    def _calls(self) -> dict[int | None, list[Call]]:
        """Calls by task, and of the driver."""
        found: dict[int | None, list[Call]] = defaultdict(list)
        for call in self.made.calls:
            if call.kind != "task":
                found[call.task].append(call)
        return found

    @cached_property
    def _python(self) -> Counter[int | None]:
        """Microseconds of processor time of workers for each task."""
        found: Counter[int | None] = Counter()
        for call in self.made.calls:
            found[call.task] += call.amount if call.kind == "task" else 0
        return found

    def _cpu(self, task: Task) -> float:
        """Processor seconds of a task, Java and Python."""
        return task.cpu + self._python[task.number] / 1e6

    def phases(self, *, by_latency: bool = True) -> list[Phase]:
        """Costs by step: the driver while no task ran, tasks by stage, and the driver beside tasks.

        Args:
            by_latency: True to limit answers of the store to their delay and the time of their bytes, and answers
                of the server to their work on an idle machine. If False, both take the measured time.
        """
        slow = self.cluster().slow if by_latency else 1

        def cost(calls: Sequence[Call], cpu: float = 0) -> Cost:
            lasting = length(map(_span, calls))
            ahead = round(sum(call.ended - call.began for call in calls) / lasting) if lasting else 1
            requests: list[tuple[str, float, int]] = []
            for call in calls:
                listed = call.kind.startswith("list")
                pages = counting.pages(call.amount) if listed else 1
                beyond = max(0.0, (call.ended - call.began) / pages - self.late)
                seconds = 0.0 if by_latency and call.kind != "api" else beyond / slow
                requests += [(call.kind, seconds, 0 if listed else call.amount)] * pages
            return Cost(tuple(requests), max(1, ahead), cpu)

        found = []
        for step in self._steps:
            stages: dict[int, list[Task]] = defaultdict(list)
            for task in sorted(self.tasks, key=lambda task: (task.submitted, task.began)):
                if step.since <= task.submitted < step.until:
                    stages[task.stage_id].append(task)
            ends = [max(task.ended for task in tasks) for tasks in stages.values()]
            made = tuple(
                Stage(
                    tuple(cost(self._calls[task.number], self._cpu(task)) for task in tasks),
                    tuple(place for place, end in enumerate(ends) if end <= tasks[0].submitted),
                )
                for tasks in stages.values()
            )
            # Some calls wait for each other, and others are concurrent.
            together = [call for call in step.alone if any(_overlap(call, other) for other in step.alone)]
            single = [call for call in step.alone if call not in together]
            alone = cost(single, step.cpu_alone), cost(together)
            found.append(Phase(step.name, alone, made, cost(step.beside, step.cpu_beside)))
        return found

    @cached_property
    def _steps(self) -> list[_DriverStep]:
        found, since = [], self.made.began
        for phase in self.made.phases:
            until = since + phase.seconds + phase.waited
            busy = join_spans((max(task.began, since), min(task.ended, until)) for task in self.tasks)
            alone: list[Call] = []
            beside: list[Call] = []
            for call in (each for each in self._calls[None] if since <= each.began < until):
                (beside if any(begun <= call.began < end for begun, end in busy) else alone).append(call)
            thinking = max(0.0, until - since - length(busy) - length(map(_span, alone)))
            cpu_beside = sum(self._used(end) - self._used(begun) for begun, end in busy)
            # Several threads of Java use more processor time than wall time.
            cpu_alone = min(thinking, max(0.0, self._used(until) - self._used(since) - cpu_beside))
            found.append(_DriverStep(phase.name, since, until, alone, beside, thinking, cpu_alone, cpu_beside))
            since = until
        return found

    def _used(self, moment: float) -> float:
        """Processor seconds of the driver, Python and Java, until a moment."""
        moments, seconds = zip((self.made.began, 0.0), *self.made.used, strict=True)
        return float(np.interp(moment, np.array(moments), np.array(seconds)))

    def cluster(self) -> Cluster:
        """The run's executors: the machine's slowness, and their overhead per start and per task."""
        first: dict[str, tuple[float, float]] = {}
        little: list[tuple[float, float]] = []
        working = worked = 0.0
        for task in sorted(self.tasks, key=lambda task: task.began):
            cpu = self._cpu(task)
            wall = task.seconds - length(map(_span, self._calls[task.number]))
            if task.executor not in first:
                first[task.executor] = wall, cpu
            elif cpu > _LITTLE:
                working, worked = working + wall, worked + cpu
            else:
                little.append((wall, cpu))
        slow = max(1.0, working / worked) if worked else 1.0
        driver = sum(step.thinking for step in self._steps) / sum(step.cpu_alone for step in self._steps)
        # The simulation slows down the processor time of these tasks too.
        begin, per_task = (
            statistics.median([max(0.0, wall / slow - cpu) for wall, cpu in each] or [0.0])
            for each in (first.values(), little)
        )
        return Cluster(len(first), slow, driver, begin, per_task)


def _span(call: Call) -> tuple[float, float]:
    return call.began, call.ended


def _overlap(one: Call, other: Call) -> bool:
    return one is not other and one.began < other.ended and other.began < one.ended


def _recorded(size: Vast, executors: int) -> Recording:
    """A clean run with sweep on single-core executors, planned like the bottom line's, at its scale."""
    folder, scale = vast.made(size, ROOT), size.branches / SIZE.branches
    like = max(1, int(_LIKE * scale))
    config = {
        "spark.driver.host": clusters.HOST,
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.default.parallelism": str(like),
        "spark.sql.shuffle.partitions": str(4 * like),
    }
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-cluster-") as work:
        with (
            clusters.standalone(Path(work), [{}] * executors) as started,
            served("benchmarks.vast_server", str(folder), str(size.branches), "--late", str(_LATE)) as settings,
            event_log.kept(settings, started.master, config) as events,
        ):
            made = run(settings, "--sweep", "--thresholds", str(scale))
            tasks = event_log.tasks(events)
        require_exact(folder, size)
    return Recording(made, tasks, _LATE)


def _dealt(stage: Stage, factor: int) -> Stage:
    """A stage with `factor` times the tasks; deleting tasks are combined, as in the product."""
    tasks = stage.tasks * factor
    if any(kind == "delete" and amount > 1 for task in tasks for kind, _, amount in task.calls):
        shares = [tasks[start::MOST_DELETING] for start in range(min(MOST_DELETING, len(tasks)))]
        tasks = tuple(
            Cost(tuple(call for task in share for call in task.calls), 1, sum(task.cpu for task in share))
            for share in shares
        )
    return replace(stage, tasks=tasks)


def bottom_line_of(small: Sequence[Phase], large: Sequence[Phase], sizes: Sequence[float]) -> list[Phase]:
    """The plan of a third size from two others: tasks grow with size, the driver's work at its observed rate."""
    first, second, third = sizes
    more = (third - second) / (second - first)

    def grown(less: Cost, much: Cost) -> Cost:
        count = len(much.calls) + round(max(0, len(much.calls) - len(less.calls)) * more)
        cpu = much.cpu + max(0.0, much.cpu - less.cpu) * more
        calls = tuple(islice(cycle(much.calls), count))
        # The server's own work grows too, such as its preparation of uncommitted data in a single call.
        own, own_less, own_now = (sum(seconds for _, seconds, _ in each) for each in (much.calls, less.calls, calls))
        factor = (own + max(0.0, own - own_less) * more) / own_now if own_now else 1
        return Cost(tuple((kind, seconds * factor, size) for kind, seconds, size in calls), much.ahead, cpu)

    return [
        replace(
            much,
            alone=tuple(map(grown, less.alone, much.alone)),
            beside=grown(less.beside, much.beside),
            stages=tuple(_dealt(each, 1 if much.name == _START else round(third / second)) for each in much.stages),
        )
        for less, much in zip(small, large, strict=True)
    ]


def scaling(show: Show) -> list[Measure]:
    """Real runs, their simulation, and the simulated bottom line on clusters."""
    real = {executors: _recorded(_SMALL, executors) for executors in _REAL}
    large = _recorded(_LARGE, max(_REAL))
    for executors, made in real.items():
        show(f"scaling: {_SMALL.objects:,} objects on {executors} executors", made.made)
    show(f"scaling: {_LARGE.objects:,} objects on {max(_REAL)} executors", large.made)
    measures = [measure for executors in _REAL for measure in _compared(real, executors)]
    sizes = (_SMALL.branches, _LARGE.branches, SIZE.branches)
    small = real[_RECORDED].phases()
    bounds = Bounds(
        least=bottom_line_of(large.phases(), large.phases(), sizes),
        most=bottom_line_of(small, large.phases(), sizes),
    )
    return [*measures, *_simulated(bounds, replace(real[_RECORDED].cluster(), slow=1, slow_driver=1))]


def _compared(real: Mapping[int, Recording], executors: int) -> list[Measure]:
    """A real run beside its simulation with the costs of another one; prints a line for each step to standard error."""
    by, made = real[_RECORDED], real[executors]
    meanwhile = made.cluster()
    at = replace(by.cluster(), executors=executors, slow=meanwhile.slow, slow_driver=meanwhile.slow_driver)
    said = simulate(by.phases(by_latency=False), at, Store(latency=_LATE))
    name = f"scaling: {executors} executors"
    steps = {phase.name: phase.seconds + phase.waited for phase in made.made.phases}
    for step, seconds in steps.items():
        print(f"{name}, {step}: {seconds:.1f} s, simulated {said.phases[step]:.1f} s", file=sys.stderr, flush=True)
    return [
        figure(f"{name}, measured", made.made.seconds, "s"),
        figure(f"{name}, simulated by the run on {_RECORDED}", said.seconds, "s"),
        figure(f"{name}, its start measured", steps[_START], "s"),
        figure(f"{name}, its start simulated", said.phases[_START], "s"),
        figure(f"{name}, tasks slower than their processor time", meanwhile.slow, "times"),
        figure(f"{name}, driver slower than its processor time", meanwhile.slow_driver, "times"),
        at_most(f"{name}, simulation is off by", abs(said.seconds / made.made.seconds - 1) * 100, "%", _OFF),
    ]


@dataclass(frozen=True)
class Bounds:
    """The bottom line's plan, twice.

    Attributes:
        least: with the driver's work of the largest recorded run.
        most: with the driver's work as it grew between two recorded runs.
    """

    least: Sequence[Phase]
    most: Sequence[Phase]


_COLUMNS = {"store_df": "listing", "uncommitted_df": "staged", "committed_df": "commits", "deleted_report": "sweep"}
"""Steps with a figure in the design, as columns of the table."""


def _simulated(bounds: Bounds, cluster: Cluster) -> list[Measure]:
    """The bottom line's simulated duration on clusters; prints them as a table of Markdown to standard error.

    Each cell has both bounds.
    """
    stores = {f"{late * 1000:.0f} ms": replace(_S3, latency=late) for late in _LATENCIES} | {"severe": _SEVERE}
    measures = []
    rows = [["answers late by", "executors", *_COLUMNS.values(), "whole", "driver alone"]]
    for name, store in stores.items():
        for executors in _SIMULATED:
            at = replace(cluster, executors=executors)
            least, most = simulate(bounds.least, at, store), simulate(bounds.most, at, store)
            title = f"simulated: {executors} executors, {name}"
            measures += [
                figure(f"{title}, at least", least.seconds, "s"),
                figure(f"{title}, at most", most.seconds, "s"),
            ]
            cells = [_both(least.phases[step], most.phases[step]) for step in _COLUMNS]
            whole, alone = _both(least.seconds, most.seconds), _both(least.serial, most.serial)
            rows.append([name, str(executors), *cells, whole, alone])
            counts = f"{most.refused:,} refused, {most.lost:,} lost, {most.failed_tasks} tasks failed"
            print(f"{title}: {counts}, {most.keys_left:,} keys left", file=sys.stderr, flush=True)
            if executors == _SEED_WORKERS:
                measures.append(at_most(f"{title}, the design's whole", most.seconds, "s", _SEED_WHOLE))
                measures += [at_most(f"{title}, {step}", most.phases[step], "s", seed) for step, seed in _SEED.items()]
    rows.append(["the design", str(_SEED_WORKERS), *(f"{_SEED[step]:,}" for step in _COLUMNS), f"{_SEED_WHOLE:,}", ""])
    rows.insert(1, ["---"] * len(rows[0]))
    print("\n".join(f"| {' | '.join(row)} |" for row in rows), file=sys.stderr, flush=True)
    return measures


def _both(*bounds: float) -> str:
    """Two bounds in seconds; one number if they are equal.

    Limits and storms of the store may let a step of more work end earlier, by a few seconds.
    """
    low, high = (f"{seconds:,.0f}" for seconds in sorted(bounds))
    return low if low == high else f"{low} to {high}"

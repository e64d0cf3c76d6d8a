"""How a run scales: on as many executors as fit here, then on simulated ones, by what real tasks were seen to cost.

Real runs of one plan of tasks on 1, 2 and 4 executors of a standalone cluster on this machine say how far the
simulation is off. Two sizes, a 100th and a 25th of the bottom line, say what one more branch costs the driver. The
tasks of the larger one, 25 times, stand for those of the bottom line, which has more of them, of the same work.
"""

import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
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
from benchmarks.runs import Run, Show, run, served
from benchmarks.vast import Vast
from lakefs_gc_assets.collector.sweep.passes import MOST_DELETING
from lakefs_gc_assets_tests.clusters import spark_clusters as clusters

_LATE = 0.2
"""Seconds that each answer is late while costs are recorded."""
_SMALL, _LARGE = Vast(SIZE.branches // 100), Vast(SIZE.branches // 25)
_REAL = (1, 2, 4)
_RECORDED = 2
"""So many executors ran the tasks by whose costs the runs on the others are predicted."""
_SIMULATED = (1, 4, 16, 64, 256)
_LIKE_SMALL, _LIKE_LARGE = 10, 256 * _LARGE.branches // SIZE.branches
"""Runs are planned as for so many executors: the larger one so that 25 times its tasks suit 256."""
_LATENCIES = (0.02, 0.1, 0.2)
_S3 = Store(bandwidth=50e6, reads=5500, writes=3500)
"""Limits of S3 for one prefix, taken for the whole repository; the bandwidth of a connection is assumed."""
_SEVERE = replace(_S3, latency=0.2, resets=0.01, storms=(300, 20))
_LITTLE = 0.1
"""Tasks that take fewer processor seconds say what a task costs beside its work."""
_START = "start"
"""The step whose tasks start the first workers, and do not grow."""
_OFF = 25
"""So many percent may a prediction be off."""
_SEED = {"store_df": 60, "uncommitted_df": 90, "committed_df": 900, "deleted_report": 9000}
"""Seconds that the design names for listing, staged objects, entries of commits and deletes."""
_SEED_WHOLE, _SEED_WORKERS = 3 * 3600, 16
"""Its bound for the whole run under severe latency, and its workers for listing."""


@dataclass(frozen=True)
class _DriverStep:
    """What the driver did in a step, while no task ran and beside tasks.

    Attributes:
        thinking: seconds in which it was alone and waited for no answer.
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
    """A run, and its tasks by Spark's own log.

    Attributes:
        late: seconds by which each answer was late.
    """

    made: Run
    tasks: Sequence[Task]
    late: float

    @cached_property
    def _calls(self) -> dict[int | None, list[Call]]:
        """Calls of each task, and of the driver."""
        found: dict[int | None, list[Call]] = defaultdict(list)
        for call in self.made.calls:
            if call.kind != "task":
                found[call.task].append(call)
        return found

    @cached_property
    def _python(self) -> Counter[int | None]:
        """Microseconds of processor that workers took for each task."""
        found: Counter[int | None] = Counter()
        for call in self.made.calls:
            found[call.task] += call.amount if call.kind == "task" else 0
        return found

    def _cpu(self, task: Task) -> float:
        """Processor seconds of a task, Java and Python."""
        return task.cpu + self._python[task.number] / 1e6

    def phases(self, *, by_latency: bool = True) -> list[Phase]:
        """What each step cost: the driver while no task ran, tasks by their stages, and the driver beside them.

        Args:
            by_latency: whether answers of the store take no longer than they are late and their bytes need, and those
                of the server what it would work on an idle machine. Else both take what they took.
        """
        slow = self.cluster().slow if by_latency else 1

        def cost(calls: Sequence[Call], cpu: float = 0) -> Cost:
            lasting = _length(map(_span, calls))
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
            # Some calls wait for each other, and others are made together.
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
            busy = _joined((max(task.began, since), min(task.ended, until)) for task in self.tasks)
            alone: list[Call] = []
            beside: list[Call] = []
            for call in (each for each in self._calls[None] if since <= each.began < until):
                (beside if any(begun <= call.began < end for begun, end in busy) else alone).append(call)
            thinking = max(0.0, until - since - _length(busy) - _length(map(_span, alone)))
            cpu_beside = sum(self._used(end) - self._used(begun) for begun, end in busy)
            # Several threads of Java take more of the processor than time passes.
            cpu_alone = min(thinking, max(0.0, self._used(until) - self._used(since) - cpu_beside))
            found.append(_DriverStep(phase.name, since, until, alone, beside, thinking, cpu_alone, cpu_beside))
            since = until
        return found

    def _used(self, moment: float) -> float:
        """Processor seconds of the driver, Python and Java, until a moment."""
        moments, seconds = zip((self.made.began, 0.0), *self.made.used, strict=True)
        return float(np.interp(moment, np.array(moments), np.array(seconds)))

    def cluster(self) -> Cluster:
        """The executors of the run: how slow the machine was meanwhile, what their start took and each task beside."""
        first: dict[str, float] = {}
        working = worked = 0.0
        besides = []
        for task in sorted(self.tasks, key=lambda task: task.began):
            cpu = self._cpu(task)
            wall = task.seconds - _length(map(_span, self._calls[task.number]))
            if task.executor not in first:
                first[task.executor] = max(0.0, wall - cpu)
            elif cpu > _LITTLE:
                working, worked = working + wall, worked + cpu
            else:
                besides.append(max(0.0, wall - cpu))
        slow = max(1.0, working / worked) if worked else 1.0
        driver = sum(step.thinking for step in self._steps) / sum(step.cpu_alone for step in self._steps)
        begin, per_task = statistics.median(first.values()) / slow, statistics.median(besides) / slow
        return Cluster(len(first), slow, driver, begin, per_task)


def _span(call: Call) -> tuple[float, float]:
    return call.began, call.ended


def _overlap(one: Call, other: Call) -> bool:
    return one is not other and one.began < other.ended and other.began < one.ended


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of time without overlaps, in order."""
    found: list[tuple[float, float]] = []
    for begun, ended in sorted(span for span in spans if span[0] < span[1]):
        if found and begun <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((begun, ended))
    return found


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(ended - begun for begun, ended in _joined(spans))


def _recorded(size: Vast, executors: int, like: int) -> Recording:
    """A clean run with sweep on executors of one core each, planned as for other ones."""
    folder = vast.made(size, ROOT)
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
            made = run(settings, "--sweep")
            tasks = event_log.tasks(events)
        require_exact(folder, size)
    return Recording(made, tasks, _LATE)


def _dealt(stage: Stage, factor: int) -> Stage:
    """A stage of so many times the tasks; those that delete are put together, as the product does."""
    tasks = stage.tasks * factor
    if any(kind == "delete" and amount > 1 for task in tasks for kind, _, amount in task.calls):
        shares = [tasks[start::MOST_DELETING] for start in range(min(MOST_DELETING, len(tasks)))]
        tasks = tuple(
            Cost(tuple(call for task in share for call in task.calls), 1, sum(task.cpu for task in share))
            for share in shares
        )
    return replace(stage, tasks=tasks)


def bottom_line_of(small: Sequence[Phase], large: Sequence[Phase], sizes: Sequence[float]) -> list[Phase]:
    """The plan of a third size by those of two: tasks grow with the size, and the driver's work as it grew."""
    first, second, third = sizes
    more = (third - second) / (second - first)

    def grown(less: Cost, much: Cost) -> Cost:
        count = len(much.calls) + round(max(0, len(much.calls) - len(less.calls)) * more)
        cpu = much.cpu + max(0.0, much.cpu - less.cpu) * more
        return Cost(tuple(islice(cycle(much.calls), count)), much.ahead, cpu)

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
    """Real runs, what the simulation says of them, and what it says of the bottom line on clusters."""
    real = {executors: _recorded(_SMALL, executors, _LIKE_SMALL) for executors in _REAL}
    large = _recorded(_LARGE, max(_REAL), _LIKE_LARGE)
    for executors, made in real.items():
        show(f"scaling: {_SMALL.objects:,} objects on {executors} executors", made.made)
    show(f"scaling: {_LARGE.objects:,} objects on {max(_REAL)} executors", large.made)
    by, plan = real[_RECORDED].cluster(), real[_RECORDED].phases(by_latency=False)
    measures = []
    for executors, made in real.items():
        meanwhile = made.cluster()
        at = replace(by, executors=executors, slow=meanwhile.slow, slow_driver=meanwhile.slow_driver)
        said = simulate(plan, at, Store(latency=_LATE)).seconds
        name = f"scaling: {executors} executors"
        measures += [
            figure(f"{name}, measured", made.made.seconds, "s"),
            figure(f"{name}, simulated by the run on {_RECORDED}", said, "s"),
            figure(f"{name}, processor slower by other work", meanwhile.slow, "times"),
            at_most(f"{name}, simulation is off by", abs(said / made.made.seconds - 1) * 100, "%", _OFF),
        ]
    sizes = (_SMALL.branches, _LARGE.branches, SIZE.branches)
    plan = bottom_line_of(real[_RECORDED].phases(), large.phases(), sizes)
    return [*measures, *_simulated(plan, replace(by, slow=1, slow_driver=1))]


def _simulated(plan: Sequence[Phase], cluster: Cluster) -> list[Measure]:
    """What the bottom line would take on clusters; a line for each goes to standard error."""
    stores = {f"{late * 1000:.0f} ms": replace(_S3, latency=late) for late in _LATENCIES} | {"severe": _SEVERE}
    measures = []
    for name, store in stores.items():
        for executors in _SIMULATED:
            made = simulate(plan, replace(cluster, executors=executors), store)
            title = f"simulated: {executors} executors, {name}"
            steps = ", ".join(f"{step} {made.phases[step]:,.0f} ({made.alone[step]:,.0f})" for step in made.phases)
            counts = f"{made.refused:,} refused, {made.lost:,} lost, {made.failed_tasks} tasks failed"
            print(f"{title}: {steps}; {counts}, {made.keys_left:,} keys left", file=sys.stderr, flush=True)
            measures += [figure(title, made.seconds, "s"), figure(f"{title}, driver alone", made.serial, "s")]
            if executors == _SEED_WORKERS:
                measures.append(at_most(f"{title}, the design's whole", made.seconds, "s", _SEED_WHOLE))
                measures += [at_most(f"{title}, {step}", made.phases[step], "s", most) for step, most in _SEED.items()]
    return measures

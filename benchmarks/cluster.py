"""A simulated cluster: replays a plan of tasks with measured costs, on executors beside a store with limits.

Time is simulated, event by event. A task makes calls, some in advance, and works on each result. The product's own
code handles failed calls: `Throttle` and pauses of `storage/cloud.py`.
"""

import heapq
import random
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakefs_gc_assets.storage import cloud

FAILURES = 4
"""Failures of a task before Spark gives up (`spark.task.maxFailures`)."""
_LARGEST_BULK = 1000
_DRIVER = -1
"""The driver's number among the executors."""
_OBSTORE_FIRST, _OBSTORE_LONGEST, _OBSTORE_BASE = 0.1, 15.0, 8


@dataclass(frozen=True)
class Cost:
    """Cost of a task, or of a part of the driver's work.

    Attributes:
        calls: kind, seconds in addition to its latency, and bytes or keys per call.
        ahead: number of concurrent calls.
        cpu: processor seconds, spread evenly over the calls.
    """

    calls: tuple[tuple[str, float, int], ...] = ()
    ahead: int = 1
    cpu: float = 0


@dataclass(frozen=True)
class Stage:
    """Tasks that may begin when all tasks of the earlier stages with these positions in the phase have ended."""

    tasks: tuple[Cost, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Phase:
    """A step of a run: the driver's sequential work alone, then stages, and the driver's work beside the stages."""

    name: str
    alone: tuple[Cost, ...] = ()
    stages: tuple[Stage, ...] = ()
    beside: Cost = Cost()


@dataclass(frozen=True)
class Cluster:
    """Executors with one core each.

    Attributes:
        slow, slow_driver: factor by which work takes longer than its processor seconds, on executors and on the
            driver, because of other work on the machine.
        begin: additional seconds of an executor's first task, in which Java and Python start.
        per_task: overhead of an executor per task, in seconds.
    """

    executors: int
    slow: float = 1
    slow_driver: float = 1
    begin: float = 0
    per_task: float = 0


@dataclass(frozen=True)
class Store:
    """Performance of the store and the server; by default without delays, limits and failures.

    Attributes:
        latency: delay per answer in seconds.
        bandwidth: bytes a second per connection; 0 for no limit.
        reads, writes: requests a second that one prefix takes, which is the whole repository; each key of a bulk
            delete counts. 0 for no limit.
        resets: share of lost connections.
        storms: interval and duration in seconds of periods in which the store refuses everything.
    """

    latency: float = 0
    bandwidth: float = 0
    reads: float = 0
    writes: float = 0
    resets: float = 0
    storms: tuple[float, float] = (0, 0)


@dataclass
class Result:
    """Results of a simulation.

    Attributes:
        phases: seconds by phase.
        alone: seconds by phase in which only the driver worked.
        tasks: executor, start and end per attempt.
        answered: moment, kind and amount accepted within the store's limits.
        refused: requests or keys refused because the store was too busy.
        keys_left: keys that a sweep reports as failed, for the next sweep.
    """

    phases: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    tasks: list[tuple[int, float, float]] = field(default_factory=list)
    answered: list[tuple[float, str, int]] = field(default_factory=list)
    refused: int = 0
    lost: int = 0
    keys_left: int = 0
    failed_tasks: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return sum(self.phases.values())

    @property
    def serial(self) -> float:
        """Seconds that no executor reduces."""
        return sum(self.alone.values())


class CallFailed(Exception):
    """A call failed permanently."""


class _Limit:
    """A rate whose unused requests in a second may be used in the next."""

    def __init__(self, rate: float) -> None:
        self._rate, self._left, self._at = rate, rate, 0.0

    def take(self, wanted: int, now: float) -> int:
        """Number of accepted requests."""
        if not self._rate:
            return wanted
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        taken = min(wanted, int(self._left))
        self._left -= taken
        return taken


class _Activity:
    """A concurrent activity; `yield` it to wait for its end."""

    def __init__(self) -> None:
        self.over, self.failed = False, False
        self.waiting: list[tuple[_Steps, _Activity]] = []


_Steps = Generator[Any, None, None]
"""Yields seconds to wait, or an activity to wait for."""


def simulate(phases: Sequence[Phase], cluster: Cluster, store: Store, seed: int = 0) -> Result:
    """Replays a plan. Raises CallFailed if the driver, or a task repeatedly, was refused."""
    # The product's pauses use the same random generator.
    random.seed(seed)
    return _Simulation(cluster, store).run(phases)


def _all(activities: Iterable[_Activity]) -> _Steps:
    """Waits for all activities. Raises CallFailed if one failed."""
    for each in activities:
        yield each
        if each.failed:
            raise CallFailed


class _Simulation:
    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster, self._store, self._result = cluster, store, Result()
        self._now, self._count = 0.0, 0
        self._events: list[tuple[float, int, _Steps, _Activity]] = []
        self._limits = {"read": _Limit(store.reads), "write": _Limit(store.writes)}
        self._idle, self._fresh = list(range(cluster.executors)), set(range(cluster.executors))
        self._queue: deque[tuple[Cost, int, _Activity]] = deque()
        self._throttles = {each: cloud.Throttle(lambda: self._now) for each in range(_DRIVER, cluster.executors)}

    def run(self, phases: Sequence[Phase]) -> Result:
        for phase in phases:
            began = self._now
            for cost in phase.alone:
                self._finish(self._begin(self._work(cost, _DRIVER)))
            self._result.alone[phase.name] = self._now - began
            self._finish(self._begin(self._stages(phase)))
            self._result.phases[phase.name] = self._now - began
        return self._result

    def _begin(self, steps: _Steps) -> _Activity:
        activity = _Activity()
        self._later(0, steps, activity)
        return activity

    def _later(self, delay: float, steps: _Steps, activity: _Activity) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + delay, self._count, steps, activity))

    def _end(self, activity: _Activity, *, failed: bool) -> None:
        activity.over, activity.failed = True, failed
        for each in activity.waiting:
            self._later(0, *each)

    def _finish(self, wanted: _Activity) -> None:
        """Advances time until an activity is over and nothing else is running."""
        while self._events:
            self._now, _, steps, activity = heapq.heappop(self._events)
            try:
                awaited = next(steps)
            except (StopIteration, CallFailed) as end:
                self._end(activity, failed=isinstance(end, CallFailed))
                continue
            if not isinstance(awaited, _Activity):
                self._later(awaited, steps, activity)
            elif awaited.over:
                self._later(0, steps, activity)
            else:
                awaited.waiting.append((steps, activity))
        if wanted.failed or not wanted.over:
            raise CallFailed("the run failed: the store refused a call of the driver, or of a task, too often")

    def _stages(self, phase: Phase) -> _Steps:
        over: list[_Activity] = []
        beside = self._begin(self._work(phase.beside, _DRIVER))
        for stage in phase.stages:
            over.append(self._begin(self._stage(stage, [over[place] for place in stage.after])))
        yield from _all((*over, beside))

    def _stage(self, stage: Stage, earlier: Sequence[_Activity]) -> _Steps:
        yield from _all(earlier)
        ends = [_Activity() for _ in stage.tasks]
        self._queue.extend((cost, FAILURES, end) for cost, end in zip(stage.tasks, ends, strict=True))
        self._deal()
        yield from _all(ends)

    def _deal(self) -> None:
        """Assigns waiting tasks to idle executors."""
        while self._queue and self._idle:
            self._begin(self._attempt(self._idle.pop(0), *self._queue.popleft()))

    def _attempt(self, executor: int, cost: Cost, left: int, end: _Activity) -> _Steps:
        began, failed = self._now, False
        if executor in self._fresh:
            self._fresh.remove(executor)
            yield self._cluster.begin * self._cluster.slow
        yield self._cluster.per_task * self._cluster.slow
        try:
            yield from self._work(cost, executor)
        except CallFailed:
            failed = True
            self._result.failed_tasks += 1
        self._result.tasks.append((executor, began, self._now))
        self._idle.append(executor)
        if failed and left > 1:
            self._queue.append((cost, left - 1, end))
        else:
            self._end(end, failed=failed)
        self._deal()

    def _work(self, cost: Cost, executor: int) -> _Steps:
        """Works on the results of calls in order, while the next calls are in progress."""
        slow = self._cluster.slow_driver if executor == _DRIVER else self._cluster.slow
        share = cost.cpu * slow / (len(cost.calls) + 1)
        calls, under_way = iter(cost.calls), deque[_Activity]()

        def call_ahead() -> None:
            for call in calls:
                under_way.append(self._begin(self._call(executor, *call)))
                if len(under_way) >= cost.ahead:
                    break

        call_ahead()
        failed = False
        while under_way:
            oldest = under_way.popleft()
            yield oldest
            failed = failed or oldest.failed
            if not failed:
                yield share
                call_ahead()
        if failed:
            raise CallFailed
        yield share

    def _call(self, executor: int, kind: str, seconds: float, amount: int) -> _Steps:
        if kind == "delete":
            yield from self._delete(executor, seconds, amount)
            return
        failed, pause = 0, _OBSTORE_FIRST
        while True:
            yield from self._answer(seconds, amount)
            if not self._is_lost() and (kind == "api" or self._take(kind, 1)):
                return
            failed += 1
            if failed == cloud.ATTEMPTS:
                raise CallFailed
            # obstore draws a pause between the first one and a multiple of the last; the other clients double it.
            pause = min(_OBSTORE_LONGEST, random.uniform(_OBSTORE_FIRST, pause * _OBSTORE_BASE))
            yield pause if kind.startswith("get") else cloud.pause_after(failed)

    def _delete(self, executor: int, seconds: float, keys: int) -> _Steps:
        """Like `cloud.retry_throttled`, with simulated waits and repetition of lost requests."""
        throttle, refused_in_row, lost = self._throttles[executor], 0, 0
        while keys:
            batch = throttle.at_once(min(keys, _LARGEST_BULK))
            yield throttle.turn(batch)
            yield from self._answer(seconds, 0)
            if self._is_lost():
                lost += 1
                if lost == cloud.ATTEMPTS:
                    raise CallFailed
                yield cloud.pause_after(lost)
                continue
            taken, lost = self._take("delete", batch), 0
            throttle.adapt(batch, batch - taken)
            keys -= taken
            if taken == batch:
                continue
            refused_in_row = 1 if taken else refused_in_row + 1
            if refused_in_row >= cloud.DELETE_ATTEMPTS:
                self._result.keys_left += keys
                return
            yield cloud.pause_after(refused_in_row)

    def _answer(self, seconds: float, size: int) -> _Steps:
        store = self._store
        yield store.latency + seconds + (size / store.bandwidth if store.bandwidth else 0)

    def _is_lost(self) -> bool:
        lost = random.random() < self._store.resets
        self._result.lost += lost
        return lost

    def _take(self, kind: str, amount: int) -> int:
        """Number of requests or keys that the store accepts now."""
        every, lasting = self._store.storms
        is_stormy = lasting and self._now % every >= every - lasting
        limit = self._limits["write" if kind.startswith(("put", "copy", "delete")) else "read"]
        taken = 0 if is_stormy else limit.take(amount, self._now)
        self._result.refused += amount - taken
        if taken and (self._store.reads or self._store.writes):
            self._result.answered.append((self._now, "write" if limit is self._limits["write"] else "read", taken))
        return taken

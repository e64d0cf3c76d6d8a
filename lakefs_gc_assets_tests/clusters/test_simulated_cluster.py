"""The scheduler that `make bench SUITES=scaling` replays tasks with."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import runs
from benchmarks.cluster import CallFailed, Cluster, Cost, Phase, Stage, Store, simulate
from benchmarks.counting import Counts
from benchmarks.event_log import Task
from benchmarks.scaling import Recording, bottom_line_of

_KINDS = st.sampled_from(["get", "list", "put", "delete", "api"])
_CALLS = st.tuples(_KINDS, st.floats(0, 0.3), st.integers(1, 1000))
_COSTS = st.builds(Cost, st.lists(_CALLS, max_size=5).map(tuple), st.integers(1, 4), st.floats(0, 2))
_PHASES = st.builds(
    lambda alone, first, second, beside: Phase("step", (alone,), (Stage(first), Stage(second, (0,))), beside),
    *(_COSTS, st.lists(_COSTS, min_size=1, max_size=6).map(tuple), st.lists(_COSTS, max_size=6).map(tuple), _COSTS),
)
_STORES = st.builds(
    Store,
    latency=st.floats(0, 0.2),
    reads=st.sampled_from([0.0, 20.0, 5500.0]),
    writes=st.sampled_from([0.0, 1000.0, 3500.0]),
    resets=st.sampled_from([0.0, 0.01, 0.1]),
)
_FAIR = settings(max_examples=20, deadline=None, derandomize=True)


@_FAIR
@given(_PHASES, st.integers(1, 20), _STORES)
def test_an_executor_runs_one_task_at_once_and_each_task_runs(phase: Phase, executors: int, store: Store) -> None:
    made = simulate([phase], Cluster(executors, per_task=0.01), store)

    spans = defaultdict(list)
    for executor, began, ended in made.tasks:
        spans[executor].append((began, ended))
    assert all(before[1] <= after[0] for each in spans.values() for before, after in pairwise(sorted(each)))
    assert len(made.tasks) == sum(len(stage.tasks) for stage in phase.stages) + made.failed_tasks
    # The second stage begins when the first has ended.
    first = len(phase.stages[0].tasks) + made.failed_tasks
    if not made.failed_tasks:
        assert all(began >= max(end for *_, end in made.tasks[:first]) for _, began, _ in made.tasks[first:])


@_FAIR
@given(_PHASES, st.integers(1, 20), st.floats(0, 0.2))
def test_work_is_conserved(phase: Phase, executors: int, latency: float) -> None:
    made = simulate([phase], Cluster(executors), Store(latency))

    tasks = [cost for stage in phase.stages for cost in stage.tasks]
    least = sum(cost.cpu for cost in tasks)
    most = sum(cost.cpu + sum(latency + seconds for _, seconds, _ in cost.calls) for cost in tasks)
    worked = sum(ended - began for _, began, ended in made.tasks)
    assert least - 1e-6 <= worked <= most + 1e-6
    assert made.seconds >= made.serial + worked / executors - 1e-6
    assert not made.refused and not made.lost and not made.keys_left


@_FAIR
@given(_PHASES, _STORES, st.sampled_from([(0.0, 0.0), (10.0, 1.0)]))
def test_the_limits_of_the_store_are_never_exceeded(phase: Phase, store: Store, storms: tuple[float, float]) -> None:
    try:
        made = simulate([phase], Cluster(20), replace(store, storms=storms))
    except CallFailed:
        return
    for kind, rate in (("read", store.reads), ("write", store.writes)):
        taken = [(moment, amount) for moment, which, amount in made.answered if which == kind and rate]
        for place, (begun, _) in enumerate(taken):
            total = 0
            for moment, amount in taken[place:]:
                total += amount
                # One second's unused requests may be made in the next second.
                assert total <= rate * (1 + moment - begun) + 1
    assert not [moment for moment, _, _ in made.answered if storms[1] and moment % 10 >= 9]


def test_a_sweep_takes_as_long_as_the_store_lets_it() -> None:
    sweep = Phase("sweep", (), (Stage((Cost((("delete", 0.0, 1000),) * 4),) * 64),))

    made = simulate([sweep], Cluster(64), Store(0.1, writes=3500))
    assert made.refused and made.keys_left < 2_560
    assert sum(amount for _, _, amount in made.answered) + made.keys_left == 256_000
    assert 256_000 / 3500 - 1 <= made.seconds < 2 * 256_000 / 3500


def test_the_work_of_the_driver_grows_as_it_grew_and_tasks_with_the_size() -> None:
    small = Phase("mark", (Cost((("api", 0, 0),) * 10, 1, 1.0),), (Stage((Cost(cpu=1),)),))
    large = Phase("mark", (Cost((("api", 0, 0),) * 20, 1, 3.0),), (Stage((Cost(cpu=1),) * 2),))

    (made,) = bottom_line_of([small], [large], (10, 20, 60))
    assert len(made.alone[0].calls) == 60 and made.alone[0].cpu == 11
    assert len(made.stages[0].tasks) == 6

    (least,) = bottom_line_of([large], [large], (10, 20, 60))
    assert least.alone == large.alone
    assert len(least.stages[0].tasks) == 6


def test_the_work_of_the_server_grows_in_a_single_call_too() -> None:
    small = Phase("uncommitted_df", (Cost((("api", 1.0, 0),)),))
    large = Phase("uncommitted_df", (Cost((("api", 2.0, 0),)),))

    (made,) = bottom_line_of([small], [large], (10, 20, 60))
    assert made.alone[0].calls == (("api", 6.0, 0),)


def test_a_slow_machine_is_not_counted_twice_in_the_start_of_executors() -> None:
    slow, begin, per_task, worked = 2.0, 3.0, 0.1, [2.0, 1.0, 0.05]
    tasks, now = [], 0.0
    for number, cpu in enumerate(worked):
        wall = slow * (cpu + (begin if number == 0 else per_task if cpu < 0.1 else 0))
        tasks.append(Task("stage", wall, 0, number, 0, 0.0, now, cpu, "executor"))
        now += wall
    step = runs.Phase("start", now + 4, 6.0, 0.0, 0.0, None, 0, *[0] * len(vars(Counts())))
    run = runs.Run((step,), now + 4, 0, 6.0, 0.0, 0.0, (), (), {}, 0.0, (), ((0.0, 0.0), (now + 4, 6.0)))

    cluster = Recording(run, tasks, 0.2).cluster()
    assert (cluster.slow, cluster.begin, cluster.per_task) == pytest.approx((slow, begin, per_task))

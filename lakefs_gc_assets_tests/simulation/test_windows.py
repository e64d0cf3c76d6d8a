"""Runs limited to some windows, in simulated histories: by all commits and by retention rules.

The histories have runs that build on each other. Half of the runs are limited to some windows.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.checkpoint import is_limited
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation import histories, retention_histories
from lakefs_gc_assets_tests.simulation.playing import FLOWS, WINDOWS, History, Kind, Result, Step, play
from lakefs_gc_assets_tests.simulation.seeds import fresh

_ALL_COMMITS, _RULES = ((FLOWS.index(flow),) for flow in (Flow.CLEAN, Flow.UNIFIED))
_CHOICES = (1, 1, 2, 3, -1, -2, -4)
_FIXED, _FRESH = 4, 3
"""Numbers of histories that `make test-slow` plays: the same ones each time, and new ones."""


def generate(kind: Kind, seed: int) -> History:
    """The history of a seed, in which half of the runs are limited to some windows."""
    history = retention_histories.generate_chain(seed) if kind == "unified" else histories.generate_chain(seed)
    chance = random.Random(f"windows {seed}")
    size = chance.randrange(len(WINDOWS))

    def changed(step: Step) -> Step:
        if step.what != "start" or len(step.numbers) < 6:
            return step
        sweep, age, _, budget, flow, _, *days = step.numbers
        only = chance.choice(_CHOICES) if chance.random() < 0.5 else 0
        if only:
            (flow,) = _RULES if kind == "unified" else _ALL_COMMITS
        return replace(step, numbers=(sweep, age, size, budget, flow, only, *days))

    return replace(history, steps=tuple(map(changed, history.steps)))


def played(kind: Kind, seeds: Iterable[int]) -> list[Result]:
    return [play(generate(kind, seed)) for seed in seeds]


@pytest.mark.parametrize("kind", ["optimized", "unified"])
def test_no_history_breaks_a_rule(kind: Kind) -> None:
    played(kind, fresh(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["optimized", "unified"])
def test_nor_do_more_of_them_and_many_runs_leave_out_windows(kind: Kind) -> None:
    limited: list[bool] = []

    def watched(listed: Any, universe: Any) -> bool:
        limited.append(is_limited(listed, universe))
        return limited[-1]

    with mock.patch.object(checkpoint, "is_limited", watched):
        results = played(kind, (*range(_FIXED), *fresh(1, 1 + _FRESH)))
    assert sum(limited) > 9 and limited.count(False) > 12, (sum(limited), len(limited))
    assert sum(result.deleted for result in results) > 35

"""Runs limited to some windows, in simulated histories: by all commits and by retention rules.

The histories have runs that build on each other. Half of the runs are limited to some windows.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame.frames import LIVE
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.checkpoint import find_stored_live, is_limited
from lakefs_gc_assets.collector.live.current import Committed, KnownLive
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation import histories, retention_histories
from lakefs_gc_assets_tests.simulation.bug import ArrowStep
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
    taken: list[int] = []

    def compared(step: ArrowStep, committed: Committed) -> KnownLive[ArrowRows]:
        """Requires that the earlier run's addresses are the addresses of ranges that are not read."""
        found = find_stored_live(step, committed)
        if found.addresses is not None:
            ranges = committed.records.without(committed.records.ids - found.range_ids)
            references = References.from_step(step)
            read, stored = (
                step.engine.collect(rows).group_by(LIVE.names).aggregate([]).sort_by("address")
                for rows in (references.committed(ranges), found.addresses)
            )
            assert stored.equals(read)
            taken.append(len(ranges))
        return found

    def watched(listed: Any, universe: Any) -> bool:
        limited.append(is_limited(listed, universe))
        return limited[-1]

    with (
        mock.patch.object(checkpoint, "is_limited", watched),
        mock.patch.object(checkpoint, "find_stored_live", compared),
    ):
        results = played(kind, (*range(_FIXED), *fresh(1, 1 + _FRESH)))
    assert sum(limited) > 9 and limited.count(False) > 12, (sum(limited), len(limited))
    assert len(taken) > 1 and sum(taken) > 9, taken
    assert sum(result.deleted for result in results) > 35

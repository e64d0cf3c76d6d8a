"""Requirements of tests for the histories of every kind."""

from collections.abc import Iterable, Mapping

import pytest

from lakefs_gc_assets_tests.simulation.final_runs import Kind
from lakefs_gc_assets_tests.simulation.histories import LEAST_STEPS
from lakefs_gc_assets_tests.simulation.kinds import KINDS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed
from lakefs_gc_assets_tests.simulation.shortening import reported, shortened

QUICK: Mapping[Kind, int] = {"clean": 6, "optimized": 3, "retention": 4, "unified": 2, "committed": 1}
"""Number of new histories of each kind that `make test` plays. `make test-slow` plays others."""
PARTS = 8
"""Number of tests into which many histories of a kind are divided."""


def none_breaks_a_rule(kind: Kind, seeds: Iterable[int]) -> None:
    """Plays histories. Fails at the first that breaks a rule, with the steps that cause it."""
    for seed in seeds:
        history = KINDS[kind].generate(seed)
        assert len(history.steps) >= LEAST_STEPS
        try:
            play(history)
        except Violation as violation:
            again = f"{violation}\nhistory {seed}; play it again with {SEED_VARIABLE}={draw_seed()}"
            pytest.fail(f"{reported(shortened(history))}\n{again}")


def a_seed_is_a_history(kind: Kind) -> None:
    """Requires that a seed always gives the same history with the same result."""
    first, second = KINDS[kind].generate(10), KINDS[kind].generate(10)
    assert first == second
    assert play(first) == play(second)

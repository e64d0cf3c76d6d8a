"""What tests require of the histories of every kind."""

from collections.abc import Iterable, Mapping

import pytest

from lakefs_gc_assets_tests.simulation.final_runs import Kind
from lakefs_gc_assets_tests.simulation.histories import LEAST_STEPS
from lakefs_gc_assets_tests.simulation.kinds import KINDS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed
from lakefs_gc_assets_tests.simulation.shortening import reported, shortened

QUICK: Mapping[Kind, int] = {"clean": 12, "optimized": 6, "retention": 6, "unified": 4, "committed": 2}
"""How many histories `make test` plays of each kind, in half a minute of a processor; `make test-slow` others."""
PARTS = 16
"""Into so many tests the histories of a kind are divided where they are many."""


def none_breaks_a_rule(kind: Kind, seeds: Iterable[int]) -> None:
    """Plays histories; of the first that breaks a rule the steps are told that are to blame."""
    for seed in seeds:
        history = KINDS[kind].generate(seed)
        assert len(history.steps) >= LEAST_STEPS
        try:
            play(history)
        except Violation as violation:
            again = f"{violation}\nhistory {seed}; play it again with {SEED_VARIABLE}={draw_seed()}"
            pytest.fail(f"{reported(shortened(history))}\n{again}")


def a_seed_is_a_history(kind: Kind) -> None:
    """The same seed gives the same history, and the same end."""
    first, second = KINDS[kind].generate(10), KINDS[kind].generate(10)
    assert first == second
    assert play(first) == play(second)

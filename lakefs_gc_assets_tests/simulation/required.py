"""What tests require of the histories of every kind."""

import pytest

from lakefs_gc_assets_tests.simulation.histories import LEAST_STEPS
from lakefs_gc_assets_tests.simulation.kinds import KINDS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.quiet import Kind
from lakefs_gc_assets_tests.simulation.shortening import shortened, told

PARTS = 16
"""Into so many tests the histories of a kind are divided."""


def none_breaks_a_rule(kind: Kind, histories: int, part: int) -> None:
    """Plays the histories of one part; of the first that breaks a rule the steps are told that are to blame."""
    for seed in range(part, histories, PARTS):
        history = KINDS[kind].generate(seed)
        assert len(history.steps) >= LEAST_STEPS
        try:
            play(history)
        except Violation:
            pytest.fail(told(shortened(history)))


def a_seed_is_a_history(kind: Kind) -> None:
    """The same seed gives the same history, and the same end."""
    for seed in (1, 12, 123):
        first, second = KINDS[kind].generate(seed), KINDS[kind].generate(seed)
        assert first == second
        assert play(first) == play(second)

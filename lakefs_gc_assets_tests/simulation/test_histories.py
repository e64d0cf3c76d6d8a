"""Histories of every kind, others in each test run: none breaks a rule.

Marks of optimized runs and of runs by retention rules that build on each other are compared with those of runs that
list everything, see `run_oracles`. The commits that stay by retention rules are those in the world's own log of heads.
"""

from collections.abc import Iterable, Mapping

import pytest

from lakefs_gc_assets_tests.simulation.bugs import KINDS
from lakefs_gc_assets_tests.simulation.histories import LEAST_STEPS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import Kind, play, reported, shortened
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed, fresh

QUICK: Mapping[Kind, int] = {"clean": 6, "optimized": 3, "retention": 4, "unified": 2, "committed": 1}
"""Number of new histories of each kind that `make test` plays."""
HISTORIES: Mapping[Kind, int] = {"clean": 38, "optimized": 17, "retention": 26, "unified": 13, "committed": 5}
"""Number up to which `make test-slow` plays the next ones."""
PARTS = 4
"""Number of tests into which many histories of a kind are divided."""
ONCE_FAILED: Mapping[Kind, tuple[int, ...]] = {"clean": (1003735, 202811900), "unified": (803605269,)}
"""Seeds of histories that broke a rule before a fix of the code, or of the rule."""


def require_none_breaks_a_rule(kind: Kind, seeds: Iterable[int]) -> None:
    """Plays histories. Fails at the first that breaks a rule, with the steps that cause it."""
    for seed in seeds:
        history = KINDS[kind].generate(seed)
        assert len(history.steps) >= LEAST_STEPS
        assert len({step.actor for step in history.steps if step.actor.startswith("w")}) >= 3
        try:
            play(history)
        except Violation as violation:
            again = f"{violation}\nhistory {seed}; play it again with {SEED_VARIABLE}={draw_seed()}"
            pytest.fail(f"{reported(shortened(history))}\n{again}")


@pytest.mark.parametrize("kind", KINDS)
def test_no_history_breaks_a_rule(kind: Kind) -> None:
    require_none_breaks_a_rule(kind, fresh(0, QUICK[kind]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_nor_do_more_of_them(kind: Kind, part: int) -> None:
    require_none_breaks_a_rule(kind, fresh(QUICK[kind], HISTORIES[kind])[part::PARTS])


@pytest.mark.parametrize("kind", ONCE_FAILED)
def test_those_that_once_broke_a_rule_break_none(kind: Kind) -> None:
    require_none_breaks_a_rule(kind, ONCE_FAILED[kind])


def test_a_seed_gives_the_same_history_and_the_same_end() -> None:
    first, second = (KINDS["unified"].generate(10) for _ in range(2))
    assert first == second
    assert play(first) == play(second)

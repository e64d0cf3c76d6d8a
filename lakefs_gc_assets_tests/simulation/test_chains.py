"""Optimized runs in simulated histories: each mark is compared with a clean run's, see `exactness`."""

import pytest

from lakefs_gc_assets_tests.simulation.chains import LEAST_RUNS, generate
from lakefs_gc_assets_tests.simulation.histories import LEAST_STEPS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.shortening import shortened, told

HISTORIES = 1000
PARTS = 16


@pytest.mark.parametrize("part", range(PARTS))
def test_optimized_runs_mark_what_clean_ones_would(part: int) -> None:
    for seed in range(part, HISTORIES, PARTS):
        history = generate(seed)
        assert len(history.steps) >= LEAST_STEPS
        try:
            play(history)
        except Violation:
            pytest.fail(told(shortened(history)))


def test_a_seed_gives_the_same_history_and_the_same_end() -> None:
    for seed in (1, 12, 123):
        first, second = generate(seed), generate(seed)
        assert first == second
        assert play(first) == play(second)


def test_runs_are_asked_for_one_after_the_other() -> None:
    for seed in range(100):
        starts = [step for step in generate(seed).steps if step.what == "start"]
        assert len(starts) >= LEAST_RUNS


def test_much_happens() -> None:
    """Histories in which no run builds on another, or on one that built on another, would show nothing."""
    results = [play(generate(seed)) for seed in range(100)]
    figures = [result.figures for result in results]
    assert sum(result.compared for result in results) > 300
    assert sum(each.longest_chain >= 3 for each in figures) > 40
    assert sum(each.instead for each in figures) > 100
    assert sum(each.kills for each in figures) > 5
    assert sum(result.deleted for result in results) > 1000
    assert sum(result.live for result in results) > 2000
